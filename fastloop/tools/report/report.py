"""``fastloop.report()``: where the time of a training loop goes, whose fault it is, and what the
most is that a faster loader could give."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from fastloop._core import version
from fastloop.tools.report.files import (
    find_files,
    find_rank,
    is_first_rank,
    kind_of,
    say,
    to_json,
    write,
    write_somewhere,
)
from fastloop.tools.report.hooks import close_hooks, open_hooks
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.page import make_page
from fastloop.tools.report.summary import summarize
from fastloop.tools.report.table import make_table
from fastloop.tools.report.trace import make_trace


def _is_error(error: BaseException | None) -> bool:
    """``sys.exit()`` is none."""
    is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    return error is not None and not is_exit


class Report:
    """What ``report()`` gives: open in a ``with`` block, to be read in and after it.

    Attributes:
        paths: the files that its end writes, and after it those that are written.
    """

    def __init__(self, paths: list[Path], verbose: bool) -> None:
        self.paths = paths
        self._verbose = verbose
        self._process = os.getpid()
        self._observer: LoopObserver | None = None
        self._began_at = 0.0
        self._is_open = False
        self._ended_by = self._ended_in = ""

    def __enter__(self) -> Report:
        if self._observer is not None:
            raise RuntimeError("this report has been opened before; call fastloop.report() again")
        self._began_at = time.time()
        self._observer = LoopObserver()
        self._is_open = True
        open_hooks(self._observer)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if os.getpid() != self._process or not self._is_open or self._observer is None:
            return  # the child of a fork leaves the block, too
        close_hooks(self._observer)
        self._is_open = False
        self._ended_in = self._observer.end(_is_error(error))
        if _is_error(error):
            self._ended_by = type(error).__qualname__
        paths = self.paths if self._observer.recorder.steps.count > 0 else ()
        written = [write_somewhere(path, self._make(kind_of(path))) for path in paths]
        self.paths = [path for path in written if path is not None]
        if self._verbose:
            say("\n".join([self.summary(), *(f"  written: {path}" for path in self.paths)]))

    def _find_observer(self) -> LoopObserver:
        if self._observer is None:
            raise RuntimeError("this report was not opened; use it in a with statement")
        return self._observer

    def _make(self, kind: str) -> str:
        if kind == "trace":
            steps = self._find_observer().recorder.steps
            return make_trace(steps, steps.first)
        found = self.to_dict()
        return make_page(found) if kind == "html" else to_json(found)

    def to_dict(self) -> dict[str, Any]:
        """The numbers, as JSON takes them; inside the block those until now, without the step that
        is under way. ``docs/report.md`` has the keys. Costs no sync.

        Raises RuntimeError before the block, as all methods do."""
        torch = sys.modules["torch"]
        return {
            **summarize(self._find_observer()),
            "fastloop": version,
            "torch": str(torch.__version__),
            "python": sys.version.split()[0],
            "rank": find_rank(),
            "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._began_at)),
            "ended_by": self._ended_by or None,
            "ended_in": self._ended_in or None,
        }

    def summary(self) -> str:
        """A table for terminals, the verdict on top."""
        return make_table(self.to_dict())

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()``. OSError where that is not possible."""
        write(Path(path), self._make("json"))

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page that needs no other file, nor a network. OSError as above."""
        write(Path(path), self._make("html"))

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last steps for Perfetto, compressed where the name ends in ``.gz``. OSError as
        above."""
        write(Path(path), self._make("trace"))


def report(*paths: str | os.PathLike[str], verbose: bool | None = None) -> Report:
    """Watch a training loop: ``with fastloop.report("run.html") as r:`` around it.

    Measures batches of any torch or fastloop ``DataLoader`` and steps of any optimizer of
    torch's, in frameworks, too. At the end of the block says on stderr what the loop waits for, and
    writes the files. Never waits for the GPU, and costs some microseconds a step, which it measures
    and says. Exceptions pass through, and the report is written all the same. Reports may be open
    inside each other. What other threads do, and other processes, is not seen. Where no step was
    taken, one line says so and no file is written.

    Args:
        paths: files to write: ``.html`` (a page, with a ``.json`` beside it), ``.json`` (the
            numbers), ``.trace.json`` or ``.trace.json.gz`` (the last 16,384 steps for Perfetto).
            A rank other than 0 writes ``.rank1`` before the ending. A file that cannot be written
            in the end goes to the folder for temporary files, and stderr says so; no file is
            worth an exception there.
        verbose: whether to print the table. None: on rank 0, unless FASTLOOP_VERBOSE is 0.

    Raises:
        ValueError: a name has another ending.
        OSError: a folder is not there, or a file may not be written.
    """
    if verbose is None:
        verbose = is_first_rank() and os.environ.get("FASTLOOP_VERBOSE", "1") != "0"
    return Report(find_files(paths), verbose)
