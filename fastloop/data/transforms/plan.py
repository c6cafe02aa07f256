"""From a chain of image operations to one plan of the C core.

Operations are of two sorts. A `Geometry` moves pixels: C does it, on uint8. A `Values` changes
numbers: torch does it here, once, on all 256 numbers that a byte can be, and C looks them up. So
each number has torch's own arithmetic, in float32, and is rounded once to the dtype of the output.
What a Geometry fills in behind a Values is computed in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastloop._core import ImagePlan
from fastloop.data.transforms.arguments import DTYPES

LAYOUTS = ("CHW", "HWC")
OUT_LAYOUTS = (*LAYOUTS, "channels_last")
_MAX_CHANNELS = 4
_MAX_OCCURRENCES = 8  # of one kind of operation in a plan: fl_image_op.occurrence


class ImageOp:
    """What is told of each operation; called with an image, it does it alone."""

    _compiled: tuple[tuple[int, ...], Plan] | None = None  # for the shape of the last image

    def _chain(self) -> Iterator[Geometry | Values]:
        """The operations that this one is."""
        raise NotImplementedError

    @property
    def work(self) -> str:
        """What is done for it, in a few words."""
        raise NotImplementedError

    def __call__(self, image: Any) -> torch.Tensor:
        """The operation on one image, a CPU tensor of uint8 of shape [C, H, W].

        Random parameters come from torch's global generator, so ``torch.manual_seed`` reproduces
        them. The result is a new tensor.
        """
        name = type(self).__name__
        if not isinstance(image, torch.Tensor):
            raise TypeError(f"{name}: the image is a {type(image).__name__}; pass a torch.Tensor")
        if image.dtype is not torch.uint8 or image.device.type != "cpu":
            raise TypeError(
                f"{name}: the image is {image.dtype} on {image.device}; pass uint8 on the CPU, and "
                "put ToDtype and Normalize after this"
            )
        if image.ndim != 3:
            raise ValueError(
                f"{name}: the image has shape {tuple(image.shape)}; pass one image [C, H, W]"
            )
        shape = tuple(image.shape)
        compiled = self._compiled
        if compiled is None or compiled[0] != shape:
            compiled = shape, compile_plan(tuple(self._chain()), shape)
            self._compiled = compiled
        index = 0
        if compiled[1].is_random:
            index = int(torch.randint(2**63 - 1, (), device="cpu"))
        return compiled[1].apply(image.detach(), index)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    def __repr__(self) -> str:
        kinds = (bool, int, float, str, tuple, list)
        shown = (f"{k}={v}" for k, v in vars(self).items() if isinstance(v, kinds) and k[0] != "_")
        return f"{type(self).__name__}({', '.join(shown)})"


class Geometry(ImageOp):
    """An operation that C does."""

    kind: int  # of enum fl_image_op_kind
    is_random = True
    is_resize = False

    def _chain(self) -> Iterator[Geometry | Values]:
        yield self

    @property
    def work(self) -> str:
        return "resamples uint8 pixels" if self.is_resize else "moves uint8 pixels"

    def spec(self, find_size: Callable[[], tuple[int, int]]) -> dict[str, Any]:
        """The fields of fl_image_op that its arguments give.

        Args:
            find_size: (height, width) of the images that it is given.
        """
        raise NotImplementedError

    def filling(self) -> tuple[str, tuple[float, ...]] | None:
        """The name and the value of what it fills in, if it does."""
        return None

    def describe(self, drawn: dict[str, Any]) -> dict[str, Any]:
        """The parameters that were drawn, as users see them."""
        return {}


class Values(ImageOp):
    """An operation on each number by itself, done by torch for all numbers that there can be."""

    is_random = False

    def _chain(self) -> Iterator[Geometry | Values]:
        yield self

    @property
    def work(self) -> str:
        return "a number for each that a byte can be, made by torch; C looks it up"

    def change(self, numbers: Numbers) -> Numbers:
        raise NotImplementedError


@dataclass(frozen=True)
class Numbers:
    """Numbers on their way through the operations of a chain."""

    values: torch.Tensor  # [channels, count]: uint8, and float32 from the first ToDtype on
    dtype: torch.dtype  # of the output, if the chain ended here
    # (scale, mean, std) of each channel in turn, if values are (uint8 * scale - mean) / std.
    linear: tuple[float, ...] | None = None

    @property
    def is_byte(self) -> bool:
        return self.values.dtype is torch.uint8

    def through(self, ops: Sequence[ImageOp]) -> Numbers:
        numbers = self
        for op in ops:
            if isinstance(op, Values):
                numbers = op.change(numbers)
        return numbers

    def elements(self) -> bytes:
        """In the dtype of the output."""
        values = self.values.to(self.dtype).contiguous()
        return values.view(torch.uint8).numpy().tobytes()


def all_bytes(channels: int) -> Numbers:
    every = torch.arange(256, dtype=torch.uint8, device="cpu")
    return Numbers(every.expand(channels, 256), torch.uint8)


def _fill_numbers(op: Geometry, image: Numbers) -> Numbers | None:
    """What an operation fills in, for each channel, in images that have the dtype of ``image``."""
    filled = op.filling()
    if filled is None:
        return None
    (name, value), channels = filled, len(image.values)
    where = f"{type(op).__name__}: {name}={list(value)}"
    if len(value) not in (1, channels):
        raise ValueError(
            f"{where} has {len(value)} values, and images have {channels} channels; pass one "
            "number, or one for each channel"
        )
    if image.is_byte and not all(0 <= number < 256 for number in value):
        raise ValueError(
            f"{where} does not fit the uint8 images there; pass numbers from 0 to 255, or put "
            f"{type(op).__name__} after ToDtype"
        )
    as_computed = torch.tensor(value, dtype=torch.float32, device="cpu")
    there = as_computed.to(image.dtype).isfinite().tolist()
    if any(math.isfinite(given) and not fits for given, fits in zip(value, there, strict=True)):
        raise ValueError(
            f"{where} does not fit the {DTYPES[image.dtype]} images there; pass smaller numbers"
        )
    elements = as_computed.to(image.values.dtype)
    return Numbers(elements.expand(channels)[:, None], image.dtype)


class _Compiler:
    """What C is told of a chain, found operation by operation."""

    def __init__(self, shape: tuple[int, int, int], layout: str) -> None:
        self.shape = shape
        self.layout = layout
        self.numbers = all_bytes(shape[0])
        self.specs: list[dict[str, Any]] = []
        self.counts: dict[int, int] = {}

    def add(self, op: Geometry | Values, rest: Sequence[ImageOp]) -> None:
        if isinstance(op, Values):
            self.numbers = op.change(self.numbers)
        else:
            self.specs.append(self._spec(op, rest))

    def _spec(self, op: Geometry, rest: Sequence[ImageOp]) -> dict[str, Any]:
        name = type(op).__name__
        if op.is_resize and not self.numbers.is_byte:
            raise ValueError(
                f"{name} comes after ToDtype, and C resizes uint8 images only; put {name} before "
                "ToDtype"
            )
        occurrence = self.counts.get(op.kind, 0)
        self.counts[op.kind] = occurrence + 1
        if occurrence == _MAX_OCCURRENCES:
            raise ValueError(f"{name} occurs more than {_MAX_OCCURRENCES} times; leave some out")
        spec = {"kind": op.kind, "occurrence": occurrence, **op.spec(self._find_size)}
        fill = _fill_numbers(op, self.numbers)
        if fill is not None:
            if fill.is_byte:
                spec["fill"] = fill.elements()
            spec["out_fill"] = fill.through(rest).elements()
        return spec

    def _find_size(self) -> tuple[int, int]:
        """(height, width) of images after the operations so far."""
        _, height, width = self._open(torch.uint8, "CHW", None, None, 0).out_shape
        return height, width

    def finish(self, out_layout: str, seed: int) -> ImagePlan:
        is_byte, numbers = self.numbers.is_byte, self.numbers
        tables = None if is_byte else numbers.elements()
        return self._open(numbers.dtype, out_layout, tables, numbers.linear, seed)

    def _open(
        self,
        dtype: torch.dtype,
        out_layout: str,
        tables: bytes | None,
        linear: tuple[float, ...] | None,
        seed: int,
    ) -> ImagePlan:
        channels, height, width = self.shape
        return ImagePlan(
            tuple(self.specs),
            height=height,
            width=width,
            channels=channels,
            layout=self.layout,
            out_dtype=DTYPES[dtype],
            out_layout=out_layout,
            tables=tables,
            linear=linear,
            seed=seed,
        )


@dataclass(frozen=True)
class Plan:
    """A chain of operations, compiled for images of one shape."""

    ops: tuple[Geometry | Values, ...]
    core: ImagePlan
    dtype: torch.dtype  # of the output
    out_layout: str

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.ops)

    def empty(self, *count: int) -> torch.Tensor:
        """Memory for the result of one image, or of this many."""
        shape = self.core.out_shape
        if self.out_layout != "channels_last":
            return torch.empty((*count, *shape), dtype=self.dtype, device="cpu")
        channels, height, width = shape
        out = torch.empty((*count, height, width, channels), dtype=self.dtype, device="cpu")
        return out.movedim(-1, -3)

    def apply(self, image: Any, index: int, epoch: int = 0, view: int = 0) -> torch.Tensor:
        """The result for an image in the plan's layout, as a tensor of its own."""
        out = self.empty()
        self.write(image, out, index, epoch, view)
        return out

    def write(self, image: Any, out: torch.Tensor, index: int, epoch: int, view: int) -> None:
        """The same into the memory of one of ``empty()``."""
        if isinstance(image, torch.Tensor) and type(image) is not torch.Tensor:
            image = image.as_subclass(torch.Tensor)
        self.core.apply(image, out, index, epoch, view)

    def params(
        self, index: int, epoch: int, view: int, size: tuple[int, int]
    ) -> list[dict[str, Any]]:
        """What was drawn, one dict for each operation."""
        drawn = iter(self.core.draw(index, epoch, view, *size))
        return [
            {
                "op": type(op).__name__,
                **(op.describe(next(drawn)) if isinstance(op, Geometry) else {}),
            }
            for op in self.ops
        ]


def _check_images(shape: Sequence[int], layout: str, may_differ: bool) -> tuple[int, int, int]:
    """(channels, height, width) of images of this shape."""
    if len(shape) != 3:
        one = "array[:, None]" if layout == "CHW" else "array[..., None]"
        hint = f"; pass {one} for images of one channel" if len(shape) == 2 else ""
        raise ValueError(
            f"images have shape {tuple(shape)}, not the three lengths of {layout}{hint}"
        )
    channels, height, width = shape if layout == "CHW" else (shape[2], *shape[:2])
    if not 1 <= channels <= _MAX_CHANNELS:
        other, others = ("HWC", shape[2]) if layout == "CHW" else ("CHW", shape[0])
        remedy = "split the channels into several fields"
        if 1 <= others <= _MAX_CHANNELS:
            remedy = f"pass layout={other!r}"
        raise ValueError(
            f"images of shape {tuple(shape)} have {channels} channels in layout {layout!r}; images "
            f"have 1 to {_MAX_CHANNELS}: {remedy}"
        )
    if (height == 0) != (width == 0) or (height == 0 and not may_differ):
        raise ValueError(f"images of shape {tuple(shape)} have no pixels; pass larger ones")
    return channels, height, width


def compile_plan(
    ops: tuple[Geometry | Values, ...],
    shape: Sequence[int],
    layout: str = "CHW",
    out_layout: str = "CHW",
    seed: int = 0,
    may_differ: bool = False,
) -> Plan:
    """One plan for images of this shape.

    Args:
        may_differ: height and width 0 are for images of different sizes, with results of one.

    Raises:
        ValueError, TypeError: what cannot be, with operation, argument, value and remedy.
    """
    compiler = _Compiler(_check_images(shape, layout, may_differ), layout)
    for i, op in enumerate(ops):
        compiler.add(op, ops[i + 1 :])
    return Plan(ops, compiler.finish(out_layout, seed), compiler.numbers.dtype, out_layout)
