"""Decoders: the bytes of an image file as an RGB image, whatever the file's name says it is.

A decoder may return memory that it writes to again: the image is read before the next call of the
decoder in the same thread.
"""

from __future__ import annotations

import io
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch

from fastloop.data.field import Array, open_regular

Decode = Callable[[bytes], Any]

_JPEG = b"\xff\xd8\xff"
_PILLOWS_LIMIT = 89_478_485  # pixels: PIL.Image.MAX_IMAGE_PIXELS as it is without Pillow


def find_module(name: str) -> Any:
    """A module, or None where it is not installed or does not load."""
    try:
        return import_module(name)
    except Exception:  # beside another torch torchcodec raises OSError, torchvision RuntimeError
        return None


def _check_pixels(height: int, width: int) -> None:
    """Refuses what Pillow refuses: a small file that asks for more memory than there is."""
    pillow = sys.modules.get("PIL.Image")
    limit = _PILLOWS_LIMIT if pillow is None else pillow.MAX_IMAGE_PIXELS
    if limit is not None and height * width > 2 * limit:
        raise ValueError(
            f"it has {height} x {width} pixels, more than twice PIL.Image.MAX_IMAGE_PIXELS={limit}"
        )


class _SimpleJpeg:
    """simplejpeg with the arithmetic that Pillow has, so the bits are Pillow's."""

    name = "simplejpeg"

    def __init__(self, module: Any) -> None:
        self._module = module
        self._own = threading.local()  # memory for an image: new pages cost a third of the time

    def takes(self, data: bytes) -> bool:
        return data.startswith(_JPEG)

    def __call__(self, data: bytes) -> Array:
        height, width, colors, _ = self._module.decode_jpeg_header(data)
        if colors in ("CMYK", "YCCK"):  # which it makes RGB in another way than Pillow
            raise ValueError(f"its colors are {colors}")
        _check_pixels(height, width)
        count = height * width * 3
        memory: Array | None = getattr(self._own, "memory", None)
        if memory is None or memory.size < count:
            memory = self._own.memory = np.empty(count, np.uint8)
        image: Array = self._module.decode_jpeg(data, "RGB", buffer=memory)
        return image


def read_jpeg_header(data: bytes) -> tuple[int, int, int]:
    """Height, width and the number of components, from the frame header.

    Raises:
        ValueError: there is none, or its samples do not have 8 bits.
    """
    at = 2
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            bits, count = data[at + 4], data[at + 9]
            if bits != 8:
                raise ValueError(f"its samples have {bits} bits")
            height, width = (int.from_bytes(data[at + k : at + k + 2], "big") for k in (5, 7))
            return height, width, count
        at += 2 + length
    raise ValueError("it has no frame header where one is looked for")


# A grey JPEG, 1 high and 2 wide, whose EXIF says it is to be turned by 90 degrees.
_TURNED = b64decode(
    "/9j/4QAiRXhpZgAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAD/2wBDABALDA4MChAODQ4SERATGCgaGBYWGDEjJR0o"
    "OjM9PDkzODdASFxOQERXRTc4UG1RV19iZ2hnPk1xeXBkeFxlZ2P/wAALCAABAAIBAREA/8QAFAABAAAAAAAAAAAAAAAA"
    "AAAABv/EABsQAAAHAQAAAAAAAAAAAAAAAAABAgQFNXOy/9oACAEBAAA/ADMrbPd19GP/2Q=="
)


class _TorchJpeg:
    """The decode_jpeg of torchcodec or torchvision: libjpeg as Pillow has it, for grey images and
    those of three components. Other formats they make RGB in ways that are not Pillow's.

    Raises:
        Exception: of any type: the module's operators do not load, or it turns images by their
            EXIF.
    """

    def __init__(self, module: Any, name: str) -> None:
        self.name = name
        self._decode = module.decode_jpeg
        self._mode = module.ImageReadMode.RGB
        if self(_TURNED).shape != (1, 2, 3):
            raise ValueError("it turns images by their EXIF, which Pillow does not")

    def takes(self, data: bytes) -> bool:
        return data.startswith(_JPEG)

    def __call__(self, data: bytes) -> Array:
        height, width, components = read_jpeg_header(data)
        if components not in (1, 3):  # CMYK is made RGB in another way than Pillow's
            raise ValueError(f"it has {components} components")
        _check_pixels(height, width)
        planes = self._decode(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=self._mode)
        image: Array = planes.permute(1, 2, 0).numpy()
        return image


def _open_torch_jpeg(path: str) -> _TorchJpeg | None:
    try:
        return _TorchJpeg(find_module(path), path.partition(".")[0])
    except Exception:  # it is not installed, does not load, or is an older one
        return None


class _Pillow:
    name = "Pillow"

    def __init__(self, module: Any) -> None:
        self._module = module

    def takes(self, data: bytes) -> bool:
        return True

    def __call__(self, data: bytes) -> Array:
        try:
            image = self._module.open(io.BytesIO(data))
        except self._module.UnidentifiedImageError:  # its text has an address
            raise ValueError("it is no image that Pillow knows") from None
        with image:
            return np.asarray(image.convert("RGB"))


class AutoDecoder:
    """The installed decoders: the first that takes a file decodes it, and where that one fails, the
    next. The last is Pillow, which decides: an image is what
    ``PIL.Image.open(file).convert("RGB")`` makes of it.

    Raises:
        ImportError: there is none.
    """

    def __init__(self) -> None:
        simplejpeg, pillow = find_module("simplejpeg"), find_module("PIL.Image")
        jpeg = (
            _SimpleJpeg(simplejpeg)
            if simplejpeg is not None
            else _open_torch_jpeg("torchcodec.decoders") or _open_torch_jpeg("torchvision.io")
        )
        last = None if pillow is None else _Pillow(pillow)
        self._decoders: list[Any] = [found for found in (jpeg, last) if found is not None]
        if not self._decoders:
            raise ImportError(
                "decode='auto' finds neither simplejpeg nor Pillow, nor a torchcodec or "
                "torchvision that decodes here; pip install fastloop[images], or pass decode= a "
                "function of yours"
            )

    @property
    def name(self) -> str:
        return ", ".join(decoder.name for decoder in self._decoders)

    def __call__(self, data: bytes) -> Array:
        reasons: list[str] = []
        cause: Exception | None = None
        for decoder in self._decoders:
            if not decoder.takes(data):
                continue
            try:
                image: Array = decoder(data)
                return image
            except MemoryError:
                raise
            except Exception as error:  # of many types
                reasons.append(f"{decoder.name}: {str(error) or type(error).__name__}")
                cause = error
        text = "; ".join(reasons) or f"{self.name} takes no such file: pip install pillow"
        raise ValueError(text) from cause

    def __reduce__(self) -> tuple[type[AutoDecoder], tuple[()]]:
        """Another process may have other modules."""
        return AutoDecoder, ()


def name_of(function: Any) -> str:
    """Of a function of the user's: what an error calls it, and what a cache knows it by."""
    if isinstance(function, AutoDecoder):
        return "auto"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def check_image(image: Any, who: str, path: str) -> Array:
    """What a function of the user's has returned, if it is an image.

    Raises:
        TypeError, ValueError: it is not. That is an error of the function and not of the file, so
            it is no case for ``on_error``.
    """
    wanted = "return a numpy.ndarray of uint8 and shape [height, width, 3], RGB"
    if not isinstance(image, np.ndarray):
        raise TypeError(f"{who} returned a {type(image).__name__} for {path!r}; {wanted}")
    if image.dtype != np.uint8:
        raise TypeError(f"{who} returned {image.dtype} {image.shape} for {path!r}; {wanted}")
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ValueError(f"{who} returned shape {image.shape} for {path!r}; {wanted}")
    return image


def read_image(decode: Decode, path: str) -> Array:
    """The image in a file, which may lie in memory of the decoder's.

    Raises:
        OSError: the file cannot be read or decoded; the text names it and the decoders.
        TypeError, ValueError: the decoder returns no image.
        MemoryError: for the image.
    """
    who = name_of(decode)
    try:
        with open_regular(path, "ImageFolder", "remove it") as file:
            data = file.read()
        if not data:
            raise ValueError("it is empty")
        image = decode(data)
    except MemoryError as error:
        raise MemoryError(f"there is no memory to decode {path!r} with {who}") from error
    except Exception as error:  # of many types
        if isinstance(error, OSError) and error.filename == path:  # of opening it
            raise
        text = str(error) or type(error).__name__
        raise OSError(f"{path!r} cannot be decoded with {who}: {text}") from error
    return check_image(image, f"decode={who}", path)
