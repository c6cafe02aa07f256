"""Datasets of a program whose `__getitem__` only indexes, by torch's loader and by fastloop's.

    python benchmarks/bench_own_datasets.py [--rows a,b,c,d,e,f] [--quick] [--json FILE]

a  pairs: a list of 200 000 lists of two ints and a list of labels, batch 256
b  clicks: rows of int64 [500 000, 2] and float32 labels, ndarrays, batch 2 048
c  series: four windows of 96 and 72 rows of float64 [8 600, 7] and [8 600, 4], batch 32
d  encodings: two lists of lists of 128 ints and labels, `torch.tensor` of each, batch 32
e  tokens: two blocks of 256 of uint16 cast to int64, batch 32
f  chunks: two lists of tensors of 256 ids, batch 8

Each without workers and with two. The first batches must be equal bit for bit. Judged is the CPU
time of a batch, of this process and its workers: the median of the rounds, lowest and highest.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from _harness import Goal, Report, Times, parse_arguments
from torch.utils.data import DataLoader, Dataset

import fastloop

WORKERS, SEED = (0, 2), 3


class Own(Dataset[Any]):
    """Attributes by name."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count


class Pairs(Own):
    def __getitem__(self, index: int) -> Any:
        return self.pairs[index][0], self.pairs[index][1], self.labels[index]


class Clicks(Own):
    def __getitem__(self, index: int) -> Any:
        return self.items[index], self.targets[index]


class Series(Own):
    def __getitem__(self, index: int) -> Any:
        end = index + self.seen
        begin = end - self.label
        x, y = self.x[index:end], self.x[begin : begin + self.label + self.asked]
        return x, y, self.time[index:end], self.time[begin : begin + self.label + self.asked]


class Encodings(Own):
    def __getitem__(self, index: int) -> Any:
        item = {key: torch.tensor(value[index]) for key, value in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[index])
        return item


class Tokens(Own):
    def __getitem__(self, index: int) -> Any:
        begin = index * self.size
        x = torch.from_numpy(self.data[begin : begin + self.size].astype(np.int64))
        y = torch.from_numpy(self.data[begin + 1 : begin + 1 + self.size].astype(np.int64))
        return x, y


class Chunks(Own):
    def __getitem__(self, index: int) -> Any:
        return self.ids[index], self.next[index]


def make_rows() -> dict[str, tuple[Callable[[], Own], int, tuple[float, float]]]:
    """Return by letter the dataset, the batch size, and the ratios that are wanted."""
    rng = np.random.default_rng(SEED)
    ids = [[i + k for k in range(128)] for i in range(3_000)]
    tensors = [torch.arange(i, i + 256) for i in range(4_001)]
    tokens = rng.integers(0, 50_000, 256 * 4_000 + 1).astype(np.uint16)
    return {
        "a": (
            lambda: Pairs(
                count=200_000,
                pairs=[[i, i * 7 % 5_000] for i in range(200_000)],
                labels=[i % 2 for i in range(200_000)],
            ),
            256,
            (5, 4),
        ),
        "b": (
            lambda: Clicks(
                count=500_000,
                items=rng.integers(0, 9_999, (500_000, 2)),
                targets=rng.random(500_000, np.float32),
            ),
            2_048,
            (5, 4),
        ),
        "c": (
            lambda: Series(
                count=8_481,
                x=rng.random((8_600, 7)),
                time=rng.random((8_600, 4)),
                seen=96,
                label=48,
                asked=24,
            ),
            32,
            (5, 4),
        ),
        "d": (
            lambda: Encodings(
                count=3_000, encodings={"ids": ids, "mask": ids}, labels=list(range(3_000))
            ),
            32,
            (5, 4),
        ),
        "e": (lambda: Tokens(count=4_000, data=tokens, size=256), 32, (5, 4)),
        "f": (lambda: Chunks(count=4_000, ids=tensors[:-1], next=tensors[1:]), 8, (1, 4)),
    }


def cpu_seconds() -> float:
    found = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in found)


def batch_us(loader: Any) -> float:
    """Return the CPU time of a batch of an epoch."""
    begin, batches = cpu_seconds(), 0
    for _ in loader:
        batches += 1
    return (cpu_seconds() - begin) / batches * 1e6


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        return
    ours, theirs = (x.values() if isinstance(x, dict) else x for x in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)


def measure_row(
    report: Report, letter: str, dataset: Own, batch: int, wanted: Any, rounds: int
) -> None:
    for workers, least in zip(WORKERS, wanted, strict=True):
        given: dict[str, Any] = {"batch_size": batch, "shuffle": True, "num_workers": workers}
        ours, theirs = fastloop.DataLoader(dataset, **given), DataLoader(dataset, **given)
        first = []
        for loader in (ours, theirs):
            torch.manual_seed(SEED)
            first.append(next(iter(loader)))
        assert_same(*first)
        turns = [(batch_us(ours), batch_us(theirs)) for _ in range(rounds)]
        mine, torchs = (Times(times) for times in zip(*turns, strict=True))
        goal = Goal("torch's CPU", torchs.median / mine.median, least, at_least=True)
        name = f"{type(dataset).__name__.lower()}, {workers} workers"
        path = ours.stats().path
        shown = {"fastloop": mine, "torch": torchs}
        report.row(f"{letter}{workers}", name, [goal], shown, path=path)


def main() -> int:
    arguments = parse_arguments(__doc__, "abcdef")
    with Report(arguments.json, ("fastloop", "torch")) as report:
        report.open(rounds=(rounds := 2 if arguments.is_quick else 5))
        for letter in arguments.rows:
            make, batch, wanted = make_rows()[letter]
            measure_row(report, letter, make(), batch, wanted, rounds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
