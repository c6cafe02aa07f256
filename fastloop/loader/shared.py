"""What the iterators of a loader share: ``Shared`` is one loader's batch memory and counts,
``LockedIter`` the ``next()`` of the iterators that run torch's own code."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any, TypeGuard

from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from fastloop._core import BatchPool, Collate, ThreadPool, keep_heap
from fastloop.base.next_lock import NextLock
from fastloop.base.openmp import thread_pool
from fastloop.base.ranges import named, tools
from fastloop.base.torch_parts import BaseIter, DatasetKind
from fastloop.data.collate import make_collate
from fastloop.data.epochs import EpochsInWorker
from fastloop.device.availability import warn_once
from fastloop.loader.resume.epoch import Position, ResumableIter
from fastloop.loader.size_remedy import add_size_remedy
from fastloop.workers.threads import CollateStock

CLOSED = "the loader of this iterator was closed; call iter() on it again"

# (batches, ns at work, ns waiting) of each worker, for threads also the ns they waited for the
# interpreter lock; and fallbacks by reason.
WorkerCounts = tuple[tuple[tuple[int, ...], ...], dict[str, int]]


class Shared:
    """One loader's batch memory and counts, and where the loader stands."""

    def __init__(self, position: Position | None = None) -> None:
        keep_heap()  # samples are made of temporary arrays; forked workers inherit it
        self.position = position or Position()
        self.open: list[weakref.ref[Any]] = []  # iterators that close() ends
        self.array_memory: BatchPool | None = None
        self.worker_memory: BatchPool | None = None
        self.collate: tuple[ThreadPool, Collate] | None = None  # of the sync path
        self.collates = CollateStock()  # of worker threads
        self.depth = 0  # of the queue, where prefetch_factor="auto" has found one
        self.unpinnable: set[tuple[bool, int]] = set()  # (shared, device): cannot be pinned for it
        self.fault = ""  # why C does not upload, where it was meant to
        self.changed = ""  # that the data are changed in place, where threads have noticed it
        # Of paths that run torch's iterators, and of pools that were replaced.
        self.counts: Counter[str] = Counter()
        self._lock = NextLock()  # iterators begin and count in several threads
        self.latest: Callable[[], Any] = lambda: None  # the iterator that counts its workers
        self.last_count: WorkerCounts = (), {}

    def note_open(self, iterator: BaseIter) -> None:
        # Not a WeakSet: it runs Python when an iterator dies, where Ctrl-C would be lost.
        with self._lock.of_process():
            self.open = [*(ref for ref in self.open if ref() is not None), weakref.ref(iterator)]

    def memory_for_arrays(self, fields: int, device: int = -1) -> BatchPool:
        """A new pool in a forked child, for more fields than the last one took, and for uploads to
        another device; without a device where this memory cannot be pinned for it."""
        with self._lock.of_process():
            memory = self.array_memory
            device = -1 if (False, device) in self.unpinnable else device
            if not _is_usable(memory, device) or memory.fields < fields:
                self._keep_counts_of(memory)
                self.array_memory = memory = self._open_memory(fields, False, device)
        return memory

    def memory_for_workers(self, device: int = -1) -> BatchPool:
        """Memory that worker processes share. If their batches go on to a device, copies can be
        made from it, unless shared memory cannot be pinned here."""
        with self._lock.of_process():
            return self._memory_for_workers(device)

    def _memory_for_workers(self, device: int) -> BatchPool:
        memory = self.worker_memory
        device = -1 if (True, device) in self.unpinnable else device
        if not _is_usable(memory, device):
            self._keep_counts_of(memory)
            self.worker_memory = memory = self._open_memory(0, True, device)
        return memory

    def _open_memory(self, fields: int, is_shared: bool, device: int) -> BatchPool:
        """A new pool; the user is told where its memory cannot be pinned for the device."""
        try:
            return BatchPool(fields, is_shared=is_shared, device=device)
        except RuntimeError as error:
            if device < 0:
                raise
            self.unpinnable.add((is_shared, device))
            what = "memory that worker processes share" if is_shared else "memory of batches"
            self.fault = (
                f"{what} cannot be pinned for it ({error}); containers may need --ulimit memlock=-1"
            )
            warn_once(f"torch uploads batches in place of fastloop on cuda:{device}: {self.fault}")
        return BatchPool(fields, is_shared=is_shared)

    def collate_here(self) -> Collate:
        """The collate of iterators without workers. It stays for the next epoch, because its batch
        memory does: new memory costs more than what is copied into it."""
        # A forked child gets another pool, and may not use the memory again.
        pool, collate = thread_pool(), self.collate
        if collate is None or collate[0] is not pool:
            collate = self.collate = pool, make_collate(thread_pool=pool)
        return collate[1]

    def _keep_counts_of(self, memory: BatchPool | None) -> None:
        if memory is not None:
            self.counts.update(memory.count())
            del self.counts["lent"]

    def count(self) -> Counter[str]:
        total = Counter(self.counts)
        for memory in (self.array_memory, self.worker_memory):
            total.update(memory.count() if memory is not None else {})
        return total

    def add(self, **counts: int) -> None:
        with self._lock.of_process():
            for name, count in counts.items():
                self.counts[name] += count

    def count_workers(self) -> WorkerCounts:
        latest = self.latest()
        if latest is not None:
            self.last_count = latest.count()
        return self.last_count

    def trim(self) -> None:
        """Gives memory back that no batch lies in."""
        self.collate = None
        self.collates.trim()
        for memory in (self.array_memory, self.worker_memory):
            if memory is not None and memory.is_own():
                memory.trim()


def _is_usable(memory: BatchPool | None, device: int) -> TypeGuard[BatchPool]:
    return memory is not None and memory.is_own() and memory.device == device


# For loaders of torch's class. Kept outside the loader: frameworks copy and pickle its attributes.
# By identity, because a loader need not be hashable.
shared_of: MutableMapping[DataLoader[Any], Shared] = WeakIdKeyDictionary()


class LoaderProxy:
    """A loader that has other attributes."""

    def __init__(self, loader: DataLoader[Any], **others: Any) -> None:
        self._loader = loader
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LockedIter(ResumableIter):
    """Below one of torch's iterators in the list of bases: one thread at a time in ``next()``,
    which counts batches, and raises once the iterator is closed."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._is_closed = False
        self._next_lock = NextLock()
        is_map = loader._dataset_kind == DatasetKind.Map
        self._overtakes = is_map and not loader.in_order and loader.num_workers > 1
        super().__init__(loader)

    def _as_torch_takes(self, loader: DataLoader[Any], **others: Any) -> Any:
        """The loader for torch's iterator over worker processes, which are to be in the epochs of
        this iterator."""
        if self._datasets.epochs:
            others["worker_init_fn"] = EpochsInWorker(self._datasets, loader.worker_init_fn)
        return LoaderProxy(loader, **others)

    def _note_state(self, worker: int, state: bytes | None) -> None:
        """The next batch is about to be handed out; the state after it, where one came."""
        epoch = self._epoch
        assert epoch.states is not None
        epoch.states.note(self._num_yielded + 1, worker, state, epoch.count())

    def _note_left(self) -> None:
        """A batch is handed out; torch's iterator knows which others it still waits for."""
        torchs: Any = self
        self._epoch.left.note(self._num_yielded, torchs._task_info, torchs._send_idx)

    def __next__(self) -> Any:
        with self._next_lock.of_process():
            if self._is_closed:
                raise RuntimeError(CLOSED)
            try:
                if tools._is_profiler_enabled:
                    data = named("next", super().__next__)()
                elif self._dataset_kind != DatasetKind.Map:
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
            except RuntimeError as error:
                add_size_remedy(error, self._dataset)
                raise
            if self._overtakes:
                self._note_left()
            self._shared.add(batches=1)
            return data

    def close(self) -> None:
        self._is_closed = True
