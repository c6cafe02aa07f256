"""Files that one process makes while other processes wait, for example the ranks of a run."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def make_once(lock: str, find: Callable[[], _T | None], make: Callable[[], _T]) -> _T:
    """Return what ``find()`` finds. If that is None, one process calls ``make()``, and each process
    that waits meanwhile calls ``find()`` again.

    ``make`` must give its file the final name by a rename, when the file is whole: so a process
    that finds the file needs no lock, and a killed maker leaves no file.

    Args:
        lock: the path of the file that is locked. The file stays.
    """
    found = find()
    if found is not None:
        return found
    # Opened for both, a FIFO that has the lock's name does not wait for a second process.
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel frees it if this process dies
        try:
            found = find()
            return make() if found is None else found
        finally:  # closing is not enough, because a forked process keeps the file open
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)
