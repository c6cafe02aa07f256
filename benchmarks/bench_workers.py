"""Workers of every kind: threads and processes of fastloop, and torch's processes.

    python benchmarks/bench_workers.py [--rows a,b,c,d,e,f,g,h,i] [--quick] [--json FILE]

a and b need torchvision, as bench_preprocess.py does:
pip install --no-deps -r requirements-bench.txt

Times a batch are of whole epochs of `for batch in loader: pass`, workers persist, everything takes
turns, median of 5 rounds (lowest - highest; the best variant). Each contestant is at its best of
its variants: torch of 0, 1 and 2 workers, fastloop of 1 and 2 threads, and of 1 and 2 processes.
Before that, batches are compared with torch's.

a    a folder of JPEG files, 500x375, 85 KB each: RandomResizedCrop(224), flip, f32, normalise,
     batch 32. fastloop decodes by simplejpeg, torchvision by Pillow, and its images are cropped as
     tensors or as PIL's, whichever is faster.
       - "codec": torch's loader and torchvision's transforms with simplejpeg, too: what the codec
         gives, and what is left for the loader;
       - "device": the share of its time that a simulated device works which needs half of torch's
         best time for each batch.
     limit: decoding alone on 2 threads, from memory.
b    the same with Pillow for both.
c    16 workers and samples that take 2 ms of waiting, batch 8: the share that is reached of
     16 samples in 2 ms. The slack of timers is set to 1 ns, so that 2 ms are not 2.06.
     limit: the same samples on 16 plain threads, without any loader.
       - "first": from making the loader to its first batch, less the waiting of that batch.
d    log spectra of 4 s of sound by NumPy, whose calls let go of the interpreter lock, batch 32.
     limit: the samples on 2 plain threads, without any loader: what the lock leaves of 2 cores.
     All of them in a process whose malloc keeps what is freed, as fastloop's loaders let it.
       - "memory": the PSS of a process that only loads and of its workers, 2 of each kind, forked,
         at the end of an epoch over every eighth of 1 280 000 Python tuples, in random order.
e    a stream of JSON records (a text, a label, 256 tokens), batch 128; fastloop on its default
     path, and with one thread. limit: reading and parsing alone, in 1 and in 2 processes.
f    the samples of c, batch 32, so 64 ms of one worker's time, 4 persistent processes, 40 epochs of
     20 batches in a row: the share of its time that a simulated device works which needs 20 ms for
     a batch, with epochs_ahead=1, without, and with torch's workers.
g    20 epochs without persistent workers, on the array path: 2 threads crop, resize and cast 32
     images for each batch, and the device needs 30 ms for it.
h    the images of a with 2 persistent workers and torch's with the same ImageFolder: from iter() to
     the first batch of a later epoch, as a share of the epoch's time for each batch.
     limit: the same of 2 plain threads, which take one sample each in turn, without any loader.
i    a program's first batch of the images of a, 2 workers; torch's with torchvision's ImageFolder.
     Fresh processes, which have imported torch, NumPy, Pillow, simplejpeg, and torchvision for
     torch. First the time before next(): `import fastloop`, opening the folder, making the loader,
     iter(). Of processes torch's time for the same steps is not fastloop's own. Then the wait for
     the batch, as a share of half the time in which one thread makes it when everything is warm.
     limit: the same samples on 2 plain threads of a fresh process, without any loader.

One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from _harness import (
    Epochs,
    Goal,
    Report,
    Result,
    Times,
    measure,
    measure_shares,
    memory_figures,
    parse_arguments,
    run_fresh,
    show_memory,
    time_first_batch,
    tree_pss_mb,
)
from _work import LOADERS
from _work_first import NAMES, STEPS, WORKERS
from _work_workers import (
    TORCH_VARIANTS,
    Folder,
    Records,
    Sleeper,
    Spectra,
    TakenInTurn,
    Variants,
    assert_on_its_path,
    assert_same_batches,
    counting_epochs,
    getitem_alone,
    make_loader,
    make_loaders,
    processes,
    read_alone,
    sleep_alone,
    threads,
    write_images,
    write_records,
)
from torch.utils.data import Subset

import fastloop
from fastloop import transforms as T

COLUMNS = ("threads", "processes", "torch", "limit")
OURS = {"threads": threads(1, 2), "processes": processes(1, 2)}
TIMES_TORCH = {"a": 2, "b": 1.15}
BUSY = 0.9
SLEEPERS = 16
OF_THE_IDEAL, FIRST_BATCH_US = 0.95, 10_000
OF_THE_MEMORY = 0.5
STREAM_TIMES_TORCH = 1.6
OF_THE_EPOCHS = 0.98
OF_A_BATCH = 1.1
OWN_START_US, OF_THE_WORK = 25_000, 1.2
PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class Bench:
    """What every row needs."""

    report: Report
    rounds: int
    seconds: float  # that each contestant runs in a round, at least
    folder: Path  # for the files of this run
    shrink: int  # by how much there is less to load

    def measure(
        self, loaders: Mapping[str, dict[str, Any]], limit: Epochs | None = None
    ) -> dict[str, Result]:
        """`loaders` by contestant and variant."""
        contestants = {who: counting_epochs(of) for who, of in loaders.items()}
        if limit is not None:
            contestants["limit"] = limit
        return measure(contestants, self.rounds, self.seconds)


def report_times(
    bench: Bench, key: str, work: str, goals: Sequence[Goal], results: Mapping[str, Result]
) -> None:
    ours = best_of_ours(results)
    ratios = {
        f"ratio_{who}": round(results[who].median / ours, 4)
        for who in ("torch", "limit")
        if who in results
    }
    measured = {who: result.as_dict() for who, result in results.items()}
    shown = {who: result for who, result in results.items() if who in COLUMNS}
    bench.report.row(key, work, goals, shown, **ratios, **measured)


def best_of_ours(results: Mapping[str, Result]) -> float:
    return min(results[who].median for who in OURS if who in results)


def times_torch(results: Mapping[str, Result], wanted: float) -> Goal:
    return Goal("torch's speed", results["torch"].median / best_of_ours(results), wanted, True)


# ---- a, b


def images_of(bench: Bench) -> Path:
    root = bench.folder / "images"
    if not root.exists():
        root.mkdir()
        write_images(root, Folder.BATCH * max(20 // bench.shrink, 3))
    return root


def row_images(bench: Bench, key: str, codec: str) -> None:
    folder = Folder(images_of(bench), codec)
    folder.assert_same_images(*OURS.values())
    loaders = {who: folder.our_loaders(variants) for who, variants in OURS.items()}
    loaders["torch"] = folder.their_loaders("Pillow")
    if codec != "Pillow":
        loaders["codec"] = folder.their_loaders(codec)
    results = bench.measure(loaders, folder.decode_alone())
    for who in OURS:
        assert_on_its_path(loaders[who])
    work = f"JPEG folder by {codec}: crop 224, flip, f32, batch {Folder.BATCH}"
    report_times(bench, key, work, [times_torch(results, TIMES_TORCH[key])], results)
    if codec != "Pillow":
        report_codec(bench, key, codec, results)
        row_device(bench, key, loaders, results["torch"].median * 1e-6 / 2)
    del loaders
    gc.collect()  # its workers leave before the next row


def report_codec(bench: Bench, key: str, codec: str, results: Mapping[str, Result]) -> None:
    theirs = results["codec"]
    figures = {
        "ratio_codec": round(results["torch"].median / theirs.median, 4),
        "ratio_loader": round(theirs.median / best_of_ours(results), 4),
    }
    work = f"  torch's loader with {codec}, too ({key})"
    bench.report.row(f"{key}-codec", work, [], {"torch": theirs}, torch=theirs.as_dict(), **figures)


def row_device(bench: Bench, key: str, loaders: Mapping[str, Any], step: float) -> None:
    with_workers = {
        who: {of: loader for of, loader in loaders[who].items() if of != "workers=0"}
        for who in (*OURS, "torch")
    }
    shares = measure_shares(with_workers, step, min(bench.rounds, 3))
    bench.report.device_row(key, shares, OURS, BUSY, step)


def row_a(bench: Bench) -> None:
    row_images(bench, "a", "simplejpeg")


def row_b(bench: Bench) -> None:
    row_images(bench, "b", "Pillow")


# ---- c

SLEEPING: dict[str, tuple[str, Variants]] = {
    "threads": ("fastloop", threads(SLEEPERS)),
    "processes": ("fastloop", processes(SLEEPERS)),
    "torch": ("torch", {f"workers={SLEEPERS}": {"num_workers": SLEEPERS}}),
}


def row_c(bench: Bench) -> None:
    batch = 8
    ideal_us = batch * Sleeper.SECONDS / SLEEPERS * 1e6
    if ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) != 0:  # threads and forks inherit it
        raise OSError("the slack of timers cannot be set")
    dataset = Sleeper(SLEEPERS * batch * max(20 // bench.shrink, 4))
    assert_same_batches(Sleeper(4 * batch), batch, threads(2), processes(2))
    loaders = {
        who: make_loaders(whose, dataset, batch, variants)
        for who, (whose, variants) in SLEEPING.items()
    }
    results = bench.measure(loaders, sleep_alone(dataset, batch, SLEEPERS))
    for who in OURS:
        assert_on_its_path(loaders[who])
    reached = {who: of_the_ideal(result, ideal_us) for who, result in results.items()}
    goals = [Goal("of the ideal", reached["threads"].median, OF_THE_IDEAL, True, "%")]
    measured = {who: times.as_dict() for who, times in reached.items()}
    work = f"2 ms of waiting a sample, {SLEEPERS} workers, batch {batch}"
    bench.report.row("c", work, goals, reached, **measured)
    del loaders
    gc.collect()
    row_first_batch(bench, dataset, batch)


def of_the_ideal(result: Result, ideal_us: float) -> Times:
    return Times(tuple(ideal_us / us for us in result.variants[result.best].rounds), "%")


def row_first_batch(bench: Bench, dataset: Sleeper, batch: int) -> None:
    taken: dict[str, list[float]] = {who: [] for who in SLEEPING}
    for _ in range(bench.rounds):
        for who, (whose, variants) in SLEEPING.items():
            passed = time_first_batch(partial(make_loader, whose, dataset, batch, variants))
            # All threads make the samples of the first batch.
            waits = -(-batch // SLEEPERS) if who == "threads" else batch
            taken[who].append((passed - waits * dataset.SECONDS) * 1e6)
    times = {who: Times(tuple(rounds)) for who, rounds in taken.items()}
    goals = [Goal("to the first", times["threads"].median, FIRST_BATCH_US, False, "µs")]
    measured = {who: each.as_dict() for who, each in times.items()}
    bench.report.row(
        "c-first", "  to the first batch, less its waiting (c)", goals, times, **measured
    )


# ---- d


def spectra_loaders(dataset: Spectra, batch: int) -> dict[str, dict[str, Any]]:
    more = {"shuffle": True}
    loaders = {
        who: make_loaders("fastloop", dataset, batch, of, **more) for who, of in OURS.items()
    }
    return loaders | {"torch": make_loaders("torch", dataset, batch, TORCH_VARIANTS, **more)}


def row_d(bench: Bench) -> None:
    batch = 32
    dataset = Spectra(batch * max(40 // bench.shrink, 4), seconds=4)
    loaders = spectra_loaders(dataset, batch)
    assert_same_batches(Spectra(4 * batch, seconds=1), batch, *OURS.values())
    results = bench.measure(loaders, getitem_alone(dataset, batch))
    for who in OURS:
        assert_on_its_path(loaders[who])
    ratio = results["processes"].median / results["threads"].median
    goals = [Goal("processes' speed", ratio, 1, at_least=True)]
    report_times(bench, "d", f"log spectra by NumPy, batch {batch}", goals, results)
    del loaders
    gc.collect()
    report_memory(bench)


# What was spawned would have a copy of everything.
FORK = {"num_workers": 2, "multiprocessing_context": "fork"}
MEMORY: dict[str, tuple[str, Variants]] = {
    "threads": ("fastloop", threads(2)),
    "processes": ("fastloop", {"processes=2": FORK | {"path": "process"}}),
    "torch": ("torch", {"workers=2": FORK}),
}


def memory_of(who: str, samples: int) -> dict[str, float]:
    """Runs in a process of its own: megabytes before, and at the end of an epoch."""
    dataset = Subset(Spectra(samples, seconds=0.1), range(0, samples, 8))
    before = during = tree_pss_mb()
    whose, variants = MEMORY[who]
    loader = make_loader(whose, dataset, 256, variants, shuffle=True)
    for number, _batch in enumerate(loader, 1):
        if number == len(loader):
            during = tree_pss_mb()
    return memory_figures(before, during)


def report_memory(bench: Bench) -> None:
    measured = {who: run_fresh(memory_of, who, 1_280_000 // bench.shrink) for who in MEMORY}
    share = measured["threads"]["pss_mb"] / measured["processes"]["pss_mb"]
    goals = [Goal("of processes' memory", share, OF_THE_MEMORY, False, "%")]
    shown = {who: show_memory(figures) for who, figures in measured.items()}
    bench.report.row("d-memory", "  memory (PSS), an index of tuples (d)", goals, shown, **measured)


# ---- e


def row_e(bench: Bench) -> None:
    batch = 128
    root = bench.folder / "records"
    root.mkdir()
    write_records(root, batch * max(96 // bench.shrink, 8))
    dataset = Records(root)
    variants = {"processes": {"sync": {"num_workers": 0}} | processes(1, 2), "threads": threads(1)}
    assert_same_batches(dataset, batch, *variants.values())
    loaders = {who: make_loaders("fastloop", dataset, batch, of) for who, of in variants.items()}
    loaders["torch"] = make_loaders("torch", dataset, batch, TORCH_VARIANTS)
    results = bench.measure(loaders, read_alone(dataset, batch))
    for who in OURS:
        assert_on_its_path(loaders[who])
    work = f"stream of JSON records, batch {batch}"
    report_times(bench, "e", work, [times_torch(results, STREAM_TIMES_TORCH)], results)


# ---- f


@dataclass(frozen=True)
class InARow:
    """The epochs of a loader, one after the other."""

    loader: Any
    epochs: int

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(repeat(self.loader, self.epochs))


def row_f(bench: Bench) -> None:
    variants = {"workers=4": {"num_workers": 4, "multiprocessing_context": "fork"}}
    make = partial(make_loader, dataset=Sleeper(20 * 32), batch=32, variants=variants)
    report_epochs(bench, "f", "processes", "a device of 20 ms a batch", 20e-3, 40, make)


# ---- g


def row_g(bench: Bench) -> None:
    images = torch.randint(256, (20 * 32, 3, 256, 256), dtype=torch.uint8)
    crop = T.Compose([T.RandomResizedCrop(224), T.ToDtype(torch.float32, scale=True)])
    dataset = fastloop.ArrayDataset(image=images, transform=crop)

    def make(who: str, **more: Any) -> Any:
        return LOADERS[who](dataset, 32, num_workers=2, **more)

    report_epochs(bench, "g", "threads", "32 crops of an array, 30 ms a batch", 30e-3, 20, make)


def report_epochs(
    bench: Bench,
    key: str,
    ours: str,
    work: str,
    step: float,
    epochs: int,
    make: Callable[..., Any],
) -> None:
    """Epochs of 20 batches in a row beside a simulated device that needs `step` for a batch."""
    epochs = max(epochs // bench.shrink, 3)
    ahead = make("fastloop", shuffle=True, epochs_ahead=1)
    loaders = {ours: ahead, "without": make("fastloop", shuffle=True)}
    loaders["torch"] = make("torch", shuffle=True)
    runs = {who: {"": InARow(loader, epochs)} for who, loader in loaders.items()}
    shares = measure_shares(runs, step, bench.rounds)
    goals = [Goal("of its time", shares[ours].median, OF_THE_EPOCHS, True, "%")]
    measured = {who: share.as_dict() for who, share in shares.items()}
    work += f", {epochs} epochs of 20 batches in a row, read ahead"
    bench.report.row(key, work, goals, shares, **measured)
    if (drops := ahead.stats().ahead_drops) > bench.rounds:  # loaders in turn draw between rounds
        raise AssertionError(f"{drops} epochs were foreseen wrongly")


# ---- h


def row_h(bench: Bench) -> None:
    dataset, whose = (
        Folder(images_of(bench), "simplejpeg").transformed(),
        dict.fromkeys(OURS, "fastloop"),
    )
    variants = {"threads": threads(2), "processes": processes(2), "torch": {"": {"num_workers": 2}}}
    loaders = {
        who: make_loader(whose.get(who, who), dataset, Folder.BATCH, of)
        for who, of in variants.items()
    }
    loaders["limit"] = TakenInTurn(dataset, Folder.BATCH)
    taken: dict[str, list[float]] = {who: [] for who in loaders}
    for turn in range(4 * bench.rounds + 1):
        for who, loader in loaders.items():
            begin = perf_counter()
            batches = iter(loader)
            next(batches)
            first = perf_counter() - begin
            each = (first + time_rest(batches)) / len(loader)
            taken[who] += [first / each] if turn > 0 else []  # workers start in the first epoch
    shares = {who: Times(tuple(rounds), "%") for who, rounds in taken.items()}
    goals = [Goal("of a batch", shares["processes"].median, OF_A_BATCH, False, "%")]
    measured = {who: each.as_dict() for who, each in shares.items()}
    bench.report.row("h", "the first batch of an epoch of images", goals, shares, **measured)


def time_rest(batches: Iterator[Any]) -> float:
    begin = perf_counter()
    for _batch in batches:
        pass
    return perf_counter() - begin


# ---- i


def row_i(bench: Bench) -> None:
    root = images_of(bench)
    taken: dict[str, list[dict[str, float]]] = {who: [] for who in NAMES}
    # Python keeps the byte code of modules, and fastloop its verdicts, as on users' machines.
    own = {"PYTHONDONTWRITEBYTECODE": "", "XDG_CACHE_HOME": str(bench.folder)}
    program = Path(__file__).with_name("_work_first.py")
    for turn in range(2 * bench.rounds):
        for who, each in taken.items():
            command = [sys.executable, program, who, root]
            done = subprocess.run(
                command, env=os.environ | own, check=True, stdout=subprocess.PIPE
            ).stdout
            each += [json.loads(done)] if turn > 0 else []
    starts = {
        who: Times(tuple(1e3 * sum(one[step] for step in STEPS) for one in each))
        for who, each in taken.items()
    }
    added = {who: starts[who].median for who in OURS}
    added["processes"] -= starts["torch"].median
    goals = [Goal(f"of {who}", us, OWN_START_US, False, "µs") for who, us in added.items()]
    measured: dict[str, Any] = {
        who: {step: Times(tuple(one[step] for one in each)).as_dict() for step in each[0]}
        for who, each in taken.items()
    }
    bench.report.row("i", "a program's steps before its first batch", goals, starts, ms=measured)
    shares = {
        who: Times(tuple(WORKERS * one["first"] / one["work"] for one in each), "%")
        for who, each in taken.items()
    }
    goals = [Goal(who, shares[who].median, OF_THE_WORK, False, "%") for who in OURS]
    bench.report.row("i-first", "  the wait for the batch, of its work / 2 (i)", goals, shares)


ROWS: dict[str, Callable[[Bench], None]] = {
    "a": row_a,
    "b": row_b,
    "c": row_c,
    "d": row_d,
    "e": row_e,
    "f": row_f,
    "g": row_g,
    "h": row_h,
    "i": row_i,
}


def main() -> None:
    args = parse_arguments(__doc__, "".join(ROWS))
    warnings.filterwarnings("ignore", "This DataLoader will create")  # 16 workers that wait
    rounds, seconds, shrink = (2, 0.03, 10) if args.is_quick else (5, 0.5, 1)
    with Report(args.json, COLUMNS) as report, tempfile.TemporaryDirectory() as folder:
        report.open(rounds=rounds)
        bench = Bench(report, rounds, seconds, Path(folder), shrink)
        for key in args.rows:
            ROWS[key](bench)


if __name__ == "__main__":
    main()
