"""Options of ``python -m fastloop run`` that show a loop while it runs.

This module imports no torch, so a wrong option is an error before the program runs."""

from __future__ import annotations

import math

from fastloop.base.checks import check_value

SHORTEST = 0.1  # seconds between two lines


def read_seconds(text: str) -> float:
    """Return the seconds of ``--watch=SECONDS``, or raise ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    is_long = SHORTEST <= seconds < math.inf
    check_value("--watch", text, is_long, f"a number of seconds >= {SHORTEST}")
    return seconds
