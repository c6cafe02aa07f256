"""Pillow's GaussianBlur behind patch(), and in the fetches of fastloop.DataLoader: pixels, info and
errors of Pillow alone; what is left to Pillow, and what happens if results differ."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import fastloop
from fastloop.adapters import originals, pillow_blur
from fastloop.compat import seams, verdicts
from fastloop.compat.torch_parts import before_workers

pytest.importorskip("PIL")
from PIL import Image, ImageFilter

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261129"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "60"))
CHECKED = pillow_blur._CHECKED


@pytest.fixture(autouse=True)
def no_seam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of Pillow's blur, and the seam is not installed, before a test and after
    it."""

    def drop() -> None:
        fastloop.unpatch("transforms")
        if (seam := seams.opened.pop("transforms", None)) is not None:
            seam.serves_some = False
            seam.take_out()
            before_workers.remove(seam._prepare)
        pillow_blur.open_blur.cache_clear()

    drop()
    monkeypatch.setattr(verdicts, "_read", {})
    yield
    drop()


def status() -> Any:
    return fastloop.patch_status().seams["transforms"]


def picture(number: int = 0, shape: tuple[int, ...] = (21, 40, 3)) -> Any:
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, shape, np.uint8))


class Widened(ImageFilter.GaussianBlur):
    """A class of a program that changes the radius."""

    @property
    def radius(self) -> Any:
        return vars(self)["radius"] + 1

    @radius.setter
    def radius(self, radius: float) -> None:
        vars(self)["radius"] = radius


RADII: tuple[Callable[[random.Random], Any], ...] = (
    lambda any_of: any_of.uniform(0.1, 2),
    lambda any_of: any_of.uniform(0, 90),
    lambda any_of: any_of.randint(0, 9),
    lambda any_of: (any_of.uniform(0, 3), 2),
    lambda any_of: any_of.choice([True, np.float64(1), -1.5, 2000, "1", None, np.float32(1), [1]]),
)


def play(seed: int) -> list[Any]:
    """Return what blurs of all kinds make, and which errors they raise."""
    any_of, found = random.Random(seed), list[Any]()
    for number in range(RUNS):
        width, height = any_of.choice([1, 4, 17, 32, 64, 68]), any_of.choice([1, 3, 17, 64, 65])
        image = picture(number, (height, width, 3))
        image = Image.new("RGB", (0, 5)) if number % 20 == 7 else image
        image.info["dpi"] = number
        mode = any_of.choice(["RGB"] * 8 + ["L"] * 5 + ["RGBA", "1", "P", "I", "CMYK"])
        before = image = image.convert(mode)
        cls = any_of.choice([ImageFilter.GaussianBlur] * 9 + [Widened])
        radius = any_of.choice(RADII)(any_of)
        try:
            image = image.filter(cls(radius))
            found.append((type(image), image.mode, image.size, image.info, image.readonly))
        except Exception as error:
            found.append((type(error), str(error)))
        found += [before.tobytes(), image.tobytes()]
    return found


def test_random_blurs_are_pillows() -> None:
    pillows = play(SEED)
    fastloop.patch("transforms", verbose=False)
    assert play(SEED) == pillows
    found = status()
    assert found.native > 0
    assert found.native + sum(found.fallbacks.values()) + CHECKED == RUNS
    fastloop.unpatch("transforms")
    assert play(SEED) == pillows and status().native == found.native


@pytest.mark.parametrize(
    ("mode", "radius", "reason"),
    [
        ("RGBA", 1, "fastloop blurs images of RGB and L, not RGBA"),
        ("L", 1, "fastloop blurs grey images if the width is a multiple of 4"),
        ("RGB", (1, 2), "the radius of a GaussianBlur is not one number"),
        ("long", 1, "fastloop blurs images of at most 65536 rows and columns"),
        ("RGB", 0, "fastloop blurs by a radius above 0 and at most 1024"),
    ],
)
def test_what_is_left_is_counted_with_its_reason_and_time(
    mode: str, radius: Any, reason: str
) -> None:
    fastloop.patch("transforms", verbose=False)
    is_long = mode == "long"
    image = Image.new("RGB", (1, 65537)) if is_long else picture(shape=(20, 39, 3)).convert(mode)
    for _ in range(9):
        image.filter(ImageFilter.GaussianBlur(radius))
    found = status()
    assert found.fallbacks == {reason: 9} and found.fallback_ns[reason] > 0 == found.native


def test_filters_of_another_kind_are_pillows_own() -> None:
    fastloop.patch("transforms", verbose=False)
    for other in (ImageFilter.BoxBlur(2), ImageFilter.SMOOTH, ImageFilter.UnsharpMask):
        picture().filter(other)
    assert status().native == 0 and status().fallbacks == {}


class Blurred(Dataset[Any]):
    """A dataset with a blur as MoCo's class has it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        image = picture(index).filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        return torch.tensor(np.asarray(image)), random.random()


def epoch(cls: Any, **options: Any) -> Any:
    torch.manual_seed(2)
    random.seed(3)
    batches = list(cls(Blurred(), batch_size=5, shuffle=True, **options))
    return batches, random.getstate(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_class_alone_serves_blurs(workers: int) -> None:
    torchs, *states = epoch(torch.utils.data.DataLoader, num_workers=workers)
    ours, *own_states = epoch(fastloop.DataLoader, num_workers=workers)
    for mine, theirs in zip(ours, torchs, strict=True):
        assert all(map(torch.equal, mine, theirs))
    assert own_states == states
    found = status()
    assert not found.is_on and found.native == 24 - CHECKED * max(workers, 1)
    picture().filter(ImageFilter.GaussianBlur(1))  # outside a fetch
    epoch(fastloop.DataLoader, num_workers=workers, path="torch")
    epoch(torch.utils.data.DataLoader, num_workers=workers)
    assert status().native == found.native and status().fallbacks == {}


def wrong_blur(core: Any, radius: float) -> None:
    core.putpixel((0, 0), (1, 2, 3) if core.mode == "RGB" else 1)


def test_a_battery_finds_other_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_blur, "pil_blur", wrong_blur)
    pillows = picture().filter(ImageFilter.GaussianBlur(1)).tobytes()
    fastloop.patch("transforms", verbose=False)
    assert picture().filter(ImageFilter.GaussianBlur(1)).tobytes() == pillows
    (reason,) = status().fallbacks
    assert "differs" in reason and status().native == 0


def test_a_late_difference_ends_native_blurs(monkeypatch: pytest.MonkeyPatch) -> None:
    pillows = picture().filter(ImageFilter.GaussianBlur(1)).tobytes()
    fastloop.patch("transforms", verbose=False)
    assert pillow_blur.open_blur()[0] == ""
    monkeypatch.setattr(pillow_blur, "pil_blur", wrong_blur)
    with pytest.warns(RuntimeWarning, match="fastloop's blurs differ from Pillow's"):
        assert picture().filter(ImageFilter.GaussianBlur(1)).tobytes() == pillows
    assert picture().filter(ImageFilter.GaussianBlur(1)).tobytes() == pillows
    assert status().fallbacks == {"a blur has differed from Pillow's": 1}


def test_a_replaced_function_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def filter_as_a_tool(self: Any, image: Any) -> Any:
        return image.copy()

    monkeypatch.setattr(ImageFilter.GaussianBlur, "filter", filter_as_a_tool)
    fastloop.patch("transforms", verbose=False)
    assert picture().filter(ImageFilter.GaussianBlur(1)).tobytes() == picture().tobytes()
    fastloop.unpatch("transforms")


def test_a_function_that_a_tool_puts_around_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    epoch(fastloop.DataLoader)
    there, told = ImageFilter.GaussianBlur.filter, []

    def filter_as_a_tool(self: Any, image: Any) -> Any:
        told.append(self.radius)
        return there(self, image)

    monkeypatch.setattr(ImageFilter.GaussianBlur, "filter", filter_as_a_tool)
    epoch(fastloop.DataLoader)
    assert len(told) == 24
    fastloop.patch("transforms", verbose=False)
    picture().filter(ImageFilter.GaussianBlur(1))
    assert len(told) == 25
    monkeypatch.undo()
    fastloop.unpatch("transforms")


def test_an_unknown_release_is_served_after_a_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, known = originals.entries_of(["filters"])
    monkeypatch.setattr(originals, "_needed_by", lambda plans: (known._replace(forms=("0",)),))
    fastloop.patch("transforms", verbose=False)
    for _ in range(9):
        picture().filter(ImageFilter.GaussianBlur(1))
    assert status().native == 9 - CHECKED
    assert verdicts.in_force() == [
        f"blurs: proven for Pillow {Image.__version__} (not known when fastloop was built)"
    ]
