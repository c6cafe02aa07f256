"""Has a program become slower than its stored baseline? This module does not import torch.

Runs of today and runs of the baseline never met, and the machine may have been busier on one of the
two days. So each run has a *yardstick* beside it: fixed work whose seconds are measured before and
after the program. Times of steps are compared in units of the yardstick.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from fastloop.tools.compare.runs import Figure, draw_interval
from fastloop.tools.text import ratio as show_ratio
from fastloop.tools.text import seconds

SCHEMA = "fastloop.baseline/1"
LEAST_ROUNDS = 5  # the interval of fewer runs means little
_TIMES = 5  # the yardstick is the least of so many measurements: the least disturbed one
_FACTS = {"machine", "python", "torch", "program", "steps"}  # what a baseline must share

Round = tuple[float, float]  # the seconds of a run's mean step, and of the yardstick beside it


def measure_yardstick() -> float:
    """Return the seconds of fixed work: Python code, a hash, and copies larger than most caches."""
    block = bytearray(1 << 25)

    def work() -> float:
        began = perf_counter()
        sum(i * i for i in range(200_000))
        hashlib.sha256(memoryview(block)[: 1 << 22])
        bytes(block)
        return perf_counter() - began

    return min(work() for _ in range(_TIMES))


def describe(
    program: Sequence[str], run: dict[str, Any], rounds: Sequence[Round]
) -> dict[str, Any]:
    """Return a baseline for JSON. The facts say where it holds; docs/api/tools.md has the keys."""
    return {
        "schema": SCHEMA,
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "fastloop": run["fastloop"],
        "torch": run["torch"],
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {_processor()}",
        "program": " ".join(program),
        "steps": run["steps"],
        "rounds": rounds,
    }


def _processor() -> str:
    """Return the name of the processor, "" where Linux does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


class Judgement(NamedTuple):
    """The exit status, 0, 1 (slower) or 2 (cannot tell), and the reason as text."""

    status: int
    text: str


def judge(baseline: dict[str, Any], today: dict[str, Any], most: float) -> Judgement:
    """Compare a program with its baseline.

    Args:
        most: the share by which a step may take longer, for example 0.03.
    """
    other = [f"{k}: {baseline[k]!r}, today {today[k]!r}" for k in _FACTS if baseline[k] != today[k]]
    if other:
        where = "; ".join(sorted(other))
        return Judgement(2, f"CANNOT TELL: the baseline is of something else. {where}")
    figure = _compare(baseline["rounds"], today["rounds"])
    before, now = (statistics.median(a for a, _ in of["rounds"]) for of in (baseline, today))
    shown = f"{show_ratio(figure.median)} ({show_ratio(figure.low)} - {show_ratio(figure.high)})"
    said = f"a step takes {shown} of the baseline's time, {seconds(now)} after {seconds(before)}"
    if figure.low > 1 + most:
        return Judgement(1, f"SLOWER: {said}; allowed are {1 + most:.3g}x")
    if figure.high > 1 + most:
        remedy = f"allowed are {1 + most:.3g}x, and the noise is larger; use more --rounds"
        return Judgement(2, f"CANNOT TELL: {said}; {remedy}")
    return Judgement(0, f"NOT SLOWER: {said}; allowed are {1 + most:.3g}x")


def _compare(before: Sequence[Round], now: Sequence[Round]) -> Figure:
    """Return today's median step over the baseline's, in units of the yardstick, with the
    interval."""

    def divide(a: Sequence[float], b: Sequence[float]) -> float:
        return statistics.median(b) / statistics.median(a)

    return draw_interval(divide, *([step / yard for step, yard in of] for of in (before, now)))


def read(path: Path) -> dict[str, Any]:
    """Return the baseline in a file.

    Raises:
        ValueError: the file does not hold a whole baseline.
        OSError: the file cannot be read.
    """
    found = json.loads(path.read_text())
    try:
        rounds = [(float(a), float(b)) for a, b in found["rounds"]]
        is_whole = found["schema"] == SCHEMA and len(rounds) >= LEAST_ROUNDS
        if is_whole and all(min(of) > 0 for of in rounds) and found.keys() >= _FACTS:
            return {**found, "rounds": rounds}
    except (KeyError, TypeError):
        pass
    raise ValueError(f"not a whole baseline of schema {SCHEMA!r}")
