"""Verdicts on the code of other libraries, and the forms of its functions, kept for later processes
in files of this user.

A file that is damaged, or that a different user owns or may write, is ignored, as are all errors of
the disk. FASTLOOP_CACHE=0 keeps nothing. Any thread may ask.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import torch

from fastloop._core import build_info
from fastloop.compat.torch_parts import forms_of

_MOST = 1 << 18  # bytes of a file
_PACKAGE = os.path.dirname(os.path.dirname(__file__))

_read: dict[str, Verdict] = {}


class Verdict(NamedTuple):
    """An answer: whether fastloop may stand in for another library's code.

    Attributes:
        why: why not, or "".
        about: the code, if it was not known when fastloop was built: "collators: transformers 6.0".
    """

    why: str
    about: str = ""

    def __str__(self) -> str:
        what, _, versions = self.about.partition(": ")
        proven = f"proven for {versions} (not known when fastloop was built)"
        return f"{what}: {self.why or proven}"

    def is_of_installed(self) -> bool:
        """Tell whether there is such code, and it is of the releases that are installed."""
        pairs = (text.split(" ") for text in self.about.partition(": ")[2].split(" with "))
        try:
            return bool(self.about) and all(version(name) == number for name, number in pairs)
        except PackageNotFoundError:
            return False


@functools.cache
def _machine() -> str:
    """Return what results may depend on, beside the libraries."""
    folders = (os.path.join(_PACKAGE, name) for name in ("", "adapters", "compat"))
    files = [each.stat() for folder in folders for each in os.scandir(folder) if each.is_file()]
    try:
        with open("/proc/cpuinfo") as file:
            vendor = next((line for line in file if line.startswith(("vendor", "CPU imp"))), "")
    except OSError:
        vendor = ""
    cpu = vendor, torch.backends.cpu.get_cpu_capability(), os.environ.get("ATEN_CPU_CAPABILITY")
    own = build_info(), sorted((file.st_size, file.st_mtime_ns) for file in files)
    return repr((own, sys.version, torch.__version__, cpu))


def make_key(*parts: object) -> str:
    """Return the key of a verdict on this machine."""
    return sha256(repr((parts, _machine())).encode()).hexdigest()[:32]


def _folder() -> str:
    if os.environ.get("FASTLOOP_CACHE") == "0":
        raise OSError("the disk is off")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "fastloop", "verdicts")


def _load(key: str) -> list[str]:
    """Return the lines of a file, none if there is no such file or it is not to be trusted."""
    try:
        with open(os.path.join(_folder(), key), "rb") as file:
            status = os.fstat(file.fileno())
            is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            digest, *lines = file.read(_MOST).decode().split("\n") if is_own else ("",)
    except (OSError, ValueError):
        return []
    return lines if digest == make_key(key, lines) else []


def _save(key: str, lines: list[str]) -> None:
    with suppress(OSError):
        os.makedirs(_folder(), 0o700, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_folder(), delete=False) as file:
            file.write("\n".join((make_key(key, lines), *lines)))
        os.replace(file.name, os.path.join(_folder(), key))


def find(key: str) -> Verdict | None:
    """Return the verdict with this key, or None."""
    if key not in _read and len(lines := _load(key)) == 2:
        _read[key] = Verdict(*lines)
    return _read.get(key)


def keep(key: str, verdict: Verdict) -> None:
    """Keep a verdict, for this process and for later ones."""
    _read[key] = Verdict(*(text.replace("\n", " ") for text in verdict))
    _save(key, [*_read[key]])


@functools.cache
def _load_forms() -> None:
    for line in _load(make_key("forms")):
        key, _, forms_of[key] = line.partition(" ")


@contextmanager
def kept_forms() -> Iterator[None]:
    """Know the forms that earlier processes have computed, and keep those that are computed between
    ``with`` and its end."""
    _load_forms()
    before = len(forms_of)
    yield
    if len(forms_of) > before:
        _save(make_key("forms"), [" ".join(pair) for pair in forms_of.items()])


def in_force() -> list[str]:
    """Return this process's verdicts on code that was not known, as text."""
    return sorted({str(verdict) for verdict in _read.values() if verdict.about})


def describe_kept() -> dict[str, str]:
    """Return the verdicts of the disk on code that is installed here and was not known, by what is
    made."""
    found: dict[str, dict[str, None]] = {}
    with suppress(OSError):
        for lines in map(_load, sorted(os.listdir(_folder()))):
            verdict = Verdict(*lines) if len(lines) == 2 else Verdict("")
            if verdict.is_of_installed():
                what, _, text = str(verdict).partition(": ")
                found.setdefault(what, {})[text] = None
    return {what: "; ".join(texts) for what, texts in found.items()}
