"""CPU time that a step costs more while the training is watched: fastloop's report and TraceML.

    python benchmarks/bench_watched.py [--quick] [--json FILE]

A training of 4 epochs of 1 000 steps over a linear model and rows in memory, in a fresh process
each: by `python`; by `fastloop run`; by `fastloop run --report --watch --metrics`, everything that
watches; and by `traceml run` with TraceML's trace_step around each step, if traceml-ai is installed
(pip install traceml-ai). The script reads the CPU time of its process, all threads included, after
the first epoch and at the end. TraceML's aggregator, a process of its own, is not counted.

All take turns, and a round's costs are of runs beside each other: fastloop's report against
`fastloop run`, TraceML against `python`. Median (lowest - highest), µs of CPU time a step. The goal
is 0.5 % of a step of 2 ms.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from _harness import Goal, Report, Result, Times, parse_arguments

STEPS, EPOCHS, GOAL_US = 1_000, 4, 10.0
CHILD, TRACED = "--child", "--traced"


def train(is_traced: bool) -> None:
    """Print the CPU time of a step."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(STEPS * 8, 16)), batch_size=8, shuffle=True)

    def step(rows: Any) -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    if is_traced:
        import traceml_ai  # type: ignore[import-not-found]

        traceml_ai.init(mode="auto")
    begin = 0.0
    for epoch in range(EPOCHS):
        for (rows,) in loader:
            if is_traced:
                with traceml_ai.trace_step(model):
                    step(rows)
            else:
                step(rows)
        if epoch == 0:
            begin = process_time()
    print(CHILD, (process_time() - begin) * 1e6 / (STEPS * (EPOCHS - 1)))


def commands(folder: Path) -> dict[str, list[str]]:
    fastloop = ["-m", "fastloop", "run"]
    watched = [f"--report={folder}/run.html", "--watch=1", f"--metrics={folder}/run.prom"]
    found = {
        "python": [__file__, CHILD],
        "run": [*fastloop, __file__, CHILD],
        "watched": [*fastloop, *watched, __file__, CHILD],
    }
    if find_spec("traceml_ai"):
        traceml = ["-m", "traceml_ai.launcher.cli", "run", f"--logs-dir={folder}"]
        found["traceml"] = [*traceml, __file__, "--args", CHILD, TRACED]
    return found


def measure_once(arguments: list[str], folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "FASTLOOP_VERBOSE": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in done.stdout.splitlines():
        if CHILD in line.split()[:1]:
            return float(line.split()[1])
    raise RuntimeError(f"{arguments} printed no time:\n{done.stdout}")


def main() -> None:
    args = parse_arguments(__doc__, "a")
    costs: dict[str, list[float]] = {}
    with TemporaryDirectory() as name, Report(args.json, ("fastloop", "traceml")) as report:
        rounds = 2 if args.is_quick else 9
        report.open(rounds=rounds)
        for turn in range(rounds):
            folder = Path(name) / str(turn)
            folder.mkdir()
            took = {key: measure_once(command, folder) for key, command in commands(folder).items()}
            costs.setdefault("fastloop", []).append(took["watched"] - took["run"])
            if "traceml" in took:
                costs.setdefault("traceml", []).append(took["traceml"] - took["python"])
            for key, value in took.items():
                costs.setdefault(f"{key}, whole", []).append(value)
        times = {key: Times(tuple(values)) for key, values in costs.items()}
        shown = {key: Result({"": times[key]}) for key in ("fastloop", "traceml") if key in times}
        goal = Goal("a step", times["fastloop"].median, GOAL_US, False, "µs")
        whole = {key: each.as_dict() for key, each in times.items()}
        report.row("a", "everything that watches, a step", [goal], shown, **whole)


if __name__ == "__main__":
    if CHILD in sys.argv:
        train(TRACED in sys.argv)
    else:
        main()
