"""Tables, durations, sizes and ratios as text, for all commands and reports."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, zip_longest
from typing import Any


def seconds(value: float | None) -> str:
    """Format a duration given in seconds with three digits: "1.24 s", "37.1 ms", "950 µs"."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value >= 100:
        return f"{value:,.0f} s"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 1:
            return f"{_three_digits(value * factor)} {unit}"
    return f"{_three_digits(value * 1e6)} µs" if value else "0 s"


def size(count: float | None) -> str:
    """Format a number of bytes: "1.50 GiB", "12.0 MiB"."""
    if count is None:
        return "n/a"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def percent(share: float | None) -> str:
    """Format a share of 1: "12%", "3.4%"."""
    if share is None:
        return "n/a"
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"


def ratio(value: float | None) -> str:
    """Format a ratio: "1.25x"."""
    return "n/a" if value is None else f"{_three_digits(value)}x"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns. The first column is aligned to the left, the rest to the right."""
    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for first, *others in zip(*columns, strict=True):
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join((f"  {first:<{widths[0]}}", *cells)).rstrip())
    return lines


def notebook_shell() -> Any:
    """Return IPython's shell if this is a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", bool)()
    return shell if hasattr(shell, "kernel") else None


@contextmanager
def progress(
    title: str, total: int | None = None, elsewhere: Callable[[str], None] = lambda remark: None
) -> Iterator[Callable[[str], None]]:
    """Show the progress of a measurement in a notebook or on a terminal.

    Yields a function to call with a remark before each part. If tqdm is installed, tqdm draws a
    bar; if not, each remark overwrites the remark before.

    Args:
        total: the number of parts, if known.
        elsewhere: a function of a remark, called if there is no terminal and no notebook.
    """
    is_notebook = notebook_shell() is not None
    is_seen = is_notebook or getattr(sys.stderr, "isatty", bool)()
    if not is_seen or os.environ.get("RANK", "0") != "0":
        yield elsewhere
        return
    try:
        from tqdm import tqdm  # type: ignore[import-untyped]
    except ImportError:

        def write(remark: str) -> None:
            print(f"\r{title}: {remark}\x1b[K", end="", file=sys.stderr, flush=True)

        yield write
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        return
    # tqdm's monitor is a thread, and Python would warn about a fork of a process with threads.
    kind = type("Bar", (tqdm,), {"monitor_interval": 0})
    file = sys.stdout if is_notebook else sys.stderr  # notebooks paint stderr red
    form, begun = "{l_bar}{bar:20}| {elapsed}{postfix}", count()
    with kind(total=total, desc=title, leave=False, file=file, bar_format=form) as bar:

        def draw(remark: str) -> None:
            bar.n = next(begun)  # the number of parts that are finished
            bar.set_postfix_str(remark)  # draws the bar

        yield draw


def _three_digits(value: float) -> str:
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{min(max(digits, 0), 3)}f}"
