"""timm's ``PrefetchLoader`` on the CPU: one pass makes normalised floats of the bytes of a batch.
timm's own code draws for erasing, and says what to write.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fastloop.adapters import originals
from fastloop.base.checks import refuse_if
from fastloop.data.collate import make_collate
from fastloop.data.transforms.plan import Numbers, Plan, Values, compile_plan


class _Normalized(Values):
    """Computes what timm's loader computes of bytes."""

    def __init__(self, mean: torch.Tensor, std: torch.Tensor) -> None:
        self._mean, self._std = mean.flatten()[:, None], std.flatten()[:, None]

    def change(self, numbers: Numbers) -> Numbers:
        values = numbers.values.to(torch.float32).sub_(self._mean).div_(self._std)
        pairs = zip(self._mean.flatten().tolist(), self._std.flatten().tolist(), strict=True)
        linear = tuple(each for mean, std in pairs for each in (1.0, mean, std))
        return Numbers(values, torch.float32, linear)


class _Floats:
    """The floats of batches of one loader, in memory that is used again."""

    def __init__(self) -> None:
        self._collate = make_collate()

    def begin(self, loader: Any) -> None:
        """Begin an epoch. Raises ValueError: timm makes the floats."""
        why = originals.find_unknown("PrefetchLoader") or originals.find_obstacle()
        refuse_if(why, why)
        is_plain = loader.device.type == "cpu" and loader.img_dtype is torch.float32
        refuse_if(not is_plain, "PrefetchLoader makes no floats on the CPU")
        self._held = [(each, each._version) for each in (loader.mean, loader.std)]
        for each, _ in self._held:
            is_plain = type(each) is torch.Tensor and each.dtype is torch.float32
            is_plain = is_plain and each.ndim == 4 and each.numel() == each.shape[1]
            refuse_if(not is_plain, "the mean or std is not one float for each channel")
        self._change = _Normalized(loader.mean, loader.std)
        self._plan: Plan | None = None
        is_known = not originals.find_unknown("TimmErasing")
        self._erasing = _functions_of_erasing() if is_known else None

    def make(self, loader: Any, images: Any) -> Any:
        """Return the floats of a batch."""
        now = (loader.mean, loader.std)
        is_same = all(a is b and a._version == n for a, (b, n) in zip(now, self._held, strict=True))
        is_plain = type(images) is torch.Tensor and images.dtype is torch.uint8
        is_plain = is_plain and images.ndim == 4 and images.is_contiguous() and len(images) > 0
        if not is_plain or not is_same or images.shape[1] != self._held[0][0].shape[1]:
            return images.to(loader.img_dtype).sub_(loader.mean).div_(loader.std)
        shape = tuple(images.shape[1:])
        if self._plan is None or self._plan.core.out_shape != shape:
            self._plan = compile_plan((self._change,), shape)
        rows = self._collate.block(self._plan.empty(), len(images)).unbind(0)
        for image, row in zip(images, rows, strict=True):
            self._plan.core.apply(image, row, 0, 0, 0)
        return self._collate([*rows])

    def erase(self, erasing: Any, images: Any) -> Any:
        """Return the images after random erasing, which draws and writes."""
        is_known = type(erasing) is sys.modules["timm.data.random_erasing"].RandomErasing
        is_known = is_known and "_erase" not in vars(erasing)
        is_known = is_known and self._erasing == _functions_of_erasing()
        are_plain = type(images) is torch.Tensor and images.dtype is torch.float32
        if not is_known or not are_plain or str(erasing.device) != "cpu":
            return erasing(images)
        erasing(_Written(images.numpy(), images.dtype))
        return images


class _Written:
    """A batch, or one image of a batch, to which timm's RandomErasing writes. This thread writes
    the pixels: torch's copies wake other threads, which then wait at work for the next copy."""

    def __init__(self, pixels: Any, dtype: torch.dtype) -> None:
        self._pixels, self.dtype = pixels, dtype

    def size(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._pixels.shape
        return shape

    def __getitem__(self, index: int) -> _Written:
        return _Written(self._pixels[index], self.dtype)

    def __setitem__(self, where: Any, pixels: torch.Tensor) -> None:
        self._pixels[where] = pixels.numpy()


def _functions_of_erasing() -> tuple[Any, ...]:
    module = sys.modules["timm.data.random_erasing"]
    return module.RandomErasing.__call__, module.RandomErasing._erase, module._get_pixels


def _iterate(loader: Any, floats: _Floats) -> Iterator[Any]:
    """Yield what PrefetchLoader yields, one batch behind the loader inside."""
    kept = None
    for images, target in loader.loader:
        images = images.to(device=loader.device, non_blocking=True)
        target = target.to(device=loader.device, non_blocking=True)
        images = floats.make(loader, images)
        if loader.random_erasing is not None:
            images = floats.erase(loader.random_erasing, images)
        if kept is not None:
            yield kept
        kept = images, target
    if kept is not None:
        yield kept


def prepare() -> None:
    """There is nothing to find out before a fork."""


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in place of ``PrefetchLoader.__iter__``."""
    known: weakref.WeakKeyDictionary[Any, _Floats] = weakref.WeakKeyDictionary()

    def iterate(self: Any) -> Any:
        try:
            refuse_if(not seam.is_on, "")
            if (floats := known.get(self)) is None:
                floats = known[self] = _Floats()
            floats.begin(self)
        except (ValueError, TypeError) as error:  # a class of the program's may have no hash
            why = str(error)
            return seam.call_left(f"PrefetchLoader: {why}", before, self) if why else before(self)
        seam.native += 1
        return _iterate(self, floats)

    return iterate
