"""torchvision's rotations, shears and perspectives of PIL images: bits and random states of
torchvision alone, for single images, whole batches and folders."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vision_cases import assert_same, dataset_of, v2
from warp_cases import MODES, assert_served, chain_of, images_of, no_plan_compared, save_folder

import fastloop
from fastloop.adapters import torchvision_chain

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

CHAINS = int(os.environ.get("FASTLOOP_FUZZ", "60"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from no_plan_compared(monkeypatch)


def random_warp(any_of: random.Random, module: Any) -> Any:
    """Return an operation with ordinary or extreme arguments."""
    how = any_of.choice(MODES)
    fill: Any = any_of.choice((0, 9, 255, 3.7))
    center = any_of.choice((None, None, [0, 0], (3.5, 7), (-4, 2.25)))
    degrees = any_of.choice((0, 30, (90, 90), (180, 180), (270, 270), (-400, 720), (1e-9, 1e-9)))
    kind = any_of.randrange(3)
    if kind == 0:
        return module.RandomRotation(degrees, how, center=center, fill=fill)
    if kind == 1:
        return module.RandomPerspective(
            any_of.choice((0.0, 0.5, 0.9)), any_of.choice((0.3, 0.5, 1)), how, fill
        )
    return module.RandomAffine(
        degrees,
        any_of.choice((None, (0, 0), (0.3, 0.1), (1.0, 1.0))),
        any_of.choice((None, (1, 1), (0.5, 2.0), (0.001, 0.002))),
        any_of.choice((None, 10, [0, 0], (-20, 30), (-10, 10, -30, 30))),
        how,
        fill,
        center,
    )


def test_single_images_of_all_sizes() -> None:
    """torch has no coefficients of a perspective if an edge has one pixel: torchvision raises."""
    any_of = random.Random(SEED)
    for number in range(CHAINS):
        module = any_of.choice((v1, v2))
        transform = chain_of(module, random_warp(any_of, module))
        has_errors = "Perspective" in str(transform)
        images = images_of(SEED + number)
        assert_served(transform, images, number, 11 if has_errors else 16)


@MODULES
def test_fills_for_each_channel(module: Any) -> None:
    colours = [image for image in images_of(3, 30) if image.mode == "RGB"]
    for op in (
        module.RandomRotation(40, fill=(1, 20.9, 255)),
        module.RandomAffine(40, (0.2, 0.2), fill=[9, 8, 7]),
        module.RandomPerspective(p=1, fill=(5,)),
    ):
        assert_served(chain_of(module, op), colours, 2, 9)


@MODULES
@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches(module: Any, workers: int) -> None:
    any_of = random.Random(SEED)
    for kind in ("CIFAR10", "MNIST"):
        for _ in range(4):
            ops = [random_warp(any_of, module) for _ in range(2)]
            ops.insert(1, module.RandomCrop(24, 3))
            dataset = dataset_of(kind, chain_of(module, *ops))
            options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
            assert fastloop.DataLoader(dataset, **options).stats().path == "array", ops
            assert_same(dataset, options)


@MODULES
def test_folders(module: Any, tmp_path: Path) -> None:
    save_folder(tmp_path, images_of(8, 24))
    any_of = random.Random(SEED)
    for _ in range(4):
        ops = [
            random_warp(any_of, module),
            module.RandomResizedCrop(20),
            random_warp(any_of, module),
        ]
        ops[0] = module.RandomRotation(30, MODES[1]) if "Perspective" in str(ops[0]) else ops[0]
        dataset = datasets.ImageFolder(str(tmp_path), chain_of(module, *ops))
        why = fastloop.DataLoader(dataset, batch_size=5).stats().why
        assert why == "samples of ImageFolder by fastloop"
        for workers in (0, 2):
            assert_same(dataset, {"batch_size": 5, "num_workers": workers})


def test_images_of_pil_before_an_operation_of_python() -> None:
    """The operation gets a PIL image with the same class and info as from torchvision."""
    seen: list[Any] = []

    def look(image: Any) -> Any:
        seen.append((type(image), image.mode, image.size, dict(image.info), image.tobytes()))
        return image

    images = images_of(6)
    for image in images:
        image.info["dpi"] = 72
    for op in (v1.RandomRotation(50), v1.RandomAffine(9, (0.5, 0.5)), v1.RandomPerspective(0.9)):
        transform = chain_of(v1, v1.RandomResizedCrop(20), op, look)
        assert_served(transform, images, 4, 16)
        half = len(seen) // 2
        assert seen[:half] == seen[half:]
        seen.clear()


LEFT = {
    "expand must be False": (v1, v1.RandomRotation(20, expand=True)),
    "fill must be in": (v1, v1.RandomRotation(20, fill=-3)),
    "fastloop does not do RandomRotation with 'nearest-exact'": (
        v2,
        v2.RandomRotation(20, InterpolationMode.NEAREST_EXACT),
    ),
    "one number, or one for each of 3": (v1, v1.RandomAffine(20, fill=(1, 2))),
    "torch has no coefficients for an image of": (v1, v1.RandomPerspective()),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_to_torchvision(why: str) -> None:
    module, op = LEFT[why]
    width = 1 if "coefficients" in why else 32
    with pytest.raises(ValueError, match=why):
        torchvision_chain.open_plan(chain_of(module, op), (32, width, 3), "HWC")


def test_a_batch_asks_for_many_perspectives() -> None:
    dataset = dataset_of("CIFAR10", chain_of(v1, v1.RandomPerspective(0.4, 0.7)), 200)
    assert_same(dataset, {"batch_size": 100, "num_workers": 0})
