"""Pillow's affine ``Image.transform`` and ``Image.rotate``, which programs and policies call,
natively with Pillow's bits.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fastloop._core import pil_affine
from fastloop.adapters.pillow_blur import Core, open_verdict
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import Verification, running_original, runs_original
from fastloop.data.collate import fetch

_COUNT = {False: 128, True: 256}  # of a battery: of code that fastloop does not know: True
_AFFINE = 0  # Pillow's number of the method
_FILTERS = {2: False, 3: True}  # Pillow's numbers: bilinear, bicubic; is it bicubic


def _read(
    target: Any, box: Any, image: Any, method: Any, data: Any, resample: Any = 0, fill: Any = True
) -> tuple[Any, ...]:
    """Return the arguments of ``pil_affine()`` behind the result. Raises ValueError: fastloop does
    not make the result."""
    cls = sys.modules["PIL.Image"].Image
    are_plain = type(target) is type(image) is cls and target.mode == image.mode == "RGB"
    is_odd = not are_plain or target.size != image.size or image.readonly
    refuse_if(is_odd, "an image of another class or mode, or of another size than the result")
    is_done = isinstance(resample, int) and isinstance(method, int) and type(fill) is bool
    is_done = is_done and method == _AFFINE and resample in _FILTERS
    refuse_if(not is_done, "another filter than bilinear and bicubic, or no affine matrix")
    is_done = type(data) in (tuple, list) and {*map(type, data)} <= {int, float} and len(data) == 6
    refuse_if(not is_done or box != (0, 0, *target.size), "data are not six numbers")
    return image.im, _FILTERS[resample], fill, *map(float, data)


def _find_difference(is_unknown: bool) -> str:
    """Turn and shear noise and flat images. Return what differs from Pillow's, or ""."""
    from fastloop.adapters.torchvision_battery import images_of

    numbers, pil = np.random.default_rng(7), sys.modules["PIL.Image"]
    with running_original():
        for count, array in zip(range(_COUNT[is_unknown]), images_of(None), strict=False):
            image = pil.fromarray(array.repeat(3 // array.shape[2], 2))
            data = numbers.normal([1, 0, 0, 0, 1, 0], [0.3, 0.3, 9, 0.3, 0.3, 9]).tolist()
            if count % 2:  # a shear, a translation, or a change of one size
                data = [data[i] if i == count % 6 else (i % 4 == 0) * 1.0 for i in range(6)]
            color, resample = (None, (128, 7, 255))[count % 3 == 0], 2 + count % 4 // 2
            target = pil.new("RGB", image.size, color)
            given = (0, 0, *image.size), image, _AFFINE, data, resample, color is None
            pil_affine(target.im, *_read(target, *given))
            made = image.transform(image.size, _AFFINE, data, resample, fillcolor=color)
            if Core(target.im) != Core(made.im):
                return f"an image differs with {data}"
    return ""


@cache
def open_warp() -> tuple[str, Verification]:
    """Find out about Pillow's transforms in this process. Return why fastloop must not stand in for
    them, or "", and the verification of images."""
    return open_verdict("PillowWarp", "warps", _find_difference)


prepare = open_warp


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in place of ``Image.__transformer``, which changes an image."""

    def transformer(self: Any, *args: Any) -> Any:
        if not (seam.is_on or fetch.is_served) or runs_original():
            return before(self, *args)
        why, verification = open_warp()
        is_due = not why and not verification.falls_back and verification.is_due()
        core = self.im.copy() if is_due else self.im
        try:
            refuse_if(why, why)
            refuse_if(verification.falls_back, "an image has differed from Pillow's")
            pil_affine(core, *_read(self, *args))
        except Exception as error:  # Pillow raises its own error, if there is one
            return seam.call_left(f"Image.transform: {error}", before, self, *args)
        seam.native += not is_due
        if is_due:
            verification.compare(
                lambda: (before(self, *args), Core(self.im))[1], lambda _: Core(core)
            )
        return None

    return transformer
