"""The work of the array benchmarks: data of the stated shapes, and who loads them.

Data come from a seeded function; `Epoch` is a function that consumes one whole epoch.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _harness import Epoch, Epochs
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

import fastloop

SEED = 20_260
WORKERS = (0, 1, 2)
LOADERS: dict[str, type[DataLoader[Any]]] = {"fastloop": fastloop.DataLoader, "torch": DataLoader}


@dataclass(frozen=True)
class Data:
    """What a row loads."""

    dataset: Dataset[Any]
    fields: tuple[np.ndarray, ...]  # the same memory (row d: the same file)
    batch: int


def tensors(fields: tuple[np.ndarray, ...], batch: int) -> Data:
    return Data(TensorDataset(*map(torch.from_numpy, fields)), fields, batch)


@cache
def small_rows(count: int = 20_000) -> Data:
    rng = np.random.default_rng(SEED)
    return tensors(tuple(rng.random((count, n), np.float32) for n in (20, 5)), 256)


@cache
def wide_rows(count: int = 400_000) -> Data:
    """Batches of 4 MB, so threads share 64 parts."""
    return tensors((np.random.default_rng(SEED).random((count, 256), np.float32),), 4096)


@cache
def rows_in_parts(parts: int = 4) -> Data:
    """small_rows as a ConcatDataset."""
    data = small_rows()
    pieces = zip(*(np.array_split(field, parts) for field in data.fields), strict=True)
    sets = [TensorDataset(*map(torch.from_numpy, piece)) for piece in pieces]
    return Data(ConcatDataset(sets), data.fields, data.batch)


def rows_of_hugging_face() -> Data | None:
    """small_rows as columns of a datasets.Dataset in memory; None: the package is not there."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        return None
    data = small_rows()
    names = ("x", "y")
    lists = {name: list(field) for name, field in zip(names, data.fields, strict=True)}
    kinds = {
        name: datasets.List(datasets.Value("float32"), length=field.shape[1])
        for name, field in zip(names, data.fields, strict=True)
    }
    made = datasets.Dataset.from_dict(lists, features=datasets.Features(kinds))
    return Data(made.with_format("torch"), data.fields, data.batch)


@cache
def small_images() -> Data:
    return tensors(images(50_000, 32), 256)


@cache
def large_images() -> Data:
    return tensors(images(4_000, 224), 256)


def images(rows: int, side: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (rows, 3, side, side), np.uint8)
    return pixels, rng.integers(0, 1000, rows)


@contextlib.contextmanager
def large_images_in_a_file() -> Iterator[Data]:
    """Written just now, so in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        pixels, labels = large_images().fields
        np.save(path, pixels)
        mapped = np.load(path, mmap_mode="r")
        yield Data(fastloop.ArrayDataset(str(path), labels), (mapped, labels), 64)


def make_loader(
    who: str, data: Data, workers: int, generator: torch.Generator | None = None
) -> DataLoader[Any]:
    return LOADERS[who](
        data.dataset,
        batch_size=data.batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=generator,
    )


def loader_epoch(loader: DataLoader[Any]) -> Epoch:
    def epoch() -> int:
        for _batch in loader:
            pass
        return len(loader)

    return epoch


def epochs_of(loaders: Mapping[str, DataLoader[Any]]) -> Epochs:
    return {variant: loader_epoch(loader) for variant, loader in loaders.items()}


def loader_epochs(who: str, data: Data) -> Epochs:
    return epochs_of({f"workers={n}": make_loader(who, data, n) for n in WORKERS})


def on_one_cpu(epoch: Epoch) -> Epoch:
    """The loader starts no helper threads where this process may use only one CPU."""

    def run() -> int:
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cpus)})
        try:
            return epoch()
        finally:
            os.sched_setaffinity(0, cpus)

    return run


def hand_written_epoch(data: Data) -> Epoch:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a mapped file is read-only; so are we
        fields = [torch.from_numpy(field) for field in data.fields]

    def epoch() -> int:
        chunks = torch.randperm(len(fields[0])).split(data.batch)
        for rows in chunks:
            _batch = [torch.index_select(field, 0, rows) for field in fields]
        return len(chunks)

    return epoch


def assert_on_the_array_path(loaders: Iterable[DataLoader[Any]]) -> None:
    for loader in loaders:
        stats: Any = loader.stats()  # type: ignore[attr-defined]
        if stats.path != "array":
            raise AssertionError(f"measuring path {stats.path!r} would mislead: {stats.why}")


def assert_same_batches(data: Data) -> None:
    """The first epoch with one seed, for every number of workers; raises if torch's differs."""
    for workers in WORKERS:
        loaders = [
            make_loader(who, data, n, torch.Generator().manual_seed(SEED))
            for who, n in (("fastloop", workers), ("torch", 0))
        ]
        for number, (ours, theirs) in enumerate(zip(*loaders, strict=True)):
            same = type(ours) is type(theirs) and len(ours) == len(theirs)
            if isinstance(ours, dict):
                same = same and list(ours) == list(theirs)
                ours, theirs = ours.values(), theirs.values()
            if not same or not all(map(torch.equal, ours, theirs)):
                raise AssertionError(f"batch {number} with {workers} workers differs from torch's")
        assert_on_the_array_path(loaders[:1])
