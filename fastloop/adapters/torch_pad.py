"""torch's ``pad_sequence()`` for lists of plain tensors in host memory. Collate functions of
programs call the function.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from functools import partial
from itertools import cycle, product
from typing import Any

import torch

from fastloop.adapters.originals import Battery, judge
from fastloop.compat.tensors import DTYPES
from fastloop.compat.torch_parts import count_dispatch_modes, count_function_modes, is_tracing
from fastloop.compat.verdicts import Verdict
from fastloop.compat.verification import running_original, runs_original, same_bits, verification_of
from fastloop.data.collate import fetch, make_collate
from fastloop.data.columns import leave_if

# The battery has these dtypes, and fastloop serves no others.
_DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
_DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64]
_VALUES = 0, 1.0, -100, 0.1, -0.0, -1, float("nan"), 70_000, 3, float("-inf"), 1e9
_STEPS = (), (4,), (2, 1, 3), (33,), (1, 1)  # shapes
_LENGTHS = [[3], [4, 1, 6], [0, 2, 2, 0], list(range(1, 14))]
_HOLDS = {"torch.jit.is_tracing() or torch.jit.is_scripting()": False}
_HOLDS["isinstance(sequences, Iterable)"] = True
_LEFT = "pad_sequence() of other values than plain tensors of one dtype in host memory"


@functools.cache
def _core() -> Any:
    return make_collate()


@functools.lru_cache(256)
def _find_element(value: bytes, number: int) -> bytes:
    """Return the bytes that torch makes of a double, in the dtype with this number. Raises
    NotCoveredError, and torch's errors."""
    leave_if(DTYPES[number] not in _DTYPES, "the battery does not have the dtype")
    # Two: torch does not check the value that fills one element.
    elements = torch.full((2,), *struct.unpack("d", value), dtype=DTYPES[number])
    return bytes(elements[1:].view(torch.uint8).tolist())


def _make(
    sequences: Any, batch_first: Any = False, padding_value: Any = 0.0, padding_side: Any = "right"
) -> Any:
    """Return the batch. Raises NotCoveredError and other errors."""
    is_odd = type(batch_first) is not bool or type(padding_value) not in (int, float)
    is_odd = is_odd or type(padding_side) is not str or padding_side not in ("left", "right")
    leave_if(is_odd, _LEFT)
    fill = partial(_find_element, struct.pack("d", padding_value))
    made = _core().pad_sequence(sequences, fill, batch_first, padding_side == "left")
    leave_if(made is NotImplemented, _LEFT)
    return made


def _call(make: Callable[..., Any], *given: Any) -> Any:
    """Return the batch, or None if the dtype does not have the value of the padding."""
    try:
        return make(*given)
    except RuntimeError:
        return None


def _find_difference(is_unknown: bool) -> str:
    """Return the dtype of a batch that torch makes in another way, or ""."""
    numbers, values = torch.Generator().manual_seed(7), cycle(_VALUES)
    with running_original():
        for dtype, lengths, steps in product(_DTYPES, _LENGTHS, _STEPS):
            shapes = ((length, *steps) for length in lengths)
            made = [torch.randint(0, 100, shape, generator=numbers).to(dtype) for shape in shapes]
            for is_first, side in product((True, False), ("left", "right")):
                given = made, is_first, next(values), side
                pairs = (_call(make, *given) for make in (torch.nn.utils.rnn.pad_sequence, _make))
                if not same_bits(*pairs):
                    return f"a batch of {dtype} differs"
    return ""


@functools.cache
def find_unknown() -> Verdict:
    """Tell whether fastloop knows torch's function."""
    battery = Battery("sequences", "sequences", _find_difference, is_for_all=True, holds=_HOLDS)
    return judge(["PadSequence"], battery)


prepare = find_unknown


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    def pad_sequence(*args: Any, **named: Any) -> Any:
        is_off = torch.compiler.is_compiling() or not (seam.is_on or fetch.is_served)
        # Modes are torch's, and the battery runs without a mode.
        is_off = is_off or count_function_modes() or count_dispatch_modes()
        if is_off or runs_original() or is_tracing():
            return before(*args, **named)
        verdict = find_unknown()
        verification = verification_of("sequences", "sequences", "torch's", 1, not verdict.about)
        why = verdict.why or "a batch has differed" * verification.falls_back
        try:
            made = None if why else _make(*args, **named)
        except Exception:  # torch raises its own error, if there is one
            why = _LEFT
        if why:
            return seam.call_left(why, before, *args, **named)
        if verification.is_due():
            return verification.compare(partial(before, *args, **named), lambda _: made)
        seam.native += 1
        return made

    # TorchScript compiles torch's function in place of this one.
    vars(pad_sequence)["__prepare_scriptable__"] = lambda: before
    return pad_sequence
