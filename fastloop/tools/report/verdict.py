"""What the numbers of a report mean, in words: whether data is what the loop waits for, how much
faster it could be at most, why, and what to change."""

from __future__ import annotations

import math
import os
from typing import Any

from fastloop.base.machine import usable_cpus

INPUT_BOUND, PARTLY = 0.20, 0.05  # shares of a step
_MIN_STEPS = 10  # for a verdict at all
_SURE_STEPS = 50
_BUSY = 0.8  # of workers' time: there is no more in them
_UNEVEN = 5  # p95 over the median: it may not be the program
_COMPUTES = 0.5  # of the time of samples on a CPU; below it they wait for something else
_MOST_THREADS = 32

_PHASE_NAMES = {
    "host_to_device": "copying to the device",
    "forward_backward": "forward and backward",
    "clip_optimizer": "clipping and the optimizer",
    "other": "what follows the optimizer's step (logging, metrics)",
}


def percent(share: float | None) -> str:
    """ "n/a" for None."""
    if share is None:
        return "n/a"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def ms(value: float | None) -> str:
    """Three digits; "n/a" for None."""
    if value is None:
        return "n/a"
    digits = max(0, 2 - math.floor(math.log10(value))) if 0 < value < 100 else int(value == 0)
    return f"{value:.{min(digits, 4)}f} ms"


def count_cpus() -> int:
    """Those that affinity and the container's quota allow, at least one."""
    return max(1, int(usable_cpus()))


def find_verdict(found: dict[str, Any]) -> dict[str, Any]:
    """Of the numbers of ``summarize()``.

    Returns:
        ``kind`` ("input-bound", "partly input-bound", "not input-bound", "unknown"), ``share`` of
        a step that goes into waiting, ``basis`` ("gpu" or "host": whose clock says so), ``ceiling``
        (times as fast with data always ready), ``cause``, ``next`` and all of it as ``text``.
    """
    wait, basis = _find_wait(found)
    why_not = _find_obstacle(found)
    if why_not or wait is None or wait["share"] is None:
        text = f"NO VERDICT: {why_not}"
        return _pack("unknown", None, basis, text=text)
    share: float = wait["share"]
    steps = found["steps"]["steady"]
    few = ""
    if steps < _SURE_STEPS:
        few = f" (Seen in {steps} steps behind the first ones; {_SURE_STEPS} would be surer.)"
    if share < PARTLY:
        text = (
            f"NOT INPUT-BOUND: {percent(share)} of each step is waiting for data; a faster loader "
            f"cannot help this run. Most of it is {_say_largest(found)}.{few}"
        )
        return _pack("not input-bound", share, basis, 1 / (1 - share), text=text)
    kind = "input-bound" if share >= INPUT_BOUND else "partly input-bound"
    ceiling = 1 / (1 - share) if share < 1 else None
    cause, advice = _find_cause(found)
    who = "the GPU" if basis == "gpu" else "the loop"
    mean_wait = wait["seconds"] / steps if basis == "host" else wait["seconds"] / _gpu_steps(found)
    mean_step = mean_wait / share
    faster = f"at most {ceiling:.2f}× faster" if ceiling else "waiting is all there is"
    text = (
        f"{kind.upper()}: {who} waits {percent(share)} of each step for data "
        f"({ms(mean_wait * 1e3)} of {ms(mean_step * 1e3)} on average). With data always ready: "
        f"{faster}. Cause: {cause}. Next: {advice}.{few}"
    )
    return _pack(kind, share, basis, ceiling, cause, advice, text)


def _pack(
    kind: str,
    share: float | None,
    basis: str,
    ceiling: float | None = None,
    cause: str | None = None,
    advice: str | None = None,
    text: str = "",
) -> dict[str, Any]:
    return {
        "kind": kind,
        "share": share,
        "basis": basis,
        "ceiling": ceiling,
        "cause": cause,
        "next": advice,
        "text": text,
    }


def _gpu_steps(found: dict[str, Any]) -> int:
    steps: int = found["gpu_wait_steps"]
    return steps


def _find_wait(found: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The wait that the GPU saw, where most steps tell; else the host's."""
    if found["gpu_wait"] is not None and 2 * _gpu_steps(found) >= found["steps"]["steady"]:
        return found["gpu_wait"], "gpu"
    return found["phases"]["data_wait"], "host"


def _find_obstacle(found: dict[str, Any]) -> str:
    """Why nothing can be said; "" if something can."""
    steps = found["steps"]
    elsewhere = found["calls_of_other_threads"]
    hint = ""
    if elsewhere:
        hint = (
            f" {elsewhere:,} calls came from other threads: open the report in the thread that "
            "runs the loop."
        )
    if steps["count"] == 0:
        batches = found["apart"]["batches"] + steps["unfinished_batches"]
        seen = f"{batches:,} batches were taken" if batches else "no batch was taken"
        return (
            f"{seen}, and no optimizer of torch.optim has stepped, so there are no steps to "
            f"measure.{hint}"
        )
    if found["phases"]["data_wait"] is None and steps["steady"]:
        return (
            "no batch came from a torch or fastloop DataLoader, so how long the loop waits for "
            f"data is not known.{hint}"
        )
    if steps["steady"] < _MIN_STEPS:
        return (
            f"there are {steps['steady']} steps beside the first of each epoch; it takes "
            f"{_MIN_STEPS}.{hint}"
        )
    return ""


def _say_largest(found: dict[str, Any]) -> str:
    phases = found["phases"]
    parts = {name: phases[name]["share"] or 0 for name in _PHASE_NAMES if phases[name]}
    largest = max(parts, key=lambda name: parts[name])
    text = f"{_PHASE_NAMES[largest]} ({percent(parts[largest])})"
    times = phases[largest]["p95_ms"] / max(phases[largest]["median_ms"], 1e-6)
    if times < _UNEVEN:
        return text
    load = os.getloadavg()[0]
    why = f", as where CPUs are short (load {load:.1f}, {_say_cpus()})"
    return (
        f"{text}, but unevenly: one step in 20 takes {times:,.0f} times the median or longer"
        f"{why if load > count_cpus() else ''}. Measure again on an idle machine"
    )


# ---- why


def _find_cause(found: dict[str, Any]) -> tuple[str, str]:
    """Why data is late, and what to do: one thing."""
    trained = [loader for loader in found["loaders"] if loader["trains"]]
    loader = max(trained, key=lambda loader: float(loader["wait_s"]))
    if loader["num_workers"] == 0:
        cause = f"the loop loads {loader['name']} itself (num_workers=0)"
        return cause, _advise(found, loader, loader["wait_s"], loader["batches"])
    workers, waits = loader["workers"], loader["waits"]
    if waits["ready"] > sum(waits.values()) / 2:
        return (
            f"{loader['ready']:.1f} batches were ready on average when the loop asked for one, so "
            "it is not loading: taking them over is slow (unpickling, copying between processes)",
            "fewer and larger tensors in a batch"
            + ("" if loader["path"] != "torch" else ", or run it by python -m fastloop run"),
        )
    if workers is not None:
        return _blame_workers(found, loader, workers)
    if waits["others"] > sum(waits.values()) / 2:
        return _blame_order(waits, "")
    if loader["path"] == "array":
        return (
            f"{loader['num_workers']} threads gather and transform as fast as they can",
            f"num_workers {loader['num_workers']}→{count_cpus()} ({_say_cpus()})"
            if loader["num_workers"] < count_cpus()
            else f"a cheaper transform ({_say_cpus()})",
        )
    return (
        "not known, because torch's own iterators do not tell what their workers do",
        loader["remedy"] or "run it by python -m fastloop run, or with fastloop.DataLoader",
    )


def _say_cpus() -> str:
    cpus = count_cpus()
    return f"{cpus} CPU{'s' if cpus > 1 else ''} allowed"


def _blame_workers(
    found: dict[str, Any], loader: dict[str, Any], workers: list[dict[str, Any]]
) -> tuple[str, str]:
    busy = sum(worker["busy_s"] for worker in workers)
    waiting = sum(worker["waiting_s"] for worker in workers)
    lock = sum(worker["lock_s"] or 0 for worker in workers)
    share = busy / (busy + waiting) if busy + waiting > 0 else 0.0
    if lock > busy / 2:
        return (
            f"worker threads wait for the interpreter lock {percent(lock / busy)} of their time",
            'path="process", or code that gives the lock up',
        )
    if share >= _BUSY:
        batches = sum(worker["batches"] for worker in workers)
        return f"workers are busy {percent(share)}", _advise(found, loader, busy, batches)
    waits = loader["waits"]
    if waits["others"] > waits["none"]:
        busiest = max(range(len(workers)), key=lambda n: float(workers[n]["busy_share"] or 0))
        most = workers[busiest]["busy_share"] or 0
        name = f"; worker {busiest} is busy {percent(most)}, all on average {percent(share)}"
        return _blame_order(waits, name if most >= _BUSY else "")
    return (
        f"workers are busy {percent(share)} only, so it is not their number: batches come unevenly",
        "a higher prefetch_factor",
    )


def _blame_order(waits: dict[str, float], name: str) -> tuple[str, str]:
    part = waits["others"] / sum(waits.values())
    return (
        f"batches are handed out in order, and in {percent(part)} of the wait others were ready, "
        f"but not the one whose turn it was (head-of-line blocking){name}",
        "in_order=False, if the order of batches may vary; if not, "
        + ("samples of more even cost" if name else "a higher prefetch_factor"),
    )


def _advise(found: dict[str, Any], loader: dict[str, Any], busy: float, batches: int) -> str:
    """For samples that take `busy` seconds for so many batches: fastloop's own remedy first, and
    never more workers that compute than there are CPUs."""
    if loader["remedy"]:
        return str(loader["remedy"])
    number, cpus, share = loader["num_workers"], count_cpus(), loader["cpu_share"]
    needed = _count_needed(found, busy, batches, number)
    if share is not None and share < _COMPUTES:
        threads = min(needed, _MOST_THREADS)
        return (
            f'path="thread" with num_workers={threads}, if the dataset is safe in threads: samples '
            f"wait {percent(1 - share)} of their time, and threads that wait need no CPU"
        )
    if number >= cpus:
        return (
            f"a cheaper transform, or samples computed once and kept (fastloop.ArrayDataset): all "
            f"{_say_cpus()} are taken"
        )
    return f"num_workers {number}→{min(needed, cpus)} ({_say_cpus()})"


def _count_needed(found: dict[str, Any], busy: float, batches: int, number: int) -> int:
    """Workers that make batches as fast as the rest of the loop takes them, and a fifth more."""
    rest: float = found["seconds_of"]["steps"] - _waited(found)
    taken: int = found["steps"]["batches"]
    if batches == 0 or taken == 0 or rest <= 0:
        return number + 1
    return max(number + 1, math.ceil(1.2 * (busy / batches) / (rest / taken)))


def _waited(found: dict[str, Any]) -> float:
    """Seconds of all steps, as many as of those in the table."""
    wait = found["phases"]["data_wait"]
    steps: float = found["seconds_of"]["steps"]
    return steps * (wait["share"] or 0) if wait else 0.0
