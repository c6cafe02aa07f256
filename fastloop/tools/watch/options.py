"""Options of ``python -m fastloop run`` that show a loop while it runs.

This module imports no torch, so a wrong option is an error before the program runs."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

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


def read_target(text: str) -> Path | tuple[str, int]:
    """Return where metrics go: a file, or an address and a port.

    Raises:
        ValueError: `text` is neither.
        ImportError: prometheus_client is missing.
    """
    if find_spec("prometheus_client") is None:
        raise ImportError("metrics need prometheus_client; run `pip install prometheus-client`")
    host, colon, port = text.rpartition(":")
    is_port = colon != "" and (host == "" or port.isdecimal())
    is_right = 0 < int(port) < 1 << 16 if is_port and port.isdecimal() else text and not is_port
    check_value("metrics", text, is_right, "a file, :PORT or HOST:PORT")
    return (host.strip("[]") or "127.0.0.1", int(port)) if is_port else Path(text).absolute()
