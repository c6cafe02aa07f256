"""Pillow's ``ImageFile.load`` of JPEG files whose planes are kept, with Pillow's bits and states.

A program's own dataset calls it by ``Image.open(path).convert("RGB")``. docs/internals/
image-cache.md tells the rules.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from fastloop._core import pil_ycc
from fastloop.adapters import originals
from fastloop.adapters.pillow_blur import Core
from fastloop.base.checks import refuse_if
from fastloop.compat.decoded import decoded
from fastloop.compat.verification import Verification, runs_original
from fastloop.data.collate import fetch

if TYPE_CHECKING:
    from fastloop.data.image_folder.planes import ImagePlanes

_CHECKED = 3  # images of a process
_SAVED = 0.8  # of Pillow's time, if its image is made of planes


def _find_planes() -> ImagePlanes | None:
    if "FASTLOOP_IMAGES" not in os.environ:  # most programs do without, and without this import
        return None
    from fastloop.data.image_folder.planes import find_asked

    return find_asked()


@cache
def _open_verdict() -> tuple[str, Verification]:
    """Return why fastloop must not stand in for Pillow's function, or "", and the verification of
    images."""
    why = originals.find_unknown("PillowLoad")
    return why, Verification("JPEG files", "Pillow's", _CHECKED)


def _is_whole(image: Any) -> bool:
    """Tell whether this is a JPEG file of RGB that nobody has read yet."""
    plugin = sys.modules.get("PIL.JpegImagePlugin")
    if plugin is None or type(image) is not plugin.JpegImageFile:
        return False
    file: Any = getattr(image, "fp", None)  # a copy has none
    is_plain = image.mode == "RGB" and getattr(image, "_im", 0) is None  # not an older Pillow's
    is_plain = is_plain and not image.decoderconfig
    is_plain = is_plain and image.tile == [("jpeg", (0, 0, *image.size), 0, ("RGB", ""))]
    is_file = type(file) is io.BufferedReader and type(file.raw) is io.FileIO
    return is_plain and is_file and type(file.name) is str


def _count(before: Callable[..., Any], image: Any) -> Any:
    """Let Pillow decode a whole file, and count what a cache would save."""
    path, (width, height), begin_ns = image.fp.name, image.size, decoded.begin()
    result = before(image)
    decoded.add(path, width * height, begin_ns, _SAVED)
    return result


def _find_core(image: Any, planes: ImagePlanes) -> Any:
    """Return the core of a whole file's image. Raises ValueError: Pillow reads it."""
    kept = planes.read(image.fp.name, os.fstat(image.fp.fileno()))
    if kept is None or kept.shape[1::-1] != image.size:
        raise ValueError("the planes are not kept")
    pil = sys.modules["PIL.Image"]
    core = pil.core.new("RGB", image.size)
    try:
        pil_ycc(core, kept)
    except ValueError:  # Pillow shows where the pixels are if one block of memory has them all
        from fastloop.data.image_folder.planes import to_array

        core = pil.frombytes("RGB", image.size, to_array(kept)).im
    return core


def _finish(image: Any, core: Any) -> Any:
    """Leave an image as Pillow's function leaves it."""
    image.map, image.im, image.tile, image.readonly = None, core, [], 0
    image.load_end()
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    return sys.modules["PIL.Image"].Image.load(image)


def prepare() -> None:
    """Find out before a fork."""
    if _find_planes() is not None:
        _open_verdict()


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in place of ``ImageFile.load``."""

    def load(self: Any) -> Any:
        is_left = not (seam.is_on or fetch.is_served) or runs_original()
        if is_left or not _is_whole(self):
            return before(self)
        planes = _find_planes()
        if planes is None:
            return _count(before, self)
        why, verification = _open_verdict()
        try:
            refuse_if(why or verification.falls_back, why)
            core = _find_core(self, planes)
        except Exception:  # Pillow raises its own error, if there is one
            return before(self)

        def original() -> Core:
            fd = self.fp.fileno()  # by now the file's name may lead to another file
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            with sys.modules["PIL.Image"].open(io.BytesIO(data)) as image:
                before(image)
                return Core(image.im)

        if verification.is_due():
            core = verification.compare(original, lambda _: Core(core)).core
        seam.native += 1
        return _finish(self, core)

    return load
