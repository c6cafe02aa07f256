"""Pillow's Image.transform and Image.rotate behind patch(): pixels, info and errors of Pillow
alone; timm's policies; what is left, and what happens if results differ."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fastloop
from fastloop.adapters import pillow_blur, pillow_warp
from fastloop.compat import verdicts

pytest.importorskip("PIL")
from PIL import Image

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261129"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "150"))


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of Pillow's transforms before a test and after it."""
    monkeypatch.setattr(verdicts, "_read", {})
    pillow_warp.open_warp.cache_clear()
    yield
    fastloop.unpatch("transforms")
    pillow_warp.open_warp.cache_clear()


def status() -> Any:
    return fastloop.patch_status().seams["transforms"]


def picture(shape: tuple[int, ...] = (21, 40, 3), number: int = 0) -> Any:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, np.uint8))


def stored(image: Any) -> bytes:
    """Return the pixels as Pillow stores them: of RGB with a fourth byte."""
    return image.tobytes("raw", "RGBX") if image.mode == "RGB" else image.tobytes()


def play(seed: int) -> list[Any]:
    """Return what transforms of all kinds make, and which errors they raise."""
    any_of, found = random.Random(seed), list[Any]()
    for number in range(RUNS):
        shape = any_of.choice([1, 4, 17, 64, 65]), any_of.choice([1, 3, 17, 130])
        mode = any_of.choice(["RGB"] * 12 + ["L", "RGBA", "P", "1", "I"])
        image = picture((*shape, 3), number).convert(mode)
        if number % 4 == 0 and mode == "RGB":  # the fourth bytes are arbitrary
            pixels = np.array(picture((image.height, image.width, 4), number))
            image = Image.frombytes("RGB", image.size, pixels.tobytes(), "raw", "RGBX")
        image.info["dpi"] = number
        size = image.size if any_of.random() < 0.9 else (9, 8)
        near = [any_of.gauss(i % 4 == 0, 0.4) for i in range(6)]
        near[2], near[5] = any_of.uniform(-20, 20), any_of.uniform(-20, 20)
        data = any_of.choice([near, near, tuple(near), [1, 0.2, 0, 0, 1, 0], [1, 0, -3, 0, 1, 5]])
        data = any_of.choice([data] * 9 + [data[:5], [*data, 7], np.array(data), "abcdef"])
        how: dict[str, Any] = {"resample": any_of.choice([2, 3, 2, 3, 0, Image.BICUBIC, 1, None])}
        if any_of.random() < 0.7:
            how["fillcolor"] = any_of.choice([None, (1, 2, 3), 9, "red"])
        method = any_of.choice([Image.AFFINE] * 8 + [Image.EXTENT, Image.PERSPECTIVE])
        before = image.tobytes()
        try:
            if any_of.random() < 0.3:
                angle = any_of.choice([0, 90, 180, 12.5, -400, 1e-9])
                made = image.rotate(angle, expand=any_of.random() < 0.3, **how)
            else:
                made = image.transform(size, method, data, **how)
            found += [type(made), made.mode, made.size, made.info, made.readonly, stored(made)]
        except Exception as error:
            found += [type(error), str(error)]
        found.append(before == image.tobytes())
    return found


def test_random_transforms_are_pillows() -> None:
    pillows = play(SEED)
    fastloop.patch("transforms", verbose=False)
    assert play(SEED) == pillows
    assert status().native > RUNS // 10, status()
    native = status().native
    fastloop.unpatch("transforms")
    assert play(SEED) == pillows and status().native == native


def test_timms_operations() -> None:
    augment = pytest.importorskip("timm.data.auto_augment")
    ops = [augment.AugmentOp(name, 1.0, 8) for name in ("Rotate", "ShearX", "TranslateYRel")]

    def make() -> list[bytes]:
        random.seed(5)
        return [op(picture(number=i)).tobytes() for i in range(20) for op in ops]

    pillows = make()
    fastloop.patch("transforms", verbose=False)
    assert make() == pillows and status().native == 60 - pillow_blur._CHECKED


def wrong_affine(core: Any, *args: Any) -> None:
    core.putpixel((0, 0), (1, 2, 3))


@pytest.mark.parametrize("is_late", [False, True])
def test_other_pixels_end_native_transforms(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    pillows = picture().rotate(20, 2).tobytes()
    fastloop.patch("transforms", verbose=False)
    if is_late:
        assert pillow_warp.open_warp()[0] == ""
    monkeypatch.setattr(pillow_warp, "pil_affine", wrong_affine)
    if is_late:
        with pytest.warns(RuntimeWarning, match="fastloop's warps differ from Pillow's"):
            assert picture().rotate(20, 2).tobytes() == pillows
    assert picture().rotate(20, 2).tobytes() == pillows
    (reason,) = status().fallbacks
    assert "differ" in reason and status().native == 0
