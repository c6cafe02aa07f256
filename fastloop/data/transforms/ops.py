"""The operations of fastloop.transforms, with names, arguments and defaults of torchvision's v2.

Each is a dataclass. A field's annotation says how the argument is read and encoded (arguments.py),
so an operation consists of a docstring, a number and fields.
"""

# No `from __future__ import annotations`: operations read their annotations, and the import would
# turn annotations into text.

import copy
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

from fastloop._core import IMAGE_OPS
from fastloop.base import checks
from fastloop.base.checks import check_type, check_value, refuse_if
from fastloop.data.transforms import arguments as arg
from fastloop.data.transforms import color, policy, warp
from fastloop.data.transforms.batches import BatchChoice, BatchOp
from fastloop.data.transforms.plan import (
    Geometry,
    GetSize,
    ImageOp,
    Numbers,
    Parts,
    Values,
    operation,
)

__all__ = ["Compose", "Identity", "Normalize", "ToDtype", "ToImage", "ToPureTensor"]
__all__ += ["RandomApply", "RandomChoice", "RandomOrder"]
__all__ += ["CenterCrop", "Pad", "RandomCrop", "RandomErasing", "RandomResizedCrop", "Resize"]
__all__ += ["RandomHorizontalFlip", "RandomVerticalFlip"]

_BOX = ("top", "left", "height", "width")


def get_operation(name: str) -> type[ImageOp] | None:
    """Return the operation with this name, or None."""
    modules = (globals(), *map(vars, (color, warp, policy)))
    named = next((module[name] for module in modules if name in module), None)
    return named if isinstance(named, type) and issubclass(named, ImageOp) else None


def is_own(op: object) -> TypeGuard[ImageOp]:
    """Tell whether `op` is an operation of fastloop. A subclass is not, because a subclass may do
    anything."""
    return isinstance(op, ImageOp) and get_operation(type(op).__name__) is type(op)


def _read_transforms(
    name: str, transforms: Sequence[Any], takes_functions: bool = False
) -> Sequence[Any]:
    argument, rule = f"{name}: transforms", "a list of at least one operation"
    check_type(argument, transforms, isinstance(transforms, Sequence), rule)
    check_value(argument, transforms, len(transforms) > 0, rule)
    for i, op in enumerate(transforms):
        if not is_own(op) and not (takes_functions and callable(op) and not isinstance(op, type)):
            rule = "an operation of fastloop.transforms"
            remedy = "a function may stand in a Compose" if callable(op) else ""
            raise TypeError(checks.make_message(f"{name}: item {i}", rule, op, remedy))
    return transforms


class Compose(ImageOp):
    """Apply operations one after the other.

    For example, ``Compose([RandomCrop(32, padding=4), RandomHorizontalFlip(), ToDtype(
    torch.float32, scale=True)])``.

    Args:
        transforms: operations of this module, or functions; a Compose inside counts as its own
            operations. Python calls a function with a tensor [C, H, W]; fastloop runs the
            operations before and after the function.
    """

    def __init__(self, transforms: Any) -> None:
        self.transforms = _read_transforms("Compose", transforms, takes_functions=True)

    def _operations(self) -> Iterator[Geometry | Values]:
        for op in self.transforms:
            name = checks.look_up(op, "__name__", op)
            refuse_if(not is_own(op), f"{name} must be an operation of fastloop, got a function")
            yield from op._operations()

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(self.transforms[0], ToImage):
            image = self.transforms[0](image)
        is_float = isinstance(image, torch.Tensor) and image.is_floating_point()
        if is_float or not all(map(is_own, self.transforms)):
            result: torch.Tensor = functools.reduce(lambda x, op: op(x), self.transforms, image)
            return result
        return super().__call__(image)

    def __repr__(self) -> str:
        return _show(self.transforms, "Compose")


def _show(transforms: Sequence[ImageOp], name: str) -> str:
    lines = [f"    {op}" for op in transforms]
    if len(lines) == 1 and "\n" not in lines[0]:
        return f"{name}({lines[0]})"
    return "\n  ".join([f"{name}(", *"\n".join(lines).split("\n")]) + "\n)"


# ---- operations with parts. The core draws and applies the parts.


class _Gate(Geometry):
    _work = "random numbers decide which parts are applied"
    transforms: Sequence[ImageOp]

    def _hold(self, transforms: Any) -> Iterator[tuple[Geometry, ...]]:
        """Yield the plan's operations for each transform."""
        self.transforms = _read_transforms(type(self).__name__, transforms)
        for op in transforms:
            held: Any = tuple(op._operations())
            for part in held:
                rule = f"must stand after {type(self).__name__}, not inside"
                refuse_if(isinstance(part, Values), f"{type(part).__name__} {rule}")
            yield held

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        return {}


class RandomApply(_Gate):
    """Apply a list of operations, with probability ``p``.

    Args:
        transforms: operations of this module that keep size and channels.
        p: the probability that the whole list is applied.
    """

    kind = IMAGE_OPS["RandomApply"]

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        self._parts = tuple(op for held in self._hold(transforms) for op in held)
        self.p = arg.read_probability("RandomApply: p", p)

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        return {"p": float(self.p)}

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"apply": True, "transforms": parts} if values["applied"] else {"apply": False}

    def __repr__(self) -> str:
        return _show(self.transforms, "RandomApply")


class _Branch(Geometry):
    kind = IMAGE_OPS["a branch"]
    is_random = False

    def __init__(self, parts: tuple[Geometry, ...], p: float, end: float) -> None:
        self._parts, self.p, self.end = parts, p, end

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        return {"p": float(self.p), "number": (self.end,)}

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"transforms": parts}


def _read_shares(p: Any, count: int) -> list[float]:
    """Return probabilities with the sum 1."""
    shares = [1] * count if p is None else p
    name, rule = "RandomChoice: p", f"{count} numbers >= 0, one for each transform"
    check_type(name, p, checks.are_numbers(shares), rule)
    if len(shares) != count or min(shares) < 0 or not 0 < sum(shares) < math.inf:
        raise ValueError(checks.make_message(name, rule, p))
    return [share / sum(shares) for share in shares]


class RandomChoice(_Gate):
    """Apply one of several operations.

    Args:
        transforms: operations of this module; their results must have one size and number of
            channels. Or ``MixUp`` and ``CutMix``, for batches.
        p: the probability of each operation, up to a common factor. None: equal probabilities.
    """

    kind = IMAGE_OPS["RandomChoice"]

    def __new__(cls, transforms: Any, p: Any = None) -> Any:
        if checks.is_sequence(transforms) and any(isinstance(op, BatchOp) for op in transforms):
            rule = "an operation on batches, as the rest of the list"
            for i, op in enumerate(transforms):
                check_type(f"RandomChoice: item {i}", op, isinstance(op, BatchOp), rule)
            return BatchChoice(transforms, _read_shares(p, len(transforms)))
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[Any]:
        return (self.transforms,)

    def __init__(self, transforms: Any, p: Any = None) -> None:
        held = tuple(self._hold(transforms))
        self.p = _read_shares(p, len(held))
        ends = itertools.accumulate(self.p)
        self._parts = tuple(_Branch(*each) for each in zip(held, self.p, ends, strict=True))

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        chosen = values["order"][0]
        return {"chosen": chosen, "transforms": parts[chosen]["transforms"]}


class RandomOrder(_Gate):
    """Apply several operations in a random order.

    Args:
        transforms: operations of this module that keep size and channels.
    """

    kind = IMAGE_OPS["RandomOrder"]

    def __init__(self, transforms: Any) -> None:
        self._parts = tuple(_Branch(held, 1.0, 1.0) for held in self._hold(transforms))

    def report(self, values: dict[str, Any], parts: Parts) -> dict[str, Any]:
        return {"order": values["order"], "transforms": [part["transforms"] for part in parts]}


def for_masks(ops: Iterable[Geometry | Values]) -> Iterator[Geometry]:
    """Yield the operations for a mask: the image's geometry, with the nearest pixel. The drawn
    parameters are the image's, because the occurrences of a kind are counted in the same way."""
    for op in ops:
        if isinstance(op, policy.Policy):
            rule = "operations on images and masks alike"
            raise ValueError(f"a transform with masks must be {rule}, got {type(op).__name__!r}")
        is_color = isinstance(op, color.Color) and not isinstance(op, warp.Warp)
        if is_color or isinstance(op, (Values, RandomErasing)):
            continue
        twin: Any = copy.copy(op)
        if isinstance(op, (_Gate, _Branch)):
            twin._parts = tuple(for_masks(op.parts))
        elif hasattr(op, "interpolation"):
            twin.interpolation = "nearest"
        yield twin


# ---- operations that change no number. Plans leave these operations out.


class _Unchanged(ImageOp):
    def _operations(self) -> Iterator[Geometry | Values]:
        return iter(())

    def __call__(self, image: Any) -> Any:
        return image


class Identity(_Unchanged):
    """Return the image."""


class ToImage(_Unchanged):
    """Return a tensor unchanged, and an array [H, W, C] or [H, W] as a tensor [C, H, W]."""

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(image, np.ndarray):
            return torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1).contiguous()
        if not isinstance(image, torch.Tensor):
            rule, remedy = "a torch.Tensor or a numpy.ndarray", "pass numpy.asarray(image)"
            raise TypeError(checks.make_message("ToImage: the image", rule, image, remedy))
        return image


class ToPureTensor(_Unchanged):
    """Return a torch.Tensor for a tensor of torchvision's ``tv_tensors``."""

    def __call__(self, image: Any) -> Any:
        is_tv_tensor = type(image).__module__.startswith("torchvision.tv_tensors")
        return image.as_subclass(torch.Tensor) if is_tv_tensor else image


# ---- geometry


class _Padded(Geometry):
    fill_name = "fill"
    fill: Any
    padding_mode: str

    def _check(self) -> None:
        can_fill = self.padding_mode == "constant" or len(arg.to_floats(self.fill)) <= 1
        arg.check(self, "fill", can_fill, f"one number with padding_mode={self.padding_mode!r}")


@operation
class Pad(_Padded):
    """Pad an image on all sides.

    Args:
        padding: pixels on each side; or (left and right, top and bottom); or (left, top, right,
            bottom).
        fill: the number in constant padding, or one number for each channel.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.
    """

    kind = IMAGE_OPS["Pad"]
    is_random = False

    padding: arg.Padding
    fill: arg.Fill = 0
    padding_mode: arg.PaddingMode = "constant"


@operation
class CenterCrop(Geometry):
    """Crop the middle of an image. If the image is too small, it is padded with 0.

    Args:
        size: (height, width), or an int for a square.
    """

    kind = IMAGE_OPS["CenterCrop"]
    is_random = False
    fill_name = "fill"
    fill = 0

    size: arg.Size


@operation
class RandomCrop(_Padded):
    """Crop a part at a random position.

    Args:
        size: (height, width), or an int for a square.
        padding: as in Pad, before the crop. None: no padding.
        pad_if_needed: pad an image that is smaller than ``size`` by the difference, on both sides.
        fill: as in Pad.
        padding_mode: as in Pad.
    """

    kind = IMAGE_OPS["RandomCrop"]
    reported = (*_BOX, "padding")

    size: arg.Size
    padding: arg.CropPadding = None
    pad_if_needed: arg.CoreFlag = False
    fill: arg.Fill = 0
    padding_mode: arg.PaddingMode = "constant"


class _Resampled(Geometry):
    bytes_only = "resizes"
    _work = "resamples uint8 pixels"
    interpolation: Any
    antialias: bool | None

    def _check(self) -> None:
        # The core has only torch's integer algorithm for antialias=True.
        is_on = isinstance(self.antialias, (bool, np.bool_)) and self.antialias
        is_covered = is_on or self.interpolation not in ("bilinear", "bicubic")
        arg.check(self, "antialias", is_covered, f"True with interpolation={self.interpolation!r}")


@operation
class Resize(_Resampled):
    """Resize an image.

    Args:
        size: (height, width); or an int for the shorter edge; or None if ``max_size`` is the
            longer edge.
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"nearest"`` or ``"nearest-exact"``.
        max_size: the largest longer edge, in pixels; only with an int, or None, as ``size``.
        antialias: True. False is not covered for bilinear and bicubic.
    """

    kind = IMAGE_OPS["Resize"]
    is_random = False

    size: arg.ResizeSize
    interpolation: arg.Interpolation = "bilinear"
    max_size: arg.LongestEdge = None
    antialias: bool | None = True

    def _check(self) -> None:
        super()._check()
        edges: Any = self.size
        if self.max_size is None:
            rule = "an int, or (height, width), without max_size"
            arg.check(self, "size", edges is not None, rule)
        elif edges is not None:
            arg.check(self, "size", len(edges) == 1, "an int, or None, with max_size")
            rule = f"an int > size={edges[0]}, the shorter edge"
            arg.check(self, "max_size", self.max_size > edges[0], rule)

    def encode(self, get_size: GetSize) -> dict[str, Any]:
        size: Any = self.size
        if size is None:
            assert self.max_size is not None
            edges = get_size()
            short = int(self.max_size * min(edges) / max(edges))
            size = [short if edge < max(edges) else self.max_size for edge in edges]
            rule = f"large enough for a pixel of the shorter edge of images of size {edges}"
            arg.check(self, "max_size", short > 0, rule)
        height, width = size if len(size) == 2 else (size[0], 0)
        longest = (self.max_size or 0) if width == 0 else 0
        return {**super().encode(get_size), "size": (height, width), "max_size": longest}


@operation
class RandomResizedCrop(_Resampled):
    """Crop a part with random area, aspect ratio and position, and resize the part.

    Args:
        size: (height, width) of the result, or an int for a square.
        scale: bounds of the crop's area, as a share of the image's area.
        ratio: bounds of the crop's width divided by its height.
        interpolation: as in Resize.
        antialias: as in Resize.
    """

    kind = IMAGE_OPS["RandomResizedCrop"]
    reported = _BOX

    size: arg.Size
    scale: arg.Scale = (0.08, 1.0)
    ratio: arg.Ratio = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: arg.Interpolation = "bilinear"
    antialias: bool | None = True


@operation
class _RandomFlip(Geometry):
    """Base of the two flips."""

    reported = ("flip",)

    p: arg.Probability = 0.5


class RandomHorizontalFlip(_RandomFlip):
    """Exchange left and right, with probability ``p``."""

    kind = IMAGE_OPS["RandomHorizontalFlip"]


class RandomVerticalFlip(_RandomFlip):
    """Exchange top and bottom, with probability ``p``."""

    kind = IMAGE_OPS["RandomVerticalFlip"]


@operation
class RandomErasing(Geometry):
    """Fill a rectangle with random area, aspect ratio and position, with probability ``p``.

    Args:
        p: probability.
        scale: bounds of the rectangle's area, as a share of the image's area.
        ratio: bounds of the rectangle's height divided by its width.
        value: the fill, one number, or one number for each channel. ``"random"`` is not covered.
        inplace: accepted, as in torchvision, without effect: your image is never written to.
    """

    kind = IMAGE_OPS["RandomErasing"]
    fill_name = "value"
    reported = ("erase", *_BOX)
    _work = "fills a rectangle of the result"

    p: arg.Probability = 0.5
    scale: arg.Share = (0.02, 0.33)
    ratio: arg.Ratio = (0.3, 3.3)
    value: arg.Erased = 0.0
    inplace: arg.Flag = False


# ---- values


@operation
class ToDtype(Values):
    """Change the dtype.

    Args:
        dtype: ``torch.float32``, ``torch.float16``, ``torch.bfloat16`` or ``torch.uint8``.
        scale: from uint8, divide by 255 (more exactly: multiply by float32's 1/255).

    A transform with several operations computes in float32 and rounds once, at the end, to the
    dtype of the last ToDtype.
    """

    dtype: arg.Dtype
    scale: arg.Flag = False

    @property
    def work(self) -> str:
        return f"to {arg.DTYPES[self.dtype]}; {super().work}"

    def change(self, numbers: Numbers) -> Numbers:
        if not numbers.is_byte:
            rule = "a float type after a ToDtype that made images float"
            arg.check(self, "dtype", self.dtype is not torch.uint8, rule)
            return Numbers(numbers.values, self.dtype, numbers.linear)
        if self.dtype is torch.uint8:
            return numbers
        factor = 1.0 / 255 if self.scale else 1.0
        values = numbers.values.to(torch.float32).mul_(factor)
        return Numbers(values, self.dtype, (factor, 0.0, 1.0) * len(values))

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(image, torch.Tensor) and image.is_floating_point():
            is_float, rule = self.dtype is not torch.uint8, "uint8 for dtype=torch.uint8"
            check_type("ToDtype: the image", image.dtype, is_float, rule)
            return image.to(self.dtype)
        return super().__call__(image)


@operation
class Normalize(Values):
    """Compute (number - mean) / std of float images, channel by channel.

    Args:
        mean: one number for each channel, or one number for all channels.
        std: as mean.
        inplace: if you call the operation with a float image, write to that image. Without effect
            in a dataset.
    """

    mean: arg.Means
    std: arg.Deviations
    inplace: arg.Flag = False

    def _statistics(self, channels: int) -> list[list[float]]:
        rule = f"one number, or one for each of {channels} channels"
        for name in ("mean", "std"):
            arg.check(self, name, len(getattr(self, name)) in (1, channels), rule)
        return [(values * channels)[:channels] for values in (self.mean, self.std)]

    def change(self, numbers: Numbers) -> Numbers:
        mean, std = self._statistics(len(numbers.values))
        remedy = "put ToDtype(torch.float32, scale=True) before"
        check_value("Normalize: images", torch.uint8, not numbers.is_byte, "float", remedy)
        columns = torch.tensor([mean, std], dtype=torch.float32, device="cpu")[..., None]
        values = numbers.values.sub(columns[0]).div_(columns[1])
        linear, so_far = None, numbers.linear
        if so_far is not None and so_far == (so_far[0], 0.0, 1.0) * len(mean):
            each = zip(so_far[::3], mean, std, strict=True)
            linear = tuple(number for channel in each for number in channel)
        return Numbers(values, numbers.dtype, linear)

    def __call__(self, image: Any) -> torch.Tensor:
        """Normalize a float tensor [..., C, H, W] by torch."""
        name, rule = "Normalize: the image", "a float tensor [..., C, H, W]"
        if not isinstance(image, torch.Tensor) or not image.is_floating_point():
            got, remedy = checks.look_up(image, "dtype", image), "put ToDtype(torch.float32) before"
            raise TypeError(checks.make_message(name, rule, got, remedy))
        check_value(name, tuple(image.shape), image.ndim >= 3, rule)
        both = torch.tensor(self._statistics(image.shape[-3]), dtype=image.dtype, device="cpu")
        mean, std = both.to(image.device)[..., None, None]
        result: torch.Tensor = image.sub_(mean) if self.inplace else image.sub(mean)
        return result.div_(std)
