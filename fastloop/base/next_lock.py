"""The lock of an iterator's ``next()``. Where two threads call it at once, torch's own iterators
lose batches or hang."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any


class NextLock:
    """One thread at a time in ``with lock.of_process():``.

    A thread may enter again, as when a dataset or a signal handler calls ``next()`` on the iterator
    it is called by: then all is as in torch.
    """

    def __init__(self) -> None:
        # By process: in a forked child a thread that does not exist there may hold the parent's.
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def of_process(self) -> AbstractContextManager[Any]:
        locks, pid = self._locks, os.getpid()
        return locks.get(pid) or locks.setdefault(pid, threading.RLock())
