"""report(watch=...) and run --watch: one line that is renewed, bars that stay whole, lines in logs,
and one warning if a loop becomes input-bound."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from terminals import Terminal, screen_of
from time_limits import limit
from tqdm import tqdm

import fastloop
from fastloop.cli.run import main
from fastloop.tools.report.updates import Update
from fastloop.tools.watch.status_line import StatusLine, describe

UPDATE = Update(
    seconds=3, steps=1200, skipped=0, batches=1200, samples=None, step_seconds=2.9,
    first_batch_seconds=0.1, steps_per_second=412.25, wait_share=0.45,
    causes={"none": 0.4, "others": 0.05, "ready": 0.001}, queue=0, workers=2, restarts=0,
    scale=None, gradient_norm=None, device_busy=None,
    verdict="input-bound", next="num_workers 2→6", gain=1.82, text="INPUT-BOUND: it waits.",
    ranks={}, slowest_rank=None, slowest_text="", loaders=(), is_last=False,
)  # fmt: skip
FAST = replace(UPDATE, verdict="not input-bound", next=None, gain=None, wait_share=0.01, causes={})
LINE = (
    "fastloop: step 1,200, 412.2 steps/s, waits 45% (no batch ready 40%, out of order 5.0%); "
    "num_workers 2→6: at most 1.82x as fast"
)


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Inside a test: pytest sets stderr once more behind fixtures."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(sys, "__stderr__", terminal)
    return terminal


def open_log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    return log


def test_a_line_says_what_helps_most() -> None:
    assert describe(UPDATE) == LINE
    assert describe(FAST).endswith("steps/s, waits 1.0%; not input-bound")
    slow = replace(UPDATE, slowest_rank=3, slowest_text="rank 3 has no CPU")
    assert describe(slow).endswith("out of order 5.0%); rank 3 has no CPU")
    unknown = replace(FAST, verdict="unknown", wait_share=None)
    assert describe(unknown).endswith("steps/s, waits n/a")


def test_a_terminal_has_one_line_that_goes_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    line = StatusLine(is_logged=False)
    line(UPDATE)
    assert terminal.screen() == [LINE[:79].rstrip()]
    line(FAST)
    assert terminal.screen() == [describe(FAST)]
    line(replace(FAST, is_last=True))
    assert terminal.screen() == [""]


def test_bars_of_tqdm_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that begins over the line, and the lines of verdicts above the bars."""
    terminal = open_terminal(monkeypatch)
    line = StatusLine(is_logged=True)
    line(UPDATE)
    outer = tqdm(
        range(2), "outer", file=terminal, mininterval=0, miniters=1, bar_format="{desc}{n}"
    )
    inner = tqdm(
        range(2), "inner", file=terminal, mininterval=0, miniters=1, bar_format="{desc}{n}"
    )
    for update in (UPDATE, UPDATE, FAST):
        line(update)
        inner.update()
        assert terminal.screen()[-2:] == ["outer0", f"inner{inner.n}"]
    assert terminal.screen()[:-2] == [LINE, describe(FAST)]  # one for each verdict
    inner.close()
    outer.close()
    line(replace(FAST, is_last=True))
    assert terminal.screen()[:4] == [LINE, describe(FAST), "inner3", "outer0"]


def test_a_library_that_replaces_stderr_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    theirs = Terminal()
    monkeypatch.setattr(sys, "stderr", theirs)
    line = StatusLine(is_logged=False)
    for update in (UPDATE, UPDATE, FAST):
        line(update)
    assert theirs.getvalue() == f"{LINE}\n{describe(FAST)}\n" and not terminal.getvalue()


def test_a_log_has_lines_only_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(monkeypatch)
    bar = tqdm(range(2), file=log, mininterval=1000)
    drawn = log.getvalue()
    StatusLine(is_logged=False)(UPDATE)
    assert log.getvalue() == drawn  # nothing is drawn again
    bar.close()
    log.truncate(0)
    StatusLine(is_logged=True)(UPDATE)
    assert log.getvalue().endswith(f"{LINE}\n")


def test_a_notebook_has_one_output_that_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With IPython's own display(), and a shell that says it belongs to a notebook."""
    capture = pytest.importorskip("IPython.utils.capture")
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    monkeypatch.setattr(shell, "kernel", None, raising=False)
    log = open_log(monkeypatch)
    line = StatusLine(is_logged=False)
    try:
        with capture.capture_output() as captured:
            for update in (UPDATE, FAST, replace(FAST, is_last=True)):
                line(update)
    finally:
        shell.clear_instance()
    texts = [output.data["text/plain"] for output in captured.outputs]
    assert texts == [LINE, describe(FAST), describe(FAST)] and log.getvalue() == ""
    assert [output.update for output in captured.outputs] == [False, True, True]


def seconds(kinds: str) -> Iterator[Update]:
    """One update in 5 s: f is fast, b input-bound, p partly."""
    for number, kind in enumerate(kinds):
        name = {"f": "not input-bound", "b": "input-bound", "p": "partly input-bound"}[kind]
        yield replace(UPDATE, seconds=5.0 * number, verdict=name)


@pytest.mark.parametrize(
    ("kinds", "warnings"),
    [
        ("bbbbbb", 0),
        ("ffffff", 0),
        ("fbbffbbf", 0),
        ("fpppbbff", 0),
        ("pbbbb", 0),
        ("ffbbb", 1),
        ("ffbbbffbbbb", 1),
    ],
)
def test_a_loop_that_becomes_input_bound_is_told_once(
    monkeypatch: pytest.MonkeyPatch, kinds: str, warnings: int
) -> None:
    log = open_log(monkeypatch)
    line = StatusLine(is_logged=False)
    for update in seconds(kinds):
        line(update)
    text = "fastloop: the loop has become input-bound. INPUT-BOUND: it waits.\n"
    assert log.getvalue() == text * warnings


def train(**kwargs: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.zeros(40, 2))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    with fastloop.report(verbose=False, **kwargs):
        for _ in fastloop.DataLoader(data):
            optimizer.step()


def test_rank_0_alone_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(monkeypatch)
    train(watch=True)
    assert log.getvalue() == ""
    monkeypatch.setenv("RANK", "1")
    train(watch=0.1)
    assert log.getvalue() == ""
    monkeypatch.setenv("RANK", "0")
    train(watch=1000)
    assert log.getvalue().startswith("fastloop: step 40, ")  # in the end


@pytest.mark.parametrize(("option", "got"), [("--watch=0", "'0'"), ("--watch=x", "'x'")])
def test_wrong_seconds_are_an_error_at_the_start(
    option: str, got: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([option, "script.py"]) == 2
    assert f"--watch must be a number of seconds >= 0.1, got {got}" in capsys.readouterr().err


def test_a_closed_stderr_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Terminal()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    train(watch=0.1)


PROGRAM = """
import time, torch
from torch.utils.data import DataLoader
from tqdm import tqdm

optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for epoch in range(2):
    bar = DataLoader(range(30)) if epoch == 0 else tqdm(DataLoader(range(30)), ncols=60)
    for batch in bar:
        time.sleep(0.02)
        optimizer.step()
"""


@pytest.mark.slow
def test_run_watch_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 70, 0, 0))
    command = [sys.executable, "-m", "fastloop", "run", "--watch=0.1", "script.py"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
        assert process.wait(limit(300)) == 0
    text = written.decode().replace("\r\n", "\n")
    assert text.count("\rfastloop: step ") > 2 and "steps/s, waits " in text
    bars = [line for line in screen_of(text) if "30/30" in line]
    assert len(bars) == 1 and bars[0].startswith("100%|") and bars[0].endswith("it/s]")
    assert len([line for line in screen_of(text) if "steps/s" in line]) <= 2


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the program's end of the terminal is closed
        return b""
