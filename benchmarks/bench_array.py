"""The array loader against torch's, a hand-written loop and the plain C limit.

    python benchmarks/bench_array.py [--rows a,b,c,d,e,f,g,h,i] [--threads 4,16,64] [--quick]
        [--json FILE]

a-d, h, i
     time a batch: whole epochs of `for batch in loader: pass`, data loaders at their best of 0, 1
     and 2 workers, everything in turns, median of 5 rounds (lowest - highest; the best variant).
     Before that, the first epoch of both loaders with the same seed is compared bit for bit.
e    share of its time that a consumer is kept waiting (fastloop: by `stats()`; and, as for torch,
     all of its time in `next()`) when one worker makes batches and the consumer computes for as
     long as one thread of fastloop takes to make a batch. Computing is limit_arithmetic in
     limit_gather.c: one thread, no memory, no interpreter lock. The first batch of an epoch, which
     nothing can hide, is left out.
f    time in `next()` when the batch is ready, 2 workers: median and 99th percentile. 100 000 rows,
     so that the call which draws the permutation behind an epoch's last batch, as torch's sampler
     does, is rarer than one in a hundred.
g    time from nothing to the first batch: making loader and iterator included; fastloop's at its
     slowest number of workers. Pages are fresh, but the system has them at hand.

--threads adds a row for each of its numbers: row c and 400 000 x 256 f32 (parts of 64 KB, batch
4096) with so many threads, beside plain C with as many, and torch at its best of 0, 1 and 2
workers.

hand is a hand-written loop of `randperm` and `index_select`; limit is limit_gather.c, plain C.
One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter
from typing import Any

import numpy as np
from _harness import Bench, Goal, Limit, Report, Result, Times, measure, parse_arguments, show
from _work import (
    LOADERS,
    WORKERS,
    Data,
    assert_same_batches,
    epochs_of,
    hand_written_epoch,
    large_images,
    large_images_in_a_file,
    loader_epoch,
    loader_epochs,
    make_loader,
    on_one_cpu,
    rows_in_parts,
    rows_of_hugging_face,
    small_images,
    small_rows,
    tensors,
    wide_rows,
)
from torch.utils.data import DataLoader


def row_throughput(
    bench: Bench[Limit], key: str, work: str, data: Data, wanted: dict[str, float]
) -> None:
    """Rows a-d, h, i."""
    assert_same_batches(data)
    contestants = {who: loader_epochs(who, data) for who in LOADERS}
    contestants["hand"] = {"index_select": hand_written_epoch(data)}
    contestants["limit"] = bench.limit.epochs(data.fields, data.batch)
    results = measure(contestants, bench.rounds, bench.seconds)
    torch_s, ours, by_hand, limit = (
        results[who].median for who in ("torch", "fastloop", "hand", "limit")
    )
    compared = {
        "torch": Goal("torch's speed", torch_s / ours, wanted.get("torch", 0), at_least=True),
        "hand": Goal("hand's time", ours / by_hand, wanted.get("hand", 0), at_least=False),
        "limit": Goal("of the limit", limit / ours, wanted.get("limit", 0), True, unit="%"),
    }
    goals = [compared[name] for name in wanted]
    ratios = {f"ratio_{name}": round(goal.got, 4) for name, goal in compared.items()}
    measured = {who: result.as_dict() for who, result in results.items()}
    bench.report.row(key, work, goals, dict(results), **ratios, **measured)


@dataclass(frozen=True)
class Waiting:
    """One epoch with a computing consumer, from its first batch on."""

    seconds: float
    in_next: float
    by_stats: float


def consume(loader: DataLoader[Any], compute: Callable[[], object]) -> Waiting:
    def by_stats() -> float:
        return float(loader.stats().seconds_waited) if hasattr(loader, "stats") else math.nan

    batches = iter(loader)
    batch = next(batches)
    start, before, in_next = perf_counter(), by_stats(), 0.0
    while batch is not None:
        compute()
        asked = perf_counter()
        batch = next(batches, None)
        in_next += perf_counter() - asked
    return Waiting(perf_counter() - start, in_next, by_stats() - before)


def row_hidden(bench: Bench[Limit], key: str, work: str, data: Data) -> None:
    """Row e."""

    def arithmetic() -> int:
        bench.limit.arithmetic(100_000)
        return 1

    loaders = {who: make_loader(who, data, workers=1) for who in LOADERS}
    alone_epoch = loader_epoch(make_loader("fastloop", data, workers=0))
    contestants = {"fastloop": {"one thread": on_one_cpu(alone_epoch)}}
    contestants["limit"] = bench.limit.epochs(data.fields, data.batch, threads=(1,))
    contestants["arithmetic"] = {"1e5 steps": arithmetic}
    alone = measure(contestants, bench.rounds, bench.seconds)
    made = alone["fastloop"].median
    steps = round(made / alone["arithmetic"].median * 100_000)

    epochs = math.ceil(bench.seconds / (made * 1e-6 * len(loaders["fastloop"])))
    rounds: dict[str, list[float]] = {
        name: [] for who in LOADERS for name in (who, f"{who}_in_next")
    }
    for _ in range(bench.rounds):
        for who, loader in loaders.items():
            seen = [consume(loader, lambda: bench.limit.arithmetic(steps)) for _ in range(epochs)]
            seconds = sum(one.seconds for one in seen)
            rounds[f"{who}_in_next"].append(sum(one.in_next for one in seen) / seconds)
            rounds[who].append(sum(one.by_stats for one in seen) / seconds)
    shares = {name: Times(tuple(of), "%") for name, of in rounds.items()}
    goals = [Goal("of the time waiting", shares["fastloop"].median, 0.05, False, "%")]
    in_next = show(shares["fastloop_in_next"].median, "%")
    shown = {
        "fastloop": f"{shares['fastloop']}, next() {in_next}",
        "torch": shares["torch_in_next"],
    }
    measured = {name: of.as_dict() for name, of in shares.items() if name != "torch"}
    alone_us = {who: round(result.median, 2) for who, result in alone.items()}
    bench.report.row(key, work, goals, shown, alone_us=alone_us, **measured)


def times_of_ready_next(loader: DataLoader[Any], calls: int, seconds_to_fill: float) -> np.ndarray:
    """Microseconds in each next() that finds its batch made; the last one is dropped outside."""
    taken: list[float] = []
    while len(taken) < calls:
        batches = iter(loader)
        next(batches)
        for _ in range(len(loader) - 1):
            full = perf_counter() + seconds_to_fill
            while perf_counter() < full:  # awake, as a training step would be
                pass
            asked = perf_counter()
            batch = next(batches)
            taken.append((perf_counter() - asked) * 1e6)
            del batch
        next(batches, None)
    return np.array(taken)


def row_ready(bench: Bench[Limit], key: str, work: str, data: Data) -> None:
    """Row f."""
    loaders = {who: make_loader(who, data, workers=2) for who in LOADERS}
    alone = measure(
        {who: {"": loader_epoch(loader)} for who, loader in loaders.items()}, 1, bench.seconds
    )
    rounds: dict[str, list[tuple[float, float]]] = {who: [] for who in LOADERS}
    for _ in range(bench.rounds):
        for who, loader in loaders.items():
            seconds_to_fill = max(200e-6, 4e-6 * alone[who].median)
            calls = int(bench.seconds * 3 / seconds_to_fill)
            times = times_of_ready_next(loader, calls, seconds_to_fill)
            rounds[who].append((np.percentile(times, 50), np.percentile(times, 99)))
    p50, p99 = (
        {who: Times(tuple(float(of[i]) for of in rounds[who])) for who in LOADERS} for i in (0, 1)
    )
    goals = [
        Goal("p50", p50["fastloop"].median, 5, at_least=False, unit="µs"),
        Goal("p99", p99["fastloop"].median, 40, at_least=False, unit="µs"),
    ]
    shown = {who: p50[who] for who in LOADERS}
    measured = {who: {"p50": p50[who].as_dict(), "p99": p99[who].as_dict()} for who in LOADERS}
    bench.report.row(key, work, goals, shown, **measured)


def time_of_first_batch(who: str, data: Data, workers: int) -> float:
    gc.collect()
    np.ones(512 << 20, np.uint8)  # else a virtual machine may have to fetch pages from its host
    start = perf_counter()
    loader = make_loader(who, data, workers)
    batches = iter(loader)
    batch = next(batches)
    taken = (perf_counter() - start) * 1e6
    del batch, batches
    if hasattr(loader, "close"):
        loader.close()
    return taken


def row_first_batch(bench: Bench[Limit], key: str, work: str, data: Data) -> None:
    """Row g; judged by fastloop's slowest number of workers."""
    rounds: dict[str, dict[str, list[float]]] = {
        who: {f"workers={n}": [] for n in WORKERS} for who in LOADERS
    }
    for _ in range(bench.rounds):
        for who in LOADERS:
            for n in WORKERS:
                rounds[who][f"workers={n}"].append(time_of_first_batch(who, data, n))
    results = {
        who: Result({variant: Times(tuple(of)) for variant, of in variants.items()})
        for who, variants in rounds.items()
    }
    ours = results["fastloop"]
    slowest = ours.variants[ours.worst]
    goals = [Goal(f"with {ours.worst}", slowest.median, 50_000, at_least=False, unit="µs")]
    shown = {"fastloop": f"{slowest} {ours.worst}", "torch": results["torch"]}
    measured = {who: result.as_dict() for who, result in results.items()}
    bench.report.row(key, work, goals, shown, **measured)


def row_threads(bench: Bench[Limit], work: str, data: Data, threads: tuple[int, ...]) -> None:
    loaders = {f"x{n}": make_loader("fastloop", data, n) for n in threads}
    contestants = {"fastloop": epochs_of(loaders), "torch": loader_epochs("torch", data)}
    contestants["limit"] = bench.limit.epochs(data.fields, data.batch, threads)
    results = measure(contestants, bench.rounds, bench.seconds)
    for n in threads:
        ours = results["fastloop"].variants[f"x{n}"]
        limits = results["limit"].variants
        limit = min(
            (limits[f"{how} x{n}"] for how in ("memcpy", "streaming")), key=attrgetter("median")
        )
        shown = {"fastloop": ours, "torch": results["torch"], "limit": limit}
        measured = {"fastloop": ours.as_dict(), "limit": limit.as_dict()}
        bench.report.row(f"t-{n}", f"{work}, {n} threads", [], shown, **measured)


def run_rows(bench: Bench[Limit], rows: list[str]) -> None:
    if "a" in rows:
        work = "20 000 x (20 + 5) f32, batch 256"
        row_throughput(bench, "a", work, small_rows(), {"torch": 60, "hand": 1.3})
    if "b" in rows:
        work = "50 000 x 3x32x32 u8 + label, batch 256"
        row_throughput(bench, "b", work, small_images(), {"torch": 9, "hand": 1.1})
    if "c" in rows:
        work = "4 000 x 3x224x224 u8 + label, batch 256"
        row_throughput(bench, "c", work, large_images(), {"torch": 4, "limit": 0.85})
    if "d" in rows:
        work = "the same as a .npy memmap, batch 64"
        with large_images_in_a_file() as data:
            row_throughput(bench, "d", work, data, {"torch": 1.2, "limit": 0.85})
    if "e" in rows:
        row_hidden(bench, "e-b", "b behind a busy consumer, 1 worker", small_images())
        row_hidden(bench, "e-c", "c behind a busy consumer, 1 worker", large_images())
    if "f" in rows:
        row_ready(bench, "f", "next() with a full ring, 2 fields (p50)", small_rows(100_000))
    if "g" in rows:
        pixels, labels = large_images().fields
        flat = tensors((pixels.reshape(len(pixels), -1), labels), 256)
        row_first_batch(bench, "g", "time to first batch, 4 000 x 150 528", flat)
    if "h" in rows:
        work = "a as a ConcatDataset of 4 parts"
        row_throughput(bench, "h", work, rows_in_parts(), {"torch": 60, "hand": 1.5})
    columns = rows_of_hugging_face() if "i" in rows else None
    if columns is not None:
        work = "a as columns of Hugging Face's datasets"
        row_throughput(bench, "i", work, columns, {"torch": 60, "hand": 1.5})


def main() -> None:
    args = parse_arguments(__doc__, "abcdefghi", has_threads=True)
    rounds, seconds = (2, 0.03) if args.is_quick else (5, 0.3)
    with Report(args.json, ("fastloop", "torch", "hand", "limit")) as report:
        report.open(rounds=rounds)
        bench = Bench(Limit(), report, rounds, seconds)
        run_rows(bench, args.rows)
        if args.threads:
            row_threads(bench, "3x224x224 u8 + label, batch 256", large_images(), args.threads)
            row_threads(bench, "256 f32, batch 4 096", wide_rows(), args.threads)


if __name__ == "__main__":
    main()
