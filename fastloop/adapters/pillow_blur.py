"""Pillow's ``ImageFilter.GaussianBlur``, which programs' own classes call, natively with Pillow's
bits. A blur draws nothing, so the random numbers stay the program's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fastloop._core import pil_blur
from fastloop.adapters import originals
from fastloop.adapters.torchvision_battery import images_of
from fastloop.base.checks import refuse_if
from fastloop.compat.verification import Verification, running_original, runs_original
from fastloop.data.collate import fetch

_CHECKED = 3  # results of a process
_COUNT = {False: 128, True: 256}  # of a battery: of code that fastloop does not know: True


class Core:
    """The core of an image, which equals a core with the same pixels."""

    def __init__(self, core: Any) -> None:
        self.core = core

    def __eq__(self, other: Any) -> bool:
        image: Any = sys.modules["PIL.Image"].Image()
        mine, theirs = (image._new(each.core) for each in (self, other))
        return bool(mine.mode == theirs.mode and bytes_of(mine) == bytes_of(theirs))


def bytes_of(image: Any) -> bytes:
    """Return the pixels of an image, of RGB with the fourth bytes that Pillow stores."""
    given = ("raw", "RGBX") if image.mode == "RGB" else ()
    return bytes(image.tobytes(*given))


def open_verdict(
    original: str, name: str, find_difference: Callable[[bool], str], key: str = ""
) -> tuple[str, Verification]:
    """Find out about a function of Pillow in this process.

    Args:
        original: the function's name in originals.txt.
        name: of the battery and of what is verified.
        find_difference: the battery.
        key: what else the verdict depends on.

    Returns:
        Why fastloop must not stand in for the function, or "", and the verification of results.
    """
    battery = originals.Battery(name, key, find_difference, is_for_all=True)
    verdict = originals.judge([original], battery)
    return verdict.why, Verification(name, "Pillow's", _CHECKED, not verdict.about)


def _blur(core: Any, radius: Any) -> Any:
    """Return a blurred copy of the core of an image. Raises ValueError: fastloop does not blur
    it."""
    refuse_if(type(radius) not in (float, int), "the radius of a GaussianBlur is not one number")
    blurred = core.copy()
    pil_blur(blurred, radius)
    return blurred


def _find_difference(is_unknown: bool) -> str:
    """Blur noise and flat images of small sizes. Return what differs from Pillow's, or ""."""
    modules, numbers, compared = sys.modules, np.random.default_rng(7), 0
    with running_original():
        for count, array in zip(range(_COUNT[is_unknown]), images_of(None), strict=False):
            step = (count % 31 * (count % 31 + 1)) ** 0.5  # where boxes become longer
            radius = (numbers.uniform(0.05, 3), step, numbers.uniform(0, 70), count % 9)[count % 4]
            pixels = array[:, :, 0] if array.shape[2] == 1 else array
            core = modules["PIL.Image"].fromarray(pixels).im
            expected = Core(modules["PIL.ImageFilter"].GaussianBlur(radius).filter(core))
            try:
                blurred = Core(_blur(core, radius))
            except ValueError:  # Pillow blurs it
                continue
            if blurred != expected:
                return f"a blur by {radius} differs"
            compared += 1
    return "" if compared >= _COUNT[is_unknown] // 4 else "no blur can be compared"


@cache
def open_blur() -> tuple[str, Verification, type]:
    """Find out about Pillow's blur in this process. Return why fastloop must not stand in for it,
    or "", the verification of blurs, and the class of cores."""
    alignment = os.environ.get("PILLOW_ALIGNMENT", "")
    core = sys.modules["PIL.Image"].new("L", (1, 1)).im
    return *open_verdict("PillowBlur", "blurs", _find_difference, alignment), type(core)


prepare = open_blur


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in place of ``GaussianBlur.filter``."""

    def filter(self: Any, image: Any) -> Any:
        if not (seam.is_on or fetch.is_served) or runs_original():
            return before(self, image)
        why, verification, cls = open_blur()
        try:
            refuse_if(why, why)
            refuse_if(verification.falls_back, "a blur has differed from Pillow's")
            is_known = type(self) is sys.modules["PIL.ImageFilter"].GaussianBlur
            refuse_if(not is_known or type(image) is not cls, "a blur of an unknown class")
            blurred = _blur(image, vars(self).get("radius"))
        except (ValueError, MemoryError) as error:
            return seam.call_left(str(error), before, self, image)
        if not verification.is_due():
            seam.native += 1
            return blurred
        return verification.compare(lambda: Core(before(self, image)), lambda _: Core(blurred)).core

    return filter
