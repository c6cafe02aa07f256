"""StatusLine: prints on stderr what a loop does, for ``report(watch=...)`` and ``run --watch``.

A line that is renewed has no newline, so whatever the program prints would continue the line or a
bar would leave a rest. Therefore the line is renewed only while tqdm has no bar and no other
library has replaced stderr. In a notebook the line is an output of the cell. The thread that trains
calls a StatusLine.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from fastloop.base.checks import look_up
from fastloop.tools.report.files import say
from fastloop.tools.report.loader_source import NONE, OTHERS, READY
from fastloop.tools.report.updates import Update
from fastloop.tools.text import notebook_shell, percent, ratio

_CAUSES = {NONE: "no batch ready", OTHERS: "out of order", READY: "slow to take over"}
_SMALL = 0.005  # smaller shares are not named
_BOUND_S = 10.0  # a loop has become input-bound if it is for so long, which takes two verdicts


class StatusLine:
    """A callback of ``Report.on_update()``.

    Args:
        is_logged: whether to print lines if stderr is not a terminal.
    """

    def __init__(self, is_logged: bool) -> None:
        self._is_logged = is_logged
        self._is_shown = False  # whether the terminal's last line is this one
        self._printed: Any = "unknown", None  # the verdict that was printed among bars
        self._was_fast: bool | None = False  # None: the warning has been printed
        self._bound_since: float | None = None  # seconds of the report
        self._handle: Any = None  # of the output in a notebook

    def __call__(self, update: Update) -> None:
        lines = []
        if self._becomes_input_bound(update):
            lines.append(f"fastloop: the loop has become input-bound. {update.text}")
        is_renewed = False
        if notebook_shell() is not None:
            self._show(describe(update))
        elif not getattr(sys.stderr, "isatty", bool)():
            lines += [describe(update)] if self._is_logged else []
        elif not update.is_last:
            is_renewed = not _find_bars() and sys.stderr is sys.__stderr__
            state = update.verdict, update.slowest_rank
            if not is_renewed and state != self._printed:
                self._printed = state
                lines.append(describe(update))
        if lines or (self._is_shown and not is_renewed):
            with _bars_aside():
                if self._is_shown:
                    self._draw("")
                for line in lines:
                    say(line)
        if is_renewed:
            self._draw(describe(update))

    def _becomes_input_bound(self, update: Update) -> bool:
        """Tell once whether a loop that was not input-bound has been input-bound for a while."""
        if update.verdict != "input-bound":
            self._bound_since = None
            if self._was_fast is not None and update.verdict == "not input-bound":
                self._was_fast = True
            return False
        if self._bound_since is None:
            self._bound_since = update.seconds
        if not self._was_fast or update.seconds < self._bound_since + _BOUND_S:
            return False
        self._was_fast = None
        return True

    def _show(self, text: str) -> None:
        """Show `text` below the cell of a notebook, in place of the text before."""
        from IPython.display import display

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)

    def _draw(self, text: str) -> None:
        """Put `text` in place of the terminal's last line."""
        columns = 0  # unknown
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        sys.stderr.write(f"\r{text[: (columns or 80) - 1]}\x1b[K")
        sys.stderr.flush()
        self._is_shown = bool(text)


def describe(update: Update) -> str:
    """Return one line: the rate, the waiting and its causes, and the change that helps most."""
    text = f"fastloop: step {update.steps:,}, {update.steps_per_second:,.1f} steps/s"
    text += f", waits {percent(update.wait_share)}"
    shares = [(_CAUSES[name], share) for name, share in update.causes.items() if share > _SMALL]
    if shares:
        text += f" ({', '.join(f'{cause} {percent(share)}' for cause, share in shares)})"
    if update.slowest_text:
        return f"{text}; {update.slowest_text}"
    if update.next:
        return f"{text}; {update.next}: at most {ratio(update.gain)} as fast"
    return f"{text}; {update.verdict}" if update.verdict != "unknown" else text


def _find_bars() -> Any:
    """Return tqdm's class if tqdm shows bars, else None."""
    tqdm = look_up(sys.modules.get("tqdm"), "tqdm")
    return tqdm if look_up(tqdm, "_instances") else None


def _bars_aside() -> AbstractContextManager[object]:
    """Take tqdm's bars off the terminal during a block, and draw them again."""
    bars = _find_bars()
    return nullcontext() if bars is None else bars.external_write_mode(file=sys.stderr)
