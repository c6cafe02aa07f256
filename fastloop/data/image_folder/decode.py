"""Decoders: a decoder makes an RGB image from a file's bytes and does not look at the file's name.

A decoder may reuse the memory of its result: the image is read before the decoder's next call in
the same thread.
"""

from __future__ import annotations

import io
import math
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from fastloop._core import JpegImage
from fastloop.base.checks import look_up, refuse_if
from fastloop.data.field import Array, open_regular
from fastloop.data.image_folder.jpeg import find_jpeg

LEAST_PIXELS = 1 << 16  # simplejpeg decodes smaller images faster than libjpeg a part
_MAX_PIXELS = 89_478_485  # PIL.Image.MAX_IMAGE_PIXELS, for programs without Pillow


def find_module(name: str) -> Any:
    """Import a module. Return None if it is not installed or does not load."""
    try:
        return import_module(name)
    except Exception:  # a module built for another NumPy raises ValueError
        return None


def _check_size(height: int, width: int) -> None:
    """Raise ValueError for an image that is too large for Pillow."""
    pillow = sys.modules.get("PIL.Image")
    limit = _MAX_PIXELS if pillow is None else pillow.MAX_IMAGE_PIXELS
    if limit is not None and height * width > 2 * limit:  # Pillow's own limit
        most = f"more than twice PIL.Image.MAX_IMAGE_PIXELS={limit}"
        raise ValueError(f"it has {height} x {width} pixels, {most}")


class AutoDecoder:
    """The installed decoders. simplejpeg decodes JPEG files; if simplejpeg fails, and for all other
    files, Pillow decodes.

    Pillow's result is the rule: an image is ``PIL.Image.open(file).convert("RGB")``.

    Args:
        own: holds the memory for an image (new pages would take a third of the time). None: each
            thread has its own memory. Else all threads share this object's memory and take turns.
        keeps_pillow: an image that Pillow decodes is returned as Pillow's image, because an array
            takes two copies.

    Raises:
        ImportError: neither simplejpeg nor Pillow is installed.
    """

    def __init__(self, own: Any = None, keeps_pillow: bool = False) -> None:
        self._own = threading.local() if own is None else own
        self._keeps_pillow = keeps_pillow
        jpeg = "simplejpeg", b"\xff\xd8\xff", self._by_simplejpeg, find_module("simplejpeg")
        other = "Pillow", b"", self._by_pillow, find_module("PIL.Image")
        self._decoders = [decoder for decoder in (jpeg, other) if decoder[3] is not None]
        self.name = ", ".join(name for name, *_ in self._decoders)
        if not self._decoders:
            text = "decode='auto' needs Pillow, which is not installed"
            raise ImportError(f"{text}; run: pip install fastloop[images]")

    def _by_simplejpeg(self, module: Any, data: bytes) -> Array:
        """Decode a JPEG with Pillow's arithmetic and so with Pillow's bits."""
        height, width, colors, _ = module.decode_jpeg_header(data)
        # simplejpeg and Pillow convert these colors to RGB differently.
        refuse_if(colors in ("CMYK", "YCCK"), f"its colors are {colors}")
        _check_size(height, width)
        count = height * width * 3
        memory: Array | None = getattr(self._own, "memory", None)
        if memory is None or memory.size < count:
            memory = self._own.memory = np.empty(count, np.uint8)
        image: Array = module.decode_jpeg(data, "RGB", buffer=memory)
        return image

    def _by_pillow(self, module: Any, data: bytes) -> Any:
        """Decode a file of any format, as torchvision's loader does."""
        try:
            image = module.open(io.BytesIO(data))
        except module.UnidentifiedImageError:  # Pillow's text has an address
            raise ValueError("it has no format that Pillow knows") from None
        with image:
            image.load()
            image = image if image.mode == "RGB" else image.convert("RGB")
            return image if self._keeps_pillow else np.asarray(image)

    def __call__(self, data: bytes) -> Any:
        reasons: list[str] = []
        for name, start, decode, module in self._decoders:
            if data.startswith(start):
                try:
                    return decode(module, data)
                except MemoryError:
                    raise
                except Exception as error:  # decoders raise many types
                    reasons.append(f"{name}: {str(error) or type(error).__name__}")
        raise ValueError(
            "; ".join(reasons) or f"{self.name} takes no such file; run: pip install pillow"
        )

    def finds_jpeg(self) -> bool:
        """Tell whether ``open`` returns JpegImages."""
        return self._decoders[-1][0] == "Pillow" and find_jpeg() is not None

    def open(self, data: bytes, least: float) -> Any:
        """Return a JpegImage. A plan decodes only the part of a JpegImage that the plan reads. If
        the image has fewer than ``least`` pixels, or if the file is of another kind or may be
        damaged, decode the whole image and return an array."""
        jpeg = find_jpeg() if least < math.inf and self.finds_jpeg() else None
        image = None if jpeg is None else jpeg.open(data)
        if image is None:
            return self(data)
        height, width, _ = image.shape
        if height * width < max(least, LEAST_PIXELS):
            return self(data)
        try:
            _check_size(height, width)
            if len(self._decoders) == 1:  # Pillow alone may take the file for damaged
                self._decoders[0][-1].open(io.BytesIO(data)).close()
        except Exception:  # decoders raise many types
            return self(data)
        return image

    def __reduce__(self) -> tuple[type[AutoDecoder], tuple[()]]:
        """Look for decoders again, because the new process may have different modules."""
        return AutoDecoder, ()


def name_of(function: Any) -> str:
    """Return the name of a decoder or an on_error function in errors and caches. A word, such as
    "skip", is its own name."""
    if isinstance(function, (AutoDecoder, str)):
        return function if isinstance(function, str) else "auto"
    name = look_up(function, "__qualname__", type(function).__qualname__)
    return f"{look_up(function, '__module__', type(function).__module__)}.{name}"


def call(function: Callable[[bytes], Any], data: bytes, path: str) -> Any:
    """Return the result of a user's function of bytes. Raises OSError, with the path or a different
    name of the bytes, for any error of the function."""
    try:
        return function(data)
    except MemoryError:
        raise
    except Exception as error:  # functions raise many types
        text = str(error) or type(error).__name__
        raise OSError(f"{path!r} cannot be decoded with {name_of(function)}: {text}") from error


def check_image(image: Any, who: str, path: str) -> Array:
    """Return the result of a user's function if it is an image.

    Raises:
        TypeError, ValueError: the result is not an image. The fault is the function's and not the
            file's, so ``on_error`` does not apply.
    """
    is_image = isinstance(image, np.ndarray)
    shape = image.shape if is_image else ()
    if is_image and image.dtype == np.uint8 and shape[2:] == (3,) and 0 not in shape:
        return image  # type: ignore[no-any-return]
    got = f"{image.dtype} {shape}" if is_image else type(image).__name__
    rule = "a numpy.ndarray of uint8 and shape [height, width, 3], RGB"
    kind = ValueError if is_image and image.dtype == np.uint8 else TypeError
    raise kind(f"the result of {who} for {path!r} must be {rule}, got {got}")


def read_file(path: str) -> bytes:
    """Return the bytes of an image's file."""
    with open_regular(path, "ImageFolder", "remove it") as file:
        return file.read()


def read_image(decode: Any, path: str, read: Callable[[], bytes], least: float = math.inf) -> Any:
    """Return the image in the bytes that ``read()`` gives. The image may lie in the decoder's
    memory. ``path``, or a different name, stands for the image in errors.

    Args:
        least: the pixels from which on ``decode``, an AutoDecoder, may return a JpegImage.

    Raises:
        OSError: the bytes cannot be read or decoded; the text has the name and the decoders.
        TypeError, ValueError: the decoder's result has a wrong type or shape.
    """
    who = name_of(decode)
    try:
        data = read()
        refuse_if(not data, "it is empty")
        image = decode(data) if least == math.inf else decode.open(data, least)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise many types
        if isinstance(error, OSError) and error.filename == path:  # raised by open()
            raise
        text = str(error) or type(error).__name__
        raise OSError(f"{path!r} cannot be decoded with {who}: {text}") from error
    return image if type(image) is JpegImage else check_image(image, f"decode={who}", path)
