"""The code of other libraries that fastloop stands in for: originals.txt lists its functions, and
this module finds out whether they are the functions that fastloop knows.

Each question returns why fastloop must not stand in for an original, or "".
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from hashlib import sha1
from pathlib import Path
from typing import Any

import torch

from fastloop.base.checks import look_up
from fastloop.compat import torch_parts

_PACKAGE = __file__.rpartition("adapters")[0]


@functools.cache
def _read_table() -> ConfigParser:
    table = ConfigParser()
    table.optionxform = str  # type: ignore[method-assign,assignment]  # names of modules keep their case
    table.read(Path(__file__).with_suffix(".txt"))
    return table


def _functions_of(group: str) -> Iterator[Any]:
    """Yield the functions that a group names now, without what patch() has put around them."""
    for module, names in _read_table()[group].items():
        for name in names.split() if module != "known" else ():
            function = torch_parts.resolve(f"{module}:{name}")
            file = getattr(getattr(function, "__code__", None), "co_filename", "")
            yield function.__wrapped__ if file.startswith(_PACKAGE) else function


@functools.cache
def _digest(functions: tuple[Any, ...]) -> str:
    """Return one digest of the syntax of functions. Takes some 50 ms for the functions of a
    group."""
    plain = (each for each in functions if not hasattr(each, "__wrapped__"))
    digests = " ".join(map(torch_parts.read_digest, plain))
    return sha1(digests.encode(), usedforsecurity=False).hexdigest()[:8]


def find_unknown(group: str) -> str:
    """Return the releases that fastloop does not know as text, or "".

    The functions of a group in originals.txt are compared with the functions of the releases that
    fastloop knows.
    """
    known = _read_table()[group]
    try:
        if _digest(tuple(_functions_of(group))) in known["known"].split():
            return ""
    except (AttributeError, ImportError):
        pass
    names = dict.fromkeys(module.partition(".")[0] for module in known if module != "known")
    versions = (f"{name} {look_up(sys.modules.get(name), '__version__')}" for name in names)
    return f"fastloop does not know {' with '.join(versions)}"


@functools.cache
def methods_of(*groups: str) -> torch_parts.Methods:
    """Return the functions that groups of originals.txt name. They are noted at the first call. A
    class that this release does not have is left out: ``find_unknown`` says so."""
    found: list[tuple[Any, str]] = []
    for module, names in (item for group in groups for item in _read_table()[group].items()):
        owner = sys.modules.get(module)  # None: nothing can call the function
        for name in names.split() if owner is not None else ():
            *path, last = name.split(".")
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
