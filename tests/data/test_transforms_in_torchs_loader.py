"""ArrayDataset with transforms in torch's own DataLoader: the same samples with any workers, and
the epoch reaches those that are there already."""

import multiprocessing
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same

from fastloop import ArrayDataset
from fastloop import transforms as T

ROWS = 13
IMAGES = np.random.default_rng(6).integers(0, 256, (ROWS, 3, 9, 10), np.uint8)
WORKERS = [
    (None, False),
    *((start, i) for start in multiprocessing.get_all_start_methods() for i in (False, True)),
]


def make() -> ArrayDataset:
    ops = [T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
    return ArrayDataset(image=IMAGES, label=np.arange(ROWS), transform=T.Compose(ops), seed=3)


def samples(batches: Any) -> dict[int, torch.Tensor]:
    return {
        int(label): image
        for batch in batches
        for label, image in zip(batch["label"], batch["image"], strict=True)
    }


def truth(epoch: int, view: int = 0) -> dict[int, torch.Tensor]:
    dataset = make()
    dataset.set_epoch(epoch)
    return {i: dataset[i, view]["image"] for i in range(ROWS)}


@pytest.mark.parametrize(("start", "is_persistent"), WORKERS)
def test_every_epoch_has_its_own_samples(start: str | None, is_persistent: bool) -> None:
    dataset = make()
    workers = {} if start is None else {"num_workers": 2, "multiprocessing_context": start}
    loader = TorchLoader(dataset, 4, True, persistent_workers=is_persistent, **workers)
    is_quick = start in (None, "fork") or is_persistent  # to start two workers
    for epoch in (0, 1, 7, 1) if is_quick else (5,):
        dataset.set_epoch(epoch)
        assert_same(dict(sorted(samples(loader).items())), truth(epoch))


def test_views_and_subsets() -> None:
    part = torch.utils.data.Subset(make(), [(i, view) for view in (0, 9) for i in (5, 2)])
    for workers in (0, 1):
        (batch,) = TorchLoader(part, 4, num_workers=workers)
        for place, (i, view) in enumerate([(5, 0), (2, 0), (5, 9), (2, 9)]):
            assert_same(batch["image"][place], truth(0, view)[i])
    items = [[(3, 1), (3, 2), 4]]
    (batch,) = TorchLoader(make(), batch_sampler=items)
    assert_same(list(batch["image"]), [truth(0, 1)[3], truth(0, 2)[3], truth(0)[4]])
    assert batch["label"].tolist() == [3, 3, 4]
    inner = torch.utils.data.Subset(torch.utils.data.Subset(make(), [9, 8, 7]), [2, 0])
    assert_same(samples(TorchLoader(inner, 2)), {i: truth(0)[i] for i in (7, 9)})


def test_collate_of_channels_last_keeps_the_pixels() -> None:
    crop = T.CenterCrop(4)
    ours = ArrayDataset(IMAGES, transform=crop, out_layout="channels_last")
    (batch,) = next(iter(TorchLoader(ours, ROWS)))
    assert_same(batch.contiguous(), torch.from_numpy(IMAGES[:, :, 2:6, 3:7].copy()))
