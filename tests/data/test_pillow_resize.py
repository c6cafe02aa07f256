"""Resizes with Pillow's weights by C: the bits of PIL.Image.resize."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from fastloop.adapters import torchvision_chain
from fastloop.data.transforms import ops
from fastloop.data.transforms.plan import compile_plan

Image: Any = pytest.importorskip("PIL.Image")
MODES = {"bilinear": 2, "bicubic": 3}
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 64, 100, 224)


def resized(pixels: Any, size: tuple[int, int], mode: str, who: int) -> Any:
    op = ops.Resize(size)
    op.interpolation = who + (mode == "bicubic")
    return compile_plan((op,), pixels.shape, "HWC", "HWC").apply(pixels, 0).numpy()


def by_pillow(pixels: Any, size: tuple[int, int], mode: str) -> Any:
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    return np.asarray(image.resize(size[::-1], MODES[mode])).reshape(*size, -1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("noise", ["any", "saturated"])
def test_random_images(mode: str, channels: int, noise: str) -> None:
    who = torchvision_chain.find_pillow()
    any_of = random.Random(mode + noise)
    numbers = np.random.default_rng(channels)
    for number in range(250):
        most = 500 if number % 20 == 0 else 70
        lengths = [any_of.randint(1, most) for _ in range(4)]
        if number % 3 == 0:
            lengths = [any_of.choice((*LENGTHS, length)) for length in lengths]
        height, width, *size = lengths
        pixels = numbers.integers(0, 256, (height, width, channels), np.uint8)
        if noise == "saturated":
            pixels = np.where(pixels > 127, np.uint8(255), np.uint8(0))
        found = resized(pixels, (size[0], size[1]), mode, who)
        expected = by_pillow(pixels, (size[0], size[1]), mode)
        assert np.array_equal(found, expected), (pixels.shape, size)


@pytest.mark.parametrize("who", [4, 6])  # FL_PILLOW_BILINEAR, FL_PILLOW_13_BILINEAR
def test_which_axis_is_first(who: int) -> None:
    """Pillow 13 begins with columns where the height loses more than twice what the width does."""
    pixels = np.random.default_rng(1).integers(0, 256, (80, 60, 3), np.uint8)
    for size in ((59, 50), (60, 50), (40, 60), (40, 70), (90, 50), (90, 100)):
        rows = resized(resized(pixels, (80, size[1]), "bicubic", who), size, "bicubic", who)
        columns = resized(resized(pixels, (size[0], 60), "bicubic", who), size, "bicubic", who)
        is_columns_first = who == 6 and size in ((59, 50), (40, 60), (40, 70))
        expected = columns if is_columns_first else rows
        assert np.array_equal(resized(pixels, size, "bicubic", who), expected), size
