"""Files that one process makes while other processes wait, for example the ranks of a run. A file
is whole or absent, so a process that finds the file needs no lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def make_once(lock: str, find: Callable[[], _T | None], make: Callable[[], _T]) -> _T:
    """Return what ``find()`` finds. If that is None, one process calls ``make()``, and each process
    that waits meanwhile calls ``find()`` again.

    Args:
        make: makes its file with ``write_whole``.
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


def write_whole(path: str, write: Callable[[str], _T], unfinished: str | None = None) -> _T:
    """Return ``write(unfinished)``, which makes a file, and give the file the name `path`. If that
    fails, no file is left; the error of a full disk names the unfinished file."""
    unfinished = unfinished or f"{path}.unfinished"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)  # of a killed process; or a FIFO, which would wait for a reader
    try:
        made = write(unfinished)
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.rename(unfinished, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            error.filename = unfinished
        raise
    return made
