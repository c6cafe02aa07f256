"""What tune() suggests, against a full sweep.

    python benchmarks/bench_tune.py [--rows a,b,c,d,e,f] [--quick] [--json FILE]

A loop takes batches and works on each for a time of its own. tune() gets 20 s for each case. The
sweep measures whole epochs of every number of workers in WORKERS with a queue of 2 and of 4
batches, the suggested setting among them, all in turns, median of 5 rounds. Regret: how much longer
the loop takes with the suggestion than with the best of the sweep.

a    rows of a table, gathered by threads threads; the loop works 0.5 ms a batch
b    samples that wait 2 ms each, batch 8; the loop works 2 ms
c    log spectra by NumPy, batch 32; the loop waits 20 ms, as for a device
d    a stream of JSON records, batch 128; the loop works 1 ms
e    images of 3x224x224 in memory, batch 64; the loop waits 5 ms
f    the samples of b, with threads; the loop waits 2 ms

One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _harness import Goal, Report, Times, parse_arguments
from _work_python import Images
from _work_workers import Records, Sleeper, Spectra, write_records

from fastloop import ArrayDataset, DataLoader, tune

REGRET = 0.05
SECONDS = 30.0
WORKERS = (0, 1, 2, 3, 4, 8, 16, 24)
COLUMNS = ("suggested", "best", "worst")


@dataclass(frozen=True)
class Case:
    work: str
    loader: Callable[[dict[str, Any]], DataLoader[Any]]
    step: Callable[[Any], object]


def works(seconds: float) -> Callable[[Any], object]:
    """A loop that computes on this CPU."""

    def step(batch: Any) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    return step


def waits(seconds: float) -> Callable[[Any], object]:
    """A loop that waits for a device."""
    return lambda batch: time.sleep(seconds)


def make_cases(folder: Path, shrink: int) -> dict[str, Case]:
    table = ArrayDataset(torch.randn(20_000, 20), torch.randn(20_000, 5))
    sleeper = Sleeper(8 * max(64 // shrink, 8))
    spectra = Spectra(32 * max(32 // shrink, 6), seconds=4)
    images = Images(max(96 // shrink, 12))
    write_records(folder, 128 * max(256 // shrink, 24))
    records = Records(folder)
    return {
        "a": Case("a table", lambda of: DataLoader(table, 256, shuffle=True, **of), works(5e-4)),
        "b": Case("samples that wait", lambda of: DataLoader(sleeper, 8, **of), works(2e-3)),
        "c": Case("log spectra", lambda of: DataLoader(spectra, 32, **of), waits(2e-2)),
        "d": Case("JSON records", lambda of: DataLoader(records, 128, **of), works(1e-3)),
        "e": Case("images in memory", lambda of: DataLoader(images, 64, **of), waits(5e-3)),
        "f": Case(
            "samples that wait, threads",
            lambda of: DataLoader(sleeper, 8, path="thread" if of else "auto", **of),
            waits(2e-3),
        ),
    }


def run_case(report: Report, key: str, case: Case, rounds: int, seconds: float) -> None:
    begin = time.perf_counter()
    paths = ["thread"] if key == "f" else None
    found = tune(case.loader({}), case.step, seconds=seconds, paths=paths)
    took = time.perf_counter() - begin
    gc.collect()
    suggested = found.num_workers, found.prefetch_factor or 0
    settings = {(n, p) for n in WORKERS for p in ((2, 4) if n else (0,))} | {suggested}

    def epoch_of(workers: int, prefetch: int) -> Callable[[], int]:
        of = {"num_workers": workers, "prefetch_factor": prefetch} if workers else {}

        def epoch() -> int:
            # Workers start anew, so that those of one setting do not wait beside the next; the
            # first epoch is not counted.
            loader = case.loader(of | ({"persistent_workers": True} if workers else {}))
            for batch in loader:
                case.step(batch)
            count = 0
            start = time.perf_counter()
            for batch in loader:
                case.step(batch)
                count += 1
            times[workers, prefetch].append((time.perf_counter() - start) / count * 1e6)
            return count

        return epoch

    times: dict[tuple[int, int], list[float]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for workers, prefetch in sorted(settings):
            epoch_of(workers, prefetch)()
            gc.collect()
    swept = {setting: Times(tuple(of)) for setting, of in times.items()}
    ranked = sorted(swept, key=lambda setting: swept[setting].median)
    best, worst = ranked[0], ranked[-1]
    regret = swept[suggested].median / swept[best].median - 1
    goals = [Goal("regret", regret, REGRET, False, "%"), Goal("took", took, SECONDS, False, "s")]
    shown = {
        name: f"{swept[of]} {of[0]} workers, {of[1]} ahead"
        for name, of in (("suggested", suggested), ("best", best), ("worst", worst))
    }
    measured = {f"{w} workers, {p} ahead": swept[w, p].as_dict() for w, p in ranked}
    report.row(key, case.work, goals, shown, suggested=suggested, sweep=measured)


def main() -> None:
    args = parse_arguments(__doc__, "abcdef")
    warnings.filterwarnings("ignore", "This DataLoader will create")
    rounds, seconds, shrink = (2, 2.0, 10) if args.is_quick else (5, 20.0, 1)
    with Report(args.json, COLUMNS) as report, tempfile.TemporaryDirectory() as folder:
        report.open(rounds=rounds, seconds=seconds)
        cases = make_cases(Path(folder), shrink)
        for key in args.rows:
            run_case(report, key, cases[key], rounds, seconds)


if __name__ == "__main__":
    main()
