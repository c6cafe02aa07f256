"""From a chain of image operations to one plan of the core.

There are two sorts of operations. A `Geometry` moves pixels: the core runs the operation on uint8.
A `Values` changes numbers: torch computes the operation here, once, for the 256 values of a byte,
and the core looks results up. So each number has torch's own arithmetic, in float32, and is rounded
once to the dtype of the output. A fill that comes after a Values is computed in the same way.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from inspect import Signature, signature
from typing import Any, NamedTuple, TypeVar, cast

import torch
from typing_extensions import Self, dataclass_transform

from fastloop._core import IMAGE_ARITHMETICS, IMAGE_LIMITS, IMAGE_OPS, ImagePlan
from fastloop.base.checks import check_type, check_value
from fastloop.base.threads import lock_over_forks
from fastloop.data.transforms.arguments import DTYPES, Argument, to_floats

LAYOUTS = ("CHW", "HWC")
OUT_LAYOUTS = (*LAYOUTS, "channels_last")
_MAX_CHANNELS = IMAGE_LIMITS["CHANNELS"]
_CROPS = {IMAGE_OPS[name] for name in ("CenterCrop", "RandomCrop", "RandomResizedCrop")}

Parts = list[dict[str, Any]]  # the parameters that params() shows for an operation's parts
GetSize = Callable[[], tuple[int, int]]  # returns (height, width) of images before an operation


_OpT = TypeVar("_OpT", bound=type)

# The operations that are not dataclasses yet. Making one takes 0.2 ms, and programs use few.
_unmade: set[type] = set()
_lock = lock_over_forks()


@dataclass_transform(eq_default=False)
def operation(cls: _OpT) -> _OpT:
    """Make a dataclass of an operation as soon as the operation, or a subclass, is used. The class
    has a docstring, else the dataclass would ask for its signature, which asks for the dataclass.
    """
    _unmade.add(cls)
    cast(Any, cls).__dataclass_fields__ = _Fields()
    return cls


class _Fields:
    """Stands for the fields of an operation until they are asked for: by dataclasses, also for a
    subclass of the program, or by an object that was unpickled without ``__new__``."""

    def __get__(self, op: object, cls: Any) -> Any:
        _make(cls)
        return cls.__dataclass_fields__


def _make(cls: type) -> None:
    """Make dataclasses of an operation and its bases, where that has not been done."""
    with _lock:
        for base in reversed(cls.__mro__):
            if base in _unmade:
                dataclass(repr=False, eq=False)(base)
                _unmade.remove(base)


class _Signature:
    """The signature of an operation."""

    def __get__(self, op: object, cls: Any) -> Signature | None:
        _make(cls)
        return signature(partial(cls.__init__, None)) if op is None else None


class ImageOp:
    """Base of all operations. You can call an operation with one image.

    A class with arguments is a dataclass, and its fields are annotated with kinds of arguments.
    """

    __signature__ = _Signature()
    _parts: tuple[Any, ...] = ()
    _work = ""
    _compiled: tuple[tuple[int, ...], Plan] | None = None  # for the shape of the last image

    def __new__(cls, *_args: object, **_named: object) -> Self:
        _make(cls)
        return super().__new__(cls)

    def __init__(self) -> None:
        """Take no arguments, unless a dataclass does."""

    def __post_init__(self) -> None:
        for name, argument in self._arguments():
            value, default = getattr(self, name), getattr(type(self), name, math.nan)
            if value is not None or default is not None:
                setattr(self, name, argument.read(f"{type(self).__name__}: {name}", value))
        self._check()

    def _arguments(self) -> Iterator[tuple[str, Argument]]:
        for field in fields(cast(Any, self)):
            for argument in getattr(field.type, "__metadata__", ()):
                yield field.name, argument

    def _check(self) -> None:
        """Refuse arguments that do not go with each other."""

    def _operations(self) -> Iterator[Any]:
        """Yield the plan's operations for this object, each a Geometry or a Values."""
        yield self

    @property
    def parts(self) -> tuple[Any, ...]:
        """The operations inside this operation."""
        return self._parts

    @property
    def work(self) -> str:
        """A few words for explain() about the operation's work."""
        return self._work

    def __call__(self, image: Any) -> torch.Tensor:
        """Apply the operation to one image, a CPU tensor of uint8 with shape [C, H, W].

        Random parameters come from torch's global generator, so ``torch.manual_seed`` reproduces
        the result. The result is a new tensor.
        """
        name, rule = f"{type(self).__name__}: the image", "one CPU tensor of uint8 [C, H, W]"
        is_tensor = isinstance(image, torch.Tensor)
        is_covered = is_tensor and image.dtype is torch.uint8 and image.device.type == "cpu"
        if not is_covered:
            got = f"{image.dtype} on {image.device}" if is_tensor else type(image).__name__
            remedy = "put ToDtype and Normalize after this operation"
            raise TypeError(f"{name} must be {rule}, got {got} ({remedy})")
        shape = tuple(image.shape)
        check_value(name, shape, len(shape) == 3, rule)
        compiled = self._compiled
        if compiled is None or compiled[0] != shape:
            compiled = self._compiled = shape, compile_plan(tuple(self._operations()), shape)
        _, plan = compiled
        index = int(torch.randint(2**63 - 1, (), device="cpu")) if plan.is_random else 0
        return plan.apply(image.detach(), index)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    def __repr__(self) -> str:
        """Return torchvision's text: the attributes with these types, in order."""
        kinds = (bool, int, float, str, tuple, list, enum.Enum)
        shown = (f"{k}={v}" for k, v in vars(self).items() if isinstance(v, kinds) and k[0] != "_")
        return f"{type(self).__name__}({', '.join(shown)})"


class Geometry(ImageOp):
    """An operation that the core runs.

    Attributes:
        kind: the operation's number in the core.
        fill_name: the attribute with the numbers for filled pixels; "": the operation fills none.
        arithmetic: whose arithmetic computes pixels, a number of IMAGE_ARITHMETICS. Only plans of
            torchvision's own chains have another than v2's for tensors.
        reported: the names of drawn parameters that params() shows. A name that the core does not
            have, for example "flip", means: whether the operation is applied.
        bytes_only: a verb, if the operation must stand before ToDtype.
        is_color: images must have 1 or 3 channels.
    """

    kind: int
    arithmetic = IMAGE_ARITHMETICS["v2"]
    is_random = True
    bytes_only = ""
    is_color = False
    fill_name = ""
    reported: tuple[str, ...] = ()
    _work = "moves uint8 pixels"

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        """Return the fields of fl_image_op that come from the arguments."""
        return {
            name: argument.encode(getattr(self, name))
            for name, argument in self._arguments()
            if argument.encode is not None
        }

    @property
    def colors(self) -> tuple[float, ...]:
        """The numbers of pixels outside of a sampled image."""
        return ()

    def change(self, numbers: Numbers) -> Numbers:
        """Return the possible numbers after the operation."""
        return numbers

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        """Return the parameters that params() shows, from the core's drawn values and the
        parameters of parts."""
        return {name: values.get(name, values["applied"]) for name in self.reported}


class Values(ImageOp):
    """An operation on single numbers. torch computes the results for all possible numbers."""

    is_random = False
    _work = "torch computes a table for the values of a byte; fastloop looks results up"

    def change(self, numbers: Numbers) -> Numbers:
        """Return the numbers after the operation."""
        raise NotImplementedError


class Numbers(NamedTuple):
    """Numbers on their way through the operations of a chain."""

    values: torch.Tensor  # [channels, count]: uint8, and float32 from the first ToDtype on
    dtype: torch.dtype  # the output's dtype, if the chain ended here
    # (scale, mean, std) for each channel in turn, if values are (uint8 * scale - mean) / std; the
    # product may be uint8 / (1 / scale).
    linear: tuple[float, ...] | None = None

    @property
    def is_byte(self) -> bool:
        return self.values.dtype is torch.uint8

    def elements(self) -> bytes:
        """Return the numbers in the output's dtype."""
        values = self.values.to(self.dtype).contiguous()
        return values.view(torch.uint8).numpy().tobytes()


def _fill_numbers(op: Geometry, image: Numbers) -> Numbers:
    """Return an operation's fill for each channel, in images with these numbers."""
    name, channels = f"{type(op).__name__}: {op.fill_name}", len(image.values)
    fill = to_floats(getattr(op, op.fill_name))
    rule = f"one number, or one for each of {channels} channels"
    check_value(name, list(fill), len(fill) in (1, channels), rule)
    are_in_range = not image.is_byte or all(0 <= number < 256 for number in fill)
    remedy = f"or put {type(op).__name__} after ToDtype"
    check_value(name, list(fill), are_in_range, "in [0, 255] for uint8 images", remedy)
    as_computed = torch.tensor(fill, dtype=torch.float32, device="cpu")
    there = as_computed.to(image.dtype).isfinite().tolist()
    fits = [ok or not math.isfinite(given) for given, ok in zip(fill, there, strict=True)]
    check_value(name, list(fill), all(fits), f"finite in {DTYPES[image.dtype]}")
    elements = as_computed.to(image.values.dtype)
    return Numbers(elements.expand(channels)[:, None], image.dtype)


class Plan:
    """A chain of operations, compiled for images of one shape. `dtype` is the output's."""

    def __init__(
        self,
        ops: tuple[Geometry | Values, ...],
        core: ImagePlan,
        dtype: torch.dtype,
        out_layout: str,
    ) -> None:
        self.ops, self.core, self.dtype, self.out_layout = ops, core, dtype, out_layout

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.ops)

    @cached_property
    def least_for_part(self) -> float:
        """The least number of pixels of an image of which a crop mostly reads half or less. Without
        a crop: inf."""
        for op in self.ops:
            if isinstance(op, Geometry) and op.kind in _CROPS:
                is_any = op.kind == IMAGE_OPS["RandomResizedCrop"]
                return 0 if is_any else 2 * math.prod(vars(op)["size"])
        return math.inf

    def empty(self, *count: int) -> torch.Tensor:
        """Return memory for the result of one image, or for a batch of `count` results."""
        shape = self._shape
        if self.out_layout != "channels_last":
            return torch.empty((*count, *shape), dtype=self.dtype, device="cpu")
        channels, height, width = shape
        out = torch.empty((*count, height, width, channels), dtype=self.dtype, device="cpu")
        return out.movedim(-1, -3)

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return self.core.out_shape

    @cached_property
    def _like(self) -> torch.Tensor:
        """A tensor like a result, with memory for one element. empty_like() takes half the time
        that empty() would take."""
        return torch.empty(1, dtype=self.dtype, device="cpu").expand(self._shape)

    def fits(self, out: torch.Tensor) -> bool:
        return out.dtype is self.dtype and out.shape == self._shape

    def apply(
        self, image: Any, index: int, epoch: int = 0, view: int = 0, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the result for an image in the plan's layout.

        Args:
            out: memory for the result, as from ``empty()``. None: new memory.
        """
        if isinstance(image, torch.Tensor) and type(image) is not torch.Tensor:
            image = image.as_subclass(torch.Tensor)
        if out is None:
            is_last = self.out_layout == "channels_last"
            out = self.empty() if is_last else torch.empty_like(self._like)
        self.core.apply(image, out, index, epoch, view)
        return out

    def params(
        self, index: int, epoch: int, view: int, size: tuple[int, int]
    ) -> list[dict[str, Any]]:
        """Return the parameters that are drawn for a sample, one dict for each operation."""
        return _report(self.ops, iter(self.core.draw(index, epoch, view, *size)))


def _report(
    ops: Sequence[Geometry | Values], drawn: Iterator[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a dict for each operation. The core has drawn a dict for each Geometry and part."""
    params: list[dict[str, Any]] = []
    for op in ops:
        shown: dict[str, Any] = {"op": type(op).__name__}
        if isinstance(op, Geometry):
            values = next(drawn)
            shown |= op.report(values, _report(op.parts, drawn))
        params.append(shown)
    return params


def explain_ops(ops: Sequence[Geometry | Values]) -> list[str]:
    """Return a line for each operation."""
    return [f"  {op!r}: {op.work}" for op in ops]


def flatten(ops: Sequence[Geometry | Values]) -> Iterator[Geometry | Values]:
    """Yield the operations, each before its parts."""
    for op in ops:
        yield op
        yield from flatten(op.parts)


def _read_shape(shape: Sequence[int], layout: str, may_differ: bool) -> tuple[int, int, int]:
    """Return (channels, height, width) of images with this shape."""
    name, shape = "the shape of images", tuple(shape)
    one = "array[:, None]" if layout == "CHW" else "array[..., None]"
    check_value(name, shape, len(shape) == 3, layout, f"pass {one} for images of one channel")
    channels, height, width = shape if layout == "CHW" else (shape[2], *shape[:2])
    swapped, count = ("HWC", shape[2]) if layout == "CHW" else ("CHW", shape[0])
    remedy = "split the channels into several fields"
    if 1 <= count <= _MAX_CHANNELS:
        remedy = f"pass layout={swapped!r}"
    rule = f"{layout} with 1 to {_MAX_CHANNELS} channels"
    check_value(name, shape, 1 <= channels <= _MAX_CHANNELS, rule, remedy)
    has_size = (height == 0) == (width == 0) and (height != 0 or may_differ)
    check_value(name, shape, has_size, "one without 0")
    return channels, height, width


def _check_images(op: Geometry, numbers: Numbers) -> None:
    name, channels = type(op).__name__, len(numbers.values)
    if op.bytes_only and not numbers.is_byte:
        raise ValueError(f"{name} must stand before ToDtype: it {op.bytes_only} uint8 images")
    rule = f"one number, or one for each of {channels} channels"
    check_value(f"{name}: fill", list(op.colors), len(op.colors) in (0, 1, channels), rule)
    has_colors = not op.is_color or channels in (1, 3)
    check_type(f"{name}: the channels of images", channels, has_colors, "1 or 3")


def compile_plan(
    ops: tuple[Geometry | Values, ...],
    shape: Sequence[int],
    layout: str = "CHW",
    out_layout: str = "CHW",
    seed: int = 0,
    may_differ: bool = False,
    before: Sequence[Geometry | Values] = (),
) -> Plan:
    """Compile a chain of operations for images with this shape.

    Args:
        may_differ: height and width may be 0: images have different sizes, and results one size.
        before: operations of earlier plans; they count as occurrences for random numbers.

    Raises:
        ValueError, TypeError: the operations do not go with the images or with each other. The
            text names operation, argument and value.
    """
    channels, height, width = _read_shape(shape, layout, may_differ)
    images = {"height": height, "width": width, "channels": channels, "seed": seed}
    every_byte = torch.arange(256, dtype=torch.uint8, device="cpu").expand(channels, 256)
    numbers = Numbers(every_byte, torch.uint8)
    specs: list[dict[str, Any]] = []
    counts = Counter(op.kind for op in flatten(before) if isinstance(op, Geometry))

    def open_core(out_layout: str, images_so_far: Numbers) -> ImagePlan:
        tables = None if images_so_far.is_byte else images_so_far.elements()
        output = {"out_dtype": DTYPES[images_so_far.dtype], "linear": images_so_far.linear}
        options: Any = {**images, **output, "tables": tables}
        return ImagePlan(tuple(specs), layout=layout, out_layout=out_layout, **options)

    def get_size() -> tuple[int, int]:
        _, height, width = open_core("CHW", numbers).out_shape
        return height, width

    flat = tuple(flatten(ops))
    for i, op in enumerate(flat):
        if isinstance(op, Values):
            numbers = op.change(numbers)
            continue
        _check_images(op, numbers)
        span = sum(1 for _ in flatten(op.parts))
        spec: dict[str, Any] = {"kind": op.kind, "occurrence": counts[op.kind], "span": span}
        spec |= {"arithmetic": op.arithmetic, **op.encode(get_size)}
        counts[op.kind] += 1
        if op.fill_name:
            fill = _fill_numbers(op, numbers)
            if fill.is_byte:
                spec["fill"] = fill.elements()
            for later in flat[i + 1 :]:
                fill = later.change(fill)
            spec["out_fill"] = fill.elements()
        specs.append(spec)
        numbers = op.change(numbers)
    return Plan(ops, open_core(out_layout, numbers), numbers.dtype, out_layout)
