"""Scripts that nobody edits: torch's loader and those that frameworks make, behind
fastloop.patch(), beside torch alone and beside the changed class; and what the start costs.

    python benchmarks/bench_patched.py [--rows a,b,c,d,e,f,g,h,i,j] [--quick] [--json FILE]

b to e need the frameworks, and are left out without: pip install fastloop[frameworks]

a    `for batch in loader: pass` over 20 000 x (20 + 5) f32 in tensors, batch 256, without workers
     and with two: torch's class behind patch(), and fastloop.DataLoader; torch's own after them.
b-e  The digits, batch 32, by accelerate, Hugging Face's Trainer and Lightning's Trainer on the CPU:
     the time in iter() and next() of the iterators that they get, for each batch. These frameworks
     make loaders of torch's class themselves, so the changed class stands in a plain loop, with the
     same arguments and the same model. Judged is the part of what it gains over torch that the
     patched framework gains. e informs: with the collate function that Hugging Face's Trainer has
     by itself, most of the time is Python's.
f    An empty script by `python -m fastloop run`, and by `python`.
g    A script that imports torch, makes a loader and takes a batch, likewise.
h    An empty interpreter that a patched program starts, beside one that a plain program starts.
i    CPU time of an epoch of ten batches of 8 rows, and of iter() alone, workers included: the
     user's own collate, torch's default over the user's dataset, and a table. Judged are epochs.
j    CPU time of a process from the end of torch's import to its first batch: the import of the
     changed class or of torch's, the loader of g, iter() and next().

a to e, and i: 5 fresh processes, in each of them everything in turns. f to h, and j: everything in
turns in 25 fresh processes each (g: 15); judged is the median of what is used more, in CPU time;
wall time is in the JSON lines. Bytecode is written before. One table row each on stdout; one JSON
line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from _harness import Goal, Report, Times, measure, parse_arguments
from _work import loader_epoch, small_rows
from _work_patched import FRAMEWORKS, SHORT, Clock, Training, find_missing, watching
from torch.utils.data import DataLoader

import fastloop

COLUMNS = ("patched", "class", "torch")
APART = 0.02
OF_THE_GAIN = 0.95
OF_TORCHS_CPU = 1.1
START_US, CHILD_US, CLASS_US = 30_000, 1_000, 25_000
WORKERS = (0, 2)

Took = dict[str, float]  # microseconds a batch, by contestant


# ---- a: a plain loop


def run_plain(rounds: int, seconds: float) -> dict[str, Took]:
    torchs_own: Any = DataLoader._get_iterator

    class Torchs(DataLoader[Any]):
        """A class that makes its own iterators is not served."""

        _get_iterator = torchs_own

    fastloop.patch()
    classes = {"patched": DataLoader, "class": fastloop.DataLoader, "torch": Torchs}
    data, found = small_rows(), {}
    for workers in WORKERS:
        loaders = {
            who: cls(
                data.dataset,
                batch_size=data.batch,
                shuffle=True,
                num_workers=workers,
                persistent_workers=workers > 0,
            )
            for who, cls in classes.items()
        }
        epochs = {who: {"": loader_epoch(loader)} for who, loader in loaders.items()}
        torchs = {"torch": epochs.pop("torch")}  # whose workers leave the caches to the next
        took = measure(epochs, rounds, seconds) | measure(torchs, rounds, seconds)
        paths = {who: fastloop.stats(loader).path for who, loader in loaders.items()}
        assert paths == {"patched": "array", "class": "array", "torch": "torch"}, paths
        name = f"a table, {f'{workers} workers' if workers else 'no workers'}"
        found[name] = {who: result.median for who, result in took.items()}
    return found


# ---- b to e: frameworks


def _wait(training: Training, who: str, epochs: int) -> float:
    """Microseconds that are waited for a batch."""
    clock = Clock()
    if who == "class":
        training.by_hand(fastloop.DataLoader, epochs, clock)
    elif who == "torch":
        with watching(clock):
            training.by_framework(epochs)
    else:
        with fastloop.patched(), watching(clock):
            training.by_framework(epochs)
            status = fastloop.patch_status().seams["dataloader"]
        assert status.native and not status.fallbacks, status
    return clock.seconds / clock.batches * 1e6


def run_framework(row: str, rounds: int, epochs: int) -> dict[str, Took]:
    training = FRAMEWORKS[row]()
    waits: dict[str, list[float]] = {who: [] for who in COLUMNS}
    for number in range(1 + rounds):
        for who, of in waits.items():
            wait = _wait(training, who, epochs if number else 1)
            if number:  # else it warms up
                of.append(wait)
    return {training.work: {who: statistics.median(of) for who, of in waits.items()}}


# ---- i: short epochs

ALONE = "iter() alone"


def _cpu_us() -> float:
    """CPU time of this process and of the workers that have ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used) * 1e6


def _take_all(loader: DataLoader[Any]) -> None:
    for _batch in loader:
        pass


def run_short(rounds: int) -> dict[str, Took]:
    """CPU time of an epoch, and of iter() alone."""
    classes = {"patched": DataLoader, "class": fastloop.DataLoader, "torch": DataLoader}
    found = {}
    for workers, (name, (dataset, collate)) in itertools.product(WORKERS, SHORT.items()):
        loaders = {
            who: cls(dataset, 8, shuffle=True, collate_fn=collate, num_workers=workers)
            for who, cls in classes.items()
        }
        for what, work in {"ten batches": _take_all, ALONE: iter}.items():
            took: dict[str, list[float]] = {who: [] for who in COLUMNS}
            turns, repeats = (rounds, 2) if workers else (3 * rounds, 100)
            for _, (who, loader) in itertools.product(range(turns), loaders.items()):
                fastloop.unpatch() if who == "torch" else fastloop.patch()
                work(loader)
                gc.collect()
                start = _cpu_us()
                for _ in range(repeats):
                    work(loader)
                took[who].append((_cpu_us() - start) / repeats)
            medians = {who: statistics.median(of) for who, of in took.items()}
            found[f"{name}, {f'{workers} workers' if workers else 'no workers'}, {what}"] = medians
    return found


def run_here(row: str, rounds: int, seconds: float, epochs: int) -> dict[str, Took]:
    if row == "a":
        return run_plain(rounds, seconds)
    if row == "i":
        return run_short(rounds)
    return run_framework(row, rounds, epochs)


def run_fresh(*args: Any) -> dict[str, Took]:
    command = [sys.executable, __file__, "--here", *map(str, args)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Took] = json.loads(done.stdout.splitlines()[-1])
    return found


def _goals(row: str, work: str, took: Sequence[Took]) -> tuple[list[Goal], dict[str, Any]]:
    """What is judged, and what goes into the JSON line."""
    if row == "i":
        of_torchs = {
            who: Times(tuple(one[who] / one["torch"] for one in took), "x")
            for who in ("patched", "class")
        }
        goals = [Goal(who, of.median, OF_TORCHS_CPU, False) for who, of in of_torchs.items()]
        return [] if ALONE in work else goals, {who: of.as_dict() for who, of in of_torchs.items()}
    ratios = Times(tuple(one["torch"] / one["patched"] for one in took), "x")
    if row == "a":
        apart = Times(tuple(one["patched"] / one["class"] - 1 for one in took), "%")
        goals = [Goal("slower than the class", apart.median, APART, False, "%")]
        return goals, {"ratio": ratios.as_dict(), "apart": apart.as_dict()}
    gains = Times(
        tuple((one["torch"] - one["patched"]) / (one["torch"] - one["class"]) for one in took), "%"
    )
    goal = Goal("of the gain", gains.median, OF_THE_GAIN, True, "%")
    measured = {"ratio": ratios.as_dict(), "gain": gains.as_dict()}
    return [] if row == "e" else [goal], measured


def report_fresh(report: Report, row: str, processes: int, *args: Any) -> None:
    took = [run_fresh(row, *args) for _ in range(processes)]
    for work in took[0]:
        of = [one[work] for one in took]
        times = {who: Times(tuple(one[who] for one in of)) for who in COLUMNS}
        goals, measured = _goals(row, work, of)
        measured["us_per_batch"] = {who: time.as_dict() for who, time in times.items()}
        report.row(row, work, goals, times, **measured)


# ---- f to h: what the start costs

TAKES_A_BATCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset
next(iter(DataLoader(TensorDataset(torch.zeros(64, 4)), 8, shuffle=True)))
"""
TELLS_ITS_TIME = """
import time
import torch
from torch.utils.data import TensorDataset
began = time.process_time_ns()
from {} import DataLoader
next(iter(DataLoader(TensorDataset(torch.zeros(64, 4)), 8, shuffle=True)))
print((time.process_time_ns() - began) / 1e3)
"""
# A patched program that tells what a child of it needs.
ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"

Start = tuple[list[str], dict[str, str]]


def _run_once(start: Start) -> tuple[float, float]:
    """Microseconds of CPU time, and on the wall."""
    command, environment = start
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    begin = perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    wall = perf_counter() - begin
    if status:
        raise RuntimeError(f"{command} has ended with {os.waitstatus_to_exitcode(status)}")
    return (used.ru_utime + used.ru_stime) * 1e6, wall * 1e6


def _find_starts(row: str, script: Path) -> dict[str, Start]:
    """Each with a command and an environment."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = [sys.executable, "-m", "fastloop", "run"]
    if row == "h":
        told = subprocess.check_output([*run, str(script)], env=environment)
        empty = [sys.executable, "-c", "pass"]
        return {"patched": (empty, json.loads(told)), "torch": (empty, environment)}
    return {
        "patched": ([*run, str(script)], environment),
        "torch": ([sys.executable, str(script)], environment),
    }


def report_start(report: Report, row: str, folder: Path, rounds: int) -> None:
    work, source, most = {
        "f": ("start of an empty script", "", START_US),
        "g": ("start of torch, and a batch", TAKES_A_BATCH, START_US),
        "h": ("start of an empty child", ENVIRONMENT, CHILD_US),
    }[row]
    script = folder / f"{row}.py"
    script.write_text(source)
    starts = _find_starts(row, script)
    used: dict[str, list[tuple[float, float]]] = {who: [] for who in starts}
    for number in range(1 + rounds):
        for who, start in starts.items():
            once = _run_once(start)
            if number:  # else it writes bytecode
                used[who].append(once)
    cpu, wall = ({who: [one[i] for one in of] for who, of in used.items()} for i in (0, 1))
    beyond = {
        name: Times(tuple(a - b for a, b in zip(of["patched"], of["torch"], strict=True)))
        for name, of in (("cpu", cpu), ("wall", wall))
    }
    times = {who: Times(tuple(of)) for who, of in cpu.items()}
    goal = Goal("more", beyond["cpu"].median, most, False, "µs")
    measured = {f"us_more_{name}": time.as_dict() for name, time in beyond.items()}
    measured["us_cpu"] = {who: time.as_dict() for who, time in times.items()}
    report.row(row, work, [goal], times, **measured)


def report_first_batch(report: Report, rounds: int) -> None:
    homes = {"class": "fastloop", "torch": "torch.utils.data"}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    used: dict[str, list[float]] = {who: [] for who in homes}
    for number in range(1 + rounds):
        for who, home in homes.items():
            command = [sys.executable, "-c", TELLS_ITS_TIME.format(home)]
            told = float(subprocess.check_output(command, env=environment))
            if number:  # else it writes bytecode
                used[who].append(told)
    times = {who: Times(tuple(of)) for who, of in used.items()}
    more = times["class"].median - times["torch"].median
    goal = Goal("more", more, CLASS_US, False, "µs")
    measured = {who: time.as_dict() for who, time in times.items()}
    report.row("j", "from torch to the first batch", [goal], times, **measured)


def main() -> None:
    args = parse_arguments(__doc__, "abcdefghij")
    processes, rounds, seconds, epochs = (2, 2, 0.05, 2) if args.is_quick else (5, 5, 0.3, 5)
    with Report(args.json, COLUMNS) as report, tempfile.TemporaryDirectory() as folder:
        report.open(processes=processes, rounds=rounds, seconds=seconds, epochs=epochs)
        for row in args.rows:
            if row in "fgh":
                starts = 3 if args.is_quick else 15 if row == "g" else 25
                report_start(report, row, Path(folder), starts)
            elif row == "j":
                report_first_batch(report, 3 if args.is_quick else 25)
            elif missing := find_missing(row):
                print(f"row {row} is left out: {missing} is not installed", file=sys.stderr)
            else:
                report_fresh(report, row, processes, rounds, seconds, epochs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        row, rounds, seconds, epochs = sys.argv[2:]
        print(json.dumps(run_here(row, int(rounds), float(seconds), int(epochs))))
    else:
        main()
