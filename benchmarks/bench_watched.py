"""CPU time that a training costs more while it is watched: fastloop's report and TraceML.

    python benchmarks/bench_watched.py [--quick] [--json FILE]

A step is a real one of a linear model, some 0.2 ms, and a device's 1.8 ms, which are a sleep. Each
training is a fresh process: by `python`; by `fastloop run`; by `fastloop run --report --watch
--metrics=:PORT`, everything that watches, while this program reads the port each second by
prometheus_client's parser; and by `traceml run` with TraceML's trace_step around each step, if
traceml-ai is installed (pip install traceml-ai).

a  what each step pays: CPU time of the process, all threads included, in the steps from WARM on,
   long enough for all that comes once in ten seconds. The goal is 0.5 % of a step of 2 ms.
b  what a program pays once: CPU time of a whole program of SHORT steps: imports, opening, the first
   verdict, the pages at the end. For TraceML with its aggregator, a process of its own.

All take turns, and a round's costs are of runs beside each other: fastloop's report against
`fastloop run`, TraceML against `python`. Median (lowest - highest).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

from _harness import Goal, Report, Result, Times, parse_arguments

EPOCH, WARM, STEPS, SHORT, GOAL_US = 1_000, 1_500, 6_500, 100, 10.0
DEVICE_S = 0.0018
CHILD, TRACED = "--child", "--traced"
PAIRS = {"fastloop": ("watched", "run"), "traceml": ("traceml", "python")}


class Cost(NamedTuple):
    """What one training took: µs of CPU and of wall time a step, and ms of CPU from start to
    end."""

    step_us: float
    wall_us: float
    whole_ms: float


def train(steps: int, is_traced: bool) -> None:
    """Print CPU and wall time of a step from WARM on, or of all steps if there are not so many."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(EPOCH * 8, 16)), batch_size=8, shuffle=True)

    def step(rows: Any) -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        sleep(DEVICE_S)
        optimizer.step()

    if is_traced:
        import traceml_ai  # type: ignore[import-not-found]

        traceml_ai.init(mode="auto")
    done, begin, warm = 0, (0.0, 0.0), WARM * (steps > WARM)
    while done < steps:
        for (rows,) in loader:
            if done == warm:
                begin = process_time(), perf_counter()
            if is_traced:
                with traceml_ai.trace_step(model):
                    step(rows)
            else:
                step(rows)
            done += 1
            if done == steps:
                break
    took = process_time() - begin[0], perf_counter() - begin[1]
    print(CHILD, *(seconds * 1e6 / (steps - warm) for seconds in took))


def commands(folder: Path, port: int, steps: int) -> dict[str, list[str]]:
    fastloop, child = ["-m", "fastloop", "run"], [__file__, CHILD, str(steps)]
    watched = [f"--report={folder}/run.html", "--watch=1", f"--metrics=:{port}"]
    found = {
        "python": child,
        "run": [*fastloop, *child],
        "watched": [*fastloop, *watched, *child],
    }
    if find_spec("traceml_ai"):
        traceml = ["-m", "traceml_ai.launcher.cli", "run", f"--logs-dir={folder}"]
        found["traceml"] = [*traceml, __file__, "--args", *child[1:], TRACED]
    return found


def find_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def scrape(port: int) -> float:
    """Return the steps that the program's metrics tell; 0 before its first step."""
    from prometheus_client.parser import text_string_to_metric_families

    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        for family in text_string_to_metric_families(page.read().decode()):
            if family.name == "fastloop_steps":
                return float(family.samples[0].value)
    return 0.0


def measure_once(arguments: list[str], folder: Path, port: int) -> tuple[Cost, int]:
    """Run one training. Return its cost, and how many scrapes have told of steps."""
    scrapes = 0
    # Programs of users do not compile all modules each time.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**env, "FASTLOOP_VERBOSE": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            sleep(1)
            scrapes += scrape(port) > 0
        process.returncode = ended[1]
        output.seek(0)
        text = output.read()
    for line in text.splitlines():
        if CHILD in line.split()[:1]:
            step_us, wall_us = map(float, line.split()[1:])
            whole_ms = (ended[2].ru_utime + ended[2].ru_stime) * 1e3
            return Cost(step_us, wall_us, whole_ms), scrapes
    raise RuntimeError(f"{arguments} printed no time:\n{text}")


def measure(folder: Path, steps: int, rounds: int) -> tuple[dict[str, list[Cost]], int]:
    """Run all trainings in turns. Return the costs of each, and the number of scrapes."""
    runs: dict[str, list[Cost]] = {}
    scrapes = 0
    for turn in range(rounds):
        own, port = folder / f"{steps}-{turn}", find_port()
        own.mkdir()
        pairs = list(commands(own, port, steps).items())
        for key, command in pairs if turn % 2 else reversed(pairs):
            cost, told = measure_once(command, own, port)
            runs.setdefault(key, []).append(cost)
            scrapes += told
    return runs, scrapes


def compare(runs: dict[str, list[Cost]], field: str, unit: str) -> dict[str, Result]:
    """Return what watching adds, of runs beside each other."""
    found = {}
    for who, (watched, plain) in PAIRS.items():
        if watched in runs:
            pairs = zip(runs[watched], runs[plain], strict=True)
            more = tuple(getattr(a, field) - getattr(b, field) for a, b in pairs)
            found[who] = Result({"": Times(more, unit)})
    return found


def main() -> None:
    args = parse_arguments(__doc__, "ab")
    rounds = 2 if args.is_quick else 7
    with TemporaryDirectory() as name, Report(args.json, [*PAIRS]) as report:
        report.open(rounds=rounds)
        if "a" in args.rows:
            runs, scrapes = measure(Path(name), STEPS, rounds)
            shown = compare(runs, "step_us", "µs")
            goal = Goal("a step", shown["fastloop"].median, GOAL_US, False, "µs")
            report.row("a", "a step", [goal], shown, scrapes=scrapes, **describe(runs))
        if "b" in args.rows:
            runs, _ = measure(Path(name), SHORT, 2 * rounds)
            report.row("b", "once", [], compare(runs, "whole_ms", "ms"), **describe(runs))


def describe(runs: dict[str, list[Cost]]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        name: {f: Times(tuple(getattr(c, f) for c in costs)).as_dict() for f in Cost._fields}
        for name, costs in runs.items()
    }


if __name__ == "__main__":
    if CHILD in sys.argv:
        train(int(sys.argv[sys.argv.index(CHILD) + 1]), TRACED in sys.argv)
    else:
        main()
