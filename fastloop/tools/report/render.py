"""The rows of a report, as a table for terminals and as two reports side by side.

The page (page.py) shows the same rows. ``make_trace`` writes steps for Perfetto
(https://ui.perfetto.dev) and chrome://tracing.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from fastloop.tools.report.files import read_rank
from fastloop.tools.report.recorder import PARTS, PHASES, Step
from fastloop.tools.report.summary import LABELS
from fastloop.tools.text import percent, ratio, seconds, table

_WIDTH = 80
_MAX_WORKERS = 8  # the workers of a loader that are shown

# ---- rows


def phase_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of a step's phases, the head first. Without a GPU the GPU's rows are left
    out; without steps the last row is left out."""
    rows = [["of a step", "share", "mean", "median", "p95"]]
    has_gpu = found["gpu"]["uuid"] is not None
    optional = ("step",) if has_gpu else ("gpu_wait", "host_to_device", "step")
    for name, label in LABELS.items():
        phase = {**found, **found["phases"]}[name] or {}
        if phase or name not in optional:
            share = "" if phase and "share" not in phase else percent(phase.get("share"))
            rows.append([label, share, *(_time(phase, f"{name}_ms") for name in rows[0][2:])])
    return rows


def _time(phase: dict[str, Any], name: str) -> str:
    return seconds(phase[name] / 1e3) if phase else "n/a"


def part_rows(found: dict[str, Any]) -> list[list[str]]:
    """Return the table of the run's parts, the head first. Parts without time are left out."""
    rows = [["of the run", "time", "share"]]
    for name in PARTS:
        time = found["seconds_of"][name]
        if time > 0:
            rows.append([name.replace("_", " "), seconds(time), percent(time / found["seconds"])])
    return rows


def describe_rate(found: dict[str, Any]) -> str:
    steps = found["steps"]
    rate = f", {steps['per_second']:,.1f} a second once warm" if steps["per_second"] else ""
    plural = "s" * (steps["count"] != 1)
    return f"{steps['count']:,} step{plural}{rate}; {seconds(found['seconds'])} in all"


def list_facts(found: dict[str, Any]) -> list[str]:
    """Return texts about each loader, skipped steps, the GPU, the end and the cost of measuring."""
    facts = [_describe_loader(loader) for loader in found["loaders"]]
    steps, gpu, cost = found["steps"], found["gpu"], found["measuring"]
    unknown = " (n/a for optimizers that skip on the device)" if steps["skips_unknown"] else ""
    facts.append(f"skipped steps: {steps['skipped']:,}{unknown}")
    if gpu["uuid"] is not None:
        why = f" ({gpu['why_unknown']})" if gpu["busy"] is None else " of the time"
        facts.append(f"GPU busy: {percent(gpu['busy'])}{why}; {gpu['uuid']}")
    if found["ended_by"]:
        facts.append(f"ended by {found['ended_by']}")
    if found["cpu_wait_s"] is not None and found["seconds"] > 0:
        late = percent(found["cpu_wait_s"] / found["seconds"])
        facts.append(f"the loop's thread was ready, and had no CPU: {late} of the time")
    each, share = cost["us_per_step"] or 0, cost["share_of_steps"] or 0
    return [*facts, f"cost of measuring: {each:.1f} µs a step, {share:.2%} of the steps"]


def _describe_loader(loader: dict[str, Any]) -> str:
    number, workers = loader["num_workers"], loader["workers"] or []
    role = "training" if loader["trains"] else "not trained on"
    text = f"{loader['name']} ({role}, path {loader['path'] or 'n/a'}, {number or 'no'} workers): "
    text += f"{loader['batches']:,} batches, {seconds(loader['wait_s'])} waited"
    for i, worker in enumerate(workers[:_MAX_WORKERS]):
        text += f"; worker {i}: {percent(worker['busy_share'])} busy"
        text += f", {seconds(worker['lock_s'])} for the lock" if worker["lock_s"] else ""
    text += "; workers: n/a" if number and not workers else ""
    hint = loader.get("memory_hint")  # reports of earlier versions have none
    return text + (f"; {hint}" if hint else "")


# ---- texts


def make_table(found: dict[str, Any]) -> str:
    """Return a report for a terminal of 80 columns. Without a step, return one line."""
    verdict = found["verdict"]["text"]
    if found["steps"]["count"] == 0:
        return f"fastloop report: {verdict}"
    title = f"fastloop report: {describe_rate(found)}; {found['steps']['steady']:,} in the table"
    tables = "\n".join([*table(phase_rows(found)), "", *table(part_rows(found))])
    facts = "\n".join(_wrap(f"  {fact}", "    ") for fact in list_facts(found))
    return "\n".join([_wrap(title), _wrap(verdict), "", tables, "", facts])


def _wrap(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent)


def _list_measures(found: dict[str, Any]) -> Iterator[tuple[str, float | None, str]]:
    """Yield the label, the value and the text of each row of a comparison."""
    count, rate = found["steps"]["count"], found["steps"]["per_second"]
    yield "steps", count, f"{count:,}"
    yield "steps a second", rate, "n/a" if rate is None else f"{rate:,.1f}"
    for name, label in LABELS.items():
        phase = {**found, **found["phases"]}[name] or {}
        share = f" {percent(phase['share']):>4}" if "share" in phase else ""
        yield label, phase.get("median_ms"), _time(phase, "median_ms") + share
    for name in PARTS:
        time = found["seconds_of"][name]
        yield name.replace("_", " "), time, seconds(time)


def compare(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Return a table of two reports side by side: `a` and `b` are made by ``Report.to_dict()``."""
    rows = [["median, share; time", "A", "B", "B / A"]]
    pairs = zip(_list_measures(a), _list_measures(b), strict=True)
    for (label, before, cell), (_, after, other) in pairs:
        if before is not None or after is not None:
            change = ratio(after / before if before and after is not None else None)
            rows.append([label, cell, other, change])
    verdicts = [f"  {name}: {one['verdict']['text']}" for name, one in (("A", a), ("B", b))]
    return "\n".join([*table(rows), *verdicts])


# ---- the trace


def make_trace(steps: Iterable[Step], first: int) -> str:
    """Return the trace as JSON: a slice for each step, with a slice for each phase inside, in the
    usual order of phases.

    Args:
        steps: the steps that are kept.
        first: the number of the first step.
    """
    events: list[dict[str, Any]] = []
    begin = 0
    for number, step in enumerate(steps, first):
        # Slices of a thread must not overlap, so a step begins after the step before.
        begin = max(begin, step.end - step.total)
        slices, at = [(f"step {number}", begin, step.end)], begin
        for name in PHASES:
            end = min(at + max(getattr(step, name), 0), step.end)
            slices.append((name, at, end))
            at = end
        for name, a, b in (one for one in slices if one[2] > one[1]):
            events.append({"ph": "X", "name": name, "ts": a / 1e3, "dur": (b - a) / 1e3})
        begin = step.end
    common = {"pid": read_rank(), "tid": 1}
    return json.dumps({"traceEvents": [{**common, **event} for event in events]})
