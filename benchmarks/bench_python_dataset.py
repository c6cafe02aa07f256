"""The loader over Python datasets, whose samples `__getitem__` makes, against torch's.

    python benchmarks/bench_python_dataset.py [--rows a,b,c,d,e,f] [--quick] [--json FILE]

a-d  time a batch: whole epochs of `for batch in loader: pass` at 2 workers (persistent, prefetch
     factor 2 and 4) and without workers, everything in turns, median of 5 rounds (lowest -
     highest). Before that, a short epoch of both loaders with the same seed is compared bit for
     bit. Each row is followed by
       - the same without workers;
       - CPU seconds per 1 000 batches of the parent and of parent and workers together;
       - memory in the middle of an epoch: the PSS of the tree of a process that only loads, and
         how much of it the loader with its workers added.
e    samples a second at 2 workers when a sample takes a millisecond of CPU: 2 000 are possible.
f    from making the loader to its first batch, 2 spawned workers, dataset holding 128 MB.

fastloop runs its default path and is judged by the slower of its two prefetch factors; torch at 2
workers by the same factor, torch at its best by the fastest of its three variants.
The machine must be idle: torch stacks large samples on OpenMP threads, which suffer most.
One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from functools import partial
from time import perf_counter, process_time
from typing import Any

from _harness import (
    Goal,
    Report,
    Result,
    Times,
    measure,
    measure_by,
    memory_figures,
    parse_arguments,
    run_fresh,
    show_memory,
    time_first_batch,
    tree_cpu,
    tree_pss_mb,
)
from _work import LOADERS, epochs_of, loader_epoch
from _work_python import (
    ALONE,
    TOGETHER,
    WORKERS,
    WORKS,
    Busy,
    Holder,
    Work,
    assert_same_batches,
    make_loader,
)

COLUMNS = ("fastloop", f"torch w={WORKERS}", f"torch {ALONE}")
CLOCKS = {"tree": tree_cpu, "parent": process_time, "wall": perf_counter}


@dataclass(frozen=True)
class Bench:
    """What every row needs."""

    report: Report
    rounds: int
    seconds: float  # that each contestant runs in a round, at least
    batches: int  # an epoch


def slower(result: Result) -> str:
    return max(TOGETHER, key=lambda variant: result.variants[variant].median)


def faster(result: Result) -> str:
    return min(TOGETHER, key=lambda variant: result.variants[variant].median)


def path_of(loader: Any) -> str:
    return str(loader.stats().path) if hasattr(loader, "stats") else ""


def time_of_getitem(dataset: Any, samples: int = 1000) -> float:
    """Microseconds a sample."""
    start = perf_counter()
    for index in range(samples):
        dataset[index]
    return (perf_counter() - start) / samples * 1e6


def row_work(bench: Bench, key: str, work: Work) -> None:
    """A row of a-d and those that follow it."""
    assert_same_batches(work)
    dataset = work.make(bench.batches)
    loaders = {
        who: {of: make_loader(who, dataset, work.batch, of) for of in (ALONE, *TOGETHER)}
        for who in LOADERS
    }
    contestants = {who: epochs_of(of) for who, of in loaders.items()}
    measured = measure_by(CLOCKS, contestants, bench.rounds, bench.seconds)
    more = {
        "getitem_us": round(time_of_getitem(dataset), 2),
        "path": {variant: path_of(loader) for variant, loader in loaders["fastloop"].items()},
    }
    report_together(bench, key, work, measured, more)
    report_alone(bench, key, work, measured["wall"])
    report_cpu(bench, key, measured)
    del loaders, contestants
    gc.collect()  # its workers leave before the next row
    report_memory(bench, key)


def report_together(
    bench: Bench,
    key: str,
    work: Work,
    measured: dict[str, dict[str, Result]],
    more: dict[str, Any],
) -> None:
    ours, torch_s = measured["wall"]["fastloop"], measured["wall"]["torch"]
    parent = measured["parent"]["fastloop"]
    ratios = (torch_s.variants[of].median / ours.variants[of].median for of in TOGETHER)
    judged = ours.variants[slower(ours)]
    goals = [
        Goal(f"torch's w={WORKERS}", min(ratios), work.times_together, at_least=True),
        Goal("its best", torch_s.median / judged.median, work.times_best, at_least=True),
    ]
    if work.parent_us is not None:
        most = max(parent.variants[variant].median for variant in TOGETHER)
        goals.append(Goal("of parent CPU", most, work.parent_us, at_least=False, unit="µs"))
    shown = {
        COLUMNS[0]: f"{judged} {slower(ours)}",
        COLUMNS[1]: f"{torch_s.variants[faster(torch_s)]} {faster(torch_s)}",
        COLUMNS[2]: torch_s.variants[ALONE],
    }
    figures = {
        clock: {who: result.as_dict() for who, result in results.items()}
        for clock, results in measured.items()
    }
    bench.report.row(key, work.name, goals, shown, **more, **figures)


def report_alone(bench: Bench, key: str, work: Work, measured: dict[str, Result]) -> None:
    ours, torch_s = (measured[who].variants[ALONE] for who in LOADERS)
    goals = [Goal(f"torch's {ALONE}", torch_s.median / ours.median, work.times_alone, True)]
    shown = {COLUMNS[0]: f"{ours} {ALONE}", COLUMNS[2]: torch_s}
    figures = {"fastloop": ours.as_dict(), "torch": torch_s.as_dict()}
    bench.report.row(f"{key}-0", f"  num_workers=0 ({key})", goals, shown, **figures)


def report_cpu(bench: Bench, key: str, measured: dict[str, dict[str, Result]]) -> None:
    """A microsecond a batch is a millisecond per 1 000 batches."""
    seconds = {
        f"{who} {variant}": {
            clock: round(measured[clock][who].variants[variant].median / 1e3, 4)
            for clock in ("parent", "tree")
        }
        for who in LOADERS
        for variant in (ALONE, *TOGETHER)
    }
    best = {who: faster(measured["wall"][who]) for who in LOADERS}
    columns = (f"fastloop {best['fastloop']}", f"torch {best['torch']}", f"torch {ALONE}")
    shown = {
        column: "parent {parent:.3g} s, all {tree:.3g} s".format(**seconds[run])
        for column, run in zip(COLUMNS, columns, strict=True)
    }
    bench.report.row(f"{key}-cpu", f"  CPU per 1 000 batches ({key})", [], shown, cpu_s=seconds)


def memory_of(who: str, key: str, variant: str, batches: int) -> dict[str, float]:
    """Runs in a process of its own: megabytes before, and in the middle of the second epoch."""
    work = WORKS[key]
    dataset = work.make(batches)
    before = tree_pss_mb()
    loader = make_loader(who, dataset, work.batch, variant)
    loader_epoch(loader)()
    during = before
    for number, _batch in enumerate(loader):
        if number == batches // 2:
            during = tree_pss_mb()
    return memory_figures(before, during)


def report_memory(bench: Bench, key: str) -> None:
    runs = (("fastloop", TOGETHER[0]), ("torch", TOGETHER[0]), ("torch", ALONE))
    measured = {
        f"{who} {variant}": run_fresh(memory_of, who, key, variant, min(20, bench.batches))
        for who, variant in runs
    }
    shown = {
        column: show_memory(figures)
        for column, figures in zip(COLUMNS, measured.values(), strict=True)
    }
    work = f"  memory (PSS) of the tree, p=2 ({key})"
    bench.report.row(f"{key}-memory", work, [], shown, **measured)


def row_busy(bench: Bench, key: str, work: str) -> None:
    """Row e."""
    dataset, batch = Busy(max(10, bench.batches // 2)), 32
    contestants = {
        who: epochs_of({of: make_loader(who, dataset, batch, of) for of in TOGETHER})
        for who in LOADERS
    }
    measured = measure(contestants, bench.rounds, bench.seconds)
    rates = {
        who: {
            variant: Times(tuple(batch / taken * 1e6 for taken in times.rounds), "samples/s")
            for variant, times in result.variants.items()
        }
        for who, result in measured.items()
    }
    of = {"fastloop": slower(measured["fastloop"]), "torch": faster(measured["torch"])}
    ours = rates["fastloop"][of["fastloop"]]
    goals = [Goal(f"of {2_000:,}", ours.median, 1_950, at_least=True, unit="samples/s")]
    shown = {
        column: f"{rates[who][of[who]]} {of[who]}"
        for column, who in zip(COLUMNS, LOADERS, strict=False)
    }
    figures = {
        who: {variant: times.as_dict() for variant, times in rate.items()}
        for who, rate in rates.items()
    }
    bench.report.row(key, work, goals, shown, **figures)


def row_first_batch(bench: Bench, key: str, work: str) -> None:
    """Row f."""
    dataset = Holder(4)
    spawned = {"multiprocessing_context": "spawn"}
    rounds: dict[str, list[float]] = {who: [] for who in LOADERS}
    for _ in range(bench.rounds):
        for who in LOADERS:
            make = partial(make_loader, who, dataset, 64, TOGETHER[0], **spawned)
            rounds[who].append(time_first_batch(make) * 1e6)
    ours, torch_s = (Times(tuple(rounds[who])) for who in LOADERS)
    goals = [Goal("torch's speed", torch_s.median / ours.median, 2, at_least=True)]
    shown = {COLUMNS[0]: ours, COLUMNS[1]: torch_s}
    figures = {"fastloop": ours.as_dict(), "torch": torch_s.as_dict()}
    bench.report.row(key, work, goals, shown, **figures)


def run_rows(bench: Bench, rows: list[str]) -> None:
    for key, work in WORKS.items():
        if key in rows:
            row_work(bench, key, work)
    if "e" in rows:
        row_busy(bench, "e", "1 ms of CPU a sample, batch 32")
    if "f" in rows:
        row_first_batch(bench, "f", "first batch, spawn, dataset of 128 MB")


def main() -> None:
    args = parse_arguments(__doc__, "abcdef")
    rounds, seconds, batches = (2, 0.03, 10) if args.is_quick else (5, 0.5, 100)
    with Report(args.json, COLUMNS) as report:
        report.open(rounds=rounds, workers=WORKERS)
        run_rows(Bench(report, rounds, seconds, batches), args.rows)


if __name__ == "__main__":
    main()
