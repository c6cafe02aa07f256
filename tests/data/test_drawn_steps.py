"""Plans whose caller has drawn the crop, the flips and steps behind them: pixels are Pillow's."""

from __future__ import annotations

import io
import os
import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

from image_folders import encode, picture
from PIL import Image, ImageEnhance, ImageOps

from fastloop._core import INTERPOLATIONS
from fastloop.data.image_folder.jpeg import find_jpeg
from fastloop.data.transforms.ops import RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
from fastloop.data.transforms.plan import Plan, compile_plan

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261130"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "150"))
SIDE, BORDER = (30, 41), (124, 7, 255)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
HOW = {"fillcolor": BORDER}


def add_below(image: Any, number: int) -> Any:
    table = [min(255, v + number) if v < 128 else v for v in range(256)]
    return image.point(table * 3)


# By name: what Pillow does, and a number.
STEPS: dict[str, Any] = {
    "AutoContrast": (lambda image: ImageOps.autocontrast(image), None),
    "Equalize": (lambda image: ImageOps.equalize(image), None),
    "Invert": (lambda image: ImageOps.invert(image), None),
    "Posterize": (ImageOps.posterize, lambda any_of: any_of.randrange(1, 9)),
    "Solarize": (ImageOps.solarize, lambda any_of: any_of.randrange(257)),
    "SolarizeAdd": (add_below, lambda any_of: any_of.randrange(129)),
    **{
        name: (
            lambda image, factor, name=name: getattr(ImageEnhance, name)(image).enhance(factor),
            lambda any_of: any_of.choice([0.1, 1.0, any_of.uniform(0, 2)]),
        )
        for name in ("Color", "Contrast", "Brightness", "Sharpness")
    },
}


def open_plan(out_layout: str = "HWC", how: str = "bilinear") -> Plan:
    crop: Any = RandomResizedCrop(SIDE)
    crop.interpolation = INTERPOLATIONS[how]
    ops = crop, RandomHorizontalFlip(0.5), RandomVerticalFlip(0.5)
    return compile_plan(ops, (0, 0, 3), "HWC", out_layout, may_differ=True)


def draw_step(any_of: random.Random) -> tuple[Any, tuple[Any, ...]]:
    """Return a function of Pillow images, and the step."""
    name = any_of.choice([*STEPS, "Rotate", "Affine", "Affine"])
    if name in STEPS:
        change, draw = STEPS[name]
        numbers = () if draw is None else (draw(any_of),)
        return lambda image: change(image, *numbers), (name, 0, *numbers)
    how = any_of.choice([*FILTERS])
    given = {"resample": FILTERS[how], **HOW}
    if name == "Rotate":
        degrees = any_of.choice([0, 180, -90, any_of.uniform(-40, 40)])
        return lambda image: image.rotate(degrees, **given), (name, INTERPOLATIONS[how], degrees)
    matrix = [1.0, 0, 0, 0, 1, 0]
    for k in any_of.sample([1, 2, 3, 5], any_of.choice([1, 1, 2])):  # shears and translations
        matrix[k] = any_of.choice([any_of.uniform(-0.3, 0.3), any_of.randrange(-9, 9)])
    step = name, INTERPOLATIONS[how], *matrix
    return lambda image: image.transform(image.size, Image.AFFINE, matrix, **given), step


@pytest.mark.parametrize("out_layout", ["CHW", "HWC"])
def test_steps_are_pillows(out_layout: str) -> None:
    any_of, plan = random.Random(SEED), open_plan(out_layout)
    for number in range(RUNS):
        image = picture(number, *SIDE)
        drawn = (0, 0, *SIDE), any_of.random() < 0.5, any_of.random() < 0.5
        changes, steps = zip(*[draw_step(any_of) for _ in range(1 + number % 3)], strict=True)
        out = plan.empty()
        plan.core.apply_drawn(np.array(image), out, drawn, steps, BORDER)
        if drawn[1]:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if drawn[2]:
            image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        for change in changes:
            image = change(image)
        made = out.movedim(0, -1) if out_layout == "CHW" else out
        assert np.array_equal(made.numpy(), np.asarray(image)), (number, steps)


def test_a_part_of_a_file_is_decoded() -> None:
    if (jpeg := find_jpeg()) is None:
        pytest.skip("Pillow links no libjpeg-turbo")
    data, plan = encode(picture(3, 200, 300)), open_plan()
    whole, any_of = np.asarray(Image.open(io.BytesIO(data))), random.Random(SEED)
    for _ in range(20):
        height, width = any_of.randrange(1, 200), any_of.randrange(1, 300)
        top, left = any_of.randrange(201 - height), any_of.randrange(301 - width)
        given = ((top, left, height, width), False, True), (draw_step(any_of)[1],), BORDER
        outs = [plan.empty() for _ in range(2)]
        for image, out in zip((jpeg.open(data), whole), outs, strict=True):
            plan.core.apply_drawn(image, out, *given)
        assert torch.equal(*outs)


CROP = (0, 0, 9, 9)
WRONG: dict[str, tuple[Any, ...]] = {
    "inside": ((0, 0, 10, 9), False, False),
    "tuple": (CROP, False),
    "not inside the image": ((-1, 0, 3, 3), False, False),
    "a step": (CROP, False, False, 5),
    "there is no step Blur": (CROP, False, False, ("Blur", 0)),
    "out of range, the first is 9": (CROP, False, False, ("Posterize", 0, 9)),
    "out of range, the first is -1": (CROP, False, False, ("Color", 0, -1)),
    "out of range, the first is 256": (CROP, False, False, ("SolarizeAdd", 0, 256)),
    "out of range, the first is nan": (CROP, False, False, ("Rotate", 1, float("nan"))),
    "interpolation must be": (CROP, False, False, ("Rotate", 6, 1.0)),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_are_refused(text: str) -> None:
    plan, given = open_plan(), WRONG[text]
    image, out = np.zeros((9, 9, 3), np.uint8), plan.empty()
    with pytest.raises((ValueError, TypeError), match=text):
        plan.core.apply_drawn(image, out, given[:3], given[3:], BORDER)
    with pytest.raises(ValueError, match="at most 16"):
        plan.core.apply_drawn(image, out, (CROP, 0, 0), (("Invert", 0),) * 17, BORDER)
    with pytest.raises(TypeError):
        plan.core.apply_drawn(image, out, (CROP, 0, 0), (), (1, 2))


def test_other_operations_are_refused() -> None:
    from fastloop.data.transforms.ops import RandomCrop

    plan = compile_plan((RandomCrop(4),), (9, 9, 3), "HWC")
    with pytest.raises(ValueError, match="nothing can be drawn for RandomCrop"):
        plan.core.apply_drawn(np.zeros((9, 9, 3), np.uint8), plan.empty(), (CROP,), (), BORDER)
    grey = compile_plan((), (9, 9, 1), "HWC")
    with pytest.raises(ValueError, match="3 channels"):
        given = (), (("Invert", 0),), BORDER
        grey.core.apply_drawn(np.zeros((9, 9, 1), np.uint8), grey.empty(), *given)
