"""PIL images of many sizes, and chains whose images torchvision and fastloop both make."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from vision_cases import status, v2

import fastloop

MODES: tuple[Any, ...] = ()  # without torchvision nobody makes chains of them
if v2 is not None:
    from PIL import Image
    from torchvision.transforms import InterpolationMode

    MODES = InterpolationMode.NEAREST, InterpolationMode.BILINEAR, InterpolationMode.BICUBIC
SIZES = (1, 1), (2, 3), (5, 1), (3, 3), (32, 32), (40, 23), (33, 150), (64, 64)  # height, width


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
