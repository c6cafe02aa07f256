"""The work of the Python dataset benchmark: datasets whose samples are made by `__getitem__`.

Each draws its rows from prebuilt memory, so that what is measured is fetching, collating and
carrying batches. Datasets have more samples than rows: epochs are long and memory is small.
Spawned workers import this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _work import LOADERS, SEED
from torch.utils.data import DataLoader, Dataset

WORKERS = 2
PREFETCH = (2, 4)
ALONE = "w=0"
TOGETHER = tuple(f"w={WORKERS} p={prefetch}" for prefetch in PREFETCH)


class Samples(Dataset[Any]):
    def __init__(self, samples: int, rows: int) -> None:
        self.samples, self.rows = samples, rows
        self.rng = np.random.default_rng(SEED)

    def __len__(self) -> int:
        return self.samples


class Images(Samples):
    """A 3x224x224 u8 tensor and an int."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches * 64, 640)
        pixels = self.rng.integers(0, 256, (self.rows, 3, 224, 224), np.uint8)
        self.pixels = torch.from_numpy(pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pixels[index % self.rows], index


class Features(Samples):
    """A dict of a 3 KB ndarray, an int and a float."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches * 128, 4_096)
        self.features = self.rng.random((self.rows, 768), np.float32)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": self.features[index % self.rows], "label": index, "weight": 0.5}


class Tables(Samples):
    """A dict of 20 small tensors; making it takes about 29 µs, most of what a loader then takes."""

    FIELDS = tuple(f"field_{number:02}" for number in range(20))

    def __init__(self, batches: int) -> None:
        super().__init__(batches * 64, 4_096)
        fields = self.rng.random((len(self.FIELDS), self.rows, 16), np.float32)
        self.fields = dict(zip(self.FIELDS, fields, strict=True))

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = index % self.rows
        return {name: torch.as_tensor(field[row]) for name, field in self.fields.items()}


class Texts(Samples):
    """A dict of a str, an ndarray of 128 int64 and one of 128 bool."""

    def __init__(self, batches: int) -> None:
        super().__init__(batches * 128, 4_096)
        self.tokens = self.rng.integers(0, 50_000, (self.rows, 128))
        self.mask = self.tokens > 10_000

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index % self.rows
        return {"text": f"sample {index}", "tokens": self.tokens[row], "mask": self.mask[row]}


class Busy(Samples):
    """A millisecond of CPU, whatever else runs; then a small tensor and an int."""

    CPU_SECONDS = 1e-3

    def __init__(self, batches: int) -> None:
        super().__init__(batches * 32, 256)
        self.pixels = torch.from_numpy(self.rng.integers(0, 256, (self.rows, 784), np.uint8))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        done = time.thread_time() + self.CPU_SECONDS
        while time.thread_time() < done:
            pass
        return self.pixels[index % self.rows], index


class Holder(Samples):
    """Holds 128 MB, which a spawned worker needs too."""

    BYTES = 128 << 20

    def __init__(self, batches: int) -> None:
        row = 3 * 224 * 224
        super().__init__(batches * 64, self.BYTES // row)
        self.pixels = np.resize(self.rng.integers(0, 256, row, np.uint8), (self.rows, row))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.pixels[index % self.rows]), index


@dataclass(frozen=True)
class Work:
    """What a row loads, and what is wanted of us."""

    name: str
    make: Callable[[int], Samples]  # from the number of batches
    batch: int
    times_together: float  # × torch at 2 workers
    times_best: float  # × torch at its best
    times_alone: float  # × torch without workers; 0.97, not 1, where it is "never slower": noise
    parent_us: float | None = None  # of CPU a batch


WORKS = {
    "a": Work("3x224x224 u8 tensor + int, batch 64", Images, 64, 5, 1.1, 0.97, 60),
    "b": Work("dict(3 KB ndarray, int, float), batch 128", Features, 128, 10, 3, 2, 80),
    "c": Work("dict of 20 small tensors, batch 64", Tables, 64, 4, 1.8, 0.97),
    "d": Work("dict(str, 128 int64, 128 bool), batch 128", Texts, 128, 4, 1.5, 0.97),
}


def make_loader(who: str, dataset: Samples, batch: int, variant: str, **more: Any) -> Any:
    """`variant` is ALONE or one of TOGETHER."""
    if variant != ALONE:
        prefetch = PREFETCH[TOGETHER.index(variant)]
        more |= {"num_workers": WORKERS, "prefetch_factor": prefetch, "persistent_workers": True}
    loader: DataLoader[Any] = LOADERS[who](dataset, batch_size=batch, shuffle=True, **more)
    return loader


def assert_same_batches(work: Work) -> None:
    """One short epoch with one seed, for every variant; raises if torch's differs."""
    dataset = work.make(5)
    for variant in (ALONE, *TOGETHER):
        ours, theirs = (
            make_loader(who, dataset, work.batch, of, generator=torch.Generator().manual_seed(SEED))
            for who, of in (("fastloop", variant), ("torch", ALONE))
        )
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if not is_same(one, other):
                raise AssertionError(f"batch {number} at {variant} differs from torch's")


def is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
