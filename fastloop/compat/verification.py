"""Verification: results of fastloop beside the results of the original code.

Adapters ask here before they use what fastloop makes. Any thread may.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from fastloop.compat.requirements import read_check_interval

DECODERS = "fastloop-images"  # how names of threads begin that decode images
# Of unknown code, one of so many batches or single samples is compared, if so many times as long as
# the last comparison took has passed since then.
EVERY, _REST = 64, 50
_QUIET = DECODERS, "tqdm_monitor"  # threads that draw no random numbers
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integers as long as a float, in bytes
# fastloop does not take these samples, so the original makes them. Nothing has been drawn.
_REFUSALS = BufferError, RuntimeError, TypeError, ValueError

_thread = threading.local()  # .runs_original: an original is called for a comparison


def runs_original() -> bool:
    """Tell whether this thread runs an original to compare with: what is patched must not help."""
    return getattr(_thread, "runs_original", False)


@contextmanager
def running_original() -> Iterator[None]:
    """Run originals in this thread between ``with`` and its end."""
    before, _thread.runs_original = runs_original(), True
    try:
        yield
    finally:
        _thread.runs_original = before


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
        if is_like and (a.is_floating_point() or a.is_complex()):
            a, b = (t.reshape(-1).view(_BITS.get(t.itemsize, torch.uint8)) for t in (a, b))
        return is_like and torch.equal(a, b)
    if isinstance(a, Mapping):
        a, b = list(a.items()), list(b.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    return bool(a == b)


class Verification:
    """Compares what fastloop makes by one plan with what the original makes: the first samples, and
    with FASTLOOP_CHECK=n one of n. Of code that fastloop does not know one of 64 is compared, if
    comparisons take little of the time.

    Args:
        what: is made, for warnings; `whose` names the original's: "torchvision's".
        unchecked: how many comparisons come first.
        is_known: fastloop knows the original's code.

    Attributes:
        unchecked: how many are still to come.
        falls_back: results have differed, so the original makes them for good.
        every: n of FASTLOOP_CHECK.
    """

    falls_back = False
    _count = 0  # of samples with FASTLOOP_CHECK, else of batches
    _ended = _took = 0.0  # of the last comparison: when it ended, and how long it took

    def __init__(self, what: str, whose: str, unchecked: int, is_known: bool = True) -> None:
        self.what, self.whose, self.unchecked = what, whose, unchecked
        self.every, self.is_known = read_check_interval(), is_known

    def is_due(self, samples: int = 1, batches: int = 1) -> bool:
        """Count samples that are about to be made. Tell whether to make them both ways."""
        every, step = (self.every, samples) if self.every or self.is_known else (EVERY, batches)
        before, self._count = self._count, self._count + step
        if self.unchecked > 0 or every == 0:
            return self.unchecked > 0
        is_due = self._count // every > before // every
        return is_due and (self.every > 0 or perf_counter() - self._ended > _REST * self._took)

    def compare(self, original: Callable[[], Any], native: Callable[[torch.Generator], Any]) -> Any:
        """Return the original's result. Compare the result, and the state of torch's default
        generator after it, with what fastloop makes of a generator in the same state."""
        begin = perf_counter()
        try:
            return self._compare(original, native)
        finally:
            self._ended = perf_counter()
            self._took = self._ended - begin

    def _compare(
        self, original: Callable[[], Any], native: Callable[[torch.Generator], Any]
    ) -> Any:
        generator, private = torch.default_generator, torch.Generator()
        private.set_state(generator.get_state())
        with running_original():
            expected = original()
        try:
            is_same = same_bits(expected, native(private))
        except _REFUSALS:
            return expected
        is_same_state = torch.equal(generator.get_state(), private.get_state())
        if is_same and is_same_state:
            self.unchecked = max(self.unchecked - 1, 0)
        elif is_same_state or is_alone():  # no other thread has drawn meanwhile
            self.falls_back, self.unchecked = True, 0
            text = f"fastloop's {self.what} differ from {self.whose}, which are used from now on. "
            text += "Please report this with the output of `python -m fastloop doctor`"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return expected

    def run(self, original: Callable[[], Any], native: Callable[[torch.Generator], Any]) -> Any:
        """Return a sample that fastloop makes. The original makes it if a comparison is due or has
        failed, or if fastloop refuses the sample."""
        if self.falls_back:
            return original()
        if self.is_due():
            return self.compare(original, native)
        try:
            return native(torch.default_generator)
        except _REFUSALS:
            return original()


@functools.cache
def verification_of(key: str, *arguments: Any) -> Verification:
    """Return the verification of the plan that a key names in this process.

    Args:
        arguments: of the class.
    """
    return Verification(*arguments)
