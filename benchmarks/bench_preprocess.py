"""Preprocessing in the loader against torch's loader with torchvision's transforms.

    python benchmarks/bench_preprocess.py [--rows a,b,c] [--quick] [--json FILE]

needs torchvision, of which only the transforms are used:
pip install --no-deps -r requirements-bench.txt

a-c  time a batch: whole epochs of `for batch in loader: pass`, both loaders at their best of 0, 1
     and 2 workers, everything in turns, median of 5 rounds (lowest - highest). Before that, images
     are compared bit for bit with what torchvision makes of the same parameters. Each row is
     followed by
       - "core": CPU time a sample: fastloop's on one core (no workers, the process on one CPU), and
         that of torchvision's transforms alone, on one thread and without any loader;
       - "u8" (a, b): the same work without ToDtype and Normalize, for a device that casts;
       - "device" (a, b): the share of its time that a simulated device works which needs half of
         torch's best time for each batch: it computes while the loop asks for the next batch, and
         the loop waits only until it begins. The best of 1 and 2 workers; the first batch of an
         epoch, which nothing can hide, is left out.

limit is limit_preprocess.c: plain C that casts and normalises as many elements and does nothing
else, the best of plain and non-temporal stores on 1 and 2 threads.
One table row each on stdout; one JSON line each in FILE, or on stdout after the table.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any

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
from _work_images import ROWS, CastLimit, Images

WHO = ("fastloop", "torch")
TORCH_TIMES = {"a": 50, "b": 4, "c": 3}
CORE_US = {"a": 1.2, "b": 180}  # a sample
OF_THE_LIMIT = {"a": 0.6}
WITH_DEVICE = ("a", "b")
BUSY = 0.97


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
    if key in WITH_DEVICE:
        contestants["u8"] = epochs_of(images.as_bytes().loaders("fastloop"))
    clocks = {"cpu": process_time, "wall": perf_counter}
    measured = measure_by(clocks, contestants, bench.rounds, bench.seconds)
    results = measured["wall"]
    report_times(bench, key, work, results)
    report_core(bench, key, images, measured["cpu"])
    if key in WITH_DEVICE:
        report_u8(bench, key, results)
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
    bench.report.device_row(key, shares, ["fastloop"], BUSY, step)


def main() -> None:
    args = parse_arguments(__doc__, "abc")
    rounds, seconds = (2, 0.03) if args.is_quick else (5, 0.3)
    with Report(args.json, (*WHO, "limit")) as report:
        report.open(rounds=rounds)
        bench = Bench(CastLimit(), report, rounds, seconds)
        for key in args.rows:
            work, make = ROWS[key]
            images = make()
            if args.is_quick:  # still more than the caches hold: else the limit is another
                images = replace(images, rows=max(4 * images.batch, images.rows // 2))
            row(bench, key, work, images)


if __name__ == "__main__":
    main()
