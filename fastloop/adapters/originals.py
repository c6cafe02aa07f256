"""The code of other libraries that fastloop stands in for: originals.txt lists its functions, and
this module finds out whether they are the functions that fastloop knows.

Each question returns why fastloop must not stand in for an original, or "".
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastloop.base.checks import look_up
from fastloop.compat import torch_parts, verdicts
from fastloop.compat.statements import Coverage, identify, read_form
from fastloop.compat.verdicts import Verdict

_PACKAGE = __file__.rpartition("adapters")[0]
_RELEASES = {"PIL": "Pillow"}  # names of releases that are not the package's
_OTHERS = "numpy", "PIL", "tokenizers"  # packages on which results may depend, beside the originals


class Entry(NamedTuple):
    """A function of another library.

    Attributes:
        module, name: where the function is.
        users: the plans that need the function: "v2" stands for all operations of v2, and "Pad"
            for v1.Pad and v2.Pad.
        forms: of the function in the releases that fastloop knows (compat/statements.py).
    """

    module: str
    name: str
    users: frozenset[str]
    forms: tuple[str, ...]


@functools.cache
def _read_table() -> dict[str, list[Entry]]:
    """Return the functions that each group of originals.txt names."""
    table: dict[str, list[Entry]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("["):
            group = table[line[1:-1]] = []
        elif not line.startswith("#"):
            if line and not line.startswith(" "):
                module, _, line = line.partition(":")
            for name, _, rest in (each.partition("=") for each in line.split()):
                users, _, forms = rest.partition("=")
                group.append(
                    Entry(module, name, frozenset(users.split(",")), tuple(forms.split(",")))
                )
    return table


def entries_of(groups: Iterable[str]) -> Iterator[Entry]:
    return (entry for group in groups for entry in _read_table()[group])


def _words_of(plans: Iterable[str]) -> set[str]:
    return {word for plan in plans for word in (plan, *plan.split("."))}


@functools.cache
def _needed_by(plans: frozenset[str]) -> tuple[Entry, ...]:
    words = _words_of(plans)
    groups = (group for group in _read_table() if not group.startswith("called"))
    return tuple(entry for entry in entries_of(groups) if entry.users & words)


def function_of(path: str) -> Any:
    """Return the function of this path now, without what patch() has put around it."""
    function = torch_parts.resolve(path)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return function.__wrapped__ if file.startswith(_PACKAGE) else function


def _version_of(name: str) -> str:
    version = look_up(sys.modules.get(name), "__version__")
    return f"{_RELEASES.get(name, name)} {version}"


def find_unknown(*plans: str) -> str:
    """Return the releases that fastloop does not know as text, or "".

    The functions that the plans need are compared with the functions of the releases that fastloop
    knows.

    Args:
        plans: operations ("v1.Pad"), datasets and collators, as originals.txt names them.
    """
    return judge(plans).why


class Battery(NamedTuple):
    """Samples that a library and fastloop both make.

    Attributes:
        what: is made: "collators".
        key: differs from battery to battery, with the settings that results depend on.
        find_difference: makes the samples, and returns in which case results differ, or "". Its
            argument says whether the library's code is not known: more samples are then made.
        is_for_all: known code needs the battery as well.
        holds: conditions in the library's code that are always true, or always false, for the
            samples that fastloop makes.
    """

    what: str
    key: str
    find_difference: Callable[[bool], str]
    is_for_all: bool = False
    holds: Mapping[str, bool] = {}


def judge(plans: Iterable[str], battery: Battery | None = None) -> Verdict:
    """Tell whether fastloop may stand in for the functions that plans need. If the functions are
    not of a release that fastloop knows, the battery decides, once for this machine.

    No code of the program's runs: a function that is not of the library's files is unknown.
    """
    needed = _needed_by(frozenset(plans))
    names = list(dict.fromkeys(entry.module.partition(".")[0] for entry in needed))
    versions = " with ".join(map(_version_of, names))
    left = Verdict(f"fastloop does not know {versions}")
    try:
        functions = [function_of(f"{entry.module}:{entry.name}") for entry in needed]
        folders = tuple(path + os.sep for name in names for path in sys.modules[name].__path__)
        is_theirs = all(each.__code__.co_filename.startswith(folders) for each in functions)
    except (AttributeError, ImportError, KeyError):
        return left
    forms: dict[Any, Any] = {}  # None: known
    with verdicts.kept_forms():
        for each, entry in zip(functions, needed, strict=True):
            forms[each.__code__] = None if read_form(each) in entry.forms else entry.forms
    changed = any(forms.values())
    if is_theirs and not changed and not (battery and battery.is_for_all):
        return Verdict("")
    if not is_theirs or battery is None:
        return left
    parts = [(entry.module, entry.name, entry.forms) for entry in needed], left
    others = list(map(_version_of, _OTHERS)), list(map(identify, functions))
    key = verdicts.make_key(parts, others, battery.what, battery.key)
    if (verdict := verdicts.find(key)) is not None:
        return verdict
    coverage = Coverage(forms, battery.holds, folders)
    try:
        with coverage if changed else nullcontext():
            why = battery.find_difference(changed)
        why = why or coverage.find_missing()
    except Exception as error:
        return Verdict(f"{left.why}: {type(error).__name__}: {error}")
    about = f"{battery.what}: {versions}" if changed else ""
    verdict = Verdict(f"{left.why}: {why}" if why and changed else why, about)
    verdicts.keep(key, verdict)
    return verdict


@functools.cache
def methods_of(*groups: str, plans: frozenset[str] | None = None) -> torch_parts.Methods:
    """Return the functions that groups of originals.txt name. They are noted at the first call. A
    class that this release does not have is left out: ``find_unknown`` says so.

    Args:
        plans: leave out the functions that none of these plans needs. None: all functions.
    """
    found: list[tuple[Any, str]] = []
    words = {"", *_words_of(plans or ())}
    for entry in entries_of(groups):
        if plans is not None and not entry.users & words:
            continue
        owner = sys.modules.get(entry.module)  # None: nothing can call the function
        *path, last = entry.name.split(".")
        if (holder := functools.reduce(look_up, path, owner)) is not None:
            found.append((holder, last))
    return torch_parts.Methods(*found)


def find_obstacle() -> str:
    """Return why an original may make something else in this process now than fastloop, or ""."""
    if torch.get_default_dtype() is not torch.float32:
        return "the default dtype is not float32"
    if torch_parts.count_function_modes() or torch_parts.count_dispatch_modes():
        return "a mode watches torch's functions"
    if torch_parts.has_global_hooks():
        return "a hook watches all modules"
    helpers = sys.modules.get("torchvision.tv_tensors._torch_function_helpers")
    if getattr(helpers, "_TORCHFUNCTION_SUBCLASS", False):
        return "set_return_type() is in force"
    return ""
