"""The files of a report: what a name asks for, and how it is written so that nothing is lost.

Imported before torch is: a name that cannot be written is an error before the program runs.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

DEFAULT = "fastloop-report.html"
_KINDS = {".trace.json": "trace", ".trace.json.gz": "trace", ".html": "html", ".json": "json"}


def _ending(path: Path) -> str:
    return next((ending for ending in _KINDS if path.name.endswith(ending)), "")


def kind_of(path: Path) -> str:
    """ "html", "json" or "trace"."""
    return _KINDS[_ending(path)]


def find_rank() -> int:
    """0 without ranks. RANK is the program's: it may be anything."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def is_first_rank() -> bool:
    return find_rank() == 0


def _of_rank(path: Path) -> Path:
    """Ranks other than the first have files of their own."""
    if is_first_rank():
        return path
    ending = _ending(path)
    stem = path.name.removesuffix(ending)
    return path.with_name(f"{stem}.rank{find_rank()}{ending}")


def find_files(names: Iterable[str | os.PathLike[str]], of_rank: bool = True) -> list[Path]:
    """The files of these names, absolute. A page brings its numbers: ``run.html`` is
    ``run.json``, too, unless another JSON file is named.

    Args:
        of_rank: as this rank writes them.

    Raises:
        ValueError: a name has none of the endings.
        OSError: its folder is not there, or may not be written in.
    """
    paths = [Path(name).absolute() for name in names]
    for path in paths:
        if not _ending(path):
            raise ValueError(
                f"{path.name!r} is no name for a report; it ends in .html, .json, .trace.json or "
                ".trace.json.gz"
            )
        if not path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(path.parent)!r}; make it first")
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError(f"{str(path)!r} may not be written; name another file")
    if not any(kind_of(path) == "json" for path in paths):
        paths += [path.with_suffix(".json") for path in paths if kind_of(path) == "html"][:1]
    return [_of_rank(path) if of_rank else path for path in paths]


def write(path: Path, text: str) -> None:
    """As a whole or not at all."""
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_somewhere(path: Path, text: str) -> Path | None:
    """Where it is, if need be in the folder for temporary files; None: nowhere. stderr is told."""
    try:
        write(path, text)
        return path
    except OSError as error:
        failed = f"fastloop: {str(path)!r} could not be written ({error})"
    try:
        other = Path(tempfile.mkdtemp(prefix="fastloop-report-")) / path.name
        write(other, text)
    except OSError as error:
        say(f"{failed}, nor could one for temporary files ({error})")
        return None
    say(f"{failed}; the report is {str(other)!r}")
    return other


def say(text: str) -> None:
    """On stderr, if that takes it: it may be closed, or a full disk."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def to_json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
