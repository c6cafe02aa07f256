"""Locks of objects that several threads use. Where two threads call ``next()`` at once, torch's own
iterators lose batches or hang; without an interpreter lock, counts lose numbers too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any


def has_interpreter_lock() -> bool:
    """Tell whether one thread at a time runs Python. Once true, it stays true."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


class NextLock:
    """A lock that lets one thread at a time into ``with lock.of_process():``.

    A thread may enter again, as when a dataset or a signal handler calls ``next()`` on the iterator
    that is calling it; torch allows that too.
    """

    def __init__(self) -> None:
        # By process: in a forked child, a thread that is not there may hold the parent's lock.
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def of_process(self) -> AbstractContextManager[Any]:
        # Not get(): in CPython 3.13t it takes 30 µs for a key that another thread has put in.
        locks, pid = self._locks, os.getpid()
        try:
            return locks[pid]
        except KeyError:
            return locks.setdefault(pid, threading.RLock())


def count_alone(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Decorate a ``__next__`` that counts. Two threads must not add to a count at once: where no
    interpreter lock prevents it, take ``_next_lock``."""
    if has_interpreter_lock():
        return next_batch

    @wraps(next_batch)
    def locked(iterator: Any) -> Any:
        with iterator._next_lock.of_process():
            return next_batch(iterator)

    return locked
