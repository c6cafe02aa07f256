"""Decoders of ImageFolder: each gives the bits that Pillow gives; the results that users' functions
may return."""

import io
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture, write_folder
from PIL import Image

from fastloop import ImageFolder
from fastloop.data.image_folder import decode
from fastloop.data.image_folder.decode import AutoDecoder

simplejpeg = decode.find_module("simplejpeg")
needs_simplejpeg = pytest.mark.skipif(simplejpeg is None, reason="simplejpeg is not installed")


def pixels(height: int = 37, width: int = 51) -> Any:
    return picture(3, height, width)


def sixteen_bits() -> Any:
    values = np.linspace(0, 65535, 20 * 30).reshape(20, 30).astype(np.uint16)
    return Image.fromarray(values)


def transparent() -> bytes:
    image = pixels().convert("RGBA")
    image.putalpha(Image.new("L", image.size, 90))
    return encode(image, "PNG")


def with_orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    exif[0x010E] = "text \x00\x01" * 40
    return encode(pixels(), exif=exif.tobytes())


def transformless_adobe() -> bytes:
    """JPEG whose components are RGB, not YCbCr."""
    return encode(pixels(), quality=92, keep_rgb=True)


def with_extra_bytes() -> bytes:
    """Bytes before a marker, of which libjpeg warns: Pillow does not mind."""
    data = encode(pixels())
    end = data.index(b"\xff\xda")
    return data[:end] + b"\x00\x00\x00" + data[end:]


FILES: dict[str, Callable[[], bytes]] = {
    "baseline": lambda: encode(pixels(), quality=75),
    "4:4:4": lambda: encode(pixels(), quality=95, subsampling=0),
    "4:2:2": lambda: encode(pixels(), quality=95, subsampling=1),
    "4:2:0": lambda: encode(pixels(), quality=30, subsampling=2),
    "progressive": lambda: encode(pixels(), progressive=True),
    "1 by 1": lambda: encode(pixels(1, 1)),
    "3 by 2": lambda: encode(pixels(3, 2), subsampling=2),
    "17 by 1": lambda: encode(pixels(17, 1), subsampling=1),
    "grey": lambda: encode(pixels().convert("L")),
    "CMYK": lambda: encode(pixels().convert("CMYK")),
    "RGB components": transformless_adobe,
    "orientation": with_orientation,
    "extra bytes": with_extra_bytes,
    "bytes behind it": lambda: encode(pixels()) + b"\x00junk" * 30,
    "PNG": lambda: encode(pixels(), "PNG"),
    "PNG of 16 bits": lambda: encode(sixteen_bits(), "PNG"),
    "PNG of a palette": lambda: encode(pixels().quantize(17), "PNG"),
    "PNG, transparent palette": lambda: encode(pixels().quantize(9), "PNG", transparency=2),
    "PNG of 1 bit": lambda: encode(pixels().convert("1"), "PNG"),
    "PNG with alpha": transparent,
    "PNG, grey with alpha": lambda: encode(pixels().convert("LA"), "PNG"),
    "BMP": lambda: encode(pixels(), "BMP"),
    "GIF": lambda: encode(pixels().quantize(30), "GIF"),
    "PPM": lambda: encode(pixels(), "PPM"),
    "TIFF": lambda: encode(pixels(), "TIFF"),
}


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    find = decode.find_module
    monkeypatch.setattr(decode, "find_module", lambda name: None if name in names else find(name))


@pytest.mark.parametrize("has_simplejpeg", [True, False], ids=["simplejpeg", "Pillow"])
@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_bits_are_pillows(
    make: Callable[[], bytes], has_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_simplejpeg:
        hide(monkeypatch, "simplejpeg")
    data = make()
    np.testing.assert_array_equal(AutoDecoder()(data), by_pillow(data))


@needs_simplejpeg
@pytest.mark.parametrize("name", ["baseline", "4:2:0", "progressive", "grey", "1 by 1"])
def test_simplejpeg_has_pillows_bits_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = FILES[name]()
    expected = by_pillow(data)
    hide(monkeypatch, "PIL.Image")
    decoder = AutoDecoder()
    assert decoder.name == "simplejpeg"
    np.testing.assert_array_equal(decoder(data), expected)


def test_what_is_in_a_file_counts_and_not_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    names = {"1.JPEG": encode(pixels(), "PNG"), "2.png": encode(pixels()), "3.webp": transparent()}
    for name, data in names.items():
        (tmp_path / "a" / name).write_bytes(data)
    dataset = ImageFolder(tmp_path)
    for (image, _), data in zip(dataset, names.values(), strict=False):
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), by_pillow(data))


@needs_simplejpeg
def test_memory_is_used_again_in_a_thread_and_not_in_others() -> None:
    decoder = AutoDecoder()
    large, small = (encode(pixels(*size)) for size in ((40, 50), (11, 13)))
    first = decoder(large)
    second = decoder(small)
    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(second, by_pillow(small))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(decoder(large)))
    thread.start()
    thread.join()
    assert not np.shares_memory(found[0], second)
    np.testing.assert_array_equal(second, by_pillow(small))


# ---- files that are not images


def bomb(height: int, width: int) -> bytes:
    """A JPEG that says it is so large."""
    data = bytearray(encode(pixels(8, 8)))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def png_bomb() -> bytes:
    data = bytearray(encode(pixels(8, 8), "PNG"))
    data[16:24] = (30000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "it is empty$"),
    "truncated": (lambda: encode(pixels(200, 200))[:-900], "Pillow: image file is truncated"),
    "head of a JPEG": (lambda: b"\xff\xd8\xff", "Pillow: it has no format that Pillow knows$"),
    "truncated PNG": (lambda: FILES["PNG"]()[:-300], "Pillow: .*[Tt]runcated"),
    "text": (lambda: b"<html>404</html>", "with auto: Pillow: it has no format that Pillow knows$"),
    "bomb": (lambda: bomb(30000, 30000), "Pillow: Image size .* exceeds limit of 178956970 pixel"),
    "PNG bomb": (png_bomb, "with auto: Pillow: Image size .* exceeds limit of 178956970 pixels"),
}


@pytest.mark.parametrize(("make", "text"), BROKEN.values(), ids=BROKEN)
def test_errors_of_files_name_file_and_decoders(
    tmp_path: Path, make: Callable[[], bytes], text: str
) -> None:
    path = tmp_path / "a" / "1.jpg"
    path.parent.mkdir()
    path.write_bytes(make())
    start = f"^'{re.escape(str(path))}' cannot be decoded with auto: "
    with pytest.raises(OSError, match=text) as error:
        ImageFolder(tmp_path)[0]
    assert re.match(start, str(error.value))
    assert "0x" not in str(error.value)


@needs_simplejpeg
def test_simplejpeg_refuses_bombs_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    hide(monkeypatch, "PIL.Image")
    with pytest.raises(ValueError, match=f"30000 x 30000 pixels, more than twice .*={limit}"):
        AutoDecoder()(bomb(30000, 30000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)
    data = encode(pixels(8, 8))
    with pytest.raises(ValueError, match=r"8 x 8 pixels, more than twice .*=30"):
        AutoDecoder()(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert AutoDecoder()(data).shape == (8, 8, 3)


@needs_simplejpeg
def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_folder(tmp_path / "images", 3)
    hide(monkeypatch, "PIL.Image")
    dataset = ImageFolder(root, extensions=[".png", ".jpg", ".jpeg"])
    assert "decode: simplejpeg, in the" in dataset.explain()
    with pytest.raises(
        OSError, match=r"\.png' cannot .*simplejpeg takes no such file; run: pip install pi"
    ):
        dataset[[path.endswith("png") for path, _ in dataset.samples].index(True)]
    hide(monkeypatch, "simplejpeg", "PIL.Image")
    with pytest.raises(ImportError, match=r"needs Pillow, .*; run: pip install fastloop\[im"):
        ImageFolder(root)
    assert ImageFolder(root, decode=np.load).explain()


def test_a_module_that_does_not_load_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other_numpy.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.syspath_prepend(tmp_path)
    assert decode.find_module("other_numpy") is None


# ---- users' functions


def numbered(data: bytes) -> Any:
    return np.full((4, 5, 3), len(data) % 251, np.uint8)


def writable_strides(data: bytes) -> Any:
    return by_pillow(data).copy()[::-1, ::-1, ::-1]


def read_only(data: bytes) -> Any:
    image = by_pillow(data)
    image.flags.writeable = False
    return image


def planes(data: bytes) -> Any:
    return np.ascontiguousarray(by_pillow(data).transpose(2, 0, 1)).transpose(1, 2, 0)


@pytest.mark.parametrize("function", [numbered, writable_strides, read_only, planes])
def test_arrays_of_any_strides(tmp_path: Path, function: Callable[[bytes], Any]) -> None:
    dataset = ImageFolder(write_folder(tmp_path), decode=function)
    for i, (path, _) in enumerate(dataset.samples):
        expected = function(Path(path).read_bytes())
        np.testing.assert_array_equal(dataset[i][0].permute(1, 2, 0).numpy(), expected)
    assert f"decode: {__name__}.{function.__name__}, in the worker" in dataset.explain()


class Reused:
    """A decoder with memory of its own."""

    def __init__(self) -> None:
        self._memory = np.zeros((60, 60, 3), np.uint8)

    def __call__(self, data: bytes) -> Any:
        image = by_pillow(data)
        self._memory[:] = 77
        view = self._memory[: image.shape[0], : image.shape[1]]
        view[:] = image
        return view


def test_a_view_of_the_decoders_own_memory(tmp_path: Path) -> None:
    root = write_folder(tmp_path)
    dataset, plain = ImageFolder(root, decode=Reused()), ImageFolder(root)
    samples = dataset.__getitems__(range(len(dataset)))
    for (image, _), (expected, _) in zip(samples, [plain[i] for i in range(14)], strict=True):
        assert torch.equal(image, expected)


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "float": (np.zeros((4, 4, 3)), TypeError, r"float64 \(4, 4, 3\)"),
    "bool": (np.zeros((4, 4, 3), bool), TypeError, r"bool \(4, 4, 3\)"),
    "signed": (np.zeros((4, 4, 3), np.int8), TypeError, r"int8 \(4, 4, 3\)"),
    "CHW": (np.zeros((3, 4, 4), np.uint8), ValueError, r"uint8 \(3, 4, 4\)"),
    "grey": (np.zeros((4, 4), np.uint8), ValueError, r"uint8 \(4, 4\)"),
    "RGBA": (np.zeros((4, 4, 4), np.uint8), ValueError, r"uint8 \(4, 4, 4\)"),
    "no pixels": (np.zeros((0, 4, 3), np.uint8), ValueError, r"uint8 \(0, 4, 3\)"),
    "tensor": (torch.zeros(4, 4, 3, dtype=torch.uint8), TypeError, "Tensor"),
    "None": (None, TypeError, "NoneType"),
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("result", "kind", "what"), WRONG.values(), ids=WRONG)
def test_results_that_are_not_images(
    tmp_path: Path, result: Any, kind: type[Exception], what: str, on_error: str
) -> None:
    """The function is at fault, so no file is skipped."""

    def wrong(data: bytes) -> Any:
        return result

    dataset = ImageFolder(write_folder(tmp_path, 2), decode=wrong, on_error=on_error)
    where = re.escape(repr(dataset.samples[0][0]))
    text = rf"^the result of decode=.*\.wrong for {where} must be a numpy.ndarray .*, got {what}$"
    with pytest.raises(kind, match=text):
        dataset[0]
    assert dataset.skipped_files == []


def test_functions_that_raise(tmp_path: Path) -> None:
    errors = iter([KeyError("x"), io.UnsupportedOperation(), MemoryError()])

    def fail(data: bytes) -> Any:
        raise next(errors)

    dataset = ImageFolder(write_folder(tmp_path, 2), decode=fail)
    where = re.escape(repr(dataset.samples[0][0]))
    for reason in ("'x'", "UnsupportedOperation"):
        with pytest.raises(OSError, match=rf"^{where} cannot be decoded with .*\.fail: {reason}$"):
            dataset[0]
    with pytest.raises(MemoryError):
        dataset[0]
