"""A program that loads the first batch of a folder of JPEG files, and how long each step takes.

    python benchmarks/_work_first.py threads|processes|torch|limit FOLDER

Prints the milliseconds as JSON: from the import of fastloop to the second batch, and the warm work
of the first batch. What any program with images has imported is imported before.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import numpy.random  # noqa: F401
import PIL.Image
import simplejpeg  # noqa: F401
import torch
import torch.utils.data

BATCH, WORKERS = 32, 2
STEPS = "import", "open", "loader", "iter"  # before next()
NAMES = "threads", "processes", "torch", "limit"
VALUES = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


class Plain:
    """fastloop's samples by plain threads, without any loader: what is cold in a first batch."""

    def __init__(self, dataset: Any, batch: int, sampler: list[int], num_workers: int) -> None:
        self.dataset, self.indices, self.workers = dataset, sampler[:batch], num_workers

    def __iter__(self) -> Iterator[Any]:
        with ThreadPoolExecutor(self.workers) as pool:
            yield list(pool.map(self.dataset.__getitem__, self.indices))


def load(who: str, root: str) -> tuple[dict[str, float], Any, list[int]]:
    """Return the milliseconds of each step, the dataset, and the indices of the first batch."""
    given: Any = None
    if who == "torch":
        import torchvision.datasets
        from torchvision.transforms import v2

        given = torchvision.datasets.ImageFolder, torch.utils.data.DataLoader, v2
    PIL.Image.preinit()
    gc.collect()
    ends = [perf_counter()]
    if given is None:
        from fastloop import DataLoader, ImageFolder, transforms

        given = ImageFolder, Plain if who == "limit" else DataLoader, transforms
    folder, loader_class, t = given
    ends.append(perf_counter())
    first = [t.PILToTensor()] if who == "torch" else []
    ops = t.RandomResizedCrop((224, 224)), t.RandomHorizontalFlip()
    values = t.ToDtype(torch.float32, scale=True), t.Normalize(**VALUES)
    dataset = folder(root, t.Compose([*first, *ops, *values]))
    ends.append(perf_counter())
    order = sorted(range(len(dataset)), key=lambda index: index * 997 % 1009)  # any
    how = {"num_workers": WORKERS} | ({"path": "thread"} if who == "threads" else {})
    loader = loader_class(dataset, BATCH, sampler=order, **how)
    ends.append(perf_counter())
    batches = iter(loader)
    ends.append(perf_counter())
    next(batches)
    ends.append(perf_counter())
    steps = ((end - begin) * 1e3 for begin, end in pairwise(ends))
    return dict(zip((*STEPS, "first"), steps, strict=True)), dataset, order[:BATCH]


def time_work(dataset: Any, indices: list[int]) -> float:
    """Return the milliseconds that one thread needs for a batch when everything is warm."""
    taken = []
    torch.set_num_threads(1)  # as in workers
    for _ in range(6):
        begin = perf_counter()
        if hasattr(dataset, "__getitems__"):
            samples = dataset.__getitems__(indices)
        else:
            samples = [dataset[index] for index in indices]
        torch.utils.data.default_collate(samples)
        taken.append((perf_counter() - begin) * 1e3)
    return median(taken[1:])


if __name__ == "__main__":
    taken, dataset, indices = load(*sys.argv[1:])
    print(json.dumps(taken | {"work": time_work(dataset, indices)}))
