"""Mixtures of datasets: the time of an index, the memory of an order, and how far shares drift.

    python benchmarks/bench_corpora.py [--rows a,b] [--quick] [--json FILE]

a    A mixture of 2 sources, .35 and .65.
b    A mixture of 8 sources.

Sources are ranges of 10^7 numbers. `index` is the time to find source and row of a position, 256
positions at a time as a batch does; `order` is the same without the order of the rows of each
source. `bytes` is the memory of the order for each sample. `drift` is the largest difference of a
source's samples from its share among the first 10^6 positions, or 10^12 where no table of all
positions is needed. Rivals are taken if they can be imported: grain (`MapDataset.mix`) and datasets
(`interleave_datasets`). Nanoseconds of the processor's time of this thread, in turns, median
(lowest - highest).
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _harness import parse_arguments

from fastloop import MixtureDataset

SIZE, BATCH = 10**7, 256
WEIGHTS = {
    "a": [0.35, 0.65],
    "b": [0.31, 0.22, 0.15, 0.11, 0.09, 0.06, 0.04, 0.02],
}


class Row:
    """The contestants of one row. Each is a call that finds a number of positions."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.calls: dict[str, tuple[int, Callable[[], object]]] = {}
        self.facts: dict[str, tuple[float, str]] = {}  # bytes a sample, drift

    def add(self, name: str, count: int, call: Callable[[], object], *facts: Any) -> None:
        self.calls[name] = count, call
        self.facts[name] = facts  # type: ignore[assignment]

    def measure(self, rounds: int, seconds: float) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in self.calls}
        for _ in range(rounds):
            for name, (count, call) in self.calls.items():
                calls, begin = 0, time.thread_time()
                while (spent := time.thread_time() - begin) < seconds:
                    call()
                    calls += 1
                times[name].append(spent / calls / count * 1e9)
        return times


def drift_of(weights: list[float], counts: Any, positions: int) -> float:
    shares = np.array(weights) / sum(weights) * positions
    return float(np.abs(np.asarray(counts, np.float64) - shares).max())


def add_ours(row: Row, shuffle: bool) -> None:
    names = [f"s{i}" for i in range(len(row.weights))]
    sources = dict.fromkeys(names, range(SIZE))
    weights = dict(zip(names, row.weights, strict=True))
    data = MixtureDataset(sources, weights, length=10**12, shuffle=shuffle)
    positions = np.random.default_rng(0).integers(0, 10**9, 64) * 1000
    at = iter(range(10**9))

    def find() -> object:
        first = int(positions[next(at) % 64])
        return data._core.rows(np.arange(first, first + BATCH))

    far = 10**12
    off = max(
        abs(count * sum(map(int_of, row.weights)) - int_of(weight) * far)
        for count, weight in zip(data.seen(far).values(), row.weights, strict=True)
    ) / sum(map(int_of, row.weights))
    row.add("index" if shuffle else "order", BATCH, find, 0, f"{off:.2g} after 10^12")


def int_of(weight: float) -> int:
    return round(weight * 100)


def add_grain(row: Row) -> None:
    if importlib.util.find_spec("grain") is None:
        return
    grain: Any = importlib.import_module("grain")
    sources = [grain.MapDataset.range(i * SIZE, (i + 1) * SIZE) for i in range(len(row.weights))]
    mixed = grain.MapDataset.mix(sources, row.weights)
    at = iter(range(10**9))

    def find() -> object:
        first = next(at) % 64 * 10_007
        return [mixed[i] for i in range(first, first + BATCH)]

    taken = np.array([mixed[i] for i in range(10**6)]) // SIZE if row.weights else []
    counts = np.bincount(taken, minlength=len(row.weights))
    row.add("grain", BATCH, find, 0, f"{drift_of(row.weights, counts, 10**6):,.0f} after 10^6")


def add_datasets(row: Row) -> None:
    if importlib.util.find_spec("datasets") is None:
        return
    datasets: Any = importlib.import_module("datasets")
    size = 10**6
    parts = [
        datasets.Dataset.from_dict({"x": np.arange(size) + i * size})
        for i, _ in enumerate(row.weights)
    ]
    mixed = datasets.interleave_datasets(parts, row.weights, seed=0)
    order = mixed._indices.column(0).to_numpy()
    begins = np.arange(len(row.weights)) * size
    taken = np.searchsorted(begins, order[: 10**6], "right") - 1
    counts = np.bincount(taken, minlength=len(row.weights))
    drift = drift_of(row.weights, counts, len(taken))
    row.add(
        "datasets",
        len(mixed),
        lambda: datasets.interleave_datasets(parts, row.weights, seed=0),
        8,
        f"{drift:,.0f} after {len(taken):,}",
    )


def main() -> None:
    args = parse_arguments(__doc__, "ab")
    print("| row | contestant | ns an index | bytes a sample | drift |\n|---|---|---|---|---|")
    lines = []
    for letter in args.rows:
        row = Row(WEIGHTS[letter])
        add_ours(row, shuffle=False)
        add_ours(row, shuffle=True)
        add_grain(row)
        add_datasets(row)
        times = row.measure(*((2, 0.02) if args.is_quick else (9, 0.1)))
        for name, found in times.items():
            size, drift = row.facts[name]
            low, middle, high = min(found), statistics.median(found), max(found)
            shown = f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"
            print(f"| {letter} | {name} | {shown} | {size} | {drift} |")
            lines.append(
                {"row": letter, "contestant": name, "ns": found, "bytes": size, "drift": drift}
            )
    text = "\n".join(map(json.dumps, lines))
    if args.json is not None:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
