"""Images without workers, in fresh processes, beside torch's loader: where an allocator puts large
batches differs from process to process.

    python benchmarks/bench_fresh.py [--rows a,b] [--quick] [--json FILE]

Each of 5 processes takes both loaders and the limit in turns, whole epochs, median of 5 rounds.
a    `for batch in loader: pass`.
b    the same with a consumer that holds the last 8 batches.

Judged: torch's time / ours in the median of the processes, and in the worst. The limit is the
dataset's own time for the samples and a plain C copy of as many bytes, the faster of 1 and 2
threads. One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from typing import Any

from _harness import Epoch, Epochs, Goal, Limit, Report, Times, measure, parse_arguments
from _work_python import ALONE, Images, make_loader

HELD = {"a": 1, "b": 8}  # the loop's own variable holds one
BATCH, BATCHES = 64, 24
COLUMNS = ("fastloop", "torch", "limit")


def holding_epoch(loader: Any, held: int) -> Epoch:
    def epoch() -> int:
        batches: deque[Any] = deque(maxlen=held)
        for batch in loader:
            batches.append(batch)
        return len(loader)

    return epoch


def limit_epochs(dataset: Images) -> Epochs:
    rows = [dataset.pixels[: dataset.rows].numpy().reshape(dataset.rows, -1)]

    def with_samples(copy: Epoch) -> Epoch:
        def epoch() -> int:
            batches = copy()
            for index in range(batches * BATCH):
                dataset[index]
            return batches

        return epoch

    return {name: with_samples(copy) for name, copy in Limit().epochs(rows, BATCH).items()}


def run_here(held: int, rounds: int, seconds: float) -> dict[str, float]:
    """Microseconds a batch, in this process."""
    dataset = Images(BATCHES)
    contestants: dict[str, Epochs] = {
        who: {ALONE: holding_epoch(make_loader(who, dataset, BATCH, ALONE), held)}
        for who in ("fastloop", "torch")
    }
    contestants["limit"] = limit_epochs(dataset)
    results = measure(contestants, rounds, seconds)
    return {who: result.median for who, result in results.items()}


def run_fresh(*args: Any) -> dict[str, float]:
    command = [sys.executable, __file__, "--here", *map(str, args)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    took: dict[str, float] = json.loads(done.stdout)
    return took


def main() -> None:
    args = parse_arguments(__doc__, "ab")
    processes, rounds, seconds = (2, 2, 0.05) if args.is_quick else (5, 5, 0.3)
    with Report(args.json, COLUMNS) as report:
        report.open(processes=processes, rounds=rounds, seconds=seconds)
        for row in args.rows:
            took = [run_fresh(HELD[row], rounds, seconds) for _ in range(processes)]
            ratios = Times(tuple(one["torch"] / one["fastloop"] for one in took), "x")
            times = {who: Times(tuple(one[who] for one in took)) for who in COLUMNS}
            goals = [
                Goal("torch in the median process", ratios.median, 1.2, True),
                Goal("in the worst", min(ratios.rounds), 1.0, True),
            ]
            work = f"64 x (3x224x224 u8, int), holding {HELD[row]}"
            measured = {who: time.as_dict() for who, time in times.items()}
            report.row(row, work, goals, times, us_per_batch=measured, ratio=ratios.as_dict())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(run_here(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
    else:
        main()
