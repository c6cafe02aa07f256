"""torchvision's ImageFolder with kept planes, or with parts of files that plans decode: batches and
random states as with torch alone, no file decoded in a second epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate
from vision_cases import MEAN, STD, assert_same_bits, play, v2

import fastloop
from fastloop.adapters.torchvision_folder import FolderSamples
from fastloop.compat import verification
from fastloop.data.image_folder import decode
from fastloop.data.image_folder import planes as room
from fastloop.data.image_folder.jpeg import find_jpeg
from fastloop.data.image_folder.planes import ImagePlanes

if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from image_folders import use_own_planes
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1

TAIL = v1.ToTensor(), v1.Normalize(MEAN, STD)
TRANSFORMS = {
    "plan": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), *TAIL]),
    "v2": v2.Compose([v2.RandomResizedCrop(24), v2.ColorJitter(0.4, 0.4), v2.PILToTensor()]),
    "cut": v1.Compose([v1.RandomResizedCrop(24), lambda image: image.rotate(9), *TAIL]),
    "called": lambda image: torch.rand(3) + float(np.asarray(image).sum() + image.size[0]),
}


def own_collate(batch: list[Any]) -> Any:
    return default_collate(batch)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    use_own_planes(tmp_path, monkeypatch)
    verification.verification_of.cache_clear()
    numbers = np.random.default_rng(5)
    for number in range(24):
        pixels = numbers.integers(0, 256, (23 + number, 50 - number, 3), np.uint8)
        image = Image.fromarray(pixels).convert("L" if number % 5 == 0 else "RGB")
        path = tmp_path / "images" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=60, subsampling=number % 3)
    yield tmp_path / "images"
    fastloop.unpatch()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("collate", [default_collate, own_collate])
def test_planes_change_nothing(
    root: Path, name: str, workers: int, collate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = datasets.ImageFolder(str(root), TRANSFORMS[name])
    options = {"batch_size": 5, "shuffle": True, "num_workers": workers, "collate_fn": collate}
    expected = list(play(DataLoader, dataset, options, [None, None]))
    fastloop.patch(["transforms"], cache="4M")
    kept = room.find_asked()
    assert kept is not None
    empty = kept._file.used
    assert_same_bits(list(play(fastloop.DataLoader, dataset, options, [None, None])), expected)
    if name == "called" and workers:  # there Pillow decodes
        return
    assert kept._file.used > empty + 24 * 1200 and kept.why == ""
    monkeypatch.setattr(ImagePlanes, "_decode", None)
    assert all(kept.read(path) is not None for path, _ in dataset.samples)


def test_plans_decode_parts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that libjpeg refuses is torchvision's, and draws what torchvision draws."""
    for path in sorted(root.rglob("*.jpg"))[::3]:
        data = path.read_bytes()
        path.write_bytes(data[:-90] + bytes(80) + data[-10:])
    dataset, options = datasets.ImageFolder(str(root), TRANSFORMS["plan"]), {"batch_size": 5}
    expected = list(play(DataLoader, dataset, options, [None, None]))
    refused: list[bool] = []
    true_part = FolderSamples._decode_part

    def decode_part(*given: Any) -> None:
        refused.append(True)
        true_part(*given)
        refused[-1] = False

    monkeypatch.setattr(decode, "LEAST_PIXELS", 0)  # the files are small
    monkeypatch.setattr(FolderSamples, "_decode_part", decode_part)
    monkeypatch.setattr(FolderSamples, "_has_threads", lambda _: False)  # as in a worker
    assert_same_bits(list(play(fastloop.DataLoader, dataset, options, [None, None])), expected)
    if find_jpeg() is not None:
        assert 0 < refused.count(True) < refused.count(False)


def test_images_of_many_pixels_warn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = datasets.ImageFolder(str(root), TRANSFORMS["plan"])
    fastloop.patch(["transforms"], cache=True)
    list(fastloop.DataLoader(dataset, 4))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)
    with pytest.warns(Image.DecompressionBombWarning):
        list(fastloop.DataLoader(dataset, 4))
