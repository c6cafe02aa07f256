"""Plans for images of different sizes, and for chains with Python functions.

A chain with functions is split at the functions. fastloop runs the operations before, between and
after the functions, with one plan for each run of operations. A function gets the image as from
torchvision, a tensor [C, H, W]. The functions do not change the operations' random parameters; a
function draws from the process's generators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from fastloop.base.checks import look_up, make_message
from fastloop.data.transforms.plan import Geometry, Plan, Values, compile_plan, explain_ops

_MAX_PLANS = 64  # the number of plans that are kept, one for each size of images
_TRIAL = (512, 512, 3)  # if sizes of results differ, chains are tried with an image of this shape

Call = Callable[[Any], Any]


class Piece(NamedTuple):
    """A run of operations, or one function.

    Attributes:
        ops: the run of operations; empty for a function.
        calls: without ``ops``, the one function. With ``ops``, the transforms that the operations
            were made from: if an earlier function makes an image of floats, Python calls these.
    """

    ops: tuple[Geometry | Values, ...]
    calls: tuple[Call, ...]


def join_pieces(parts: Sequence[Piece]) -> tuple[Piece, ...]:
    """Return a chain's parts, with neighbouring operations joined into one piece."""
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
    """Return a function's result [C, H, W] in this layout."""
    if layout == "CHW":
        return image
    if not isinstance(image, torch.Tensor) or image.ndim != 3:
        rule = "'CHW' if results are not tensors [C, H, W]"
        raise TypeError(make_message(f"{name}: out_layout", rule, layout))
    image = image.permute(1, 2, 0)
    return image if layout == "HWC" else image.contiguous().permute(2, 0, 1)


class SplitPlan:
    """The plans of a chain, with the methods of a ``Plan``.

    Args:
        ops: the pieces of the chain: one piece if the chain has no functions.
        shape: the shape of images; with 0 as height, each image has its own size.
        layout, out_layout: the layouts of images and of results.
        seed: the seed of random parameters.

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
        self.last: Plan | None = None  # the plan that has made the last result
        self._functions = {i: p.calls[0] for i, p in enumerate(ops) if p.calls and not p.ops}
        self._spent = {i: [0, 0.0] for i in self._functions}  # calls and seconds
        self._latest: list[Any] = [(None, None)] * len(ops)  # shape of an image, and its plan
        self._compile_kept = lru_cache(_MAX_PLANS)(self._compile)
        self.whole: Plan | None = None
        if len(ops) == 1:
            with suppress(ValueError):
                self.whole = self._compile(0, tuple(shape))
        is_first, has_size = 0 not in self._functions, shape[0] > 0
        if is_first and self.whole is None and (has_size or len(ops) == 1):
            self._compile_kept(0, tuple(shape) if has_size else _TRIAL)  # raises now, not later

    @property
    def reason(self) -> str:
        """The reason why threads of the loader cannot make batches."""
        names = " and ".join(map(name_of, self._functions.values()))
        return f"Python runs {names} in the middle of the transform"

    def _compile(self, i: int, shape: tuple[int, ...]) -> Plan:
        before = [op for piece in self.ops[:i] for op in piece.ops]
        layout = "CHW" if i else self._layout
        out_layout = self.out_layout if i == len(self.ops) - 1 else "CHW"
        may_differ = i == 0  # the first piece gets images unchanged
        return compile_plan(
            self.ops[i].ops, shape, layout, out_layout, self._seed, may_differ, before
        )

    def _plan_for(self, i: int, image: Any) -> Plan | None:
        """Return the plan of piece i; None if Python runs the piece."""
        if i in self._spent or (i and look_up(image, "dtype") is not torch.uint8):
            return None
        shape, plan = self._latest[i]
        if self.whole is not None:
            return self.whole
        if shape != image.shape:
            plan = self._compile_kept(i, tuple(image.shape))
            self._latest[i] = image.shape, plan
        return cast(Plan, plan)

    def _image_for(self, i: int, image: Any) -> Any:
        """Return the image as piece i takes it. If the first piece has a plan, the piece takes the
        image unchanged. Any other piece takes [C, H, W]."""
        if i == 0 and 0 not in self._functions:
            return image
        is_array = isinstance(image, np.ndarray)  # from a decoder or a function: [H, W, C]
        image = torch.from_numpy(np.atleast_3d(image).copy()) if is_array else image
        is_interleaved = is_array or (i == 0 and self._layout == "HWC")
        return image.permute(2, 0, 1) if is_interleaved else image

    def _call(self, i: int, image: Any) -> Any:
        calls, begin = self.ops[i].calls, perf_counter()
        for call in calls:
            image = call(image)
        if spent := self._spent.get(i):
            spent[0] += 1
            spent[1] += perf_counter() - begin
        is_end = i == len(self.ops) - 1
        return lay_out(image, self.out_layout, name_of(calls[-1])) if is_end else image

    def _step(
        self, i: int, image: Any, key: tuple[int, int, int], out: torch.Tensor | None = None
    ) -> tuple[Plan | None, Any, Any]:
        """Return the plan of piece i (None: Python), the image that the piece takes, and the
        result.

        Args:
            key: index, epoch and view.
            out: memory for the result of the last piece. A plan uses the memory if it fits.
        """
        image = self._image_for(i, image)
        plan = self._plan_for(i, image)
        if plan is None:
            return None, image, self._call(i, image)
        # Earlier pieces need new memory: the last plan reads their result while it writes to out.
        has_out = out is not None and i == len(self.ops) - 1 and plan.fits(out)
        return plan, image, plan.apply(image, *key, out if has_out else None)

    def apply(self, image: Any, index: int, epoch: int = 0, view: int = 0, out: Any = None) -> Any:
        """Return the result for an image in the layout of images.

        Args:
            out: a tensor for the result, used if it fits.
        """
        for i in range(len(self.ops)):
            self.last, _, image = self._step(i, image, (index, epoch, view), out)
        return image

    def params(self, image: Any, index: int, epoch: int, view: int) -> list[dict[str, Any]]:
        """Return the parameters that are drawn for a sample, one dict for each operation and
        function. The functions run, because the parameters depend on the sizes of their results.
        """
        params: list[dict[str, Any]] = []
        for i, piece in enumerate(self.ops):
            plan, taken, image = self._step(i, image, (index, epoch, view))
            if plan is None:
                params += [{"op": name_of(call)} for call in piece.calls]
                continue
            is_hwc = i == 0 and self._layout == "HWC"
            height, width = taken.shape[:2] if is_hwc else taken.shape[1:]
            params += plan.params(index, epoch, view, (height, width))
        return params

    def explain(self) -> list[str]:
        """Return a line for each operation and function."""
        lines = []
        for i, piece in enumerate(self.ops):
            lines += explain_ops(piece.ops)
            if i in self._spent:
                count, seconds = self._spent[i]
                each = seconds / max(count, 1) * 1e6
                cost = f"{each:,.0f} µs each for {count:,}" if count else "none yet"
                name = name_of(self._functions[i])
                lines.append(f"  {name}: Python, for each sample (in this process {cost})")
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitPlan, (self.ops, self._shape, self._layout, self.out_layout, self._seed)
