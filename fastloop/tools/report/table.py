"""A report as text for a terminal: 80 columns, no colours."""

from __future__ import annotations

import textwrap
from typing import Any

from fastloop.tools.report.verdict import ms, percent

_WIDTH = 80
_MOST_WORKERS = 8  # of a loader that are shown
LABELS = {
    "data_wait": "data wait",
    "host_to_device": "host to device",
    "forward_backward": "forward+backward",
    "clip_optimizer": "clip+optimizer",
    "other": "other",
}
PARTS = {
    "before": "before the first batch was asked for",
    "first_batch": "first batch",
    "steps": "steps",
    "between_epochs": "between epochs",
    "validation": "validation (batches without a step)",
    "unfinished": "unfinished step",
    "after": "after the loop",
    "measuring": "measuring",
}


def seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.3f} s"


def _row(name: str, *cells: str) -> str:
    return f"  {name:<24}" + "".join(f"{cell:>13}" for cell in cells)


HEAD = "of a step", "share", "mean", "median", "p95"


def phase_rows(found: dict[str, Any]) -> list[list[str]]:
    """Below HEAD. What is of a GPU is left out where there is none."""
    rows = [(label, name, found["phases"][name]) for name, label in LABELS.items()]
    rows.insert(1, ("  of it seen by the GPU", "gpu_wait", found["gpu_wait"]))
    rows.append(("step", "step", found["step"]))
    of_gpu = ("gpu_wait", "host_to_device") if found["gpu"]["uuid"] is None else ("step",)
    return [
        [label, *_phase_cells(phase)]
        for label, name, phase in rows
        if phase is not None or name not in of_gpu
    ]


def _phase_cells(phase: dict[str, Any] | None) -> list[str]:
    if phase is None:
        return ["n/a"] * 4
    share = percent(phase["share"]) if "share" in phase else ""
    return [share, *(ms(phase[f"{name}_ms"]) for name in HEAD[2:])]


def describe_loader(loader: dict[str, Any]) -> str:
    number = loader["num_workers"]
    workers = f"{number or 'no'} worker{'s' if number != 1 else ''}"
    role = "training" if loader["trains"] else "no steps on it"
    text = (
        f"{loader['name']} ({role}, path {loader['path'] or 'n/a'}, {workers}): "
        f"{loader['batches']:,} batches, {seconds(loader['wait_s'])} waited"
    )
    found = loader["workers"] or ()
    for number, worker in enumerate(found[:_MOST_WORKERS]):
        text += (
            f"; worker {number}: {worker['batches']:,} batches, {seconds(worker['busy_s'])} busy, "
            f"{seconds(worker['waiting_s'])} waiting"
        )
        if worker["lock_s"] is not None:
            text += f", {seconds(worker['lock_s'])} for the interpreter lock"
    if len(found) > _MOST_WORKERS:
        text += f"; {len(found) - _MOST_WORKERS} more workers: in the JSON"
    if loader["workers"] is None and loader["num_workers"]:
        text += "; workers: n/a"
    return text


def describe_skips(found: dict[str, Any]) -> str:
    steps = found["steps"]
    known = f"{steps['skipped']:,}"
    if steps["skips_unknown"]:
        return f"{known} (n/a for optimizers that skip on the device)"
    return known


def describe_gpu(found: dict[str, Any]) -> str:
    gpu = found["gpu"]
    busy = f"n/a ({gpu['why_unknown']})"
    if gpu["busy"] is not None:
        busy = f"{percent(gpu['busy'])} of the time, by {gpu['samples']} samples of NVML"
    return f"{busy}; {_describe_units(gpu)}; {gpu['uuid']}"


def _describe_units(gpu: dict[str, Any]) -> str:
    if gpu["why_units_unknown"] is not None:
        return f"its parts: n/a ({gpu['why_units_unknown']})"
    shares = [
        f"{name.replace('_', ' ')} {'n/a' if share is None else percent(share)}"
        for name, share in gpu["units"].items()
    ]
    return f"its parts: {', '.join(shares)}"


def describe_cost(found: dict[str, Any]) -> str:
    cost = found["measuring"]
    if cost["us_per_step"] is None:
        return "cost of measuring: n/a, there were no steps"
    share = cost["share"] or 0
    return f"cost of measuring: {cost['us_per_step']:.1f} µs a step, {share:.2%} of the time"


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def describe_rate(found: dict[str, Any]) -> str:
    steps = found["steps"]
    rate = f", {steps['per_second']:,.1f} a second once warm" if steps["per_second"] else ""
    return f"{steps['count']:,} steps{rate}; {seconds(found['seconds'])} in all"


def make_table(found: dict[str, Any]) -> str:
    """One line where there was no step."""
    steps = found["steps"]
    if steps["count"] == 0:
        return f"fastloop report: {found['verdict']['text']}"
    lines = [
        *_wrap(f"fastloop report: {describe_rate(found)}; {steps['steady']:,} in the table"),
        *_wrap(found["verdict"]["text"]),
        "",
        *(_row(*row) for row in (HEAD, *phase_rows(found))),
        "",
    ]
    for name, label in PARTS.items():
        if found["seconds_of"][name] > 0 and name != "measuring":
            lines.append(f"  {label:<40}{seconds(found['seconds_of'][name]):>12}")
    lines.append("")
    for loader in found["loaders"]:
        lines += _wrap(describe_loader(loader), "  ")
    lines += _wrap(f"skipped steps: {describe_skips(found)}", "  ")
    if found["gpu"]["uuid"] is not None:
        lines += _wrap(f"GPU busy: {describe_gpu(found)}", "  ")
    if found["ended_by"]:
        lines += _wrap(f"ended by {found['ended_by']} in {found['ended_in'] or 'no step'}", "  ")
    lines.append(f"  {describe_cost(found)}")
    return "\n".join(lines)
