"""LoaderSource: what a report knows of one loader, and goes on knowing when the loader is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastloop.device.prefetch import Prefetcher
from fastloop.loader.array_iter import ArrayIter
from fastloop.loader.process_iter import ProcessIter
from fastloop.loader.thread_iter import ThreadIter
from fastloop.loader.torch_iters import SyncIter

_PATHS = {ArrayIter: "array", ProcessIter: "process", ThreadIter: "thread", SyncIter: "sync"}
_NO_WORKERS: tuple[tuple[int, ...], ...] = ()


def find_inner(iterator: Any) -> Any:
    """The iterator that loads, below those that upload."""
    while isinstance(iterator, Prefetcher):
        iterator = iterator._source
    return iterator


def find_path(iterator: Any) -> str:
    """How batches are made, as in LoaderStats; "torch" for iterators that are not ours."""
    return next((name for kind, name in _PATHS.items() if isinstance(iterator, kind)), "torch")


def _describe(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    name = type(dataset).__name__ if dataset is not None else type(loader).__name__
    try:
        return f"{name} of {len(dataset):,}"  # type: ignore[arg-type]
    except Exception:  # a stream has no length, and lengths of users' may raise anything
        return name


class LoaderSource:
    """Counts of one loader.

    Args:
        loader: a DataLoader, or an iterator whose loader is not known. It is not kept.
    """

    def __init__(self, loader: Any) -> None:
        self.name = _describe(loader)
        self.workers = int(getattr(loader, "num_workers", getattr(loader, "_num_workers", 0)))
        self.batch_size = getattr(loader, "batch_size", None)
        self.path = ""  # how batches are made; "" before the first
        self.trains = False  # an optimizer has stepped on its batches
        self.batches = 0
        self.wait = 0  # ns in next()
        self._ready = [0, 0]  # how often a number of ready batches was known, and their sum
        self._iterator: Callable[[], Any] = lambda: None
        self._done = _NO_WORKERS  # counts of workers of iterators before this one
        self._now = _NO_WORKERS

    def use(self, iterator: Any) -> None:
        """Batches come from this iterator of a DataLoader from now on."""
        if iterator is self._iterator():
            return
        self._done, self._now = _add(self._done, self._now), _NO_WORKERS
        self._iterator = weakref.ref(iterator)
        self.path = find_path(iterator)

    def count_ready(self) -> int:
        """Batches that can be taken at once, at least; -1: nobody knows."""
        iterator = self._iterator()
        try:
            if isinstance(iterator, ProcessIter):
                return sum(map(iterator._parent_end.has_replies, range(self.workers)))
            if isinstance(iterator, _MultiProcessingDataLoaderIter):
                # Those in torch's queue, and those that came before their turn.
                early = len(iterator._task_info) - iterator._tasks_outstanding
                return int(iterator._data_queue.qsize()) + early
        except (AttributeError, NotImplementedError, OSError, RuntimeError, ValueError):
            pass  # it is closed, or another kind of queue
        return -1

    def note_batch(self, ready: int) -> None:
        """One has come; `ready`, as `count_ready` said before."""
        self.batches += 1
        if ready >= 0:
            self._ready[0] += 1
            self._ready[1] += ready

    def mean_ready(self) -> float | None:
        return self._ready[1] / self._ready[0] if self._ready[0] else None

    def look(self) -> None:
        """Keeps what its workers have done so far."""
        shared = getattr(self._iterator(), "_shared", None)
        if shared is not None and self.path in ("process", "thread"):
            self._now = shared.count_workers()[0]

    def count_workers(self) -> tuple[tuple[int, ...], ...]:
        """(batches, ns at work, ns waiting) of each, for threads the ns for the lock, too. Empty
        where nobody knows."""
        return _add(self._done, self._now)


def _add(
    before: tuple[tuple[int, ...], ...], now: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    if not before or not now:
        return before or now
    return tuple(tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(before, now, strict=False))
