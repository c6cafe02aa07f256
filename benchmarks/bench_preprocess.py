"""Preprocessing in the loader against torch's loader with torchvision's transforms.

    python benchmarks/bench_preprocess.py [--rows a,b,...] [--quick] [--json FILE]

needs torchvision, of which only the transforms are used:
pip install --no-deps -r requirements-bench.txt

a-g  time a batch: whole epochs of `for batch in loader: pass`, both loaders at their best of 0, 1
     and 2 workers, everything in turns, median of 5 rounds (lowest - highest). Before that, images
     of a-c are compared bit for bit with what torchvision makes of the same parameters; tests do so
     with the augmentations of d-g. Each row is followed by
       - "core": CPU time a sample: fastloop's on one core (no workers, the process on one CPU), and
         that of torchvision's transforms alone, on one thread and without any loader;
       - "u8" (a, b): the same work without ToDtype and Normalize, for a device that casts;
       - "device" (not c): the share of its time that a simulated device works which needs half of
         torch's best time for each batch: it computes while the loop asks for the next batch, and
         the loop waits only until it begins. The best of 1 and 2 workers; the first batch of an
         epoch, which nothing can hide, is left out.

h    MixUp of a batch of 256 x 3x224x224 float32, and CutMix: torchvision's, and fastloop's in
     place; limit is a copy of the batch into memory that is there.
i    (b) with a function of Python that returns its image behind the flip; limit is the chain
     without it, both without workers, a sample at a time.

limit of a-g is limit_preprocess.c: plain C that casts and normalises as many elements and does
nothing else, the best of plain and non-temporal stores on 1 and 2 threads.
One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

import torch
from _harness import (
    Bench,
    Goal,
    Report,
    Result,
    Times,
    measure_by,
    measure_shares,
    parse_arguments,
)
from _work import assert_on_the_array_path, epochs_of, loader_epoch, on_one_cpu
from _work_images import ROWS, SEED, CastLimit, Images, make_op, v2

import fastloop

WHO = ("fastloop", "torch")
TORCH_TIMES = {"a": 50, "b": 4, "c": 3, "d": 10, "e": 10, "f": 10, "g": 30}
CORE_US = {"a": 1.2, "b": 180, "d": 400, "e": 200, "g": 6}  # a sample
OF_THE_LIMIT = {"a": 0.6}
WITH_DEVICE = ("a", "b", "d", "e", "f", "g")
WITH_BYTES = ("a", "b")
BUSY = {"a": 0.97, "b": 0.97}


def row(bench: Bench[CastLimit], key: str, work: str, images: Images) -> None:
    """A row of a-c and those that follow it."""
    images.assert_same_images()
    loaders = {who: images.loaders(who) for who in WHO}
    assert_on_the_array_path(loaders["fastloop"].values())
    contestants = {who: epochs_of(of) for who, of in loaders.items()}
    alone = on_one_cpu(loader_epoch(loaders["fastloop"]["workers=0"]))
    contestants["core"] = {"one CPU": alone}
    contestants["transforms"] = {"alone": images.transforms_alone()}
    contestants["limit"] = bench.limit.epochs(images)
    if key in WITH_BYTES:
        contestants["u8"] = epochs_of(images.as_bytes().loaders("fastloop"))
    clocks = {"cpu": process_time, "wall": perf_counter}
    measured = measure_by(clocks, contestants, bench.rounds, bench.seconds)
    results = measured["wall"]
    report_times(bench, key, work, results)
    report_core(bench, key, images, measured["cpu"])
    if key in WITH_BYTES:
        report_u8(bench, key, results)
    if key in WITH_DEVICE:
        row_device(bench, key, loaders, results["torch"].median * 1e-6 / 2)
    del loaders, contestants
    gc.collect()  # its workers leave before the next row


def report_times(bench: Bench[CastLimit], key: str, work: str, results: dict[str, Result]) -> None:
    ours, theirs, limit = (results[who].median for who in ("fastloop", "torch", "limit"))
    goals = [Goal("torch's speed", theirs / ours, TORCH_TIMES[key], at_least=True)]
    if key in OF_THE_LIMIT:
        goals.append(Goal("of the limit", limit / ours, OF_THE_LIMIT[key], True, "%"))
    ratios = {"ratio_torch": round(theirs / ours, 4), "ratio_limit": round(limit / ours, 4)}
    shown = {who: results[who] for who in (*WHO, "limit")}
    measured = {who: result.as_dict() for who, result in shown.items()}
    bench.report.row(key, work, goals, shown, **ratios, **measured)


def report_core(
    bench: Bench[CastLimit], key: str, images: Images, results: dict[str, Result]
) -> None:
    """On the clock of the CPU. Of the limit, the best on one thread."""
    on_one = Result({of: t for of, t in results["limit"].variants.items() if of.endswith("x1")})
    whole = {"fastloop": results["core"], "torch": results["transforms"], "limit": on_one}
    each = {
        who: Times(tuple(us / images.batch for us in of.variants[of.best].rounds))
        for who, of in whole.items()
    }
    ours = each["fastloop"].median
    goals = [Goal("a sample a core", ours, CORE_US[key], False, "µs")] if key in CORE_US else []
    if key in OF_THE_LIMIT:
        share = each["limit"].median / ours
        goals.append(Goal("of the limit", share, OF_THE_LIMIT[key], True, "%"))
    measured = {who: times.as_dict() for who, times in each.items()}
    bench.report.row(f"{key}-core", f"  a sample on one core ({key})", goals, each, **measured)


def report_u8(bench: Bench[CastLimit], key: str, results: dict[str, Result]) -> None:
    ours = results["u8"]
    goals = [Goal("f32's time", ours.median / results["fastloop"].median, 1, at_least=False)]
    work = f"  u8 out, a quarter of the bytes ({key})"
    bench.report.row(f"{key}-u8", work, goals, {"fastloop": ours}, fastloop=ours.as_dict())


def row_device(
    bench: Bench[CastLimit], key: str, loaders: dict[str, dict[str, Any]], step: float
) -> None:
    with_workers = {
        who: {variant: of[variant] for variant in ("workers=1", "workers=2")}
        for who, of in loaders.items()
    }
    shares = measure_shares(with_workers, step, min(bench.rounds, 3))
    bench.report.device_row(key, shares, ["fastloop"], BUSY.get(key, 0.95), step)


# ---- batches that are mixed, and a function in a chain


def in_turns(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Microseconds of each call, after one that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            begin = perf_counter()
            work()
            if turn > 0:
                taken[name].append((perf_counter() - begin) * 1e6)
    return {name: Times(tuple(us)) for name, us in taken.items()}


def row_mixed(report: Report, rounds: int, name: str) -> None:
    images, labels = torch.rand(256, 3, 224, 224), torch.arange(256)
    there = torch.empty_like(images)
    ours = getattr(fastloop.transforms, name)(num_classes=256)
    theirs = getattr(v2(), name)(num_classes=256)
    params = ours.params(0, 0, (224, 224))
    works: dict[str, Callable[[], object]] = {
        "fastloop": lambda: ours.apply([images, labels], params, in_place=True),
        "torch": lambda: theirs(images, labels),
        "limit": lambda: there.copy_(images),
    }
    times = in_turns(works, rounds)
    share = times["limit"].median / times["fastloop"].median
    goals = [Goal("of a copy's speed", share, 0.8, True, "%")]
    measured = {who: each.as_dict() for who, each in times.items()}
    report.row("h", f"{name} of 256 x 3x224x224 f32", goals, times, **measured)


def row_function(report: Report, rounds: int) -> None:
    images = replace(ROWS["b"][1](), rows=640)
    ops = [make_op(fastloop.transforms, op) for op in images.ops]

    def epoch(chain: list[Any]) -> Callable[[], object]:
        aug = fastloop.transforms.Compose(chain)
        data = fastloop.ArrayDataset(images.pixels, images.labels, transform=aug, seed=SEED)
        loader = fastloop.DataLoader(data, images.batch, path="sync")
        return lambda: sum(1 for _ in loader)

    def same(image: Any) -> Any:
        return image

    works = {"fastloop": epoch([*ops[:2], same, *ops[2:]]), "limit": epoch(ops)}
    times = in_turns(works, rounds)
    ratio = times["fastloop"].median / times["limit"].median
    goals = [Goal("the chain's time", ratio, 1.1, at_least=False)]
    measured = {who: each.as_dict() for who, each in times.items()}
    report.row("i", "(b) with a function in the middle, 640 images", goals, times, **measured)


def main() -> None:
    args = parse_arguments(__doc__, "abcdefghi")
    rounds, seconds = (2, 0.03) if args.is_quick else (5, 0.3)
    with Report(args.json, (*WHO, "limit")) as report:
        report.open(rounds=rounds)
        bench = Bench(CastLimit(), report, rounds, seconds)
        for key in args.rows:
            if key == "h":
                for name in ("MixUp", "CutMix"):
                    row_mixed(report, 2 * rounds, name)
            if key == "i":
                row_function(report, 2 * rounds)
            if key not in ROWS:
                continue
            work, make = ROWS[key]
            images = make()
            if args.is_quick:  # still more than the caches hold: else the limit is another
                images = replace(images, rows=max(4 * images.batch, images.rows // 2))
            row(bench, key, work, images)


if __name__ == "__main__":
    main()
