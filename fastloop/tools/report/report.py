"""Report: shows what a training loop spends its time on, why, and how much a faster loader could
gain at most. ``watch/report.py`` has ``fastloop.report()``, which makes reports."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from fastloop._core import version
from fastloop.base.shown import repr_of
from fastloop.tools.report import files
from fastloop.tools.report.hooks import close_hooks, open_hooks
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.page import make_page
from fastloop.tools.report.render import describe_rate, make_table, make_trace
from fastloop.tools.report.summary import summarize
from fastloop.tools.report.updates import Update, Updates
from fastloop.tools.text import notebook_shell


class Report:
    """The result of ``report()``: watches a ``with`` block, and can be read inside and after the
    block.

    Attributes:
        paths: the files to write at the end; after the end, the files that were written.
        says_if_empty: whether to print a line if there was no step.
    """

    says_if_empty = True

    def __init__(self, paths: list[Path], verbose: bool) -> None:
        self.paths, self._verbose, self._process = paths, verbose, os.getpid()
        self._observer: LoopObserver | None = None
        self._updates = Updates()
        self._is_open = self._is_shown = False
        self._ended_by: str | None = None

    def __enter__(self) -> Report:
        if self._observer is not None:
            raise RuntimeError("this report has been opened before; call fastloop.report() again")
        self._began_at = time.time()
        self._observer = LoopObserver()
        self._is_open = True
        self._updates.open(self._observer)
        open_hooks(self._observer)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if os.getpid() != self._process or not self._is_open:
            return  # a forked child also leaves the block, and must not write files
        observer = self._opened()
        close_hooks(observer)
        self._is_open = False
        is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
        self._ended_by = None if error is None or is_exit else type(error).__qualname__
        observer.end()
        self._updates.close()
        is_empty, shell = observer.recorder.steps.count == 0, notebook_shell()
        if is_empty and any(p.exists() and p.stat().st_mtime > self._began_at for p in self.paths):
            self.says_if_empty = False  # a program that this program launched wrote the file
        paths = [] if is_empty else self.paths
        says = self._verbose and (self.says_if_empty or not is_empty)
        found = self.to_dict() if paths or says else {}
        made = (self._make(files.kind_of(path), found) for path in paths)
        written = list(map(files.write_somewhere, paths, made))
        self.paths = [path for path in written if path is not None]
        if not says:
            return
        if is_empty or shell is None:
            files.say(make_table(found))
        else:
            shell.events.register("post_run_cell", self._show_once)
        for path in self.paths:
            files.say(f"  written: {path}")

    def _show_once(self, result: object) -> None:
        """Show the page below the cell that has ended, unless the cell showed the page."""
        from IPython.display import display

        notebook_shell().events.unregister("post_run_cell", self._show_once)
        if not self._is_shown:
            display(self)  # type: ignore[no-untyped-call]

    def _opened(self) -> LoopObserver:
        if self._observer is None:
            raise RuntimeError("this report was not opened; use it in a with statement")
        return self._observer

    def _make(self, kind: str, found: dict[str, Any]) -> str:
        if kind == "trace":
            steps = self._opened().recorder.steps
            return make_trace(steps, steps.first)
        if kind == "html":
            return make_page(found)
        return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values for JSON. ``docs/api/tools.md`` describes the keys.

        Inside the block you get the numbers until now, without the step that is running. The host
        waits for nothing.

        Raises:
            RuntimeError: the block has not begun. summary() and to_*() raise the same error.
        """
        found, ranks = summarize(self._opened()), self._updates.ranks.describe()
        if ranks is not None and ranks["text"]:
            found["verdict"]["text"] += f" But {ranks['text']}."
        return {
            **found,
            "ranks": ranks,
            "fastloop": version,
            "torch": str(sys.modules["torch"].__version__),
            "python": sys.version.split()[0],
            "rank": files.read_rank(),
            "command": shlex.join(sys.orig_argv[1:]),
            "host": os.uname().nodename,
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began_at)),
            "ended_by": self._ended_by,
        }

    def on_update(self, fn: Callable[[Update], object], every: float = 1.0) -> None:
        """Call ``fn(update)`` while the loop runs, before the block or inside. For example:

            report = fastloop.report("run.html")
            report.on_update(lambda update: print(update.steps_per_second, update.wait_share))
            with report:
                train()

        The thread that trains calls the function between two steps, and once more when the block
        ends. So a slow function makes the loop slow. If the function raises an exception, one line
        on stderr says so, and the function is not called again. Forked children never call it.

        Args:
            fn: a function of an ``Update``.
            every: the least time between two calls, in seconds.
        """
        self._updates.add(fn, every)

    def summary(self) -> str:
        """Return a table for terminals, with the verdict on top."""
        return make_table(self.to_dict())

    def __repr__(self) -> str:
        is_opened = self._observer is not None
        return repr_of(self, describe_rate(self.to_dict()) if is_opened else "not opened")

    def _repr_html_(self) -> str | None:
        """Return the page for a notebook, inside a frame; None before the block."""
        if self._observer is None:
            return None
        self._is_shown = not self._is_open
        style = "width: 100%; height: 44rem; border: 0"
        return f'<iframe srcdoc="{escape(make_page(self.to_dict()))}" style="{style}"></iframe>'

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` as JSON. Raises OSError if the file cannot be written."""
        files.write(Path(path), self._make("json", self.to_dict()))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs no further file and no network. Raises OSError if the file cannot
        be written."""
        files.write(Path(path), self._make("html", self.to_dict()))

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last steps for Perfetto. If the name ends in ``.gz``, the file is compressed.
        Raises OSError if the file cannot be written."""
        files.write(Path(path), self._make("trace", {}))
