"""torchvision's FakeData by C, and target_transform: batches and random states as with torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset
from vision_cases import MEAN, STD, assert_same, v2

import fastloop
from fastloop.compat import originals
from fastloop.data.image_folder import torchvision_folder

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1

WORKERS = pytest.mark.parametrize("workers", [0, 2])
pytestmark = pytest.mark.filterwarnings("error:C's samples:RuntimeWarning")


@pytest.fixture(autouse=True)
def plans() -> Iterator[None]:
    """No test knows what those before it have compared."""
    originals.trial_of.cache_clear()
    yield


def recipe(module: Any, *first: Any) -> Any:
    first = first or (module.RandomCrop(20, padding=4), module.RandomHorizontalFlip())
    tail = [module.ToTensor()]
    if module is v2:
        tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return module.Compose([*first, *tail])


def fake(transform: Any, count: int = 30, size: Any = (3, 24, 28), **options: Any) -> Any:
    return datasets.FakeData(count, size, transform=transform, **options)


def why(dataset: Any, **options: Any) -> str:
    return fastloop.DataLoader(dataset, **options).stats().why


@WORKERS
@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("size", [(3, 24, 28), (1, 40, 21), (3, 20, 20)])
def test_the_recipe(module: Any, size: Any, workers: int) -> None:
    dataset = fake(recipe(module), size=size, num_classes=7, random_offset=-3)
    options = {"batch_size": 7, "shuffle": True, "num_workers": workers}
    assert why(dataset, **options) == "samples of FakeData by C"
    assert_same(dataset, options, True)


@WORKERS
def test_resizes_and_parts(workers: int) -> None:
    chain = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), v1.Normalize(MEAN, STD)])
    dataset = Subset(fake(chain), [5, -1, 29, 3, 3, np.int64(4), 0])
    assert_same(dataset, {"batch_size": 3, "num_workers": workers})


def test_images_that_wait_are_made_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first three are C's, and torchvision is not asked."""
    dataset = fake(recipe(v1))
    list(fastloop.DataLoader(dataset, batch_size=10))
    monkeypatch.setattr(type(dataset), "__getitem__", None)
    monkeypatch.setattr(originals, "is_code_known", lambda group: True)
    monkeypatch.setattr(torchvision_folder.chains, "is_code_known", lambda group: True)
    batches = list(fastloop.DataLoader(dataset, batch_size=10))
    assert [len(images) for images, _ in batches] == [10, 10, 10]


def test_an_index_that_is_not_there() -> None:
    dataset = Subset(fake(recipe(v1)), [1, 2, 3, 30])
    for make in (DataLoader, fastloop.DataLoader):
        with pytest.raises(IndexError, match="FakeData index out of range"):
            list(make(dataset, batch_size=4))


def test_attributes_that_change() -> None:
    found = []
    for make in (DataLoader, fastloop.DataLoader):
        torch.manual_seed(3)
        dataset = fake(recipe(v1))
        batches = iter(make(dataset, batch_size=5))
        for name, value in (("random_offset", 7), ("num_classes", 2), ("image_size", (3, 30, 24))):
            next(batches)
            setattr(dataset, name, value)
            found += [next(batches), torch.get_rng_state()]
    half = len(found) // 2
    assert originals.same_bits(found[:half], found[half:])


def test_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "1 or 3 channels" in why(fake(recipe(v1), size=(4, 24, 24)))
    assert "no transform" in why(fake(None))
    # manual_seed() would seed the generators of devices as well.
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert why(fake(recipe(v1))) == "FakeData seeds the generators of devices, too"
    assert why(fake(recipe(v1)), num_workers=1) == "samples of FakeData by C"


@pytest.mark.parametrize("size", [24, (), None, (3, 2**40, 8), "333"])
def test_sizes_that_are_none_are_refused_as_by_torchvision(size: Any) -> None:
    dataset, found = fake(recipe(v1), size=size), []
    assert "must be ints" in why(dataset) or "between" in why(dataset)
    for make in (DataLoader, fastloop.DataLoader):
        with pytest.raises((RuntimeError, TypeError)) as error:
            next(iter(make(dataset)))
        found.append(str(error.value))
    assert found[0] == found[1]


# ---- functions of targets


class Counted:
    """A target_transform that draws from every generator, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, target: Any) -> Any:
        self.count += 1
        drawn = int(torch.randint(0, 100, ())) + random.randrange(100) + np.random.randint(100)
        return target + drawn + 1000 * self.count


def images(root: Path) -> Any:
    for number in range(12):
        path = root / str(number % 2) / f"{number}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (30, 25 + number, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return datasets.ImageFolder(str(root), recipe(v1))


@WORKERS
@pytest.mark.parametrize("kind", ["ImageFolder", "FakeData"])
@pytest.mark.parametrize("every", ["0", "2"])
def test_a_target_transform_is_called_as_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, workers: int, every: str
) -> None:
    monkeypatch.setenv("FASTLOOP_CHECK", every)
    dataset = images(tmp_path) if kind == "ImageFolder" else fake(recipe(v1), 12)
    found = []
    for make in (DataLoader, fastloop.DataLoader):
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        dataset.target_transform = counted = Counted()
        loader = make(dataset, batch_size=5, shuffle=True, num_workers=workers)
        batches = [*loader, *loader]
        states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        found.append((batches, counted.count, *states))
    assert originals.same_bits(found[1], found[0])
    assert why(dataset) == f"samples of {kind} by C"
