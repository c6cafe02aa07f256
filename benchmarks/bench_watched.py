"""CPU time that a training costs more while it is watched: fastloop's report and TraceML.

    python benchmarks/bench_watched.py [--quick] [--json FILE]

A step is a real one of a linear model, some 0.2 ms, and a device's 1.8 ms, which are a sleep.
Everything that watches is a page, a line each second, and a port that this program reads each
second by prometheus_client's parser. TraceML is `traceml run` with its trace_step around each step,
if traceml-ai is installed (pip install traceml-ai).

a  what each step pays: CPU time of the process, all threads included, and wall time. Fastloop's
   report watches every other stretch of a second in one process, because two processes, and two
   minutes of one process, differ by more than the report costs. While a stretch is not watched, the
   report has taken its hooks out, and nobody reads the port. TraceML has a process of its own,
   beside one by `python`. The goal is 0.5 % of a step of 2 ms. Median of the differences of
   neighbours, its 95 % interval, and all differences of fastloop.
b  what a program pays once: CPU time of a whole program of SHORT steps: imports, opening, the first
   verdict, the pages at the end. For TraceML with its aggregator, a process of its own. Programs by
   `fastloop run` with and without everything, by `traceml run` and by `python` take turns.

Median (lowest - highest).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

from _harness import Goal, Report, Result, Times, parse_arguments, show

EPOCH, WARM, STEPS, SHORT, GOAL_US = 1_000, 1_000, 5_000, 100, 10.0
STRETCH, FIRST = 500, 25  # steps, and steps before them: the update and the look that are due
DEVICE_S = 0.0018
CHILD, TRACED, TURNS = "--child", "--traced", "--turns"
READ = "read"  # a file that is there while this program shall read the port
PAIRS = {"fastloop": ("watched", "run"), "traceml": ("traceml", "python")}


class Cost(NamedTuple):
    """What one training took: µs of CPU and of wall time a step, and ms of CPU from start to
    end."""

    step_us: float
    wall_us: float
    whole_ms: float


class Median(Times):
    """A figure of many rounds, shown with the interval that has its median in 95 of 100 cases."""

    @property
    def interval(self) -> tuple[float, float]:
        ordered, count = sorted(self.rounds), len(self.rounds)
        outside = max(int((count - 1.96 * count**0.5) / 2), 0)
        return ordered[outside], ordered[-1 - outside]

    def __str__(self) -> str:
        low, high, least, most = (
            show(end, self.unit) for end in (*self.interval, min(self.rounds), max(self.rounds))
        )
        return f"{show(self.median, self.unit)} (95 %: {low} - {high}; {least} - {most})"

    def as_dict(self) -> dict[str, float]:
        low, high = self.interval
        return super().as_dict() | {"low": round(low, 2), "high": round(high, 2)}


def make_training(is_traced: bool) -> Callable[[int, int], tuple[float, float]]:
    """Return a function that trains for some steps, the warm ones first, and returns CPU and wall
    time of a step after these, in µs."""
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

    def train(warm: int, steps: int) -> tuple[float, float]:
        done, begin = 0, (0.0, 0.0)
        while True:
            for (rows,) in loader:
                if done == warm:
                    begin = process_time(), perf_counter()
                if is_traced:
                    with traceml_ai.trace_step(model):
                        step(rows)
                else:
                    step(rows)
                done += 1
                if done == warm + steps:
                    took = process_time() - begin[0], perf_counter() - begin[1]
                    return took[0] * 1e6 / steps, took[1] * 1e6 / steps

    return train


def train_in_turns(page: Path, port: int, rounds: int) -> None:
    """Print what a step costs with everything that watches and without, in turns."""
    import fastloop
    from fastloop.tools.report.hooks import close_hooks, open_hooks

    train, read = make_training(is_traced=False), page.with_name(READ)
    with fastloop.report(page, watch=1.0, metrics=f":{port}") as report:
        train(WARM, 1)
        for turn in range(rounds):
            for name in ("watched", "run")[:: 1 if turn % 2 else -1]:
                if name == "watched":
                    read.touch()
                    print(CHILD, name, *train(FIRST, STRETCH))
                    read.unlink()
                else:
                    close_hooks(report._observer)
                    print(CHILD, name, *train(FIRST, STRETCH))
                    open_hooks(report._observer)


def commands(folder: Path, port: int, steps: int) -> dict[str, list[str]]:
    """Return the programs that train: fastloop's by their names in PAIRS, if they are short."""
    fastloop, child = ["-m", "fastloop", "run"], [__file__, CHILD, str(steps)]
    found = {"python": child}
    if steps == SHORT:
        watched = [f"--report={folder}/run.html", "--watch=1", f"--metrics=:{port}"]
        found |= {"run": [*fastloop, *child], "watched": [*fastloop, *watched, *child]}
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


def run(arguments: list[str], folder: Path, port: int) -> tuple[list[list[str]], float, int]:
    """Run a program. Return the words of the lines it marked, its CPU time in ms, and how many
    scrapes of the port have told of steps."""
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
            scrapes += (folder / READ).exists() and scrape(port) > 0
        process.returncode = ended[1]
        output.seek(0)
        text = output.read()
    found = [words[1:] for line in text.splitlines() if (words := line.split())[:1] == [CHILD]]
    if not found:
        raise RuntimeError(f"{arguments} printed no time:\n{text}")
    return found, (ended[2].ru_utime + ended[2].ru_stime) * 1e3, scrapes


def measure(folder: Path, steps: int, rounds: int) -> dict[str, list[Cost]]:
    """Run all programs in turns. Return the costs of each."""
    runs: dict[str, list[Cost]] = {}
    for turn in range(rounds):
        own, port = folder / f"{steps}-{turn}", find_port()
        own.mkdir()
        pairs = list(commands(own, port, steps).items())
        for key, command in pairs if turn % 2 else reversed(pairs):
            ((step_us, wall_us),), whole_ms, _ = run(command, own, port)
            runs.setdefault(key, []).append(Cost(float(step_us), float(wall_us), whole_ms))
    return runs


def measure_in_turns(folder: Path, rounds: int) -> tuple[dict[str, list[Cost]], int]:
    """Return what fastloop's steps cost, and the number of scrapes."""
    runs: dict[str, list[Cost]] = {"watched": [], "run": []}
    port = find_port()
    child = [__file__, CHILD, TURNS, f"{folder}/run.html", str(port), str(rounds)]
    lines, _, scrapes = run(["-m", "fastloop", "run", *child], folder, port)
    for name, step_us, wall_us in lines:
        runs[name].append(Cost(float(step_us), float(wall_us), 0.0))
    return runs, scrapes


def compare(
    runs: dict[str, list[Cost]], field: str, unit: str, kind: type[Times] = Times
) -> dict[str, Result]:
    """Return what watching adds, of runs beside each other."""
    found = {}
    for who, (watched, plain) in PAIRS.items():
        if watched in runs:
            pairs = zip(runs[watched], runs[plain], strict=True)
            more = tuple(getattr(a, field) - getattr(b, field) for a, b in pairs)
            found[who] = Result({"": kind(more, unit)})
    return found


def main() -> None:
    args = parse_arguments(__doc__, "ab")
    rounds = 2 if args.is_quick else 7
    with TemporaryDirectory() as name, Report(args.json, [*PAIRS]) as report:
        report.open(rounds=rounds)
        if "a" in args.rows:
            runs, scrapes = measure_in_turns(Path(name), 12 * rounds)
            if find_spec("traceml_ai"):
                runs |= measure(Path(name), STEPS, rounds)
            shown = compare(runs, "step_us", "µs", Median)
            goal = Goal("a step", shown["fastloop"].median, GOAL_US, False, "µs")
            report.row("a", "a step", [goal], shown, scrapes=scrapes, **describe(runs))
            report.row("a-wall", "wall time", [], compare(runs, "wall_us", "µs", Median))
        if "b" in args.rows:
            runs = measure(Path(name), SHORT, 2 * rounds)
            report.row("b", "once", [], compare(runs, "whole_ms", "ms"), **describe(runs))


def describe(runs: dict[str, list[Cost]]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        name: {f: Times(tuple(getattr(c, f) for c in costs)).as_dict() for f in Cost._fields}
        for name, costs in runs.items()
    }


if __name__ == "__main__":
    if TURNS in sys.argv:
        train_in_turns(Path(sys.argv[-3]), int(sys.argv[-2]), int(sys.argv[-1]))
    elif CHILD in sys.argv:
        total = int(sys.argv[sys.argv.index(CHILD) + 1])
        warm = WARM if total > WARM else 0
        print(CHILD, *make_training(TRACED in sys.argv)(warm, total))
    else:
        main()
