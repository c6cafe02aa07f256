"""Finds the libjpeg-turbo that Pillow links, for plans that decode parts of JPEG files.

docs/internals/image-folder.md says which files a plan decodes, and why the bits are Pillow's.
"""

from __future__ import annotations

import io
import os
import sys
from functools import cache
from importlib import import_module
from random import Random
from typing import Any

import numpy as np
import torch

from fastloop._core import JpegDecoder
from fastloop.compat import verdicts
from fastloop.data.transforms.ops import RandomCrop
from fastloop.data.transforms.split import Piece, SplitPlan

_SIZES = (1, 1), (17, 40), (50, 90)  # of parts of an image
_PLACES = 6


def _is_pillows(decoder: JpegDecoder, pillow: Any) -> bool:
    """Tell whether parts of files have the pixels that Pillow makes of the whole files."""
    crops = [Piece((RandomCrop(size),), ()) for size in _SIZES]
    plans = [SplitPlan((crop,), (0, 0, 3), "HWC", "HWC", 0) for crop in crops]
    pixels = pillow.frombytes("RGB", (136, 72), Random(0).randbytes(136 * 72 * 3))
    for subsampling in range(3):  # 4:4:4, 4:2:2, 4:2:0
        file = io.BytesIO()
        pixels.save(file, "JPEG", quality=90, subsampling=subsampling)
        image, whole = decoder.open(file.getvalue()), np.asarray(pillow.open(file))
        for plan in plans:
            for i in range(_PLACES):
                if not torch.equal(plan.apply(image, i), plan.apply(whole, i)):
                    return False
    return True


def _identify(file: Any) -> tuple[Any, ...]:
    status = os.stat(file)
    return file, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns


@cache
def find_jpeg() -> JpegDecoder | None:
    """Return a decoder by Pillow's libjpeg-turbo. None: there is no Pillow, its libjpeg is of
    another kind, or the pixels of parts differ."""
    try:
        pillow = import_module("PIL.Image")
        decoder = JpegDecoder(pillow.core.__file__)
        files = pillow.core.__file__, decoder.path
        # The program, or a library loaded before all others, may have a libjpeg that Pillow calls.
        others = sys.executable, os.environ.get("LD_PRELOAD")
        key = verdicts.make_key("JPEG", pillow.__version__, list(map(_identify, files)), others)
        verdict = verdicts.find(key)
        if verdict is None:
            why = "" if _is_pillows(decoder, pillow) else "parts of JPEG files differ"
            verdicts.keep(key, verdict := verdicts.Verdict(why))
        return None if verdict.why else decoder
    except Exception:  # a module built for another NumPy raises ValueError
        return None
