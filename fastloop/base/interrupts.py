"""Ctrl-C held back where it would be lost.

In a finalizer or a fork handler Python prints it as an exception that was ignored. Between the
start of a worker and its entry in a list it would leave a process behind. Blocking the signal does
not help: another thread of the program takes it then, and Python raises in the main thread all the
same.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The program's handler, while one of ours is in its place, and the signals that ours has taken.
_held: list[Any] = []
_taken: list[int] = []


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_later() -> None:
    """For finalizers: Ctrl-C comes when they are over."""
    timer = threading.Timer(0.01, interrupt)
    timer.daemon = True
    timer.start()


@contextmanager
def interrupts_held(resend: Callable[[], None] = interrupt) -> Iterator[None]:
    """Ctrl-C that comes in this block is raised at its end, by ``resend``."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or _held:
        yield
        return
    try:
        _taken.clear()
        _held.append(handler)
        signal.signal(signal.SIGINT, lambda number, _: _taken.append(number))
        yield
    finally:
        # In this order: as soon as the program's handler is back, it may raise.
        _held.clear()
        signal.signal(signal.SIGINT, handler)
        if _taken:
            _taken.clear()
            resend()


def is_interrupted() -> bool:
    """Whether Ctrl-C is held back now."""
    return bool(_held and _taken)


def release_in_child() -> None:
    """For a process that was forked in such a block: gives it the program's handler again."""
    if _held:
        signal.signal(signal.SIGINT, _held.pop())
    _taken.clear()


def end_quietly() -> None:
    """For a worker at its end: from here on Ctrl-C is ignored."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # By this has_met_interrupt() knows that the process is at its end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except KeyboardInterrupt:
        end_quietly()


def has_met_interrupt(pid: int | None) -> bool:
    """Whether Ctrl-C has come to a worker: it is pending there, or the worker is at its end.

    A worker that has taken it and still runs the dataset's code shows neither.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in lines)
    pending, blocked, ignored = (
        int(fields[name], 16) >> (signal.SIGINT - 1) & 1 == 1
        for name in ("ShdPnd", "SigBlk", "SigIgn")
    )
    return pending or (blocked and ignored)
