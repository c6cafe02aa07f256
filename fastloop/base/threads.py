"""Threads: the lock of an object that several use, and the OpenMP threads that torch's operations
and fastloop's work run on.

Where two threads call ``next()`` at once, torch's own iterators lose batches or hang; without an
interpreter lock, counts lose numbers too.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache, wraps
from typing import Any

import torch

from fastloop._core import ThreadPool


def has_interpreter_lock() -> bool:
    """Tell whether one thread at a time runs Python. Once true, it stays true."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def lock_over_forks() -> AbstractContextManager[Any]:
    """Return a lock that a module keeps, for work that no other thread has to wait for. A fork
    waits for the lock, so it is free in the child. A thread that has the lock may take it again."""
    lock = threading.RLock()
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock


class NextLock:
    """A lock that lets one thread at a time into ``with lock.of_process():``.

    A thread may enter again, as when a dataset or a signal handler calls ``next()`` on the running
    iterator; torch allows that as well.
    """

    def __init__(self) -> None:
        # By process: in a forked child, a thread that is not there may hold the parent's lock.
        self._locks: dict[int, AbstractContextManager[Any]] = {}

    def of_process(self) -> AbstractContextManager[Any]:
        pid = os.getpid()
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())


def count_alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that counts by ``+=``. Two threads must not add to a count at once, so
    without an interpreter lock each object gets a lock."""
    if has_interpreter_lock():
        return method

    @wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        fields = vars(self)
        # setdefault() gives all threads the same lock.
        lock = fields.get("_next_lock") or fields.setdefault("_next_lock", NextLock())
        with lock.of_process():
            return method(self, *args, **kwargs)

    return locked


@contextmanager
def on_this_thread() -> Iterator[None]:
    """Keep torch's operations in the body on the calling thread.

    OpenMP threads spin for milliseconds after their last work, on cores that the next work needs.
    OpenMP counts threads for each caller, unlike `torch.set_num_threads`, so other threads of the
    program keep theirs. Without OpenMP in torch nothing changes."""
    threads, library = torch.get_num_threads(), openmp()
    if library is None or threads == 1:
        yield
        return
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(threads)


@cache
def openmp() -> Any:
    """Return the OpenMP library that torch uses; None if there is none, or it cannot be found."""
    torch.get_num_threads()  # sets OpenMP's number when it is asked for the first time
    try:
        library = ctypes.CDLL(None)
        threads = library.omp_get_max_threads()
        library.omp_set_num_threads(threads + 1)
        is_torchs = torch.get_num_threads() == threads + 1
        library.omp_set_num_threads(threads)
    except (AttributeError, OSError):
        return None
    return library if is_torchs else None


@lru_cache(maxsize=1)
def make_thread_pool(threads: int, _process: int) -> ThreadPool:
    return ThreadPool(threads, uses_openmp=openmp() is not None)


def thread_pool() -> ThreadPool:
    """Return the pool that all work of this process shares, as wide as torch's own operations."""
    return make_thread_pool(torch.get_num_threads(), os.getpid())
