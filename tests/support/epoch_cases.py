"""A dataset whose samples tell which epoch they are of, and loaders over it on every path."""

from collections.abc import Iterable
from typing import Any

import torch

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

ROWS, KNOWN = 12, 10  # rows of the dataset; epochs that tests may be in
FORK = {"num_workers": 1, "multiprocessing_context": "fork"}
# Every path without and with workers.
PATHS: dict[str, dict[str, Any]] = {
    "array-0": {"path": "array"},
    "array-2": {"path": "array", "num_workers": 2},
    "sync": {"path": "sync"},
    "process": {"path": "process", **FORK},
    "thread": {"path": "thread", "num_workers": 2},
    "torch-0": {"path": "torch"},
    "torch-1": {"path": "torch", **FORK},
}


def make_dataset() -> ArrayDataset:
    """Crops of an image whose pixels tell their places."""
    image = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(ROWS, 1, 16, 16)
    row = torch.arange(ROWS)
    return ArrayDataset(image=image, row=row, transform={"image": T.RandomCrop(8)}, seed=5)


def _corners(dataset: ArrayDataset, epoch: int) -> list[int]:
    crops = [dataset.params(i, epoch=epoch)[0] for i in range(ROWS)]
    return [16 * crop["top"] + crop["left"] for crop in crops]


_CORNERS = [_corners(make_dataset(), epoch) for epoch in range(KNOWN)]


def epoch_of(batch: Any) -> int:
    """The one that all samples of a batch are of."""
    rows, corners = batch["row"].tolist(), batch["image"][:, 0, 0, 0].tolist()
    found = [e for e in range(KNOWN) if corners == [_CORNERS[e][row] for row in rows]]
    assert len(found) == 1, found
    return found[0]


def epochs_of(batches: Iterable[Any]) -> set[int]:
    return {epoch_of(batch) for batch in batches}


def make_loader(dataset: Any, path: str, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 4, "shuffle": True, **PATHS[path], **more})
