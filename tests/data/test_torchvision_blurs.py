"""torchvision's GaussianBlur of PIL images: bits, info and random states of torchvision alone, for
single images, whole batches and folders, with one thread of torch and with two."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vision_cases import assert_same, dataset_of, v2
from warp_cases import assert_served, chain_of, no_plan_compared

import fastloop
from fastloop.adapters import torchvision_chain

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1

CHAINS = int(os.environ.get("FASTLOOP_FUZZ", "40"))
SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", time.strftime("%Y%m%d")))
MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
TAPS = 1, 3, 5, 9, 23, (3, 7), (7, 3), (1, 5), (5, 23), 31
SIGMAS = (0.1, 2.0), (1.3, 1.3), 40.0, 1e-30
SIZES = (1, 1), (2, 3), (4, 9), (13, 12), (32, 32), (25, 61), (96, 64), (224, 224)


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from no_plan_compared(monkeypatch)


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: Any) -> Iterator[None]:
    """How many threads torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def images_of(mode: str, seed: int, count: int = 12) -> list[Any]:
    """Return images of many sizes, with info: noise, and some of one colour."""
    numbers, images = np.random.default_rng(seed), []
    for number in range(count):
        height, width = SIZES[number % len(SIZES)]
        shape = (height, width, 3) if mode == "RGB" else (height, width)
        pixels = numbers.integers(0, 256, shape, np.uint8)
        pixels[:] = 255 if number % 7 == 3 else pixels
        images.append(Image.fromarray(pixels))
        images[-1].info["dpi"] = 72
    return images


def fits(image: Any, taps: Any) -> bool:
    x, y = taps if isinstance(taps, tuple) else (taps, taps)
    width, height = image.size
    is_left = image.mode == "L" and min(x, y) <= 3
    return bool(x // 2 < width and y // 2 < height and not is_left)


@MODULES
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("taps", TAPS, ids=str)
def test_single_images(module: Any, mode: str, taps: Any) -> None:
    images = images_of(mode, SEED)
    for number, sigma in enumerate(SIGMAS):
        transform = chain_of(module, module.GaussianBlur(taps, sigma))
        expected = sum(fits(image, taps) for image in images)
        assert_served(transform, images, SEED + number, expected)


@pytest.mark.usefixtures("threads")
def test_random_chains() -> None:
    any_of = random.Random(SEED)
    for number in range(CHAINS):
        module, mode = any_of.choice((v1, v2)), any_of.choice(("RGB", "L"))
        blur = module.GaussianBlur(any_of.choice(TAPS), any_of.choice(SIGMAS))
        ops = [
            module.RandomApply([module.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            module.RandomGrayscale(0.2),
            module.RandomApply([blur], p=0.5),
            module.RandomSolarize(128, p=0.2),
            module.RandomResizedCrop(any_of.choice((16, 40))),
            module.GaussianBlur(5),
            module.Grayscale(1),
        ]
        ops = any_of.sample(ops, any_of.randint(2, 6))
        images = [image for image in images_of(mode, number, 16) if min(image.size) > 11]
        assert_served(chain_of(module, *ops), images, number, 0)


@MODULES
@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches(module: Any, workers: int) -> None:
    for kind, taps in (("CIFAR10", 3), ("CIFAR10", 9), ("MNIST", 5), ("STL10", 23)):
        ops = [
            module.RandomCrop(26, 3),
            module.RandomApply([module.GaussianBlur(taps)], p=0.6),
            module.GaussianBlur((5, 9), 0.7),
        ]
        dataset = dataset_of(kind, chain_of(module, *ops))
        options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
        assert fastloop.DataLoader(dataset, **options).stats().path == "array", kind
        assert_same(dataset, options)


@MODULES
def test_folders(module: Any, tmp_path: Path) -> None:
    for number, image in enumerate([*images_of("RGB", 8), *images_of("L", 9)]):
        path = tmp_path / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        image.save(path)
    for taps in (3, 9, 23):
        blur = module.RandomApply([module.GaussianBlur(taps)], p=0.5)
        crop = module.RandomResizedCrop(24)
        dataset = datasets.ImageFolder(str(tmp_path), chain_of(module, crop, blur))
        why = fastloop.DataLoader(dataset, batch_size=5).stats().why
        assert why == "samples of ImageFolder by fastloop"
        for workers in (0, 2):
            assert_same(dataset, {"batch_size": 5, "num_workers": workers})


@MODULES
def test_info_before_an_operation_of_python(module: Any) -> None:
    seen: list[Any] = []

    def look(image: Any) -> Any:
        seen.append((type(image), image.mode, image.size, dict(image.info), image.tobytes()))
        return image

    images = [image for image in images_of("RGB", 6) if min(image.size) > 4]
    gate = module.RandomApply([module.GaussianBlur(5)], p=0.5)
    for op in (module.GaussianBlur(9), gate):
        transform = module.Compose([module.RandomResizedCrop(20), op, look, module.PILToTensor()])
        assert_served(transform, images, 4, len(images))
        half = len(seen) // 2
        assert seen[:half] == seen[half:]
        seen.clear()


LEFT = {
    "can be compared": (lambda: v1.GaussianBlur(63), 1),
    "3 taps in an order of its own": (lambda: v1.GaussianBlur((3, 9)), 1),
    "kernel_size must": (lambda: v1.GaussianBlur(129), 3),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_is_left_to_torchvision(why: str) -> None:
    make, channels = LEFT[why]
    ops = [v1.Grayscale(1)] * (channels == 1)
    with pytest.raises(ValueError, match=why):
        torchvision_chain.open_plan(chain_of(v1, *ops, make()), (140, 140, 3), "HWC")


def test_other_sums_of_torch_are_left() -> None:
    transform = chain_of(v2, v2.GaussianBlur(5))
    with (
        torch.backends.mkldnn.flags(enabled=False),
        pytest.raises(ValueError, match="in a different way"),
    ):
        torchvision_chain.open_plan(transform, (32, 32, 3), "HWC")


def test_weights_are_asked_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches with wrong weights differ from torchvision's."""
    wrong = (0.4, 0.3, 0.0)
    monkeypatch.setattr(
        torchvision_chain.torchvision_policies, "find_weights", lambda *arguments: wrong
    )
    with pytest.raises(ValueError, match="an image of GaussianBlur differs"):
        torchvision_chain.open_plan(chain_of(v2, v2.GaussianBlur(5, 0.37)), (32, 32, 3), "HWC")
