"""``python -m fastloop compare a.json b.json``: two reports side by side, as text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fastloop.tools.report.summary import SCHEMA
from fastloop.tools.report.table import LABELS, PARTS, seconds
from fastloop.tools.report.verdict import ms, percent

USAGE = """usage: python -m fastloop compare A.json B.json

Compares two reports of fastloop.report(): steps a second, the phases of a step and the parts of the
run, A first."""


_OF_GPU = "  of it seen by the GPU", LABELS["host_to_device"]


def load_report(path: str) -> dict[str, Any]:
    """Raises ValueError for what is no report, OSError for what cannot be read."""
    try:
        found = json.loads(Path(path).read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} is no report that this version reads: its schema is {schema!r}, not "
            f"{SCHEMA!r}; write it with fastloop.report({path!r})"
        )
    return dict(found)


def _change(before: float | None, after: float | None) -> str:
    """How many times as much."""
    if not before or after is None:
        return "n/a"
    return f"×{after / before:.2f}"


def _row(name: str, *cells: str) -> str:
    return f"  {name:<36}{''.join(f'{cell:>17}' for cell in cells)}"


def _phase_rows(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    rows = []
    pairs = [(label, a["phases"][name], b["phases"][name]) for name, label in LABELS.items()]
    pairs.insert(1, ("  of it seen by the GPU", a["gpu_wait"], b["gpu_wait"]))
    for label, *phases in [*pairs, ("step", a["step"], b["step"])]:
        if label in _OF_GPU and not any(phases):
            continue
        medians = [phase and phase["median_ms"] for phase in phases]
        shown = [
            f"{ms(median)} {percent(phase['share']) if phase and 'share' in phase else '':>4}"
            for phase, median in zip(phases, medians, strict=True)
        ]
        rows.append(_row(label, *(text.rstrip() for text in shown), _change(*medians)))
    return rows


def compare(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Two reports, each as ``Report.to_dict()`` gives it."""
    rates = [report["steps"]["per_second"] for report in (a, b)]
    lines = [
        _row("", "A", "B", "B / A"),
        _row("steps", *(f"{report['steps']['count']:,}" for report in (a, b))),
        _row(
            "steps a second",
            *("n/a" if rate is None else f"{rate:,.1f}" for rate in rates),
            _change(*rates),
        ),
        "  median and share of a step",
        *_phase_rows(a, b),
        "  time of the run",
    ]
    for name, label in PARTS.items():
        times = a["seconds_of"][name], b["seconds_of"][name]
        lines.append(_row(label, *map(seconds, times), _change(*times)))
    lines += [f"  {name}: {report['verdict']['text']}" for name, report in (("A", a), ("B", b))]
    return "\n".join(lines)


def main(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if len(args) != 2:
        print(USAGE, file=sys.stderr)
        return 2
    try:
        a, b = map(load_report, args)
    except (OSError, ValueError) as error:
        print(f"fastloop compare: {error}", file=sys.stderr)
        return 2
    try:
        print(compare(a, b))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        print(f"fastloop compare: a report is damaged: {error!r}", file=sys.stderr)
        return 2
    return 0
