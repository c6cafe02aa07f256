"""What the iterators of a loader share: ``Shared`` is one loader's batch memory, counts and place,
``LockedIter`` is the ``next()`` of all iterators that are torch's own below."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from fastloop import _core
from fastloop.base.next_lock import NextLock
from fastloop.base.openmp import team
from fastloop.data.collate import make_collate
from fastloop.device.availability import warn_once
from fastloop.loader.epoch import Position, ResumableIter

CLOSED = "the loader of this iterator was closed; call iter() on it again"

COUNTS = ("batches", "samples", "bytes", "waits", "wait_ns", "lent", "replaced")
# (batches, ns at work, ns waiting) of each worker, and fallbacks by reason.
WorkerCounts = tuple[tuple[tuple[int, int, int], ...], dict[str, int]]


class Shared:
    """What the iterators of one loader share: batch memory, counts, and where they stand."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position or Position()
        self.open: list[weakref.ref[Any]] = []  # iterators that close() ends
        self.array_memory: _core.BatchPool | None = None  # the array path's
        self.worker_memory: _core.BatchPool | None = None  # the process path's
        self.collate: tuple[_core.ThreadPool, _core.Collate] | None = None  # the sync path's
        self.unpinned_device = -1  # one whose copies cannot be from there
        self.fault = ""  # why C does not upload, where it was meant to
        self.past: dict[str, int] = {}  # counts of pools that were replaced
        self.batches = 0  # of paths that run torch's iterators
        self.waits = 0
        self.wait_ns = 0
        self.latest: Callable[[], Any] = lambda: None  # the iterator that counts its workers
        self.last_count: WorkerCounts = (), {}

    def note_open(self, iterator: _BaseDataLoaderIter) -> None:
        # Not a WeakSet: it runs Python when an iterator dies, where Ctrl-C would be lost.
        self.open = [*(ref for ref in self.open if ref() is not None), weakref.ref(iterator)]

    def _retire(self, pool: _core.BatchPool | None) -> None:
        if pool is not None:
            for name, value in pool.count().items():
                if name in COUNTS and name != "lent":
                    self.past[name] = self.past.get(name, 0) + value

    def memory_for_arrays(self, fields: int, device: int = -1) -> _core.BatchPool:
        """The array path's: a new pool in a forked child, for more fields than the last
        one took, and for uploads to another device."""
        pool = self.array_memory
        is_usable = pool is not None and pool.is_own() and pool.device == device
        if pool is None or not is_usable or pool.fields < fields:
            self._retire(pool)
            self.array_memory = pool = _core.BatchPool(fields, device=device)
        return pool

    def memory_for_workers(self, device: int = -1) -> _core.BatchPool:
        """For batches of workers. If they go on to a device, it is memory for copies to
        it, unless memory that is shared cannot be pinned here."""
        pool = self.worker_memory
        device = -1 if device == self.unpinned_device else device
        if pool is None or not pool.is_own() or pool.device != device:
            self._retire(pool)
            try:
                pool = _core.BatchPool(0, is_shared=True, device=device)
            except RuntimeError as error:
                if device < 0:
                    raise
                self.unpinned_device = device
                self.fault = (
                    f"memory that worker processes share cannot be pinned for it ({error}); "
                    "containers may need --ulimit memlock=-1"
                )
                warn_once(
                    f"torch uploads batches in place of fastloop on cuda:{device}: {self.fault}"
                )
                pool = _core.BatchPool(0, is_shared=True)
            self.worker_memory = pool
        return pool

    def collate_here(self) -> _core.Collate:
        """The collate of iterators without workers. It stays for the next epoch, because its batch
        memory does: new memory costs more than what is copied into it."""
        threads = team()  # another one in a forked child, where the memory is not to be used again
        if self.collate is None or self.collate[0] is not threads:
            self.collate = threads, make_collate(thread_pool=threads)
        return self.collate[1]

    def count(self) -> dict[str, int]:
        pools = [pool for pool in (self.array_memory, self.worker_memory) if pool is not None]
        counts = [self.past, *(pool.count() for pool in pools)]
        return {name: sum(count.get(name, 0) for count in counts) for name in COUNTS}

    def count_wait(self, wait_ns: int) -> None:
        self.waits += 1
        self.wait_ns += wait_ns

    def count_workers(self) -> WorkerCounts:
        latest = self.latest()
        if latest is not None:
            self.last_count = latest.count()
        return self.last_count

    def trim(self) -> None:
        self.collate = None
        for pool in (self.array_memory, self.worker_memory):
            if pool is not None and pool.is_own():
                pool.trim()


class LockedIter(ResumableIter):
    """Below one of torch's iterators in the list of bases: one thread at a time in ``next()``,
    which counts batches, and raises once the iterator is closed."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._is_closed = False
        self._next_lock = NextLock()
        super().__init__(loader)

    def __next__(self) -> Any:
        with self._next_lock.of_process():
            if self._is_closed:
                raise RuntimeError(CLOSED)
            try:
                if profiler._is_profiler_enabled or self._dataset_kind != _DatasetKind.Map:
                    data = super().__next__()
                else:
                    # Without a profiler torch's does no more than this, and its record_function
                    # is a third of what a batch from workers costs this process.
                    next_data: Callable[[], Any] = self._next_data
                    data = next_data()
                    self._num_yielded += 1
            except StopIteration:
                self._epoch.is_over = True
                raise
            self._shared.batches += 1
            return data

    def close(self) -> None:
        self._is_closed = True
