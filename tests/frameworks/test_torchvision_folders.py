"""torchvision: folders of images, v2 transforms, and MixUp in the collate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_everywhere, train, two_epochs
from torch.utils.data import default_collate
from torchvision_shim import torchvision_v2

from fastloop.loader.shared import SyncIter
from fastloop.loader.workers.processes import ProcessIter

v2: Any = torchvision_v2()
if v2 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from PIL import Image
from torchvision import tv_tensors
from torchvision.datasets import FakeData, ImageFolder

CLASSES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(5)
    for index in range(13):
        path = root / f"class {index % CLASSES}" / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        size = 20 + index, 24, 3
        Image.fromarray(random.integers(0, 256, size, dtype=np.uint8)).save(path)
    return root


def transforms() -> Any:
    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )


def mix_up(samples: list[Any]) -> Any:
    both = v2.RandomChoice([v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)])
    return both(*default_collate(samples))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, mix_up])
def test_folders(folder: Path, collate: Any, workers: int) -> None:
    def program(cls: Any) -> Any:
        dataset = ImageFolder(str(folder), transforms())
        return two_epochs(
            cls(dataset, 4, shuffle=True, num_workers=workers, collate_fn=collate, drop_last=True)
        )

    assert_same_everywhere(program, ProcessIter if workers else SyncIter)


def test_training_with_mixed_labels(folder: Path) -> None:
    def program(cls: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, CLASSES))
        loader = cls(
            ImageFolder(str(folder), transforms()),
            batch_size=4,
            shuffle=True,
            collate_fn=mix_up,
            num_workers=2,
            persistent_workers=True,
        )
        return train(model, loader)

    assert_same_everywhere(program, ProcessIter)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_and_boxes(workers: int) -> None:
    """Samples of tv_tensors, of different sizes, in lists, as detection has them."""

    class Boxes(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            image = tv_tensors.Image(torch.full((3, 8 + index, 8), index, dtype=torch.uint8))
            box = torch.tensor([[0, 0, index + 1, 4]])
            boxes = tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=(8 + index, 8))
            return v2.RandomHorizontalFlip()(image, {"boxes": boxes, "labels": index})

    def program(cls: Any) -> Any:
        loader = cls(
            Boxes(),
            3,
            shuffle=True,
            num_workers=workers,
            collate_fn=lambda s: tuple(zip(*s, strict=True)),
        )
        return list(loader)

    assert_same_everywhere(program, ProcessIter if workers else SyncIter)


def test_tv_tensors_in_torchs_collate() -> None:
    def program(cls: Any) -> Any:
        data = FakeData(10, (3, 6, 6), CLASSES, v2.Compose([v2.ToImage(), v2.RandomCrop(4)]))
        return [[type(x) for x in batch] + list(batch) for batch in cls(data, batch_size=4)]

    assert_same_everywhere(program, SyncIter)
