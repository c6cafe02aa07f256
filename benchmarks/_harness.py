"""What the benchmarks share: fair rounds, the plain C limit, and the report.

A contestant is a function that consumes one whole epoch and returns how many batches that was.
`measure` runs all contestants of a row in turns, so that a machine that slows down slows them all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import io
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import clock_gettime, perf_counter, process_time, sleep
from typing import Any, Generic, TypeVar

import numpy as np
import psutil
import torch

Epoch = Callable[[], int]
Clock = Callable[[], float]  # seconds, counting up
LimitT = TypeVar("LimitT")  # what runs the limits of a benchmark
ResultT = TypeVar("ResultT")
Epochs = dict[str, Epoch]  # the variants of one contestant: the best of them stands for it


@dataclass(frozen=True)
class Arguments:
    rows: list[str]
    is_quick: bool
    json: Path | None
    threads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bench(Generic[LimitT]):
    """What every row needs."""

    limit: LimitT
    report: Report
    rounds: int
    seconds: float  # that each contestant runs in a round, at least


def parse_arguments(doc: str | None, rows: str, has_threads: bool = False) -> Arguments:
    """The command line of a benchmark whose rows are the letters in `rows`."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rows", default=",".join(rows), help="which rows, as in a,b")
    parser.add_argument("--quick", action="store_true", help="2 short rounds: does it run?")
    parser.add_argument("--json", type=Path, help="file for the JSON lines")
    if has_threads:
        parser.add_argument("--threads", default="", help="rows for so many threads, as in 4,16,64")
    args = parser.parse_args()
    wanted = args.rows.split(",")
    if unknown := set(wanted) - set(rows):
        names = ", ".join(sorted(unknown))
        parser.error(f"--rows takes letters from {rows[0]} to {rows[-1]}, not {names}")
    threads = args.threads.split(",") if has_threads and args.threads else ()
    return Arguments(wanted, args.quick, args.json, tuple(map(int, threads)))


def show(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    if unit == "µs" and value >= 999.5:
        value, unit = value / 1000, "ms"
    number = f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
    return f"{number}x" if unit == "x" else f"{number} {unit}"


@dataclass(frozen=True)
class Times:
    """One figure, a time or a share, as measured in several rounds."""

    rounds: tuple[float, ...]
    unit: str = "µs"

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        low, high = (show(end(self.rounds), self.unit) for end in (min, max))
        return f"{show(self.median, self.unit)} ({low} - {high})"

    def as_dict(self) -> dict[str, float]:
        shown = {"median": self.median, "min": min(self.rounds), "max": max(self.rounds)}
        return {name: float(f"{value:.4g}") for name, value in shown.items()}


@dataclass(frozen=True)
class Result:
    """All variants of one contestant, and the best of them, which stands for it."""

    variants: dict[str, Times]

    @property
    def best(self) -> str:
        return min(self.variants, key=lambda name: self.variants[name].median)

    @property
    def worst(self) -> str:
        return max(self.variants, key=lambda name: self.variants[name].median)

    @property
    def median(self) -> float:
        return self.variants[self.best].median

    def __str__(self) -> str:
        return f"{self.variants[self.best]} {self.best}"

    def as_dict(self) -> dict[str, Any]:
        return {"best": self.best} | {name: t.as_dict() for name, t in self.variants.items()}


def measure(contestants: dict[str, Epochs], rounds: int, seconds: float) -> dict[str, Result]:
    """Microseconds a batch of every variant: in each round, whole epochs for about `seconds`."""
    return measure_by({"wall": perf_counter}, contestants, rounds, seconds)["wall"]


# torch's OpenMP threads spin for about 10 ms after their last work: nobody pays for another's.
SETTLE_S = 0.05


def measure_by(
    clocks: dict[str, Clock], contestants: dict[str, Epochs], rounds: int, seconds: float
) -> dict[str, dict[str, Result]]:
    """`measure` on several clocks at once; the last of them is read next to the work."""
    runs = [(who, variant) for who, variants in contestants.items() for variant in variants]
    repeats = {}
    for who, variant in runs:
        epoch = contestants[who][variant]
        epoch()  # starts workers, faults in buffers
        start = perf_counter()
        epoch()
        repeats[who, variant] = max(1, math.ceil(seconds / (perf_counter() - start)))
    taken: dict[tuple[str, str, str], list[float]] = {
        (name, *run): [] for name in clocks for run in runs
    }
    for _ in range(rounds):
        for who, variant in runs:
            epoch = contestants[who][variant]
            sleep(SETTLE_S)
            start_of = {name: clock() for name, clock in clocks.items()}
            batches = sum(epoch() for _ in range(repeats[who, variant]))
            end_of = {name: clocks[name]() for name in reversed(clocks)}
            for name in clocks:
                passed = end_of[name] - start_of[name]
                taken[name, who, variant].append(passed / batches * 1e6)
    return {
        name: {
            who: Result({variant: Times(tuple(taken[name, who, variant])) for variant in variants})
            for who, variants in contestants.items()
        }
        for name in clocks
    }


SLEEP_LATE_S = 0.0002  # a sleep may end so much too late


def wait_until(end: float) -> None:
    while (rest := end - perf_counter()) > 0:
        if rest > 2 * SLEEP_LATE_S:
            sleep(rest - SLEEP_LATE_S)


def share_of_work(loader: Iterable[Any], step: float) -> float:
    """Of its time that a simulated device works which needs `step` seconds for each batch: it
    computes while the loop asks for the next batch, and the loop waits only until it begins. The
    first batch, which nothing can hide, is left out."""
    batches = iter(loader)
    batch = next(batches)
    start = free_at = perf_counter()
    steps = 0
    while batch is not None:
        wait_until(free_at)  # then the device begins
        free_at = perf_counter() + step
        steps += 1
        batch = next(batches, None)
    return steps * step / (free_at - start)


def measure_shares(
    loaders: Mapping[str, Mapping[str, Iterable[Any]]], step: float, rounds: int
) -> dict[str, Result]:
    """share_of_work() of every loader, by contestant and variant, all in turns. Of shares
    Result.worst, the highest, is the best."""
    runs = [(who, variant) for who, of in loaders.items() for variant in of]
    taken: dict[tuple[str, str], list[float]] = {run: [] for run in runs}
    for _ in range(rounds):
        for who, variant in runs:
            taken[who, variant].append(share_of_work(loaders[who][variant], step))
    return {
        who: Result({variant: Times(tuple(taken[who, variant]), "%") for variant in of})
        for who, of in loaders.items()
    }


def time_first_batch(make_loader: Callable[[], Iterable[Any]]) -> float:
    """Seconds from making a loader to its first batch."""
    gc.collect()
    start = perf_counter()
    loader = make_loader()
    batches = iter(loader)
    next(batches)
    passed = perf_counter() - start
    for _batch in batches:  # workers that are through leave in peace
        pass
    return passed


def tree_cpu() -> float:
    """A clock: CPU seconds of this process and the worker processes it has now."""
    workers = (child.pid for child in multiprocessing.active_children())
    return process_time() + sum(_cpu_seconds(pid) for pid in workers if pid is not None)


def _cpu_seconds(pid: int) -> float:
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        return 0.0  # just gone
    return clock_gettime(clock.value)


def tree_pss_mb() -> float:
    """Megabytes of this process and its children; pages that processes share count once."""
    own = psutil.Process()
    pages = (process.memory_full_info().pss for process in (own, *own.children(recursive=True)))
    return float(sum(pages)) / 1e6


def memory_figures(before: float, during: float) -> dict[str, float]:
    """By tree_pss_mb(): megabytes, and how many of them a loader has added."""
    return {"pss_mb": round(during, 1), "added_mb": round(during - before, 1)}


def show_memory(figures: Mapping[str, float]) -> str:
    return "{pss_mb:.0f} MB, added {added_mb:.0f} MB".format(**figures)


def run_fresh(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """In a process of its own, as what this one has is not what is measured."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(function, *args).result()


class _Field(ctypes.Structure):
    MAX_THREADS = 64  # as in limit_gather.c
    _fields_ = [
        ("src", ctypes.c_void_p),
        ("dst", ctypes.c_void_p * MAX_THREADS),
        ("row_bytes", ctypes.c_int64),
    ]


class _Epoch(ctypes.Structure):
    _fields_ = [
        ("fields", ctypes.POINTER(_Field)),
        ("n_fields", ctypes.c_int64),
        ("order", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("streaming", ctypes.c_int64),
    ]


def build_library(name: str, *flags: str) -> ctypes.CDLL:
    """A C file beside this one, built here and now for this machine."""
    source = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "limit.so"
        command = [os.environ.get("CC", "cc"), "-O3", "-march=native", "-fPIC", "-shared"]
        subprocess.run([*command, *flags, source, "-o", library], check=True)
        return ctypes.CDLL(str(library))


class Limit:
    """limit_gather.c."""

    def __init__(self) -> None:
        self._library = build_library("limit_gather.c", "-pthread")
        self._library.limit_arithmetic.argtypes = [ctypes.c_int64]
        self._library.limit_arithmetic.restype = ctypes.c_double
        self.arithmetic: Callable[[int], float] = self._library.limit_arithmetic

    def epochs(
        self, fields: Sequence[np.ndarray], batch: int, threads: Sequence[int] = (1, 2)
    ) -> Epochs:
        """The gather with plain and with non-temporal stores, on each number of threads."""
        rows = len(fields[0])
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).numpy()
        sizes = [field[0].nbytes for field in fields]
        buffers = [[aligned(batch * size) for _ in range(max(threads))] for size in sizes]
        table = (_Field * len(fields))()
        for entry, source, size, targets in zip(table, fields, sizes, buffers, strict=True):
            assert source.flags.c_contiguous
            entry.src, entry.row_bytes = source.ctypes.data, size
            entry.dst[: len(targets)] = [target.ctypes.data for target in targets]
        kept = (fields, order, buffers)  # C reads and writes them

        def epoch(n: int, streaming: bool) -> Epoch:
            plan = _Epoch(table, len(fields), order.ctypes.data, rows, batch, n, streaming)

            def run(_kept: object = kept) -> int:
                if self._library.limit_run(ctypes.byref(plan)) != 0:
                    raise OSError("limit_gather could not start a thread")
                return math.ceil(rows / batch)

            return run

        stores = {"memcpy": False, "streaming": True}
        return {f"{name} x{n}": epoch(n, how) for name, how in stores.items() for n in threads}


def aligned(size: int) -> np.ndarray:
    """Warm bytes, 64-byte aligned, on huge pages where NumPy gets them."""
    room = np.zeros(size + 64, np.uint8)
    room.fill(1)
    start = -room.ctypes.data % 64
    return room[start : start + size]


@dataclass
class Goal:
    """`got` on the right side of `wanted`?"""

    name: str
    got: float
    wanted: float
    at_least: bool
    unit: str = "x"

    @property
    def met(self) -> bool:
        return self.got >= self.wanted if self.at_least else self.got <= self.wanted

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{show(self.got, self.unit)} {self.name} ({sign} {show(self.wanted, self.unit)})"


class Report:
    """A table row on stdout and a JSON line for each row; without a file, JSON after the table."""

    def __init__(self, json_path: Path | None, contestants: Sequence[str]) -> None:
        self._contestants = contestants
        self._widths = [42, *(42 for _ in contestants), 64, 3]
        self._file = json_path.open("w") if json_path else io.StringIO()

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_error: object) -> None:
        if isinstance(self._file, io.StringIO):
            print("\n" + self._file.getvalue(), end="")
        self._file.close()

    def open(self, **settings: Any) -> None:
        """The head: machine and settings."""
        machine = {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "torch_threads": torch.get_num_threads(),
            "numpy": np.__version__,
            "python": sys.version.split()[0],
            "date": date.today().isoformat(),
        }
        print(", ".join(f"{name} {value}" for name, value in (machine | settings).items()), "\n")
        self._json(machine | settings)
        self._table("work", *self._contestants, "goal", "met")
        self._table(*("-" * width for width in self._widths))

    def row(
        self,
        key: str,
        work: str,
        goals: Sequence[Goal],
        shown: Mapping[str, object],
        **measured: Any,
    ) -> None:
        """`shown`, by contestant, goes into the table; `measured` into the JSON line. A row without
        goals only informs."""
        met = all(goal.met for goal in goals) if goals else None
        verdict = {True: "yes", False: "NO", None: ""}[met]
        cells = [str(shown.get(who, "")) for who in self._contestants]
        self._table(work, *cells, ", ".join(map(str, goals)), verdict)
        judged = [vars(goal) | {"got": round(goal.got, 4), "met": goal.met} for goal in goals]
        self._json({"row": key, "work": work, "met": met, "goals": judged} | measured)

    def device_row(
        self,
        key: str,
        shares: Mapping[str, Result],
        ours: Iterable[str],
        wanted: float,
        step: float,
    ) -> None:
        """What measure_shares() has found of row `key`; the best of `ours` is judged."""
        best = {who: result.worst for who, result in shares.items()}
        judged = max(shares[who].variants[best[who]].median for who in ours)
        goals = [Goal("of its time", judged, wanted, True, "%")]
        shown = {who: f"{shares[who].variants[variant]} {variant}" for who, variant in best.items()}
        measured = {
            who: {variant: times.as_dict() for variant, times in result.variants.items()}
            for who, result in shares.items()
        }
        work = f"  a device that needs {step * 1e3:.3g} ms a batch works ({key})"
        self.row(f"{key}-device", work, goals, shown, step_s=round(step, 6), **measured)

    def _table(self, *cells: str) -> None:
        padded = [f"{cell:{width}}" for cell, width in zip(cells, self._widths, strict=True)]
        print("| " + " | ".join(padded) + " |", flush=True)

    def _json(self, line: dict[str, Any]) -> None:
        print(json.dumps(line, ensure_ascii=False), file=self._file, flush=True)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine
