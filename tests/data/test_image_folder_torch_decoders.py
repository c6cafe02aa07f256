"""decode="auto" without simplejpeg: decode_jpeg of torchcodec or torchvision, if it works here."""

import sys
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from image_folders import by_pillow, encode, picture
from PIL import Image

from fastloop.data.image_folder import decode
from fastloop.data.image_folder.decode import AutoDecoder, read_jpeg_header

Mode = Enum("Mode", ["UNCHANGED", "RGB"])
PATHS = {"torchcodec": "torchcodec.decoders", "torchvision": "torchvision.io"}


class Fake:
    """A module whose decode_jpeg is called as torchcodec's and torchvision's are."""

    ImageReadMode = Mode

    def __init__(self, is_turning: bool = False) -> None:
        self.calls = 0
        self.is_turning = is_turning

    def decode_jpeg(self, source: torch.Tensor, *, mode: Mode) -> torch.Tensor:
        self.calls += 1
        assert (source.dtype, source.ndim, mode) == (torch.uint8, 1, Mode.RGB)
        image = torch.from_numpy(by_pillow(source.numpy().tobytes()).copy()).permute(2, 0, 1)
        return image.transpose(1, 2) if self.is_turning else image


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("Couldn't load the image extension.")


def show(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """These modules, and Pillow, are all there is."""
    found = {PATHS[name]: module for name, module in modules.items()}
    found["PIL.Image"] = Image
    monkeypatch.setattr(decode, "find_module", found.get)


def grey_and_color() -> list[bytes]:
    color = picture(3, 37, 51)
    return [
        encode(color, subsampling=2),
        encode(color, progressive=True),
        encode(color, quality=92, keep_rgb=True),
        encode(color.convert("L")),
        encode(picture(3, 1, 1)),
    ]


def others() -> list[bytes]:
    color = picture(3, 37, 51)
    return [encode(color.convert("CMYK")), encode(color, "PNG"), encode(color, "BMP")]


@pytest.mark.parametrize("name", PATHS)
def test_it_decodes_what_it_makes_rgb_as_pillow_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    show(monkeypatch, **{name: fake})
    decoder = AutoDecoder()
    assert decoder.name == f"{name}, Pillow"
    tried = fake.calls
    for data in grey_and_color():
        np.testing.assert_array_equal(decoder(data), by_pillow(data))
    assert fake.calls - tried == 5
    for data in others():
        np.testing.assert_array_equal(decoder(data), by_pillow(data))
    assert fake.calls - tried == 5


def test_the_first_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, torchcodec=Fake(), torchvision=Fake())
    assert AutoDecoder().name == "torchcodec, Pillow"
    no_operators = SimpleNamespace(ImageReadMode=Mode, decode_jpeg=broken)
    for torchcodec in (no_operators, SimpleNamespace(), Fake(is_turning=True)):
        show(monkeypatch, torchcodec=torchcodec, torchvision=Fake())
        assert AutoDecoder().name == "torchvision, Pillow"
        show(monkeypatch, torchvision=torchcodec)
        assert AutoDecoder().name == "Pillow"


def test_simplejpeg_is_preferred_and_the_others_are_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    found = {"simplejpeg": SimpleNamespace(), "PIL.Image": Image}
    monkeypatch.setattr(decode, "find_module", lambda name: asked.append(name) or found.get(name))
    assert AutoDecoder().name == "simplejpeg, Pillow"
    assert sorted(asked) == ["PIL.Image", "simplejpeg"]


def test_the_size_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake()
    show(monkeypatch, torchvision=fake)
    decoder, tried = AutoDecoder(), fake.calls
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 900)
    with pytest.raises(ValueError, match=r"torchvision: it has 37 x 51 pixels, more .*; Pillow: "):
        decoder(grey_and_color()[0])
    assert fake.calls == tried


def test_a_fault_of_the_file_is_told_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, torchvision=Fake())
    data = encode(picture(3, 200, 200))[:-900]
    with pytest.raises(ValueError, match=r"^torchvision: image file is truncated.*; Pillow: image"):
        AutoDecoder()(data)


def cut(count: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:count]


def twelve_bits(data: bytes) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[: at + 4] + b"\x0c" + data[at + 5 :]


@pytest.mark.parametrize("damage", [cut(2), cut(3), cut(20), cut(160), twelve_bits])
def test_a_header_that_is_not_there(damage: Callable[[bytes], bytes]) -> None:
    data = grey_and_color()[0]
    assert read_jpeg_header(data) == (37, 51, 3)
    with pytest.raises(ValueError, match=r"no frame header|12 bits"):
        read_jpeg_header(damage(data))


def test_a_module_that_does_not_load_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Beside another torch: torchcodec raises OSError, torchvision RuntimeError."""
    for name, kind in (("no_codec", "OSError"), ("no_vision", "RuntimeError")):
        (tmp_path / f"{name}.py").write_text(f"raise {kind}('Could not load this library')")
        monkeypatch.syspath_prepend(tmp_path)
        assert decode.find_module(name) is None
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", PATHS)
def test_the_real_one_has_pillows_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = decode.find_module(PATHS[name])
    if module is None:
        pytest.skip(f"{name} is not installed, or does not load beside this torch")
    show(monkeypatch, **{name: module})
    decoder = AutoDecoder()
    if name not in decoder.name:
        pytest.skip(f"decode_jpeg of this {name} does not work here")
    for data in [*grey_and_color(), *others()]:
        np.testing.assert_array_equal(decoder(data), by_pillow(data))
