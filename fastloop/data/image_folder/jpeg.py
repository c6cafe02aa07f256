"""Finds the libjpeg-turbo that Pillow links, for plans that decode parts of JPEG files.

docs/internals/image-folder.md says which files a plan decodes, and why the bits are Pillow's.
"""

from __future__ import annotations

import io
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from fastloop._core import JpegDecoder
from fastloop.data.transforms.ops import RandomCrop
from fastloop.data.transforms.split import Piece, SplitPlan

_SIZES = (1, 1), (17, 40), (50, 90)  # of parts of an image
_PLACES = 6


def _is_pillows(decoder: JpegDecoder, pillow: Any) -> bool:
    """Tell whether parts of files have the pixels that Pillow makes of the whole files."""
    pixels = np.random.default_rng(0).integers(0, 256, (72, 136, 3), np.uint8)
    for subsampling in range(3):  # 4:4:4, 4:2:2, 4:2:0
        file = io.BytesIO()
        pillow.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=subsampling)
        image, whole = decoder.open(file.getvalue()), np.asarray(pillow.open(file))
        for size in _SIZES:
            plan = SplitPlan((Piece((RandomCrop(size),), ()),), (0, 0, 3), "HWC", "HWC", 0)
            for i in range(_PLACES):
                if not torch.equal(plan.apply(image, i), plan.apply(whole, i)):
                    return False
    return True


@cache
def find_jpeg() -> JpegDecoder | None:
    """Return a decoder by Pillow's libjpeg-turbo. None: there is no Pillow, its libjpeg is of
    another kind, or the pixels of parts differ."""
    try:
        pillow = import_module("PIL.Image")
        decoder = JpegDecoder(pillow.core.__file__)
        return decoder if _is_pillows(decoder, pillow) else None
    except Exception:  # a module built for another NumPy raises ValueError
        return None
