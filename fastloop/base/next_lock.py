"""Locks of objects that several threads use. Where two call ``next()`` at once, torch's own
iterators lose batches or hang; without an interpreter lock counts lose numbers, too."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any


def has_interpreter_lock() -> bool:
    """Whether one thread at a time runs Python. Once it does, it stays so."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


class NextLock:
    """One thread at a time in ``with lock.of_process():``.

    A thread may enter again, as when a dataset or a signal handler calls ``next()`` on the iterator
    it is called by: then all is as in torch.
    """

    def __init__(self) -> None:
        # By process: in a forked child a thread that does not exist there may hold the parent's.
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def of_process(self) -> AbstractContextManager[Any]:
        # Not get(): that of CPython 3.13t takes 30 µs for a number that another thread has put in.
        locks, pid = self._locks, os.getpid()
        try:
            return locks[pid]
        except KeyError:
            return locks.setdefault(pid, threading.RLock())


def count_alone(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A ``__next__`` that counts. The interpreter lock keeps two threads from adding to a count at
    once; without one this takes ``_next_lock``."""
    if has_interpreter_lock():
        return next_batch

    @wraps(next_batch)
    def locked(iterator: Any) -> Any:
        with iterator._next_lock.of_process():
            return next_batch(iterator)

    return locked
