"""Plans for images of different sizes, and of chains that hold functions of Python.

Such a chain is cut around the functions. C does the operations before, between and behind them,
with one plan for each run of them. A function gets the image as torchvision would leave it, a
tensor [C, H, W]. Random parameters of C's operations are those of the chain without functions; a
function draws from the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fastloop.base.checks import check_type, look_up
from fastloop.data.transforms.plan import Geometry, Plan, Values, compile_plan, explain_ops

_MAX_PLANS = 64  # that are kept for sizes of images
_TRIAL = (512, 512, 3)  # an image that any chain takes, if sizes of results differ

Call = Callable[[Any], Any]


class Piece(NamedTuple):
    """A run of operations, or one function.

    Attributes:
        ops: what C does; empty for a function.
        calls: the function; or what Python calls in place of ``ops`` for an image of floats, if
            functions stand before them.
    """

    ops: tuple[Geometry | Values, ...]
    calls: tuple[Call, ...]


def join_pieces(parts: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return a chain's parts, of which neighbours that C does are one piece."""
    pieces: list[Piece] = []
    for part in parts:
        before = pieces[-1] if pieces else part
        if pieces and before.ops and part.ops:
            pieces[-1] = Piece(before.ops + part.ops, before.calls + part.calls)
        else:
            pieces.append(part)
    return tuple(pieces)


def name_of(call: Call) -> str:
    return str(look_up(call, "__qualname__", type(call).__name__))


def lay_out(image: Any, layout: str, name: str) -> Any:
    """Return the result [C, H, W] of a function in another layout."""
    if layout == "CHW":
        return image
    is_right = isinstance(image, torch.Tensor) and image.ndim == 3
    rule = "'CHW' if results are not tensors [C, H, W]"
    check_type(f"{name}: out_layout", layout, is_right, rule)
    image = image.permute(1, 2, 0)
    return image if layout == "HWC" else image.contiguous().permute(2, 0, 1)


class CutPlan:
    """The plans of a chain, with the methods of a ``Plan``.

    Args:
        ops: the pieces of the chain: one without functions, or what it is cut into.
        shape: of images; with 0 as height, each has its own size.
        layout, out_layout: of images and of results.
        seed: of random parameters.

    Attributes:
        whole: one plan for all images, if there are no functions and results have one size.

    Raises:
        TypeError, ValueError: operations before the first function do not go with the images.
    """

    def __init__(
        self, ops: tuple[Piece, ...], shape: Sequence[int], layout: str, out_layout: str, seed: int
    ) -> None:
        self.ops, self.out_layout, self._layout, self._seed = ops, out_layout, layout, seed
        self._shape = shape
        self.parts: tuple[Any, ...] = sum((piece.ops or piece.calls for piece in ops), ())
        self.is_random = any(op.is_random for piece in ops for op in piece.ops)
        self.last: Plan | None = None  # has made the last result
        self._functions = {i: p.calls[0] for i, p in enumerate(ops) if p.calls and not p.ops}
        self._spent = {place: [0, 0.0] for place in self._functions}  # calls and seconds
        self._latest: list[Any] = [(None, None)] * len(ops)  # shape of an image, and its plan
        self._compile_kept = lru_cache(_MAX_PLANS)(self._compile)
        self.whole: Plan | None = None
        if len(ops) == 1:
            with suppress(ValueError):
                self.whole = self._compile(0, tuple(shape))
        is_first, has_size = 0 not in self._functions, shape[0] > 0
        if is_first and self.whole is None and (has_size or len(ops) == 1):
            self._compile_kept(0, tuple(shape) if has_size else _TRIAL)  # raises if C cannot

    @property
    def reason(self) -> str:
        """Why threads of C cannot make batches."""
        names = " and ".join(map(name_of, self._functions.values()))
        return f"Python runs {names} in the middle of the transform"

    def _compile(self, place: int, shape: tuple[int, ...]) -> Plan:
        before = [op for piece in self.ops[:place] for op in piece.ops]
        layout = "CHW" if place else self._layout
        out_layout = self.out_layout if place == len(self.ops) - 1 else "CHW"
        ops = self.ops[place].ops
        differ = not place  # in height and width, where the shape has 0
        return compile_plan(ops, shape, layout, out_layout, self._seed, differ, before)

    def _plan_for(self, place: int, image: Any) -> Plan | None:
        """Return the plan of a piece, or None for Python."""
        if place in self._spent or (place and look_up(image, "dtype") is not torch.uint8):
            return None
        shape, plan = self._latest[place]
        if self.whole is not None:
            return self.whole
        if shape != image.shape:
            plan = self._compile_kept(place, tuple(image.shape))
            self._latest[place] = image.shape, plan
        return cast(Plan, plan)

    def _image_for(self, place: int, image: Any) -> Any:
        """Return the image as a piece takes it: C the first one unchanged, all else [C, H, W]."""
        if place == 0 and 0 not in self._functions:
            return image
        is_array = isinstance(image, np.ndarray)  # of a decoder, or of a function: [H, W, C]
        image = torch.from_numpy(np.atleast_3d(image).copy()) if is_array else image
        is_interleaved = is_array or (place == 0 and self._layout == "HWC")
        return image.permute(2, 0, 1) if is_interleaved else image

    def _call(self, place: int, image: Any) -> Any:
        calls, begin = self.ops[place].calls, perf_counter()
        for call in calls:
            image = call(image)
        if spent := self._spent.get(place):
            spent[0] += 1
            spent[1] += perf_counter() - begin
        is_end = place == len(self.ops) - 1
        return lay_out(image, self.out_layout, name_of(calls[-1])) if is_end else image

    def _step(
        self, place: int, image: Any, key: tuple[int, int, int], out: torch.Tensor | None = None
    ) -> tuple[Plan | None, Any, Any]:
        """Return the plan of a piece (None: Python), the image that it takes, and its result.

        Args:
            key: index, epoch and view.
            out: memory for the result of the last piece. A plan uses it if it fits.
        """
        image = self._image_for(place, image)
        plan = self._plan_for(place, image)
        if plan is None:
            return None, image, self._call(place, image)
        # The results of other pieces need memory of their own: C reads them while it writes out.
        has_place = out is not None and place == len(self.ops) - 1 and plan.fits(out)
        return plan, image, plan.apply(image, *key, out if has_place else None)

    def apply(self, image: Any, index: int, epoch: int = 0, view: int = 0, out: Any = None) -> Any:
        """Return the result for an image in the layout of images.

        Args:
            out: a tensor for the result. It is used if it fits.
        """
        for place in range(len(self.ops)):
            self.last, _, image = self._step(place, image, (index, epoch, view), out)
        return image

    def params(self, image: Any, index: int, epoch: int, view: int) -> list[dict[str, Any]]:
        """Return the parameters that are drawn for a sample, one dict for each operation and
        function. Runs the functions: what they return has the size that operations are drawn for.
        """
        told: list[dict[str, Any]] = []
        for place, piece in enumerate(self.ops):
            plan, taken, image = self._step(place, image, (index, epoch, view))
            if plan is None:
                told += [{"op": name_of(call)} for call in piece.calls]
                continue
            is_first = place == 0 and self._layout == "HWC"
            height, width = taken.shape[:2] if is_first else taken.shape[1:]
            told += plan.params(index, epoch, view, (height, width))
        return told

    def explain(self) -> list[str]:
        """Return a line for each operation and function."""
        lines = []
        for place, piece in enumerate(self.ops):
            lines += explain_ops(piece.ops)
            if place in self._spent:
                count, seconds = self._spent[place]
                each = seconds / max(count, 1) * 1e6
                cost = f"{each:,.0f} µs each for {count:,}" if count else "none yet"
                name = name_of(self._functions[place])
                lines.append(f"  {name}: Python, for each sample (in this process {cost})")
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        return CutPlan, (self.ops, self._shape, self._layout, self.out_layout, self._seed)
