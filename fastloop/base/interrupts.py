"""Ctrl-C is held back while the signal would be lost.

In a finalizer or a fork handler Python prints KeyboardInterrupt as an ignored exception. Between
the start of a worker and its entry in a list, the exception would leave a running process. Blocking
the signal does not help: a second thread of the program then takes the signal, and Python still
raises in the main thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The program's handler during interrupts_held(), and the signals taken meanwhile.
_held: list[Any] = []
_taken: list[int] = []


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_later() -> None:
    """Send Ctrl-C when the running finalizer is over."""
    timer = threading.Timer(0.01, interrupt)
    timer.daemon = True
    timer.start()


@contextmanager
def interrupts_held(resend: Callable[[], None] = interrupt) -> Iterator[None]:
    """Hold back Ctrl-C in this block; ``resend`` sends the signal again at the end."""
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
        # The list first: once the program's handler is back, the handler may raise.
        _held.clear()
        signal.signal(signal.SIGINT, handler)
        if _taken:
            _taken.clear()
            resend()


def is_interrupted() -> bool:
    """Tell whether a Ctrl-C is held back now."""
    return bool(_held and _taken)


def raises_again(function: Callable[..., object], *args: object) -> bool:
    """Tell whether a call that has raised an error raises again. If it does not, the error came
    from the handler of a signal."""
    try:
        function(*args)
    except Exception:
        return True
    return False


def release_in_child() -> None:
    """Restore the program's handler in a process that was forked inside interrupts_held()."""
    if _held:
        signal.signal(signal.SIGINT, _held.pop())
    _taken.clear()


def end_quietly() -> None:
    """Ignore Ctrl-C from here on, because the worker is ending."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # has_met_interrupt() learns from the mask that the process is ending.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    except KeyboardInterrupt:
        end_quietly()


def has_met_interrupt(pid: int | None) -> bool:
    """Tell whether a worker has got Ctrl-C: the signal is pending there, or the worker is ending.

    A worker that has taken the signal and still runs the dataset's code shows neither.
    """
    from fastloop.base.machine import read_text

    lines = read_text(Path(f"/proc/{pid}/status")).splitlines()
    masks = dict(line.split(":", 1) for line in lines)
    pending, blocked, ignored = (
        int(masks.get(name, "0"), 16) >> (signal.SIGINT - 1) & 1
        for name in ("ShdPnd", "SigBlk", "SigIgn")
    )
    return bool(pending or (blocked and ignored))
