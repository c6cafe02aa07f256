"""``fastloop.report()``: opens a report, and whatever shows the report while the loop runs."""

from __future__ import annotations

import os
from pathlib import Path

from fastloop.base.checks import read_number
from fastloop.tools.report import files
from fastloop.tools.report.report import Report
from fastloop.tools.watch.options import SHORTEST, read_target
from fastloop.tools.watch.status_line import StatusLine

_FILE_S, _PORT_S = 5.0, 1.0  # a file takes half a millisecond; a port has the update at once


def report(
    *paths: str | os.PathLike[str],
    verbose: bool | None = None,
    watch: bool | float = False,
    metrics: str | os.PathLike[str] | None = None,
) -> Report:
    """Watch a training loop and report what the loop waits for. For example:

        with fastloop.report("run.html"):
            for x, y in loader:
                train_step(x, y)

    A report measures batches of any torch or fastloop ``DataLoader`` and steps of any
    ``torch.optim`` optimizer, in frameworks as well. At the end of the block the report prints a
    table on stderr (in a notebook: shows the page) and writes the files. If the block raises, the
    report is written all the same and the exception passes through. If no step was taken, one line
    says so and no file is written.

    A report never waits for the GPU. Measuring costs some microseconds a step, and the report
    prints the cost. Reports may be nested. A report sees one thread of one process.

    Args:
        paths: files to write: ``.html`` (a page, with a ``.json`` beside it), ``.json`` (the
            numbers), ``.trace.json`` or ``.trace.json.gz`` (the last 16,384 steps for Perfetto).
            Rank 1 writes ``run.rank1.html`` for ``run.html``, and so on; rank 0 writes
            ``run.html``. If a file cannot be written at the end, the report writes the file into a
            temporary folder, says so on stderr, and raises nothing.
        verbose: whether to print the table. None prints on rank 0, unless FASTLOOP_VERBOSE is 0.
        watch: True renews a line on stderr each second while the loop runs, if stderr is a
            terminal: the rate, the share of waiting and its causes, and the change that would help
            most. Among tqdm's bars the line is printed when the verdict changes. A number renews
            the line each so many seconds; if stderr is not a terminal, a number prints a line each
            so many seconds. In any case one line says if a loop that was not input-bound becomes
            input-bound. Rank 0 alone prints.
        metrics: where Prometheus finds the numbers while the loop runs, from the first step on: a
            file of OpenMetrics text, which is replaced as a whole every 5 seconds; ``":9100"``, a
            port of this machine; or ``"HOST:9100"``, a port on an address. Rank 1 uses
            ``FILE.rank1.prom`` for ``FILE.prom`` or the next port, and so on. Needs
            ``prometheus-client``. If the file or the port cannot be used, one line on stderr says
            so. docs/api/tools.md lists the names.

    Raises:
        ValueError: a name has no known ending, ``watch`` is too short, or ``metrics`` is
            neither a file nor a port.
        ImportError: ``metrics`` is given without prometheus_client.
        OSError: a folder is missing, or a file cannot be written.
    """
    if verbose is None:
        verbose = files.read_rank() == 0 and os.environ.get("FASTLOOP_VERBOSE", "1") != "0"
    opened = Report(files.find_files(paths), verbose)
    if watch is not False:
        every = 1.0 if watch is True else read_number("watch", watch, SHORTEST)
        if files.read_rank() == 0:
            opened.on_update(StatusLine(watch is not True), every)
    if metrics is not None:
        target = read_target(os.fspath(metrics))
        from fastloop.tools.watch.metrics import Metrics  # imports prometheus_client

        opened.on_update(Metrics(target), _FILE_S if isinstance(target, Path) else _PORT_S)
    return opened
