"""How fastloop is sure that C makes what another library's code makes: that code is one that it
knows, and C's results are compared with those of the original.

originals.txt lists the functions that C stands in for. A ``Trial`` is the account of one plan of C
in one process: which samples are made both ways, and whether they have differed. Whoever makes
samples by C of torchvision or Hugging Face asks here. Any thread may.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from configparser import ConfigParser
from hashlib import sha1
from pathlib import Path
from typing import Any

import torch

from fastloop.base.checks import look_up
from fastloop.compat import torch_parts
from fastloop.compat.requirements import read_check_interval

_PACKAGE = __file__.rpartition("compat")[0]
DECODERS = "fastloop-images"  # how names of threads begin that decode images
_QUIET = DECODERS, "tqdm_monitor"  # threads that draw no random numbers
# C does not take these samples: the original's turn. Nothing has been drawn.
_REFUSALS = BufferError, RuntimeError, TypeError, ValueError


# ---- the code of the original


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


# Digests of functions, by the place of their source and their bytecode. A spawned worker begins
# with those of its parent, because to compute them takes longer than a short epoch.
digests_of: dict[Any, str] = {}
before_workers: list[Callable[[], object]] = []  # called before a worker process starts


def _syntax_digest(function: Any) -> str:
    code = getattr(function, "__code__", None)
    key = code and (code.co_filename, code.co_firstlineno, code.co_code)
    if key not in digests_of:
        digests_of[key] = torch_parts.syntax_digest(function)
    return digests_of[key]


@functools.cache
def _digest(functions: tuple[Any, ...]) -> str:
    """Return one digest of the syntax of functions. Takes some 50 ms for those of a group."""
    digests = [_syntax_digest(f) for f in functions if not hasattr(f, "__wrapped__")]
    return sha1(" ".join(digests).encode(), usedforsecurity=False).hexdigest()[:8]


def is_code_known(group: str) -> bool:
    """Tell whether the functions of a group in originals.txt are now those of a release that
    fastloop knows."""
    try:
        functions = tuple(_functions_of(group))
    except (AttributeError, ImportError):
        return False
    return _digest(functions) in _read_table()[group]["known"].split()


@functools.cache
def methods_of(*groups: str) -> torch_parts.Methods:
    """Return the functions that groups of originals.txt name. They are noted at the first call. A
    class that this release does not have is left out: ``is_code_known`` tells of it."""
    found: list[tuple[Any, str]] = []
    for module, names in (item for group in groups for item in _read_table()[group].items()):
        owner = sys.modules.get(module)  # None: nothing can call it
        for name in names.split() if owner is not None else ():
            *path, last = name.split(".")
            if (holder := functools.reduce(look_up, path, owner)) is not None:
                found.append((holder, last))
    return torch_parts.Methods(*found)


def why_not_now() -> str:
    """Return why an original may make something else in this process now than C does, or ""."""
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


# ---- samples that are made both ways

_thread = threading.local()  # .is_left: the original's functions are called for a comparison


def is_left_alone() -> bool:
    """Tell whether this thread runs an original to compare with: what is patched must not help."""
    return getattr(_thread, "is_left", False)


def is_alone() -> bool:
    """Tell whether no thread but this one may draw random numbers."""
    return sum(not thread.name.startswith(_QUIET) for thread in threading.enumerate()) == 1


def same_bits(a: Any, b: Any) -> bool:
    """Tell whether two results have the same structure, classes, dtypes, shapes, strides and
    bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        is_like = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return is_like and torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, Mapping):
        a, b = list(a.items()), list(b.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    return bool(a == b)


class Trial:
    """Compares what C makes by one plan with what the original makes: the first samples, and with
    FASTLOOP_CHECK=n one of n.

    Args:
        what: is made, for warnings; `whose` are the original's: "torchvision's".
        unchecked: how many comparisons come first.

    Attributes:
        unchecked: how many of them are still to come.
        is_left: results have differed, so the original makes them for good.
        every: n of FASTLOOP_CHECK.
    """

    is_left = False
    _count = 0  # of samples

    def __init__(self, what: str, whose: str, unchecked: int) -> None:
        self.what, self.whose, self.unchecked = what, whose, unchecked
        self.every = read_check_interval()

    def is_due(self, count: int = 1) -> bool:
        """Count samples that are about to be made. Tell whether to make them both ways."""
        before, self._count = self._count, self._count + count
        if self.unchecked > 0 or self.every == 0:
            return self.unchecked > 0
        return self._count // self.every > before // self.every

    def compare(self, original: Callable[[], Any], by_c: Callable[[torch.Generator], Any]) -> Any:
        """Return what the original makes. Compare it, and the state in which it leaves torch's
        default generator, with what C makes of a generator in the same state."""
        generator, private = torch.default_generator, torch.Generator()
        private.set_state(generator.get_state())
        _thread.is_left = True
        try:
            expected = original()
        finally:
            _thread.is_left = False
        try:
            is_same = same_bits(expected, by_c(private))
        except _REFUSALS:
            return expected
        is_same_state = torch.equal(generator.get_state(), private.get_state())
        if is_same and is_same_state:
            self.unchecked = max(self.unchecked - 1, 0)
        elif is_same_state or is_alone():  # no other thread has drawn meanwhile
            self.is_left, self.unchecked = True, 0
            text = f"C's {self.what} differ from {self.whose}, which are used from now on. Please "
            text += "report this with the output of `python -m fastloop doctor`"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        return expected

    def run(self, original: Callable[[], Any], by_c: Callable[[torch.Generator], Any]) -> Any:
        """Return a sample by C, or by the original where it is due, left or refused by C."""
        if self.is_left:
            return original()
        if self.is_due():
            return self.compare(original, by_c)
        try:
            return by_c(torch.default_generator)
        except _REFUSALS:
            return original()


@functools.cache
def trial_of(key: str, *arguments: Any) -> Trial:
    """Return the trial of the plan that a key names in this process; `arguments` are Trial's."""
    return Trial(*arguments)
