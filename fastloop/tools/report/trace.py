"""The steps of a report as a trace for Perfetto (https://ui.perfetto.dev) and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastloop.tools.report.files import find_rank
from fastloop.tools.report.recorder import NOT_MEASURED, Step
from fastloop.tools.report.summary import PHASES

_STEPS, _READY = 1, 2  # threads of the trace


def make_trace(steps: Iterable[Step], first: int) -> str:
    """One slice for each step, and those of its phases inside it, in their usual order: a phase
    that comes several times in a step is one slice.

    Args:
        steps: those that are kept.
        first: the number of the first of them.
    """
    rank = find_rank()
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}},
        {"ph": "M", "pid": rank, "tid": _STEPS, "name": "thread_name", "args": {"name": "steps"}},
    ]
    begin = 0
    for number, step in enumerate(steps, first):
        # Slices of a thread may not overlap: a validation in the middle of a step would make them.
        begin = max(begin, step.end - step.total)
        slices = [(f"step {number}", begin, step.end)]
        at = begin
        for name, field in PHASES.items():
            ns = getattr(step, field)
            if ns != NOT_MEASURED and ns > 0:
                slices.append((name, at, min(at + ns, step.end)))
                at = min(at + ns, step.end)
        events += [
            {
                "ph": "X",
                "pid": rank,
                "tid": _STEPS,
                "name": name,
                "ts": a / 1e3,
                "dur": (b - a) / 1e3,
            }
            for name, a, b in slices
            if b > a
        ]
        if step.ready != NOT_MEASURED:
            ready = {"batches": step.ready}
            events.append(
                {
                    "ph": "C",
                    "pid": rank,
                    "tid": _READY,
                    "name": "ready",
                    "ts": begin / 1e3,
                    "args": ready,
                }
            )
        begin = step.end
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
