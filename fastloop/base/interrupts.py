"""Ctrl-C held back where it would be lost: in a finalizer or a fork handler Python prints it as an
exception that was ignored, and between the start of a worker and its entry in a list it would
leave a process behind.

Blocking the signal would not do: another thread of the program takes it then, and Python raises in
the main thread all the same.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

# The program's handler while another takes its place, and the signals that one has taken.
_held: list[Any] = []
_came: list[int] = []


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _sleep_and_interrupt() -> None:
    sleep(0.01)
    interrupt()


def interrupt_later() -> None:
    """For finalizers: Ctrl-C comes when they are over."""
    threading.Thread(target=_sleep_and_interrupt, daemon=True).start()


@contextmanager
def interrupts_held(resend: Callable[[], None] = interrupt) -> Iterator[None]:
    """Ctrl-C in this block comes at its end, by ``resend``."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler) or _held:
        yield
        return
    try:
        _came.clear()
        _held.append(handler)
        signal.signal(signal.SIGINT, lambda number, _: _came.append(number))
        yield
    finally:
        # In this order: as soon as the program's handler is back, it may raise.
        _held.clear()
        signal.signal(signal.SIGINT, handler)
        if _came:
            _came.clear()
            resend()


def is_interrupted() -> bool:
    """Whether Ctrl-C is held back now."""
    return bool(_held and _came)


def release_in_child() -> None:
    """In a process that was forked in such a block: it has the program's handler again."""
    if _held:
        signal.signal(signal.SIGINT, _held.pop())
    _came.clear()


def end_quietly() -> None:
    """The last a worker does about Ctrl-C: from here on it is ignored."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Says that this process is at its end: see has_met_interrupt.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except KeyboardInterrupt:
        end_quietly()


def has_met_interrupt(pid: int | None) -> bool:
    """Whether Ctrl-C has come to a worker: it waits there to be taken, or the worker is at its end.

    One that has taken it and is still in the dataset's code shows neither.
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
