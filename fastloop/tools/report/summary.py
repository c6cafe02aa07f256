"""The numbers of a report: a dict that JSON takes, of the form that docs/report.md describes.

Unknown numbers are None, never 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastloop.tools.report.loader_source import LoaderSource
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.recorder import NOT_MEASURED, PHASES
from fastloop.tools.report.verdict import judge

SCHEMA = "fastloop.report/1"
_WARM_UP = 20
_MAX_BARS = 400
_EDGES_MS = [digit * 10.0**power for power in range(-3, 6) for digit in (1, 2, 5)]


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _known(values: Any) -> Any:
    return values[values != NOT_MEASURED]


def _total(steps: Any) -> Any:
    return sum(np.maximum(steps[name], 0) for name in PHASES)


def _describe(values: Any, whole: int | None = None) -> dict[str, Any] | None:
    """Summarize ns in seconds and ms; None if nothing was measured."""
    values = _known(values)
    if len(values) == 0:
        return None
    median, p95 = np.quantile(values, (0.5, 0.95))
    times = {"mean_ms": values.mean(), "median_ms": median, "p95_ms": p95}
    found = {name: float(ns) / 1e6 for name, ns in times.items()}
    share = {} if whole is None else {"share": _share(values.sum(), whole)}
    return {"seconds": float(values.sum() / 1e9), **found, **share}


def _choose_steady(steps: Any, first: int) -> Any:
    """Leave out the first steps of the run, if ten are left, and the first of each epoch, whose
    batch is counted apart."""
    later = np.flatnonzero(steps["is_first"] == 0)
    warm = later[later + first >= max(_WARM_UP, (first + len(steps)) // 20)]
    return steps[warm if len(warm) >= 10 else later]


def _count_waits(waits: Any) -> dict[str, Any] | None:
    """Count the steps that waited for at most the edge of each bar."""
    if len(waits) == 0:
        return None
    bars = np.minimum(np.searchsorted(_EDGES_MS, waits / 1e6), len(_EDGES_MS) - 1)
    used = slice(bars.min(), bars.max() + 1)
    return {"edges_ms": _EDGES_MS[used], "counts": np.bincount(bars)[used].tolist()}


def _make_series(steps: Any, first: int) -> dict[str, Any]:
    """Return means over as many steps each as make at most _MAX_BARS of them."""
    size = max(1, -(-len(steps) // _MAX_BARS))
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]

    def means(field: str, scale: float) -> list[float | None]:
        known = [_known(group[field]) for group in groups]
        return [round(float(ns.mean()) / scale, 6) if len(ns) else None for ns in known]

    return {
        "first_step": first,
        "steps_per_bar": size,
        "phases_ms": {name: means(name, 1e6) for name in PHASES},
        "batches_ready": means("ready", 1),
    }


def _pick(owner: object, *names: str) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


def _describe_loader(source: LoaderSource) -> dict[str, Any]:
    workers = [
        {
            "batches": batches,
            "busy_s": busy / 1e9,
            "waiting_s": waiting / 1e9,
            "lock_s": lock[0] / 1e9 if lock else None,
            "busy_share": _share(busy, busy + waiting),
        }
        for batches, busy, waiting, *lock in source.count_workers()
    ]
    return {
        **_pick(source, "name", "trains", "path", "num_workers", "batch_size", "batches", "remedy"),
        "wait_s": source.wait / 1e9,
        "ready": source.mean_ready(),
        "waits": {found: ns / 1e9 for found, ns in source.waits.items()},
        "cpu_share": _share(min(source.made), source.made[0]),
        "workers": workers or None,
    }


def summarize(observer: LoopObserver) -> dict[str, Any]:
    """Return the numbers of all that was recorded until now."""
    recorder = observer.recorder
    first, count = recorder.steps.first, recorder.steps.count
    steps = recorder.steps.to_array()
    steady = _choose_steady(steps, first)
    whole = int(_total(steady).sum())
    gpu = steady[steady["gpu_wait"] != NOT_MEASURED]
    measuring = recorder.totals.measuring
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "seconds": recorder.elapsed() / 1e9,
        "seconds_of": {name: ns / 1e9 for name, ns in vars(recorder.totals).items()},
        "steps": {
            "count": count,
            "kept": len(steps),
            "steady": len(steady),
            **_pick(recorder, "batches", "unfinished_batches", "skipped"),
            "optimizers": len(recorder.optimizers),
            "skips_unknown": observer.has_silent_skips,
            "per_second": _share(len(steady), whole / 1e9),
        },
        "step": _describe(_total(steady)),
        "phases": {name: _describe(steady[name], whole) for name in PHASES},
        "gpu_wait": _describe(gpu["gpu_wait"], int(_total(gpu).sum())),
        "gpu_wait_steps": len(gpu),
        "apart": {"batches": recorder.apart["batches"], "wait_s": recorder.apart["wait"] / 1e9},
        "loaders": [_describe_loader(source) for source in observer.sources],
        "calls_of_other_threads": observer.elsewhere,
        "gpu": _pick(observer.usage, "uuid", "busy", "samples", "why_unknown"),
        "measuring": {
            "us_per_step": measuring / 1e3 / count if count else None,
            "share": _share(measuring, recorder.elapsed()),
        },
        "waits": _count_waits(_known(steady["data_wait"])),
        "series": _make_series(steps, first),
    }
    return {**found, "verdict": judge(found)}
