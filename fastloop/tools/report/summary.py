"""The numbers of a report, and the verdict in words: whether the loop waits for data, why, how much
faster the loop could be at most, and what to change.

The numbers are a dict of plain values for JSON, described in docs/api/tools.md. Unknown numbers are
None, never 0.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import torch

from fastloop._core import usable_cpus
from fastloop.tools.report.loader_source import TRANSFORMS, LoaderSource
from fastloop.tools.report.recorder import NOT_MEASURED, PHASES
from fastloop.tools.text import percent, ratio, seconds

SCHEMA = "fastloop.report/1"
WARM_UP = 20
_MAX_BARS = 400
INPUT_BOUND, PARTLY = 0.20, 0.05  # from these shares of waiting on, a loop is (partly) input-bound
_QUIET = 0.01  # if less than this share is waiting, the verdict does not say which steps wait
_MIN_STEPS = 3  # with fewer steps there is no verdict
FEW_STEPS = 30  # with fewer steps the verdict states its uncertainty
_RARE = 3  # if the mean wait over the median is larger, most steps do not wait
_BUSY = 0.8  # if workers are busy for a larger share of the time, they cannot give more
_UNEVEN = 5  # if p95 over the median is larger, the machine may be to blame, not the program
COMPUTES = 0.5  # if samples use a CPU for a smaller share of their time, more workers need no CPU
_MAX_THREADS = 32

LABELS = {
    "data_wait": "data wait",
    "gpu_wait": "  of it seen by the GPU",
    "host_to_device": "host to device",
    "forward_backward": "forward+backward",
    "clip_optimizer": "clip+optimizer",
    "other": "your other code",
    "step": "step",
}


def _share(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None


def _known(values: Any) -> Any:
    return values[values != NOT_MEASURED]


def _total(steps: Any) -> Any:
    return sum(np.maximum(steps[name], 0) for name in PHASES)


def _find_quantiles(values: Any, *shares: float) -> list[float]:
    """Do as ``np.quantile()``, whose first call imports numpy.ma: 10 to 60 ms amid a training."""
    places = np.array(shares) * (len(values) - 1)
    found: list[float] = np.interp(places, np.arange(len(values)), np.sort(values)).tolist()
    return found


def _describe(values: Any, whole: int | None = None) -> dict[str, Any] | None:
    """Return the sum of ns in seconds, and mean, median and p95 in ms; None without values."""
    values = _known(values)
    if len(values) == 0:
        return None
    median, p95 = _find_quantiles(values, 0.5, 0.95)
    times = {"mean_ms": values.mean(), "median_ms": median, "p95_ms": p95}
    share = {} if whole is None else {"share": _share(values.sum(), whole)}
    times = {name: float(ns) / 1e6 for name, ns in times.items()}
    return {"seconds": float(values.sum() / 1e9), **times, **share}


def _choose_steady(steps: Any, first: int, epochs: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return the indices of the steps that tables and verdict use, and facts about the first epoch.

    If the first epoch waits more or less than later epochs, only later epochs are used; if not, the
    facts are None. The first steps of the run warm up, so they are left out if ten steps remain.
    The first step of each epoch is left out, because its batch is counted apart.
    """
    later = np.flatnonzero(steps["is_first"] == 0)
    warm = later[later + first >= max(WARM_UP, (first + len(steps)) // 20)]
    warm = warm if len(warm) >= 10 else later
    opening, rest = later[epochs[later] == 0], warm[epochs[warm] > 0]
    waits, totals = np.maximum(steps["data_wait"], 0), _total(steps)
    share, other = (_share(waits[i].sum(), totals[i].sum()) for i in (opening, rest))
    if first > 0 or len(rest) < _MIN_STEPS or abs((share or 0.0) - (other or 0.0)) < PARTLY:
        return warm, None
    return rest, {"steps": len(opening), "share": share}


def _find_long_waits(waits: Any, epochs: Any) -> dict[str, Any] | None:
    """Return the number and the median of long waits; None if most steps wait. If a single epoch
    has nearly all long waits, `epoch` is the number of this epoch."""
    if not len(waits) or waits.mean() <= _RARE * np.median(waits):
        return None
    long = waits > waits.mean()
    sums = np.bincount(epochs[long], waits[long])
    is_alone = epochs[0] < epochs[-1] and sums.max() > 0.9 * sums.sum()
    return {
        "count": int(long.sum()),
        "median_ms": float(np.median(waits[long])) / 1e6,
        "epoch": int(sums.argmax()) + 1 if is_alone else None,
    }


def _bound_share(waits: Any, totals: Any) -> list[float] | None:
    """Return the interval of the share of waiting in 95 % of resamples; None below _MIN_STEPS. A
    resample draws blocks of consecutive steps, and may miss a single long wait."""
    count = min(len(waits), 100)
    if count < _MIN_STEPS or not totals.any():
        return None
    edges = np.linspace(0, len(waits), count, endpoint=False).astype(int)
    generator = torch.Generator().manual_seed(0)  # to import numpy.random takes 10 ms
    drawn = torch.randint(count, (1000, count), generator=generator).numpy()
    parts, wholes = (np.add.reduceat(ns, edges)[drawn].sum(axis=1) for ns in (waits, totals))
    return _find_quantiles(parts / np.maximum(wholes, 1), 0.025, 0.975)


def _make_series(steps: Any, first: int) -> dict[str, Any]:
    """Return the means over groups of steps, for at most _MAX_BARS bars."""
    size = max(1, -(-len(steps) // _MAX_BARS))
    groups = [steps[i : i + size] for i in range(0, len(steps), size)]

    def mean_ms(ns: Any) -> float | None:
        return round(float(ns.mean()) / 1e6, 6) if len(ns) else None

    phases = {name: [mean_ms(_known(group[name])) for group in groups] for name in PHASES}
    return {"first_step": first, "steps_per_bar": size, "phases_ms": phases}


def _pick(owner: object, *names: str) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names}


def _describe_loader(source: LoaderSource) -> dict[str, Any]:
    workers = []
    for batches, busy, waiting, *lock in source.count_workers():
        worker: Any = {"batches": batches, "busy_s": busy / 1e9, "waiting_s": waiting / 1e9}
        worker["lock_s"] = lock[0] / 1e9 if lock else None
        workers.append({**worker, "busy_share": _share(busy, busy + waiting)})
    seam = _patched("transforms") if source.remedy == TRANSFORMS else None
    is_done = seam is not None and (seam.native > 0 or not seam.fallbacks)
    return {
        **_pick(source, "name", "trains", "path", "num_workers", "batches"),
        "remedy": None if is_done else source.remedy,
        "wait_s": source.wait / 1e9,
        "waits": {found: ns / 1e9 for found, ns in source.waits.items()},
        "cpu_share": _share(min(source.made[:2]), source.made[0]),
        "cpu_wait_share": _share(min(source.watched), source.watched[0]),
        "workers_cpu_wait_s": source.made[2] / 1e9 if workers else None,
        "workers": workers or None,
        "memory_hint": source.explain_growth(),
    }


def summarize(observer: Any, is_brief: bool = False) -> dict[str, Any]:
    """Return the numbers of everything that was recorded until now.

    Args:
        observer: a LoopObserver, or an object with its numbers.
        is_brief: leaves out the series and the interval of the verdict.
    """
    recorder = observer.recorder
    first, count, steps = recorder.steps.first, recorder.steps.count, recorder.steps.to_array()
    epochs = np.cumsum(steps["is_first"])
    epochs -= epochs[:1]  # the first epoch is 0
    chosen, first_epoch = _choose_steady(steps, first, epochs)
    steady = steps[chosen]
    whole = int(_total(steady).sum())
    gpu = steady[steady["gpu_wait"] != NOT_MEASURED]
    # If the GPU's wait is known for most steps, the verdict is about the GPU's wait.
    basis = "gpu_wait" if len(gpu) and 2 * len(gpu) >= len(steady) else "data_wait"
    is_measured = steady[basis] != NOT_MEASURED
    waits, totals = steady[basis][is_measured], _total(steady[is_measured])
    # If early steps were overwritten, the number of an epoch is unknown.
    epochs = epochs[chosen][is_measured] * (first == 0)
    measuring = recorder.totals.measuring
    each_us = measuring / 1e3 / count if count else None
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "seconds": recorder.elapsed() / 1e9,
        "cpu_wait_s": None if observer.cpu_wait is None else observer.cpu_wait / 1e9,
        "seconds_of": {name: ns / 1e9 for name, ns in vars(recorder.totals).items()},
        "steps": {
            "count": count,
            "kept": len(steps),
            "steady": len(steady),
            **_pick(recorder, "batches", "unfinished_batches", "skipped"),
            "skips_unknown": observer.has_silent_skips,
            "per_second": _share(len(steady), whole / 1e9),
        },
        "step": _describe(_total(steady)),
        "phases": {name: _describe(steady[name], whole) for name in PHASES},
        "gpu_wait": _describe(gpu["gpu_wait"], int(_total(gpu).sum())),
        "gpu_wait_steps": len(gpu),
        "first_epoch": first_epoch,
        "long_waits": _find_long_waits(waits, epochs),
        "apart": recorder.apart_batches,
        "loaders": [_describe_loader(source) for source in observer.sources],
        "calls_of_other_threads": observer.elsewhere,
        "gpu": _pick(observer.usage, "uuid", "busy", "samples", "why_unknown"),
        "measuring": {
            "us_per_step": each_us,
            "share": _share(measuring, recorder.elapsed()),
            "share_of_steps": _share(measuring, recorder.totals.steps),
        },
        "series": None if is_brief else _make_series(steps, first),
    }
    interval = None if is_brief else _bound_share(waits, totals)
    return {**found, "verdict": judge(found, basis, interval)}


# ---- the verdict


def judge(found: dict[str, Any], basis: str, interval: list[float] | None) -> dict[str, Any]:
    """Judge the numbers of ``summarize()``.

    Args:
        found: the numbers.
        basis: the row with the wait of a step: "gpu_wait" or "data_wait".
        interval: the interval of the share of waiting.

    Returns:
        ``kind`` ("input-bound", "partly input-bound", "not input-bound", "unknown"), ``share`` (the
        waiting part of a step), ``interval`` (of the share), ``basis`` ("gpu" or "host"),
        ``ceiling`` (the largest speedup if data were always ready), ``cause``, ``next`` (the
        remedy), and ``text``, which puts all of this into words.
    """
    is_gpu = basis == "gpu_wait"
    verdict = dict.fromkeys(("share", "interval", "ceiling", "cause", "next"))
    verdict["basis"] = "gpu" if is_gpu else "host"
    if why_not := _explain_obstacle(found):
        return {**verdict, "kind": "unknown", "text": f"NO VERDICT: {why_not}."}
    wait = {**found, **found["phases"]}[basis]
    share = wait["share"] or 0.0
    kind = _name_kind(share)
    verdict |= {"kind": kind, "share": share, "interval": interval}
    verdict |= {"ceiling": 1 / (1 - share) if share < 1 else None}
    text = f"{kind.upper()}: the {'GPU' if is_gpu else 'loop'} waits "
    steps = found["gpu_wait_steps"] if is_gpu else found["steps"]["steady"]
    text += _describe_wait(wait, found["long_waits"], steps)
    if share < PARTLY:
        run = "later epochs" if found["first_epoch"] else "this run"
        text += (
            f"; a faster loader cannot help {run}. Most of a step is {_describe_largest(found)}."
        )
    else:
        verdict["cause"], verdict["next"] = _explain_wait(found)
        text += f". With data always ready: at most {ratio(verdict['ceiling'])} as fast."
        text += f" Cause: {verdict['cause']}. Next: {verdict['next']}."
    return {**verdict, "text": text + _qualify(found, interval)}


def _name_kind(share: float) -> str:
    if share < PARTLY:
        return "not input-bound"
    return "input-bound" if share >= INPUT_BOUND else "partly input-bound"


def _describe_wait(wait: dict[str, Any], long: dict[str, Any] | None, steps: int) -> str:
    """Say how much of a step is waiting. If most steps do not wait, say which steps wait."""
    share, mean = wait["share"] or 0.0, wait["mean_ms"] / 1e3
    if not long or share < _QUIET:
        times = f" ({seconds(mean)} of {seconds(mean / share)} on average)" if share else ""
        return f"{percent(share)} of each step for data{times}"
    rare = "rare " * (10 * long["count"] <= steps)
    where = f" in epoch {long['epoch']}" if long["epoch"] else ""
    text = f"{percent(share)} of the time for data, in {rare}long waits: {long['count']:,} of "
    text += f"{steps:,} steps{where} wait about {seconds(long['median_ms'] / 1e3)}, most steps "
    return f"{text}{seconds(wait['median_ms'] / 1e3)}"


def _qualify(found: dict[str, Any], interval: list[float] | None) -> str:
    """Say whether the verdict leaves out the first epoch, and how uncertain the verdict is."""
    text, steps, first = "", found["steps"]["steady"], found["first_epoch"]
    if first:
        text = " This verdict is about later epochs: the first epoch waits "
        text += f"{percent(first['share'])} of each step."
    if interval and (steps < FEW_STEPS or _name_kind(interval[0]) != _name_kind(interval[1])):
        low, high = map(percent, interval)
        text += f" After {steps:,} steps the share of waiting is {low} to {high} (95% sure)."
    return text


def _explain_obstacle(found: dict[str, Any]) -> str:
    """Say why there is no verdict; "" if there is one."""
    steps = found["steps"]
    if steps["count"] == 0:
        batches = f"{found['apart'] + steps['unfinished_batches']:,}"
        seen = "no batch was taken" if batches == "0" else f"{batches} batches were taken"
        why = f"{seen}, and no optimizer of torch.optim has stepped, so there is nothing to measure"
    elif found["phases"]["data_wait"] is None and steps["steady"]:
        why = "no batch came from a torch or fastloop DataLoader, so no wait for data was seen"
    elif steps["steady"] < _MIN_STEPS:
        why = f"a verdict needs {_MIN_STEPS} steps besides the first of each epoch, got "
        why += f"{steps['steady']}"
    else:
        return ""
    others = f". {found['calls_of_other_threads']:,} calls came from other threads: open the report"
    return why + (f"{others} in the thread that trains" if found["calls_of_other_threads"] else "")


def _describe_largest(found: dict[str, Any]) -> str:
    phases = found["phases"]
    parts = {name: phases[name]["share"] or 0 for name in PHASES[1:] if phases[name]}
    largest = max(parts, key=lambda name: parts[name])
    between = ", between the step and the next batch" * (largest == "other")
    text = f"{LABELS[largest]}{between} ({percent(parts[largest])})"
    times = phases[largest]["p95_ms"] / max(phases[largest]["median_ms"], 1e-6)
    if times < _UNEVEN:
        return text
    text += f", but unevenly: one step in 20 takes {times:,.0f} times the median or longer"
    if (late := found["cpu_wait_s"] or 0) >= PARTLY * found["seconds"] > 0:
        text += f", and the loop's thread was ready without a CPU for {seconds(late)}"
    return f"{text}. Measure again on an idle machine"


def _describe_cpus() -> str:
    return f"{usable_cpus()} CPU{'s' * (usable_cpus() > 1)} allowed"


def _patched(name: str) -> Any:
    """Return the status of a seam of patch(); None if the seam is off."""
    patching = sys.modules.get("fastloop.patching.patch")
    seam = None if patching is None else patching.patch_status().seams[name]
    return seam if seam is not None and seam.is_on else None


def _explain_wait(found: dict[str, Any]) -> tuple[str, str]:
    """Say why data is late, and one remedy."""
    loader = max((one for one in found["loaders"] if one["trains"]), key=lambda one: one["wait_s"])
    workers, waits, number = loader["workers"] or [], loader["waits"], loader["num_workers"]
    names = "batches", "busy_s", "waiting_s", "lock_s"
    made, busy, waiting, lock = (sum(one[name] or 0 for one in workers) for name in names)
    share, whole = busy / (busy + waiting) if busy else 0.0, sum(waits.values())
    late, more = loader["cpu_wait_share"] or 0.0, "workers" if number > 1 else "threads"
    idle = f"an idle machine, or fewer {more} ({_describe_cpus()})"
    advice = _advise(found, loader, busy or loader["wait_s"], made or loader["batches"])
    if late > 0.5 or (loader["workers_cpu_wait_s"] or 0.0) > max(busy, number * whole) / 2:
        who = f"in {percent(late)} of the wait the loop was" if late > 0.5 else "workers are"
        return f"{who} ready to run, and other threads or programs have the CPUs", idle
    if number == 0:
        return f"the loop loads {loader['name']} itself (num_workers=0)", advice
    if waits["ready"] > whole / 2:
        cause = f"in {percent(waits['ready'] / whole)} of the wait the batch was there"
        if found["long_waits"]:
            cause += ", and most batches are taken over at once"
            return f"{cause}: most likely the loop waited for a CPU, or for a lock", idle
        cause += ", so loading is fast, and taking over is slow (unpickling, copying between "
        run = f", or {_name_fastloop()}" if loader["path"] == "torch" else ""
        return f"{cause}processes)", f"larger batches, or fewer tensors in a batch{run}"
    if lock > busy / 2:
        cause = f"worker threads wait for the interpreter lock {percent(lock / busy)} of their time"
        return cause, 'path="process", or code that releases the lock'
    if share >= _BUSY:
        return f"workers are busy {percent(share)}", advice
    if waits["others"] > (waits["none"] if workers else whole / 2):
        return _blame_order(percent(waits["others"] / whole), workers, share)
    if workers:
        cause = f"workers are busy only {percent(share)}, so there are enough workers, but batches "
        return f"{cause}come unevenly", "a higher prefetch_factor"
    if loader["path"] == "array":
        return f"{number} threads gather and transform as fast as they can", advice
    cause = "unknown, because torch's own iterators do not tell what their workers do"
    return cause, loader["remedy"] or _name_fastloop()


def _name_fastloop() -> str:
    """Name the ways to load the data by fastloop, except for a patch() that is on already."""
    if (seam := _patched("dataloader")) is None:
        return "run the program by python -m fastloop run, or use a fastloop.DataLoader"
    return f"a fastloop.DataLoader (patch() leaves to torch: {'; '.join(seam.fallbacks) or 'n/a'})"


def _blame_order(part: str, workers: list[dict[str, Any]], share: float) -> tuple[str, str]:
    """Blame the order of batches. If a single worker is busy, name this worker."""
    cause = f"in {part} of the wait other batches were ready, but not the batch that was due"
    cause, remedy = f"{cause} (head-of-line blocking)", "a higher prefetch_factor"
    shares = [worker["busy_share"] or 0.0 for worker in workers]
    if (most := max(shares, default=0.0)) >= _BUSY:
        cause += f"; worker {shares.index(most)} is busy {percent(most)}, all workers on average "
        cause, remedy = cause + percent(share), "samples of more even cost"
    return cause, f"in_order=False, if the order of batches may vary; if not, {remedy}"


def _advise(found: dict[str, Any], loader: dict[str, Any], busy: float, batches: int) -> str:
    """Advise what to change if samples of `batches` batches take `busy` seconds to make. fastloop's
    own remedy comes first. Workers that compute are never more than the CPUs."""
    if loader["remedy"]:
        return str(loader["remedy"])
    number, cpus, share = loader["num_workers"], usable_cpus(), loader["cpu_share"]
    # `needed` workers make batches as fast as the rest of the loop takes batches, and a fifth more.
    needed, taken = number + 1, found["steps"]["batches"]
    rest = found["seconds_of"]["steps"] * (1 - (found["phases"]["data_wait"]["share"] or 0))
    if batches > 0 and rest > 0:
        needed = max(needed, math.ceil(1.2 * (busy / batches) * float(taken / rest)))
    is_thread = loader["path"] == "thread"
    if share is not None and share < COMPUTES and not (is_thread and number >= _MAX_THREADS):
        more = f"num_workers={min(needed, _MAX_THREADS)}"
        more += "" if is_thread else ' and path="thread", if the dataset is safe in threads'
        return f"{more}: samples wait for {percent(1 - share)} of the time, which needs no CPU"
    if number < cpus:
        return f"num_workers {number}→{min(needed, cpus)} ({_describe_cpus()})"
    is_kept = loader["path"] == "array"
    kept = "" if is_kept else ", or samples computed once and kept (fastloop.ArrayDataset)"
    return f"a cheaper transform{kept}: no CPU is free ({_describe_cpus()})"
