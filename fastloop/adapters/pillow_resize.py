"""Pillow's ``Image.resize``, which programs and libraries call, natively with Pillow's bits.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import torch

from fastloop._core import pil_clear
from fastloop.adapters.pillow_blur import bytes_of, open_verdict
from fastloop.base.checks import refuse_if
from fastloop.base.threads import has_interpreter_lock
from fastloop.compat.verification import Verification, running_original, runs_original
from fastloop.data.collate import fetch

_COUNT = {False: 128, True: 256}  # of a battery: of code that fastloop does not know: True
_CHANNELS = {"RGB": 3, "L": 1}
_FILTERS = {2: False, 3: True, None: True}  # Pillow's numbers: bilinear, bicubic; is it bicubic
_MOST = 1 << 14  # pixels of an edge


@cache
def _nothing() -> torch.Generator:
    """Return the generator that plans ask for; a resize draws no numbers."""
    return torch.Generator()


@lru_cache(64)
def _open_plan(size: tuple[int, int], mode: str, is_cubic: bool) -> Any:
    # Imported here: most programs that import Pillow and have no workers resize nothing.
    from fastloop.adapters.torchvision_chain import Chain, find_pillow
    from fastloop.data.transforms.ops import Resize

    op: Any = Resize(size[::-1])
    op.interpolation = find_pillow() + is_cubic
    return Chain("", ops=[op]).compile((0, 0, _CHANNELS[mode]), "HWC", "HWC")[1]


def _resize(
    image: Any, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None
) -> Any:
    """Return the resized image. Raises ValueError: fastloop does not resize it."""
    refuse_if(not has_interpreter_lock(), "threads run without the interpreter lock")
    is_plain = type(image) is sys.modules["PIL.Image"].Image and image.mode in _CHANNELS
    refuse_if(not is_plain, "an image of another class or mode")
    is_done = isinstance(resample, int | None) and resample in _FILTERS
    is_done = is_done and box is None and reducing_gap is None
    refuse_if(not is_done, "a box, a reducing gap or another filter")
    are_ints = type(size) in (tuple, list) and set(map(type, size)) == {int} and len(size) == 2
    edges = (*image.size, *size) if are_ints else (0,)
    size = tuple(size) if are_ints else ()
    is_odd = min(edges) < 1 or max(edges) > _MOST or image.size == size
    refuse_if(is_odd, "a size that is not two new ints")
    # Pillow shows where the pixels are if one block has them all.
    blocks = size[0] * size[1] * 4 // sys.modules["PIL.Image"].core.get_block_size()
    refuse_if(image.mode == "RGB" and blocks > 0, "a result of several blocks of memory")
    out = np.empty((*size[::-1], _CHANNELS[image.mode]), np.uint8)
    draws = _open_plan(size, image.mode, _FILTERS[resample])
    draws.apply(image, out, _nothing())
    core = sys.modules["PIL.Image"].frombytes(image.mode, size, out).im
    if image.mode == "RGB":
        pil_clear(core)
    return image._new(core)


def _pixels_of(image: Any) -> Any:
    """Return what is equal for equal images."""
    return type(image), image.mode, image.size, image.info, bytes_of(image)


def _find_difference(is_unknown: bool) -> str:
    """Resize noise and flat images. Return what differs from Pillow's, or ""."""
    from fastloop.adapters.torchvision_battery import images_of

    numbers, pil = np.random.default_rng(7), sys.modules["PIL.Image"]
    with running_original():
        for count, array in zip(range(_COUNT[is_unknown]), images_of(None), strict=False):
            image = pil.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
            most = (4, 40, 90)[count % 3]
            edges = [int(numbers.integers(1, most)) for _ in image.size]
            size = (edges[0], image.size[1] if count % 5 == 0 else edges[1])
            given = size, (2, 3, None)[count % 3]
            if size == image.size:
                continue
            if _pixels_of(_resize(image, *given)) != _pixels_of(image.resize(*given)):
                return f"a resize to {size} differs"
    return ""


@cache
def open_resize() -> tuple[str, Verification]:
    """Find out about Pillow's resize in this process. Return why fastloop must not stand in for
    it, or "", and the verification of images."""
    return open_verdict("PillowResize", "resizes", _find_difference)


def prepare() -> None:
    """Find out before a fork, and import what plans need."""
    if not open_resize()[0]:
        _open_plan((1, 1), "L", False)


class _Resized:
    """An image, equal to an image with the same pixels."""

    def __init__(self, image: Any) -> None:
        self.image = image

    def __eq__(self, other: Any) -> bool:
        return bool(_pixels_of(self.image) == _pixels_of(other.image))


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in place of ``Image.resize``."""

    def resize(self: Any, *args: Any, **named: Any) -> Any:
        if not (seam.is_on or fetch.is_served) or runs_original():
            return before(self, *args, **named)
        why, verification = open_resize()
        resized: Any = None
        try:
            refuse_if(why, why)
            refuse_if(verification.falls_back, "a resize has differed from Pillow's")
            resized = _resize(self, *args, **named)
        except Exception as error:  # Pillow raises its own error, if there is one
            why = str(error) or type(error).__name__
        if resized is None:
            return seam.call_left(f"Image.resize: {why}", before, self, *args, **named)
        if not verification.is_due():
            seam.native += 1
            return resized
        original = partial(before, self, *args, **named)
        return verification.compare(lambda: _Resized(original()), lambda _: _Resized(resized)).image

    return resize
