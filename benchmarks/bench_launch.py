"""How late a thread's small operations are while a loader works beside it.

    python benchmarks/bench_launch.py [--rows a,n,p] [--quick] [--json FILE]

The main thread adds two tensors of 8 numbers every millisecond, as a training loop starts kernels.
A second thread consumes batches as fast as one worker makes them. The delay is the time from the
moment at which an addition is due to its end; the next addition is due a millisecond later.

a    rows of 3x224x224 u8 in memory, batch 64: the array path
n    log spectra of 4 s of sound by NumPy, batch 32
p    features parsed from a line of text in pure Python, batch 64

Each cell has the median and the 99th percentile of the delays, and the share of its time that the
main thread loses against `alone`, where no loader works: each the lowest of 9 rounds in turns,
because other programs only add to a delay. In the second column of threads the interpreter lock
changes hands after 0.2 ms instead of 5 (sys.setswitchinterval). Rows n and p are judged by what
threads cost beyond processes.
One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass
from time import perf_counter, sleep
from typing import Any

import torch
from _harness import Goal, Report, parse_arguments, show
from _work import large_images
from _work_workers import Spectra, make_loaders
from bench_free_threading import Lines

PERIOD_S = 1e-3
EAGER = "threads, 0.2 ms"
PATHS: dict[str, dict[str, Any]] = {
    "array": {},
    "threads": {"path": "thread"},
    EAGER: {"path": "thread"},
    "processes": {"path": "process"},
    "torch": {},
}
COLUMNS = ("alone", *PATHS)
# What a row loads, its batch, and the loaders that can.
WORKS = {
    "a": ("3x224x224 u8 rows, batch 64", lambda: large_images().dataset, 64, ("array", "torch")),
    "n": ("log spectra by NumPy, batch 32", lambda: Spectra(4096, 4.0), 32, COLUMNS[2:]),
    "p": ("lines parsed in Python, batch 64", lambda: Lines(20_000), 64, COLUMNS[2:]),
}


@dataclass(frozen=True)
class Delays:
    """Of the additions of one round, in microseconds."""

    median: float
    late: float  # the 99th percentile
    mean: float


def launch(seconds: float) -> Delays:
    numbers, delays = torch.ones(8), []
    due = perf_counter()
    until = due + seconds
    while due < until:
        sleep(max(0.0, due - perf_counter()))
        numbers + numbers
        now = perf_counter()
        delays.append((now - due) * 1e6)
        due = now + PERIOD_S
    return Delays(
        statistics.median(delays), statistics.quantiles(delays, n=100)[-1], statistics.mean(delays)
    )


@contextmanager
def consumed(loader: Any) -> Iterator[None]:
    """A thread takes the loader's batches meanwhile, from the first batch on."""
    has_begun, is_over = threading.Event(), threading.Event()

    def consume() -> None:
        while not is_over.is_set():
            for _batch in loader:
                has_begun.set()
                if is_over.is_set():
                    break

    thread = threading.Thread(target=consume)
    thread.start()
    has_begun.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run_row(report: Report, key: str, rounds: int, seconds: float) -> None:
    work, make, batch, ways = WORKS[key]
    dataset = make()
    loaders: dict[str, Any] = {"alone": None}
    for way in ways:
        who = "torch" if way == "torch" else "fastloop"
        loaders |= make_loaders(who, dataset, batch, {way: {"num_workers": 1, **PATHS[way]}})
    seen: dict[str, list[Delays]] = {who: [] for who in loaders}
    for _ in range(rounds):
        for who, loader in loaders.items():
            sys.setswitchinterval(2e-4 if who == EAGER else 5e-3)
            with nullcontext() if loader is None else consumed(loader):
                seen[who].append(launch(seconds))
    for who, loader in loaders.items():
        path = loader.stats().path if who not in ("alone", "torch") else who
        if path != PATHS.get(who, {}).get("path", who):
            raise AssertionError(f"{who} on path {path!r} would mislead: {loader.stats().why}")
    lowest = {
        who: Delays(*map(min, zip(*map(astuple, of), strict=True))) for who, of in seen.items()
    }
    idle = lowest["alone"].mean
    lost = {who: (of.mean - idle) / (of.mean + PERIOD_S * 1e6) for who, of in lowest.items()}
    goals = []
    if "threads" in lost:
        beyond = lost["threads"] - lost["processes"]
        goals.append(Goal("lost to threads beyond processes", beyond, 0.1, False, "%"))
    shown = {
        who: f"{show(of.median, 'µs')}, p99 {show(of.late, 'µs')}, lost {show(lost[who], '%')}"
        for who, of in lowest.items()
    }
    delays = {who: asdict(of) for who, of in lowest.items()}
    report.row(key, work, goals, shown, delays_us=delays, lost=lost)


def main() -> None:
    args = parse_arguments(__doc__, "anp")
    rounds, seconds = (2, 0.3) if args.is_quick else (9, 1.0)
    with Report(args.json, COLUMNS) as report:
        report.open(rounds=rounds, period_us=PERIOD_S * 1e6)
        for key in args.rows:
            run_row(report, key, rounds, seconds)


if __name__ == "__main__":
    main()
