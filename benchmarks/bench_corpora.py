"""Mixtures, batches of equal cost, packed rows, and columns of files, beside their rivals.

    python benchmarks/bench_corpora.py [--rows a,b] [--quick] [--json FILE]

a    A mixture of 2 sources, .35 and .65.
b    A mixture of 8 sources.
c    Equal costs: samples of fine-tuning, 8 to 8 192 tokens.
d    Equal costs: a long tail, 8 to 32 768 tokens.
e    Equal costs: rollouts, 16 to 16 384 tokens.
f    Equal costs: rows of 8 192 tokens of a PackedDataset, 524 288 documents as in row c.
g    Packed rows of 2 048 tokens: documents of the web, 20 to 20 000 tokens.
h    The same in rows of 8 192 tokens.
i    Packed rows of 2 048 tokens: samples of fine-tuning, 20 to 8 000 tokens.
j    The same in rows of 8 192 tokens.
k    Rows of lists out of mapped Arrow files, by `ArrowDataset` and datasets.
l    Parquet (zstd) to Arrow by `ParquetDataset`, for each 1 000 tokens.
m    Rows of 30 000 bytes out of MDS shards, at random, by `MDSDataset` and mosaicml-streaming.
n    The index of a tar archive, cached and not cached, beside tarfile and `cat`.
o    The second open of 1.28 million samples in tar shards.
p    Loaders of JPEG files in tar shards, 2 workers, batches of float32: TarDataset, webdataset and
     litdata.
q    The same, batches of uint8.
r    Resuming after 500 batches of 8 ranks, on 8 and on 3 ranks: 10^6 samples of fine-tuning, by
     CostBatchSampler, and packed into rows of 2 048 tokens.

Mixtures: sources are ranges of 10^7 numbers. `index` is the time to find source and row of a
position, 256 positions at a time as a batch does; `order` is the same without the order of the rows
of each source. `bytes` is the memory of the order for each sample. `drift` is the largest
difference of a source's samples from its share among the first 10^6 positions, or 10^12 where no
table of all positions is needed. Rivals are taken if they can be imported: grain (`MapDataset.mix`)
and datasets (`interleave_datasets`).

Equal costs: 131 072 samples of n tokens that cost n + n^2 / 24 576. `time / ideal` is the sum over
all steps of the slowest rank's cost, divided by the mean rank's; `worst` is the same of one step.
`padding` is the share of the tokens in padded batches. `ns` plans an epoch, for each sample; in row
f this is a row, and includes packing its documents for their costs.
`CostBatchSampler` has batches of 65 536 tokens and windows of 16 384 samples. `random` has 4 random
samples a rank, `LPT in a step` deals the 4 R samples of a step by their costs, and
`LengthBucketBatchSampler` has 16 samples a batch, or 65 536 tokens.

Packed rows: long documents are cut into pieces of a row. `padding` is the share of the tokens.
`ns` packs an epoch, for each document; `Mtok/s` is ids, labels and positions as batches of 8 rows,
with the packing, by the processor's time of all threads. Rivals: PackCollate, which packs the 128
documents of a batch by first fit, and if it can be imported grain's `FirstFitPackIterDataset` with
64 open rows, which makes ids, segments and positions.

Nanoseconds of the processor's time of this thread, in turns, median (lowest - highest). In rows k
to m microseconds of the processor's time of the process, for a row, or for 1 000 tokens; in row r
milliseconds of it, in a loader that was made anew.
"""

from __future__ import annotations

import heapq
import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from _harness import parse_arguments
from _work_columns import compare_columns
from _work_resume import compare_resuming
from _work_tar import compare_tars

from fastloop import (
    ArrayDataset,
    CostBatchSampler,
    DataLoader,
    LengthBucketBatchSampler,
    MixtureDataset,
    PackCollate,
    PackedDataset,
    RaggedArray,
    ShuffleSampler,
)

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


# ---- equal costs

LAWS: dict[str, Callable[[Any, int], Any]] = {
    "c": lambda rng, n: np.clip(rng.lognormal(6, 0.9, n), 8, 8_192),
    "d": lambda rng, n: np.clip(rng.lognormal(6, 1.3, n), 8, 32_768),
    "e": lambda rng, n: np.clip(rng.gamma(1.5, 2_000, n), 16, 16_384),
}
TOKENS, ROW = 65_536, 8_192
Batch = list[int]
Rule = Callable[[], "Iterable[list[Batch]]"]  # an epoch: the ranks' batches of each step


def steps_of(sampler: Any) -> Rule:
    """Return the rule by which all ranks divide an epoch. Each rank makes the same plan."""

    def steps() -> Iterable[list[Batch]]:
        epochs = []
        for rank in range(sampler.num_replicas):
            sampler.rank = rank
            epochs.append(list(sampler))
        return zip(*epochs, strict=True)

    return steps


def samples_of(row: str, count: int) -> tuple[Any, Any, Any]:
    """What a CostBatchSampler gets, the lengths of samples, and their costs."""
    rng = np.random.default_rng(0)
    if row != "f":
        lengths = LAWS[row](rng, count).astype(np.int64)
        return lengths, lengths, lengths + lengths**2 / 24_576
    ends = np.cumsum(LAWS["c"](rng, 4 * count).astype(np.int64))
    documents = RaggedArray(np.zeros(ends[-1], np.uint16), np.append(0, ends))
    packed = PackedDataset(documents, ROW)
    return packed, np.full(len(packed), ROW), packed.row_costs(0, len(packed))


def contestants(
    row: str, ranks: int, given: Any, lengths: Any, costs: Any
) -> dict[str, tuple[Any, Rule]]:
    """Each contestant: what plans an epoch for one rank, or None, and the steps."""
    each = 1 if row == "f" else 4  # samples of a rank in a step
    whole = len(lengths) // (each * ranks) * each * ranks
    order = np.random.default_rng(1).permutation(len(lengths))[:whole].reshape(-1, ranks, each)

    def by_cost() -> Iterable[list[Batch]]:
        for step in order.reshape(len(order), -1):
            bins: list[tuple[float, int, Batch]] = [(0.0, rank, []) for rank in range(ranks)]
            for i in sorted(step.tolist(), key=lambda i: -costs[i]):
                cost, rank, batch = bins[0]
                heapq.heapreplace(bins, (cost + costs[i], rank, [*batch, i]))
            yield [batch for _, _, batch in bins]

    place: Any = {"num_replicas": ranks, "rank": 0}
    ours = CostBatchSampler(given, ROW if row == "f" else TOKENS, **place)
    found: dict[str, tuple[Any, Rule]] = {"CostBatchSampler": (ours, steps_of(ours))}
    found["random"] = None, lambda: iter(order.tolist())
    if row != "f":
        found["LPT in a step"] = None, by_cost
        for name, limit in (("16 samples", {"batch_size": 16}), ("tokens", {"max_tokens": TOKENS})):
            buckets: Any = LengthBucketBatchSampler(lengths, **limit, **place)
            found[f"LengthBucketBatchSampler, {name}"] = buckets, steps_of(buckets)
    return found


def judge(steps: Rule, lengths: Any, costs: Any, is_padded: bool) -> tuple[float, float, float]:
    """time / ideal, the same of the worst step, and the share of padding."""
    slowest, mean, worst, padding, tokens = 0.0, 0.0, 1.0, 0, 0
    for step in steps():
        found = []
        for batch in step:
            longest = max(batch, key=lengths.__getitem__)
            found.append(len(batch) * costs[longest] if is_padded else costs[batch].sum())
            tokens += len(batch) * lengths[longest]
            padding += len(batch) * lengths[longest] - lengths[batch].sum()
        slowest, mean = slowest + max(found), mean + np.mean(found)
        worst = max(worst, max(found) / np.mean(found))
    return float(slowest / mean), float(worst), padding / tokens if is_padded else 0.0


def plan(sampler: Any, epochs: Any) -> float:
    """Nanoseconds a sample that an epoch takes on one rank."""
    sampler.set_epoch(next(epochs))
    begin = time.thread_time()
    batches = sum(map(len, sampler))
    return (time.thread_time() - begin) / batches / sampler.num_replicas * 1e9


def compare_costs(rows: list[str], is_quick: bool) -> list[dict[str, Any]]:
    print("| row | ranks | contestant | time / ideal | worst | padding | ns |")
    print("|---|---|---|---|---|---|---|")
    lines: list[dict[str, Any]] = []
    for row in rows:
        for ranks in (8, 64):
            given, lengths, costs = samples_of(row, 32_768 if is_quick else 131_072)
            rivals = contestants(row, ranks, given, lengths, costs)
            times: dict[str, list[float]] = {name: [] for name in rivals}
            epochs = iter(range(10**9))
            for _ in range(1 if is_quick else 5):
                for name, (sampler, _) in rivals.items():
                    if sampler is not None:
                        times[name].append(plan(sampler, epochs))
            for name, (_, steps) in rivals.items():
                figures = judge(steps, lengths, costs, name.startswith("LengthBucket"))
                ratio, worst, padding = figures
                shown, ns = "", times[name]
                if ns:
                    shown = f"{statistics.median(ns):,.0f} ({min(ns):,.0f} - {max(ns):,.0f})"
                cells = f"{ratio:.4f} | {worst:.2f} | {padding:.1%} | {shown}"
                print(f"| {row} | {ranks} | {name} | {cells} |")
                lines.append({"row": row, "ranks": ranks, "contestant": name, "ns": ns})
                lines[-1] |= dict(zip(("ratio", "worst", "padding"), figures, strict=True))
    return lines


# ---- packed rows

LENGTHS: dict[str, tuple[float, float, int, int]] = {
    "g": (6.5, 1.1, 20_000, 2048),
    "h": (6.5, 1.1, 20_000, 8192),
    "i": (6.0, 0.9, 8_000, 2048),
    "j": (6.0, 0.9, 8_000, 8192),
}
Pass = Callable[[], "tuple[int, int]"]  # an epoch or a part: the tokens in rows, and rows


def count_rows(batches: Any, length: int, most: int) -> tuple[int, int]:
    """Return the tokens in rows, padding left out, and the rows, of about `most` tokens."""
    tokens = rows = 0
    for batch in batches:
        ids = np.asarray(batch["input_ids"])
        rows += ids.size // length
        tokens += np.count_nonzero(ids)
        if tokens > most:
            break
    return tokens, rows


def packers(row: str, count: int) -> tuple[dict[str, Pass], PackedDataset]:
    mean, spread, longest, length = LENGTHS[row]
    lengths = np.exp(np.random.default_rng(0).normal(mean, spread, count))
    lengths = np.clip(lengths, 20, longest).astype(np.int64)
    offsets = np.append(0, np.cumsum(lengths))
    tokens = np.ones(offsets[-1], np.uint16)
    packed = PackedDataset(RaggedArray(tokens, offsets), length)
    cuts = [np.arange(begin, end, length) for begin, end in itertools.pairwise(offsets)]
    pieces = RaggedArray(tokens, np.append(np.concatenate(cuts), offsets[-1]))
    most = 4 * 10**6
    ours = DataLoader(packed, 8)
    collate = PackCollate(length, return_cu_seqlens=False)
    batches = DataLoader(
        ArrayDataset(input_ids=pieces), 128, sampler=ShuffleSampler(len(pieces)), collate_fn=collate
    )
    found: dict[str, Pass] = {
        "PackedDataset": lambda: count_rows(ours, length, most),
        "PackCollate": lambda: count_rows(batches, length, most),
    }
    if importlib.util.find_spec("grain") is not None:
        grain: Any = importlib.import_module("grain")
        experimental: Any = importlib.import_module("grain.experimental")
        few = [{"input_ids": pieces[i].numpy().astype(np.int64)} for i in range(4000)]
        source = grain.MapDataset.source(few).seed(0).shuffle().to_iter_dataset()
        given: Any = {"length_struct": {"input_ids": length}, "num_packing_bins": 64}
        rows = experimental.FirstFitPackIterDataset(source, **given)
        found["grain"] = lambda: count_rows(rows, length, most)
    return found, packed


def compare_packing(rows: list[str], is_quick: bool) -> list[dict[str, Any]]:
    print("| row | contestant | padding | ns a document | Mtok/s |\n|---|---|---|---|---|")
    lines: list[dict[str, Any]] = []
    for row in rows:
        count = 40_000 if is_quick else 400_000
        found, packed = packers(row, count)
        plans: list[float] = []
        rates: dict[str, list[float]] = {name: [] for name in found}
        padding: dict[str, float] = {}
        for epoch in range(1 if is_quick else 5):
            packed.set_epoch(epoch)
            begin = time.thread_time()
            total = len(packed)
            plans.append((time.thread_time() - begin) / count * 1e9)
            for name, each in found.items():
                begin = time.process_time()
                tokens, made = each()
                rates[name].append(tokens / (time.process_time() - begin) / 1e6)
                padding[name] = 1 - tokens / made / packed.seq_len
        padding["PackedDataset"] = 1 - packed._documents.tokens / total / packed.seq_len
        for name, rate in rates.items():
            low, middle, high = min(rate), statistics.median(rate), max(rate)
            ns = ""
            if name == "PackedDataset":
                ns = f"{statistics.median(plans):.0f} ({min(plans):.0f} - {max(plans):.0f})"
            shown = f"{middle:,.1f} ({low:,.1f} - {high:,.1f})"
            print(f"| {row} | {name} | {padding[name]:.3%} | {ns} | {shown} |")
            lines.append({"row": row, "contestant": name, "padding": padding[name], "rate": rate})
            lines[-1]["ns"] = plans if ns else []
    return lines


def compare_mixtures(rows: list[str], is_quick: bool) -> list[dict[str, Any]]:
    print("| row | contestant | ns an index | bytes a sample | drift |\n|---|---|---|---|---|")
    lines = []
    for letter in rows:
        row = Row(WEIGHTS[letter])
        add_ours(row, shuffle=False)
        add_ours(row, shuffle=True)
        add_grain(row)
        add_datasets(row)
        times = row.measure(*((2, 0.02) if is_quick else (9, 0.1)))
        for name, found in times.items():
            size, drift = row.facts[name]
            low, middle, high = min(found), statistics.median(found), max(found)
            shown = f"{middle:,.0f} ({low:,.0f} - {high:,.0f})"
            print(f"| {letter} | {name} | {shown} | {size} | {drift} |")
            lines.append(
                {"row": letter, "contestant": name, "ns": found, "bytes": size, "drift": drift}
            )
    return lines


def main() -> None:
    args = parse_arguments(__doc__, "abcdefghijklmnopqr")
    lines = []
    for letters, compare in (
        ("ab", compare_mixtures),
        ("cdef", compare_costs),
        ("ghij", compare_packing),
        ("klm", compare_columns),
        ("nopq", compare_tars),
        ("r", lambda _, is_quick: compare_resuming(is_quick)),
    ):
        if rows := [row for row in args.rows if row in letters]:
            lines += compare(rows, args.is_quick)
    text = "\n".join(map(json.dumps, lines))
    if args.json is not None:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
