"""Pillow's Image.resize behind patch(): pixels, info and errors of Pillow alone; what is left to
Pillow, and what happens if results differ."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fastloop
from fastloop.adapters import originals, pillow_resize
from fastloop.compat import verdicts

pytest.importorskip("PIL")
from PIL import Image

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261129"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "150"))


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of Pillow's resize before a test and after it."""
    monkeypatch.setattr(verdicts, "_read", {})
    pillow_resize.open_resize.cache_clear()
    yield
    fastloop.unpatch("transforms")
    pillow_resize.open_resize.cache_clear()


def status() -> Any:
    return fastloop.patch_status().seams["transforms"]


def picture(shape: tuple[int, ...] = (21, 40, 3), number: int = 0) -> Any:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, np.uint8))


class Own(Image.Image):
    """A class of a program."""


def stored(image: Any) -> bytes:
    """Return the pixels as Pillow stores them: of RGB with a fourth byte."""
    return image.tobytes("raw", "RGBX") if image.mode == "RGB" else image.tobytes()


def play(seed: int) -> list[Any]:
    """Return what resizes of all kinds make, and which errors they raise."""
    any_of, found = random.Random(seed), list[Any]()
    for number in range(RUNS):
        width, height = any_of.choice([1, 4, 17, 32, 64, 68]), any_of.choice([1, 3, 17, 64, 65])
        image = picture((height, width, 3), number)
        mode = any_of.choice(["RGB"] * 8 + ["L"] * 6 + ["RGBA", "1", "P", "I", "CMYK", "LA"])
        image = image.convert(mode)
        if any_of.random() < 0.2 and mode == "L":
            image = Image.fromarray(np.array(image))  # shares the memory of an array
        if number % 4 == 0 and mode == "RGB":  # the fourth bytes are arbitrary
            pixels = np.array(picture((image.height, image.width, 4), number))
            image = Image.frombytes("RGB", image.size, pixels.tobytes(), "raw", "RGBX")
        image.info["dpi"] = number
        if number % 25 == 24:
            own = Own()
            own._im, own._mode, own._size = image.im, mode, image.size
            image = own
        size = any_of.randint(1, 90), any_of.choice((height, any_of.randint(1, 90)))
        odd: list[Any] = [(0, 5), (-1, 3), (4.0, 4), "ab", (3,), np.array([3, 4]), image.size]
        given: dict[str, Any] = {"size": any_of.choice((size, size, list(size)))}
        if any_of.random() < 0.1:
            given["size"] = any_of.choice(odd)
        filters = [*Image.Resampling] if any_of.random() < 0.2 else [2, 3, Image.BICUBIC]
        if any_of.random() < 0.8:
            given["resample"] = any_of.choice([*filters, None])
        if any_of.random() < 0.05:
            given |= any_of.choice(({"box": (0, 0, 1, 1)}, {"reducing_gap": 2.0}, {"box": 3}))
        before = image.tobytes()
        try:
            made = image.resize(**given)
            found += [type(made), made.mode, made.size, made.info, made.readonly, stored(made)]
        except Exception as error:
            found += [type(error), str(error)]
        found.append(before == image.tobytes())
    return found


def test_random_resizes_are_pillows() -> None:
    pillows, state = play(SEED), torch.get_rng_state()
    fastloop.patch("transforms", verbose=False)
    assert play(SEED) == pillows
    assert torch.equal(state, torch.get_rng_state())
    assert status().native > RUNS // 4, status()
    native = status().native
    fastloop.unpatch("transforms")
    assert play(SEED) == pillows and status().native == native


def test_a_result_is_an_image_of_its_own() -> None:
    fastloop.patch("transforms", verbose=False)
    image = picture()
    for _ in range(4):
        made = image.resize((8, 9))
    assert status().native == 1
    made.info["x"] = 1
    made.putpixel((0, 0), (1, 2, 3))
    assert "x" not in image.info
    assert made.getpixel((0, 0)) == (1, 2, 3) and image.resize((8, 9)).getpixel((0, 0)) != (1, 2, 3)


def wrong_resize(image: Any, size: Any, *args: Any) -> Any:
    return Image.new(image.mode, size)


@pytest.mark.parametrize("is_late", [False, True])
def test_other_pixels_end_native_resizes(monkeypatch: pytest.MonkeyPatch, is_late: bool) -> None:
    pillows = picture().resize((8, 9)).tobytes()
    fastloop.patch("transforms", verbose=False)
    if is_late:
        assert pillow_resize.open_resize()[0] == ""
    monkeypatch.setattr(pillow_resize, "_resize", wrong_resize)
    if is_late:
        with pytest.warns(RuntimeWarning, match="fastloop's resizes differ from Pillow's"):
            assert picture().resize((8, 9)).tobytes() == pillows
    assert picture().resize((8, 9)).tobytes() == pillows
    (reason,) = status().fallbacks
    assert "differ" in reason and status().native == 0


def test_a_changed_function_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def resize(self: Any, *args: Any) -> Any:
        return "a tool's"

    assert originals.find_unknown("PillowResize") == ""
    monkeypatch.setattr(Image.Image, "resize", resize)
    fastloop.patch("transforms", verbose=False)
    assert picture().resize((8, 9)) == "a tool's"


def test_error_of_an_image_that_was_never_made_is_pillows() -> None:
    image = Image.Image.__new__(Image.Image)
    with pytest.raises(AttributeError) as pillows:
        image.resize((3, 4))
    fastloop.patch("transforms", verbose=False)
    with pytest.raises(AttributeError) as ours:
        image.resize((3, 4))
    assert str(ours.value) == str(pillows.value) and ours.value.__context__ is None
