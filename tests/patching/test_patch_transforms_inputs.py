"""torchvision's Compose behind patch(): what it takes beside plain images, what it raises, and what
a program replaces meanwhile."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vision_cases import assert_same_images, results, status, v2

import fastloop
from fastloop.adapters import torchvision_parts

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import transforms as v1

PIXELS = np.random.default_rng(4).integers(0, 256, (24, 40, 44, 3), np.uint8)
IMAGES = [Image.fromarray(image) for image in PIXELS]
TENSOR = torch.from_numpy(PIXELS[0]).permute(2, 0, 1).contiguous()
TAIL = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)
FLIP = v2.Compose([v2.RandomHorizontalFlip(), *TAIL])


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    fastloop.unpatch("transforms")


def made_odd(module: Any, kind: str) -> Any:
    """A transform with an attribute that torchvision's own text, or C's plan, trips over."""
    op = module.Resize(20) if kind == "Resize" else module.RandomResizedCrop(20)
    op.interpolation = Image.BILINEAR if kind != "ratio" else op.interpolation
    if kind == "ratio":
        op.ratio = None
    return module.Compose([op, module.ToTensor()])


@pytest.mark.parametrize(
    ("module", "kind"), [(v1, "Resize"), (v1, "RandomResizedCrop"), (v2, "ratio")]
)
def test_a_transform_that_cannot_be_shown_or_planned_is_transformed(module: Any, kind: str) -> None:
    torchs = results(made_odd(module, kind), IMAGES[:3])
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(made_odd(module, kind), IMAGES[:3]), torchs)


def test_no_text_is_made_of_a_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(self: Any) -> str:
        raise OSError("not to be called")

    monkeypatch.setattr(v1.Compose, "__repr__", show)
    transform = v1.Compose([v1.RandomCrop(20), v1.ToTensor()])
    torchs = results(transform, IMAGES)
    fastloop.patch("transforms", verbose=False)
    assert_same_images(results(transform, IMAGES), torchs)
    assert status().native == len(IMAGES) - torchvision_parts._CHECKED


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_read_where_they_lie(mode: str) -> None:
    """Pillow pads rows of one channel, and keeps a large image in several pieces."""
    transform = v1.Compose([v1.RandomVerticalFlip(), v1.ToTensor()])
    images = [IMAGES[0].crop((0, 0, width, 9)).convert(mode) for width in range(1, 14)]
    block = Image.core.get_block_size()
    Image.core.set_block_size(4096)
    try:
        images += [image.resize((40, 300)).convert(mode) for image in IMAGES[:4]]
    finally:
        Image.core.set_block_size(block)
    torchs = [results(transform, [image] * 6) for image in images]
    fastloop.patch("transforms", verbose=False)
    for image, expected in zip(images, torchs, strict=True):
        assert_same_images(results(transform, [image] * 6), expected)
    plans = len({image.size for image in images})
    assert status().native == 6 * len(images) - torchvision_parts._CHECKED * plans


def test_a_transform_is_called_by_keyword() -> None:
    transform = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])
    expected = transform(img=IMAGES[0])
    with pytest.raises(TypeError) as torchs:
        FLIP(img=TENSOR)
    fastloop.patch("transforms", verbose=False)
    assert_same_images([transform(img=IMAGES[0])], [expected])
    assert_same_images([v1.Compose.__call__(self=transform, img=IMAGES[1])], [transform(IMAGES[1])])
    with pytest.raises(TypeError) as ours:
        FLIP(img=TENSOR)
    assert str(ours.value) == str(torchs.value)


def encoded(form: str, image: Any = IMAGES[0]) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "PPM", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_as_they_are_opened(form: str, mode: str) -> None:
    files = [encoded(form, image.convert(mode)) for image in IMAGES[:9]]
    transform = v1.Compose([v1.RandomCrop(20, 2), v1.RandomHorizontalFlip(), v1.ToTensor()])

    def run() -> list[Any]:
        return results(transform, [Image.open(io.BytesIO(file)) for file in files])

    torchs = run()
    fastloop.patch("transforms", verbose=False)
    assert_same_images(run(), torchs)
    assert status().native == 9 - torchvision_parts._CHECKED, status()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP", "WEBP"])
@pytest.mark.parametrize("damage", ["cut", "bytes"])
def test_a_damaged_file_raises_where_torchvision_raises(form: str, damage: str) -> None:
    """Behind the first random numbers, not before; an image is then as torchvision leaves it."""
    good = encoded(form)
    bad = good[: len(good) // 2] if damage == "cut" else good[:-300] + b"\x77" * 300
    transform = v1.Compose([v1.RandomHorizontalFlip(0.5), v1.RandomCrop(20, 2), v1.ToTensor()])

    def run() -> list[Any]:
        found: list[Any] = []
        torch.manual_seed(5)
        for file in [good] * 4 + [bad] * 4:
            try:
                image = Image.open(io.BytesIO(file))
                found.append(transform(image))
            except Exception as error:
                found.append((type(error).__name__, str(error)))
            found.append(torch.get_rng_state())
            found += [sorted(vars(image)), transform(image) if file is good else None]
        return found

    torchs = run()
    fastloop.patch("transforms", verbose=False)
    ours = run()
    assert_same_images(ours, torchs)
    assert [x for x in ours if type(x) is tuple] == [x for x in torchs if type(x) is tuple]


def test_images_that_are_left_are_counted() -> None:
    class Own(Image.Image):
        pass

    own = Own()
    own.__dict__ = dict(vars(IMAGES[0]))
    tiff = Image.open(io.BytesIO(encoded("TIFF")))
    transform = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])
    fastloop.patch("transforms", verbose=False)
    for image in (own, tiff, IMAGES[0].convert("CMYK")):
        transform(image)
    reasons = "the class Own", "the class TiffImageFile", "mode CMYK"
    assert status().fallbacks == {f"images of {reason}": 1 for reason in reasons}


REPLACED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "crop": (Image.Image, "crop", lambda old: lambda self, box: old(self, (0, 0, 20, 20))),
    "transpose": (Image.Image, "transpose", lambda old: lambda self, how: old(self, 1)),
    "array": (np, "array", lambda old: lambda *a, **k: 255 - old(*a, **k)),
    "sub_": (Tensor, "sub_", lambda old: lambda self, other: old(self, other).mul_(2)),
    "hflip": (v1.functional, "hflip", lambda old: lambda image: image),
    "forward": (v1.Normalize, "forward", lambda old: lambda self, image: image),
    "from_numpy": (torch, "from_numpy", lambda old: lambda array: old(array).flip(0)),
    "rand": (torch, "rand", lambda old: lambda *size: old(*size) * 0.5),
}


@pytest.mark.parametrize("case", REPLACED.values(), ids=REPLACED)
def test_a_function_that_is_replaced_while_images_are_made(
    case: tuple[Any, str, Callable[[Any], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision makes the images until the function is put back."""
    owner, name, make = case
    tail = v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)
    transform = v1.Compose([v1.RandomCrop(20, 2), v1.RandomHorizontalFlip(), *tail])

    def run() -> list[Any]:
        found = results(transform, IMAGES[:8])
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))
        found += results(transform, IMAGES[:8])
        monkeypatch.undo()
        return found + results(transform, IMAGES[:8])

    torchs = run()
    fastloop.patch("transforms", verbose=False)
    assert_same_images(run(), torchs)
    assert status().native == 16 - torchvision_parts._CHECKED


def test_an_image_that_pillow_warns_of_is_cropped_by_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transform = v1.Compose([v1.RandomCrop(35), v1.ToTensor()])
    fastloop.patch("transforms", verbose=False)
    results(transform, IMAGES[:9])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    with pytest.warns(Image.DecompressionBombWarning, match="1225 pixels"):
        results(transform, IMAGES[:9])
    assert list(status().fallbacks) == ["images of so many pixels that Pillow warns of their crops"]
