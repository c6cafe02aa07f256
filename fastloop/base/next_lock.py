"""One thread at a time inside ``next()`` of an iterator, where torch's own lose batches or hang."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any


class NextLock:
    """Base of iterators whose ``__next__`` runs in ``with self._turn():``.

    A thread may enter again, as when a dataset or a signal handler calls ``next()`` on the iterator
    it is called by: then all is as in torch.
    """

    # By process: in a forked child a thread that does not exist there may hold the parent's.
    _turns: dict[int, AbstractContextManager[Any]]

    def _turn(self) -> AbstractContextManager[Any]:
        turns, pid = self._turns, os.getpid()
        return turns.get(pid) or turns.setdefault(pid, threading.RLock())
