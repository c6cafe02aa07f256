"""The code of other libraries that fastloop stands in for: originals.txt lists its functions, and
this module finds out whether they are the functions that fastloop knows.

Each question returns why fastloop must not stand in for an original, or "".
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastloop.base.checks import look_up
from fastloop.compat import torch_parts
from fastloop.compat.statements import read_form

_PACKAGE = __file__.rpartition("adapters")[0]


@functools.cache
def _read_table() -> ConfigParser:
    table = ConfigParser()
    table.optionxform = str  # type: ignore[method-assign,assignment]  # names of modules keep their case
    table.read(Path(__file__).with_suffix(".txt"))
    return table


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


def entries_of(groups: Iterable[str]) -> Iterator[Entry]:
    """Yield the functions that groups of originals.txt name."""
    for module, text in (item for group in groups for item in _read_table()[group].items()):
        for name, _, rest in (each.partition("=") for each in text.split()):
            users, _, forms = rest.partition("=")
            yield Entry(module, name, frozenset(users.split(",")), tuple(forms.split(",")))


@functools.cache
def _needed_by(plans: frozenset[str]) -> tuple[Entry, ...]:
    words = {word for plan in plans for word in (plan, *plan.split("."))}
    groups = (group for group in _read_table().sections() if not group.startswith("called"))
    return tuple(entry for entry in entries_of(groups) if entry.users & words)


def function_of(path: str) -> Any:
    """Return the function of this path now, without what patch() has put around it."""
    function = torch_parts.resolve(path)
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return function.__wrapped__ if file.startswith(_PACKAGE) else function


def _is_known(entry: Entry) -> bool:
    try:
        function = function_of(f"{entry.module}:{entry.name}")
        return not hasattr(function, "__wrapped__") and read_form(function) in entry.forms
    except (AttributeError, ImportError):
        return False


def find_unknown(*plans: str) -> str:
    """Return the releases that fastloop does not know as text, or "".

    The functions that the plans need are compared with the functions of the releases that fastloop
    knows.

    Args:
        plans: operations ("v1.Pad"), datasets and collators, as originals.txt names them.
    """
    needed = _needed_by(frozenset(plans))
    if all(map(_is_known, needed)):
        return ""
    names = dict.fromkeys(entry.module.partition(".")[0] for entry in needed)
    versions = (f"{name} {look_up(sys.modules.get(name), '__version__')}" for name in names)
    return f"fastloop does not know {' with '.join(versions)}"


@functools.cache
def methods_of(*groups: str) -> torch_parts.Methods:
    """Return the functions that groups of originals.txt name. They are noted at the first call. A
    class that this release does not have is left out: ``find_unknown`` says so."""
    found: list[tuple[Any, str]] = []
    for entry in entries_of(groups):
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
