"""Windows of tokens and padded texts, beside torch's loader, loops by hand and plain C.

    python benchmarks/bench_sequences.py [--rows a,b,c,d,e] [--quick] [--json FILE]

Every row is measured in 5 fresh processes. In each, everything takes turns: whole epochs of
`for batch in loader: pass`, loaders at their best of 0, 1 and 2 workers, median of 3 rounds. Shown
is the median of the processes (lowest - highest; the best variant); judged is the median of their
ratios. Before that, batches are compared bit for bit with torch's.

a    32 windows of 1 024 tokens of 16 bits, shuffled, from a file in the page cache: inputs and
     targets of 64 bits. torch: a Dataset that slices a memmap. hand: nanoGPT's get_batch, and one
     fancy index of an array in memory. limit: plain C that widens from memory, on 1 and 2 threads.
     "core": without workers, the process on one CPU, beside the fancy index.
b    the same from a file that is dropped from the page cache before every epoch, in order and
     shuffled. limit: plain C, one pread() a window in the same order. Memory: by how much the
     resident memory of the process grows after the first batch.
c    64 texts of 10 to 200 tokens, shuffled, padded, with a mask. fastloop: a RaggedArray. torch: a
     list of tensors, `pad_sequence` and a comparison.
d    the same from Python lists of ints, without workers. torch: torch.tensor() of each, then as in
     c. Also with fastloop's collate in torch's loader.
e    the share of its time that a simulated device works which needs half of torch's best time for
     each batch, for a and for c.

One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from _harness import (
    Epoch,
    Goal,
    Report,
    Result,
    Times,
    measure,
    measure_shares,
    parse_arguments,
)
from _work import assert_on_the_array_path, epochs_of, loader_epoch, on_one_cpu
from _work_sequences import Padding, TokenLimit, Tokens, forget_file, write_tokens
from torch.utils.data import DataLoader

COLUMNS = ("fastloop", "torch", "hand", "limit")
Figures = dict[str, dict[str, float]]  # of one process, by contestant and variant

WARM_BATCHES, COLD_BATCHES, TEXTS = 400, 8_000, 64 * 200
BUSY = 0.97
GROWTH_MB = 32  # some batches in flight; the cold file has 500


# ---- in a fresh process


@dataclass(frozen=True)
class Here:
    """What the parent process says."""

    folder: Path
    rounds: int
    seconds: float  # that each contestant runs in a round, at least
    texts: int

    @property
    def warm(self) -> Tokens:
        return Tokens(self.folder / "warm.bin")

    @property
    def cold(self) -> Tokens:
        return Tokens(self.folder / "cold.bin")


def medians(results: Mapping[str, Result]) -> Figures:
    return {
        who: {variant: times.median for variant, times in result.variants.items()}
        for who, result in results.items()
    }


def run_warm(here: Here) -> Figures:
    tokens = here.warm
    tokens.assert_same_windows()
    ours = tokens.loaders("fastloop")
    contestants = {
        "fastloop": epochs_of(ours),
        "torch": epochs_of(tokens.loaders("torch")),
        "core": {"one CPU": on_one_cpu(loader_epoch(ours["workers=0"]))},
        "hand": tokens.nano_gpt() | tokens.fancy_index(),
        "limit": TokenLimit(tokens).widen(),
    }
    figures = medians(measure(contestants, here.rounds, here.seconds))
    assert_on_the_array_path(ours.values())
    return figures


class _Memory:
    """Of this process, from the first batch of an epoch on."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._at_first = 0
        self.growth_mb = 0.0

    def note(self, batch: int) -> None:
        if batch == 0:
            self._at_first = self._process.memory_info().rss
        elif batch % 64 == 63:
            grown = self._process.memory_info().rss - self._at_first
            self.growth_mb = max(self.growth_mb, grown / 1e6)


def run_cold(here: Here, is_shuffled: bool) -> Figures:
    """Loaders are made anew for each epoch: pages that a process maps cannot be dropped."""
    tokens = here.cold
    runs = [("fastloop", 0), ("fastloop", 1), ("fastloop", 2), ("torch", 0), ("torch", 2)]
    pread = TokenLimit(tokens).pread(tokens.order(is_shuffled))
    memory = {who: _Memory() for who in ("fastloop", "torch")}

    def load(who: str, workers: int) -> Epoch:
        def epoch() -> int:
            loader = tokens.loader(who, workers, shuffle=is_shuffled)
            for number, _batch in enumerate(loader):
                memory[who].note(number)
            return tokens.batches

        return epoch

    epochs: dict[tuple[str, str], Epoch] = {(who, f"workers={n}"): load(who, n) for who, n in runs}
    epochs["limit", "pread"] = pread
    taken: dict[tuple[str, str], list[float]] = {run: [] for run in epochs}
    for _ in range(here.rounds):
        for run, epoch in epochs.items():
            gc.collect()
            forget_file(tokens.path)
            start = perf_counter()
            batches = epoch()
            taken[run].append((perf_counter() - start) / batches * 1e6)
    figures: Figures = {who: {} for who in ("fastloop", "torch", "limit")}
    for (who, variant), times in taken.items():
        figures[who][variant] = statistics.median(times)
    figures["growth"] = {who: of.growth_mb for who, of in memory.items()}
    return figures


def run_ragged(here: Here) -> Figures:
    padding = Padding(here.texts)
    padding.assert_same_texts()
    ours = padding.ragged_loaders("fastloop")
    contestants = {"fastloop": epochs_of(ours), "torch": epochs_of(padding.ragged_loaders("torch"))}
    figures = medians(measure(contestants, here.rounds, here.seconds))
    assert_on_the_array_path(ours.values())
    return figures


def run_lists(here: Here) -> Figures:
    padding = Padding(here.texts)
    padding.assert_same_texts()
    return medians(measure(padding.list_epochs(), here.rounds, here.seconds))


def run_device(here: Here, loaders_of: Callable[[str], dict[str, DataLoader[Any]]]) -> Figures:
    loaders = {who: loaders_of(who) for who in ("fastloop", "torch")}
    theirs = measure({"torch": epochs_of(loaders["torch"])}, here.rounds, here.seconds)["torch"]
    step = theirs.median * 1e-6 / 2
    return medians(measure_shares(loaders, step, here.rounds)) | {"step": {"us": step * 1e6}}


RUNS: dict[str, Callable[[Here], Figures]] = {
    "a": run_warm,
    "b": lambda here: run_cold(here, is_shuffled=False),
    "b-shuffled": lambda here: run_cold(here, is_shuffled=True),
    "c": run_ragged,
    "d": run_lists,
    "e-tokens": lambda here: run_device(here, here.warm.loaders),
    "e-texts": lambda here: run_device(here, Padding(here.texts).ragged_loaders),
}


def here_main(run: str, folder: str, rounds: str, seconds: str, texts: str) -> None:
    here = Here(Path(folder), int(rounds), float(seconds), int(texts))
    print(json.dumps(RUNS[run](here)))


# ---- the parent


@dataclass(frozen=True)
class Bench:
    """What every row needs."""

    report: Report
    processes: int
    settings: tuple[str, ...]  # of Here

    def run(self, name: str) -> Measured:
        command = [sys.executable, __file__, "--here", name, *self.settings]
        runs: list[Figures] = []
        for _ in range(self.processes):
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout))
        return Measured(runs)


class Measured:
    """What the processes found."""

    def __init__(self, runs: list[Figures]) -> None:
        self._runs = runs

    def of(self, who: str, unit: str = "µs") -> Result:
        return Result(
            {
                variant: Times(tuple(run[who][variant] for run in self._runs), unit)
                for variant in self._runs[0][who]
            }
        )

    def ratio(self, above: str, below: str) -> Times:
        """Of the best variants."""
        pairs = [(min(run[above].values()), min(run[below].values())) for run in self._runs]
        return Times(tuple(a / b for a, b in pairs), "x")

    def as_dict(self) -> dict[str, Any]:
        return {who: self.of(who).as_dict() for who in self._runs[0]}


def report_times(bench: Bench, key: str, work: str, found: Measured, goals: list[Goal]) -> None:
    names = found.as_dict()
    shown = {who: found.of(who) for who in COLUMNS if who in names}
    ratios = {
        f"ratio_{who}": found.ratio(who, "fastloop").as_dict() for who in shown if who != "fastloop"
    }
    bench.report.row(key, work, goals, shown, **ratios, **names)


def times_torch(found: Measured, wanted: float) -> Goal:
    return Goal("torch's speed", found.ratio("torch", "fastloop").median, wanted, at_least=True)


def of_the_limit(found: Measured, wanted: float) -> Goal:
    return Goal("of the limit", found.ratio("limit", "fastloop").median, wanted, True, "%")


def row_a(bench: Bench) -> None:
    found = bench.run("a")
    goals = [times_torch(found, 5), of_the_limit(found, 0.7)]
    report_times(bench, "a", "32 x 1 024 tokens, page cache", found, goals)
    by_hand = found.ratio("hand", "core").median
    shown = {"fastloop": found.of("core"), "hand": found.of("hand")}
    goals = [Goal("hand's speed", by_hand, 1, at_least=True)]
    bench.report.row("a-core", "  on one core", goals, shown, fastloop=found.of("core").as_dict())


def row_b(bench: Bench) -> None:
    for run, order in (("b", "in order"), ("b-shuffled", "shuffled")):
        found = bench.run(run)
        work = f"32 x 1 024 tokens, cold, {order}"
        report_times(bench, run, work, found, [of_the_limit(found, 0.8)])
        growth = found.of("growth", "MB").variants
        goals = [Goal("of growth", max(growth["fastloop"].rounds), GROWTH_MB, False, "MB")]
        measured = {who: times.as_dict() for who, times in growth.items()}
        bench.report.row(f"{run}-memory", "  memory", goals, growth, **measured)


def row_c(bench: Bench) -> None:
    found = bench.run("c")
    work = "64 texts of 10-200, padded, from arrays"
    report_times(bench, "c", work, found, [times_torch(found, 15)])


def row_d(bench: Bench) -> None:
    found = bench.run("d")
    work = "64 texts of 10-200, padded, from lists"
    report_times(bench, "d", work, found, [times_torch(found, 4)])


def row_e(bench: Bench) -> None:
    for run, of in (("e-tokens", "a"), ("e-texts", "c")):
        found = bench.run(run)
        shares = {who: found.of(who, "%") for who in ("fastloop", "torch")}
        # Of shares the highest is the best, which Result.worst is of times.
        best = {
            who: (result.variants[result.worst], result.worst) for who, result in shares.items()
        }
        goals = [Goal("of its time", best["fastloop"][0].median, BUSY, True, "%")]
        shown = {who: f"{times} {variant}" for who, (times, variant) in best.items()}
        work = f"  a device that needs {found.of('step').median:.3g} µs a batch works ({of})"
        bench.report.row(run, work, goals, shown, **found.as_dict())


ROWS = {"a": row_a, "b": row_b, "c": row_c, "d": row_d, "e": row_e}


def main() -> None:
    args = parse_arguments(__doc__, "abcde")
    processes, rounds, seconds = (2, 2, 0.03) if args.is_quick else (5, 3, 0.2)
    shrink = 20 if args.is_quick else 1
    with ExitStack() as stack:
        report = stack.enter_context(Report(args.json, COLUMNS))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        batch = 32 * 1024
        if {"a", "e"} & set(args.rows):
            write_tokens(Path(folder) / "warm.bin", WARM_BATCHES // shrink * batch + 1)
        if "b" in args.rows:
            write_tokens(Path(folder) / "cold.bin", COLD_BATCHES // shrink * batch + 1)
        report.open(processes=processes, rounds=rounds, seconds=seconds)
        settings = (folder, str(rounds), str(seconds), str(TEXTS // shrink))
        for key in args.rows:
            ROWS[key](Bench(report, processes, settings))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here_main(*sys.argv[2:])
    else:
        main()
