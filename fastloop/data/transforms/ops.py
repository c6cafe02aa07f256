"""The operations of fastloop.transforms, with names, arguments and defaults of torchvision's v2."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fastloop.data.transforms.arguments import (
    DTYPES,
    INTERPOLATIONS,
    PADDING_MODES,
    as_list,
    check_dtype,
    check_padding_mode,
    check_probability,
    check_range,
    read_fill,
    read_flag,
    read_interpolation,
    read_padding,
    read_resize,
    read_size,
    read_statistics,
)
from fastloop.data.transforms.plan import Geometry, ImageOp, Numbers, Values

FindSize = Callable[[], tuple[int, int]]
_INFINITY = float("inf")


def is_own(op: object) -> bool:
    """Whether it is an operation of this module, and of no subclass, which may do anything."""
    return isinstance(op, ImageOp) and globals().get(type(op).__name__) is type(op)


class Compose(ImageOp):
    """Operations one after the other.

    Args:
        transforms: operations of this module; a Compose among them stands for its own.
    """

    def __init__(self, transforms: Any) -> None:
        if not isinstance(transforms, Sequence):
            raise TypeError(
                f"Compose: transforms is a {type(transforms).__name__}; pass a list of operations"
            )
        if not transforms:
            raise ValueError("Compose: transforms is empty; pass at least one operation")
        for i, op in enumerate(transforms):
            if not is_own(op):
                name = op.__name__ if isinstance(op, type) else type(op).__name__
                raise TypeError(
                    f"Compose: item {i} is {'the class' if isinstance(op, type) else 'a'} {name}; "
                    "pass instances of the operations of fastloop.transforms. A torchvision "
                    "v2.Compose goes to ArrayDataset(transform=) as it is; a function of yours "
                    "goes into a Dataset around the ArrayDataset, or into collate_fn"
                )
        self.transforms = transforms

    def _chain(self) -> Iterator[Geometry | Values]:
        for op in self.transforms:
            yield from op._chain()

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(self.transforms[0], ToImage):
            image = self.transforms[0](image)
        if isinstance(image, torch.Tensor) and image.is_floating_point():
            result: torch.Tensor = image
            for op in self.transforms:
                result = op(result)
            return result
        return super().__call__(image)

    def __repr__(self) -> str:
        lines = [f"    {op}" for op in self.transforms]
        if len(lines) == 1:
            return f"Compose({lines[0]})"
        return "\n  ".join(["Compose(", *"\n".join(lines).split("\n")]) + "\n)"


# ---- operations that change no bit of a tensor: a plan has nothing of them


class _Unchanged(ImageOp):
    def _chain(self) -> Iterator[Geometry | Values]:
        return iter(())

    def __call__(self, image: Any) -> Any:
        return image


class Identity(_Unchanged):
    """Nothing."""


class ToImage(_Unchanged):
    """Nothing to a tensor. Called with an array [H, W, C] or [H, W], a tensor [C, H, W]."""

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(image, np.ndarray):
            return torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1).contiguous()
        if not isinstance(image, torch.Tensor):
            raise TypeError(
                f"ToImage: the image is a {type(image).__name__}; pass a torch.Tensor or a "
                "numpy.ndarray (of a PIL image: numpy.asarray(image))"
            )
        return image


class ToPureTensor(_Unchanged):
    """Nothing to a tensor, but for the type of one of torchvision's ``tv_tensors``."""

    def __call__(self, image: Any) -> Any:
        is_tv_tensor = type(image).__module__.startswith("torchvision.tv_tensors")
        return image.as_subclass(torch.Tensor) if is_tv_tensor else image


# ---- geometry


class Pad(Geometry):
    """Padding on all sides.

    Args:
        padding: pixels on each side; or (left and right, top and bottom); or (left, top, right,
            bottom).
        fill: what constant padding holds, a number or one for each channel.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.
    """

    kind = 0
    is_random = False

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        padding = as_list(padding)
        read_padding("Pad", padding)
        check_padding_mode("Pad", padding_mode, fill)
        self.padding = list(padding) if isinstance(padding, Sequence) else int(padding)
        self.fill = fill
        self.padding_mode = padding_mode

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        return {
            "padding": read_padding("Pad", self.padding),
            "padding_mode": PADDING_MODES[self.padding_mode],
        }

    def filling(self) -> tuple[str, tuple[float, ...]]:
        return "fill", read_fill("Pad", "fill", self.fill)


class CenterCrop(Geometry):
    """The middle of an image, padded with 0 where it is smaller.

    Args:
        size: (height, width), or an int for a square.
    """

    kind = 1
    is_random = False

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = read_size("CenterCrop", size)

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        return {"size": tuple(self.size)}

    def filling(self) -> tuple[str, tuple[float, ...]]:
        return "fill", (0.0,)


class RandomCrop(Geometry):
    """A crop at a random place.

    Args:
        size: (height, width), or an int for a square.
        padding: as of Pad, before the crop. None: none.
        pad_if_needed: pad an image that is smaller than ``size``, by what it lacks, on both sides.
        fill: as of Pad.
        padding_mode: as of Pad.
    """

    kind = 2

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: float | Sequence[float] | None = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = read_size("RandomCrop", size)
        padding = as_list(padding)
        left, top, right, bottom = read_padding("RandomCrop", 0 if padding is None else padding)
        check_padding_mode("RandomCrop", padding_mode, fill)
        self.padding = [left, right, top, bottom] if padding else None  # as torchvision keeps it
        self.pad_if_needed = read_flag("RandomCrop", "pad_if_needed", pad_if_needed)
        self.fill = fill
        self.padding_mode = padding_mode

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        left, right, top, bottom = self.padding or [0] * 4
        return {
            "size": tuple(self.size),
            "padding": (left, top, right, bottom),
            "pad_if_needed": self.pad_if_needed,
            "padding_mode": PADDING_MODES[self.padding_mode],
        }

    def filling(self) -> tuple[str, tuple[float, ...]]:
        return "fill", read_fill("RandomCrop", "fill", self.fill)

    def describe(self, drawn: dict[str, Any]) -> dict[str, Any]:
        return {name: drawn[name] for name in ("top", "left", "height", "width", "padding")}


class Resize(Geometry):
    """An image of another size.

    Args:
        size: (height, width); or an int for the shorter edge; or None, where ``max_size`` is the
            longer edge.
        interpolation: ``"bilinear"``, ``"bicubic"``, ``"nearest"`` or ``"nearest-exact"``.
        max_size: with an int as size, the most that the longer edge may have.
        antialias: True. False is not covered for bilinear and bicubic.
    """

    kind = 3
    is_random = False
    is_resize = True

    def __init__(
        self,
        size: int | Sequence[int] | None,
        interpolation: Any = "bilinear",
        max_size: int | None = None,
        antialias: bool | None = True,
    ) -> None:
        self.size = read_resize(size, max_size)
        self.interpolation = read_interpolation("Resize", interpolation, antialias)
        self.max_size = max_size
        self.antialias = antialias

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        size = self.size
        if size is None:
            assert self.max_size is not None
            edges = find_size()
            short = int(self.max_size * min(edges) / max(edges))
            size = [short if edge < max(edges) else self.max_size for edge in edges]
            if short == 0:
                raise ValueError(
                    f"Resize: max_size={self.max_size} leaves no pixels of the shorter edge of "
                    f"images of size {edges}; pass a larger max_size"
                )
        height, width = size if len(size) == 2 else (size[0], 0)
        return {
            "size": (height, width),
            "max_size": (self.max_size or 0) if width == 0 else 0,
            "interpolation": INTERPOLATIONS[self.interpolation],
        }


class RandomResizedCrop(Geometry):
    """A crop of random area and aspect ratio at a random place, resized.

    Args:
        size: (height, width) of the result, or an int for a square.
        scale: bounds of the crop's area, as a share of the image's.
        ratio: bounds of its width over its height.
        interpolation: as of Resize.
        antialias: as of Resize.
    """

    kind = 4
    is_resize = True

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: Any = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self.size = read_size("RandomResizedCrop", size)
        check_range("RandomResizedCrop", "scale", scale, 0, _INFINITY)
        check_range("RandomResizedCrop", "ratio", ratio, 0, _INFINITY)
        self.scale = scale
        self.ratio = ratio
        self.interpolation = read_interpolation("RandomResizedCrop", interpolation, antialias)
        self.antialias = antialias

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        return {
            "size": tuple(self.size),
            "scale": tuple(map(float, self.scale)),
            "ratio": tuple(map(float, self.ratio)),
            "interpolation": INTERPOLATIONS[self.interpolation],
        }

    def describe(self, drawn: dict[str, Any]) -> dict[str, Any]:
        return {name: drawn[name] for name in ("top", "left", "height", "width")}


class _RandomFlip(Geometry):
    def __init__(self, p: float = 0.5) -> None:
        check_probability(type(self).__name__, p)
        self.p = p

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        return {"p": float(self.p)}

    def describe(self, drawn: dict[str, Any]) -> dict[str, Any]:
        return {"flip": drawn["applied"]}


class RandomHorizontalFlip(_RandomFlip):
    """Left and right exchanged, with probability ``p``."""

    kind = 5


class RandomVerticalFlip(_RandomFlip):
    """Top and bottom exchanged, with probability ``p``."""

    kind = 6


class RandomErasing(Geometry):
    """A rectangle of random area, aspect ratio and place filled, with probability ``p``.

    Args:
        p: probability.
        scale: bounds of the rectangle's area, as a share of the image's.
        ratio: bounds of its height over its width.
        value: what it is filled with, a number or one for each channel. ``"random"`` is not
            covered.
        inplace: taken for torchvision's sake; no image of yours is ever written to.
    """

    kind = 7

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: Any = 0.0,
        inplace: bool = False,
    ) -> None:
        check_probability("RandomErasing", p)
        check_range("RandomErasing", "scale", scale, 0, 1)
        check_range("RandomErasing", "ratio", ratio, 0, _INFINITY)
        if isinstance(value, str) or value is None:
            raise ValueError(
                f"RandomErasing: value={value!r} is not covered; pass a number or one for each "
                "channel, such as the mean, or erase with noise in the training loop, on the batch"
            )
        self.p = p
        self.scale = scale
        self.ratio = ratio
        self.value = list(read_fill("RandomErasing", "value", value))
        self.inplace = read_flag("RandomErasing", "inplace", inplace)

    @property
    def work(self) -> str:
        return "fills a rectangle of the result"

    def spec(self, find_size: FindSize) -> dict[str, Any]:
        return {
            "p": float(self.p),
            "scale": tuple(map(float, self.scale)),
            "ratio": tuple(map(float, self.ratio)),
        }

    def filling(self) -> tuple[str, tuple[float, ...]]:
        return "value", tuple(self.value)

    def describe(self, drawn: dict[str, Any]) -> dict[str, Any]:
        place = {name: drawn[name] for name in ("top", "left", "height", "width")}
        return {"erase": drawn["applied"], **place}


# ---- values


class ToDtype(Values):
    """Another dtype.

    Args:
        dtype: ``torch.float32``, ``torch.float16``, ``torch.bfloat16`` or ``torch.uint8``.
        scale: from uint8, divide by 255 (more exactly: multiply by float32's 1/255).

    In a transform of several operations all is computed in float32 and rounded once, at the end,
    to the dtype of the last ToDtype.
    """

    def __init__(self, dtype: torch.dtype, scale: bool = False) -> None:
        check_dtype(dtype)
        self.dtype = dtype
        self.scale = read_flag("ToDtype", "scale", scale)

    @property
    def work(self) -> str:
        return f"to {DTYPES[self.dtype]}; {super().work}"

    def change(self, numbers: Numbers) -> Numbers:
        if not numbers.is_byte:
            if self.dtype is torch.uint8:
                raise ValueError(
                    "ToDtype: dtype=torch.uint8 of images that are float by then is not covered; "
                    "leave the ToDtype out that made them float"
                )
            return Numbers(numbers.values, self.dtype, numbers.linear)
        if self.dtype is torch.uint8:
            return numbers
        factor = 1.0 / 255 if self.scale else 1.0
        values = numbers.values.to(torch.float32)
        if self.scale:
            values.mul_(factor)
        return Numbers(values, self.dtype, (factor, 0.0, 1.0) * len(values))

    def __call__(self, image: Any) -> torch.Tensor:
        if isinstance(image, torch.Tensor) and image.is_floating_point():
            if self.dtype is torch.uint8:
                raise TypeError(f"ToDtype: dtype=torch.uint8 of a {image.dtype} image; pass uint8")
            return image.to(self.dtype)
        return super().__call__(image)


class Normalize(Values):
    """(number - mean) / std of float images, channel by channel.

    Args:
        mean: one for each channel, or one for all.
        std: likewise.
        inplace: write to the float image that this is called with. Without effect in a dataset.
    """

    def __init__(self, mean: Any, std: Any, inplace: bool = False) -> None:
        self.mean = read_statistics("mean", mean)
        self.std = read_statistics("std", std)
        self.inplace = read_flag("Normalize", "inplace", inplace)

    def _statistics(self, channels: int) -> list[list[float]]:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"Normalize: {name}={values} has {len(values)} values, and images have "
                    f"{channels} channels; pass one number for each channel"
                )
        return [
            values if len(values) == channels else values * channels
            for values in (self.mean, self.std)
        ]

    def change(self, numbers: Numbers) -> Numbers:
        mean, std = self._statistics(len(numbers.values))
        if numbers.is_byte:
            raise ValueError(
                "Normalize: images are uint8 by then; put ToDtype(torch.float32, scale=True) before"
            )
        columns = (torch.tensor(v, dtype=torch.float32, device="cpu")[:, None] for v in (mean, std))
        values = numbers.values.sub(next(columns)).div_(next(columns))
        linear, so_far = None, numbers.linear
        if so_far is not None and so_far == (so_far[0], 0.0, 1.0) * len(mean):
            each = zip(so_far[::3], mean, std, strict=True)
            linear = tuple(number for channel in each for number in channel)
        return Numbers(values, numbers.dtype, linear)

    def __call__(self, image: Any) -> torch.Tensor:
        """Of float tensors [..., C, H, W], by torch."""
        if not isinstance(image, torch.Tensor) or not image.is_floating_point():
            kind = image.dtype if isinstance(image, torch.Tensor) else type(image).__name__
            raise TypeError(f"Normalize: the image is {kind}; put ToDtype(torch.float32) before")
        if image.ndim < 3:
            raise ValueError(
                f"Normalize: the image has shape {tuple(image.shape)}; pass [..., C, H, W]"
            )
        mean, std = (
            torch.tensor(v, dtype=image.dtype, device=image.device).view(-1, 1, 1)
            for v in self._statistics(image.shape[-3])
        )
        return (image.sub_(mean) if self.inplace else image.sub(mean)).div_(std)
