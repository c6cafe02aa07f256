"""The OpenMP threads that torch's operations run on, and fastloop's work on them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from os import getpid
from typing import Any

import torch

from fastloop._core import ThreadPool


@contextmanager
def on_this_thread() -> Iterator[None]:
    """Keep torch's operations in the body on the calling thread.

    OpenMP threads spin for milliseconds after their last work, on cores that the next work needs.
    OpenMP counts threads for each caller, unlike `torch.set_num_threads`, so other threads of the
    program keep theirs. Where torch has no OpenMP, nothing changes."""
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
    return make_thread_pool(torch.get_num_threads(), getpid())
