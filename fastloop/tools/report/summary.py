"""The numbers of a report, from what was recorded: a dict that JSON takes, of a fixed form.

docs/report.md has the form. What was not measured is None, never 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fastloop.tools.report.gpu_usage import GpuUsage
from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.recorder import NOT_MEASURED, Step
from fastloop.tools.report.verdict import find_verdict

SCHEMA = "fastloop.report/1"
# The names of the parts of a step, and the fields that they are in a Step.
PHASES = {
    "data_wait": "wait",
    "host_to_device": "upload",
    "forward_backward": "compute",
    "clip_optimizer": "update",
    "other": "other",
}
_WARM_UP = 20
_MAX_BARS = 400
_EDGES_MS = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _quantile(ordered: Sequence[int], share: float) -> float:
    """Of a list that is not empty, between its values."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def _describe(values: Iterable[int], whole: int | None = None) -> dict[str, Any] | None:
    """Seconds and ms of what was measured; None if nothing was."""
    ordered = sorted(value for value in values if value != NOT_MEASURED)
    if not ordered:
        return None
    total = sum(ordered)
    found = {
        "seconds": total / 1e9,
        "mean_ms": total / len(ordered) / 1e6,
        "median_ms": _quantile(ordered, 0.5) / 1e6,
        "p95_ms": _quantile(ordered, 0.95) / 1e6,
    }
    return found if whole is None else {**found, "share": _share(total, whole)}


def _find_steady(steps: list[Step], first: int) -> list[Step]:
    """Without the first steps of the run, if enough are left, and those of each epoch, whose first
    batch is counted apart."""
    warm_up = max(_WARM_UP, (first + len(steps)) // 20)
    later = [step for step in steps[max(0, warm_up - first) :] if not step.is_first]
    return later if len(later) >= 10 else [step for step in steps if not step.is_first]


def _count_waits(steps: list[Step]) -> dict[str, Any] | None:
    """How many steps waited for how long: more than the edge below, at most their own."""
    waits = [step.wait for step in steps if step.wait != NOT_MEASURED]
    if not waits:
        return None
    counts = Counter(min(bisect_left(_EDGES_MS, ns / 1e6), len(_EDGES_MS) - 1) for ns in waits)
    used = range(min(counts), max(counts) + 1)
    return {"edges_ms": [_EDGES_MS[i] for i in used], "counts": [counts[i] for i in used]}


def _mean(values: Iterable[int]) -> float | None:
    known = [value for value in values if value != NOT_MEASURED]
    return sum(known) / len(known) if known else None


def _make_series(steps: list[Step], first: int) -> dict[str, Any]:
    """Means over as many steps each as make at most _MAX_BARS of them."""
    size = max(1, -(-len(steps) // _MAX_BARS))
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]
    phases = {
        name: [_mean(getattr(step, field) for step in group) for group in groups]
        for name, field in PHASES.items()
    }
    return {
        "first_step": first,
        "steps_per_bar": size,
        "phases_ms": {
            name: [None if ns is None else round(ns / 1e6, 6) for ns in means]
            for name, means in phases.items()
        },
        "batches_ready": [_mean(step.ready for step in group) for group in groups],
    }


def _describe_loader(source: LoaderSource) -> dict[str, Any]:
    workers = []
    for count in source.count_workers():
        batches, busy, waiting, *lock = count
        workers.append(
            {
                "batches": batches,
                "busy_s": busy / 1e9,
                "waiting_s": waiting / 1e9,
                "lock_s": lock[0] / 1e9 if lock else None,
                "busy_share": _share(busy, busy + waiting),
            }
        )
    return {
        "name": source.name,
        "trains": source.trains,
        "path": source.path,
        "num_workers": source.workers,
        "batch_size": source.batch_size if isinstance(source.batch_size, int) else None,
        "batches": source.batches,
        "wait_s": source.wait / 1e9,
        "ready": source.mean_ready(),
        "waits": {found: ns / 1e9 for found, ns in source.waits.items()},
        "cpu_share": _share(min(source.made), source.made[0]),
        "remedy": source.remedy or None,
        "workers": workers or None,
    }


def _describe_gpu(usage: GpuUsage) -> dict[str, Any]:
    units = usage.units
    is_known = any(share is not None for share in units.values())
    return {
        "uuid": usage.uuid,
        "busy": usage.busy,
        "samples": usage.samples,
        "why_unknown": None if usage.samples else usage.why,
        "units": units,
        "why_units_unknown": None if is_known else usage.why_units,
    }


def summarize(observer: LoopObserver) -> dict[str, Any]:
    """What was recorded until now."""
    recorder = observer.recorder
    first, steps = recorder.steps.first, list(recorder.steps)
    steady = _find_steady(steps, first)
    totals = {name: ns / 1e9 for name, ns in vars(recorder.totals).items()}
    whole = sum(step.total for step in steady)
    gpu = [step for step in steady if step.gpu_wait != NOT_MEASURED]
    count, measuring = recorder.steps.count, recorder.totals.measuring
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "seconds": recorder.elapsed() / 1e9,
        "seconds_of": totals,
        "steps": {
            "count": count,
            "kept": len(steps),
            "steady": len(steady),
            "batches": recorder.batches,
            "unfinished_batches": recorder.unfinished_batches,
            "optimizers": len(recorder.optimizers),
            "skipped": recorder.skipped,
            "skips_unknown": observer.has_silent_skips,
            "per_second": _share(len(steady), whole / 1e9),
        },
        "step": _describe(step.total for step in steady),
        "phases": {
            name: _describe((getattr(step, field) for step in steady), whole)
            for name, field in PHASES.items()
        },
        "gpu_wait": _describe((s.gpu_wait for s in gpu), sum(s.total for s in gpu)),
        "gpu_wait_steps": len(gpu),
        "apart": {
            "batches": recorder.apart["batches"],
            "wait_s": recorder.apart["wait"] / 1e9,
        },
        "loaders": [_describe_loader(source) for source in observer.sources.all],
        "calls_of_other_threads": observer.elsewhere,
        "gpu": _describe_gpu(observer.usage),
        "measuring": {
            "us_per_step": measuring / 1e3 / count if count else None,
            "share": _share(measuring, recorder.elapsed()),
        },
        "waits": _count_waits(steady),
        "series": _make_series(steps, first),
    }
    found["verdict"] = find_verdict(found)
    return found
