"""Two worker threads with and without the interpreter lock, on an interpreter that can do without
it (CPython 3.13t), beside two processes.

    python3.13t benchmarks/bench_free_threading.py [--rows n,j,p] [--quick] [--json FILE]

Samples, which bench_workers.py has, too:
n    log spectra of 4 s of sound by NumPy, batch 32.
j    a folder of JPEG files of 500x375: RandomResizedCrop(224), flip, f32, normalise, batch 32.
     simplejpeg decodes where it is installed, else Pillow.
p    features parsed from a line of text in pure Python, batch 64.

Each contestant has a process of its own, because worker processes that are forked from a process
slow its threads, too: its pages are copied. Five times in turns, median of 3 rounds: fastloop's
threads with the lock (PYTHON_GIL=1); then without it (PYTHON_GIL=0) threads, fastloop's processes,
torch's processes, and "plain": two threads that fetch the samples (j: that decode the files)
without any loader.

Judged by the median of the five turns: n and j, the time of processes / that of threads; p, the
time of threads with the lock / without it. One table row each on stdout; one JSON line each in
FILE, or on stdout after the table.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _harness import Epochs, Goal, Report, Times, measure, parse_arguments
from _work_workers import (
    CORES,
    Folder,
    Spectra,
    Variants,
    assert_on_its_path,
    assert_same_batches,
    counting_epochs,
    getitem_alone,
    make_loaders,
    processes,
    threads,
    write_images,
)
from torch.utils.data import Dataset

LOCKED = "threads with the lock"
WAYS: dict[str, tuple[str, Variants]] = {
    LOCKED: ("fastloop", threads(CORES)),
    "threads": ("fastloop", threads(CORES)),
    "processes": ("fastloop", processes(CORES)),
    "torch": ("torch", {"workers": {"num_workers": CORES}}),
}
CODEC = "simplejpeg" if importlib.util.find_spec("simplejpeg") else "Pillow"
COLUMNS = (*WAYS, "plain")
WORK = {
    "n": "log spectra by NumPy, batch 32",
    "j": f"JPEG folder by {CODEC}: crop 224, flip, f32, batch 32",
    "p": "64 features parsed in Python, batch 64",
}


class Lines(Dataset[Any]):
    """Features from a line of text: nothing here lets go of the interpreter lock."""

    def __init__(self, samples: int) -> None:
        self.lines = [
            ";".join(f"f{i}={(number * 31 + i * 7) % 1000}" for i in range(64))
            for number in range(samples)
        ]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, float]:
        features = {}
        for pair in self.lines[index].split(";"):
            name, _, text = pair.partition("=")
            value = 0
            for digit in text:
                value = value * 10 + ord(digit) - 48
            features[name] = value / 1000
        return {"low": min(features.values()), "sum": sum(features.values())}


def open_row(row: str, root: Path, shrink: int) -> tuple[Any, int, Callable[[], Epochs]]:
    """The dataset, its batch, and the plain threads."""
    if row == "j":
        folder = Folder(root, CODEC)
        return folder.transformed(), folder.BATCH, folder.decode_alone
    dataset: Any = Spectra(32 * 20 // shrink, 4) if row == "n" else Lines(64 * 80 // shrink)
    batch = 32 if row == "n" else 64
    return dataset, batch, lambda: getitem_alone(dataset, batch)


def run_here(who: str, row: str, root: str, rounds: int, seconds: float, shrink: int) -> float:
    """Microseconds a batch, in this process."""
    dataset, batch, plain = open_row(row, Path(root), shrink)
    if sys._is_gil_enabled() != (who == LOCKED):
        raise SystemExit("a module that was imported has put the interpreter lock back")
    if who == "plain":
        return measure({who: plain()}, rounds, seconds)[who].median
    whose, variants = WAYS[who]
    loaders = make_loaders(whose, dataset, batch, variants, shuffle=True)
    took = measure({who: counting_epochs(loaders)}, rounds, seconds)[who].median
    if whose == "fastloop":
        assert_on_its_path(loaders)
    return took


def run_fresh(who: str, *args: Any) -> float:
    command = [sys.executable, __file__, "--here", who, *map(str, args)]
    environment = os.environ | {"PYTHON_GIL": "1" if who == LOCKED else "0"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout)


def report_row(report: Report, row: str, took: list[dict[str, float]]) -> None:
    times = {who: Times(tuple(turn[who] for turn in took)) for who in COLUMNS}
    ratios = {
        who: Times(tuple(turn[who] / turn["threads"] for turn in took), "x") for who in COLUMNS
    }
    judged, wanted = (LOCKED, 1.3) if row == "p" else ("processes", 1.0)
    goals = [Goal(f"the speed of {judged}", ratios[judged].median, wanted, True)]
    figures = {who: time.as_dict() for who, time in times.items()}
    shares = {who: ratio.as_dict() for who, ratio in ratios.items()}
    report.row(row, WORK[row], goals, times, us_per_batch=figures, times_threads=shares)


def main() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit("this needs an interpreter that can do without the lock, as CPython 3.13t")
    args = parse_arguments(__doc__, "njp")
    turns, rounds, seconds, shrink = (2, 2, 0.05, 5) if args.is_quick else (5, 3, 0.3, 1)
    with Report(args.json, COLUMNS) as report, tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), Folder.BATCH * max(10 // shrink, 3))
        assert_same_batches(Lines(256), 64, threads(CORES), processes(CORES))
        report.open(turns=turns, rounds=rounds, seconds=seconds)
        for row in args.rows:
            settings = (row, folder, rounds, seconds, shrink)
            took = [{who: run_fresh(who, *settings) for who in COLUMNS} for _ in range(turns)]
            report_row(report, row, took)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        who, row, root, rounds, seconds, shrink = sys.argv[2:]
        print(run_here(who, row, root, int(rounds), float(seconds), int(shrink)))
    else:
        main()
