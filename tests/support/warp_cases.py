"""PIL images of many sizes, and chains whose images torchvision and fastloop both make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vision_cases import status, v2

import fastloop
from fastloop.adapters import torchvision_parts
from fastloop.compat import verification

MODES: tuple[Any, ...] = ()  # without torchvision nobody makes chains of them
if v2 is not None:
    from PIL import Image
    from torchvision.transforms import InterpolationMode

    MODES = InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
SIZES = (1, 1), (2, 3), (5, 1), (3, 3), (32, 32), (40, 23), (33, 150), (64, 64)  # height, width


def no_plan_compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The body of a fixture. Images of each size have a plan, so no plan compares its first images
    in these tests."""
    monkeypatch.setattr(torchvision_parts, "_CHECKED", 0)
    verification.verification_of.cache_clear()
    yield
    fastloop.unpatch("transforms")
    verification.verification_of.cache_clear()


def save_folder(root: Path, images: list[Any]) -> None:
    """Write images as the files of two classes, as ImageFolder reads them."""
    for number, image in enumerate(images):
        path = root / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        image.save(path)


def images_of(seed: int, count: int = 16) -> list[Any]:
    """Return images of many sizes, RGB and L: noise, and some of one colour."""
    numbers, images = np.random.default_rng(seed), []
    for number in range(count):
        height, width = SIZES[number % len(SIZES)]
        pixels = numbers.integers(0, 256, (height, width, 3), np.uint8)
        pixels[:] = pixels[0, 0] if number % 7 == 3 else pixels
        images.append(Image.fromarray(pixels if number % 3 else pixels[:, :, 0].copy()))
    return images


def chain_of(module: Any, *ops: Any) -> Any:
    return module.Compose([*ops, module.PILToTensor(), module.ConvertImageDtype(torch.float32)])


def results(transform: Any, images: list[Any], seed: int) -> list[Any]:
    """Return results or errors, and the state of the generator after each."""
    torch.manual_seed(seed)
    found: list[Any] = []
    for image in images:
        try:
            found.append(transform(image))
        except RuntimeError as error:
            found.append(str(error))
        found.append(torch.get_rng_state())
    return found


def assert_served(transform: Any, images: list[Any], seed: int, at_least: int) -> None:
    torchs = results(transform, images, seed)
    fastloop.patch("transforms", verbose=False)
    ours, native = results(transform, images, seed), status().native
    fastloop.unpatch("transforms")
    for place, (a, b) in enumerate(zip(ours, torchs, strict=True)):
        assert type(a) is type(b), (transform, place)
        is_equal = torch.equal(a, b) if isinstance(a, Tensor) else a == b
        assert is_equal, (transform, place)
    assert native >= at_least, (transform, status())
