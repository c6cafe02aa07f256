"""The parts that a loader's iterators share: ``Shared`` is one loader's batch memory and counts,
``LockedIter`` the ``next()`` of iterators that run torch's own code. ``SyncIter`` is torch's own
iterator without workers, ``TorchProcessIter`` torch's own iterator over worker processes, both with
these shared parts."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, MutableMapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.weak import WeakIdKeyDictionary

from fastloop._core import BatchPool, Collate, FinalizerBase, ThreadPool, keep_heap
from fastloop.base.threads import NextLock, count_alone, lock_over_forks, thread_pool
from fastloop.compat.ranges import named, tools
from fastloop.compat.torch_parts import BaseIter, MultiIter, SingleIter
from fastloop.data.collate import Collation, Fallbacks, fetch, lend, make_collate
from fastloop.data.columns import below_subsets, is_default_collate, own, size_remedies
from fastloop.loader.resume.epoch import Position, ResumableIter

if TYPE_CHECKING:
    from fastloop.device.accelerator import Accelerator
    from fastloop.device.destinations import Destination

CLOSED = "the loader of this iterator was closed; call iter() on it again"
_MOST_OPEN = 8  # references to iterators, before those that are gone are dropped
_KILLED_S = 5.0  # seconds in which a worker must end after SIGTERM
# These are torch's errors for samples of several shapes. The second one comes from a worker, whose
# collate makes room in shared memory.
_SIZE_ERRORS = ("stack expects each tensor to be equal size", "storage that is not resizable")

# The counts of each worker: (batches, ns at work, ns waiting), for threads also the ns that they
# waited for the interpreter lock. Then fallbacks by reason.
WorkerCounts = tuple[tuple[tuple[int, ...], ...], dict[str, int]]


FIRST_DEPTH = 2  # torch's default of prefetch_factor


class AutoDepth(int):
    """``loader.prefetch_factor`` with "auto". Code that wants a number sees torch's default; a copy
    of the loader, made from its arguments, is "auto" again."""


_lock = lock_over_forks()  # loaders' iterators begin in several threads


def is_keyed(loader: DataLoader[Any]) -> bool:
    """Tell whether fastloop's code alone makes the batches, each from its indices and the epoch."""
    dataset = below_subsets(loader.dataset)[0]
    find = own(dataset, "_is_keyed")  # of the exact class
    return bool(find and find(dataset) and is_default_collate(loader.collate_fn))


def is_pinned_by_torch(loader: DataLoader[Any]) -> bool:
    is_pinned = loader.pin_memory and torch.accelerator.is_available()
    accelerator = torch.accelerator.current_accelerator() if is_pinned else None
    return accelerator is not None and accelerator.type != "mps"


def nobody() -> None:
    """Stand for an iterator that is gone."""


class Shared:
    """One loader's batch memory and counts, and the loader's position in its epoch."""

    def __init__(
        self, position: Position | None = None, is_served: bool | None = False, numa: str = "auto"
    ) -> None:
        keep_heap()  # samples are made of temporary arrays; forked workers inherit the setting
        self.position = position or Position()
        self.numa = numa  # the loader's argument
        self.open: list[weakref.ref[Any]] = []  # iterators that close() ends
        self.array_memory: BatchPool | None = None
        self.worker_memory: BatchPool | None = None
        self.collate: tuple[ThreadPool, Collate] | None = None  # for the sync path
        # Idle collates of worker threads, by process: a child must not use its parent's memory.
        self.collates: dict[int, list[Collate]] = {}
        self.budget = 0  # bytes of array data in pinned memory, kept: reading takes 0.5 ms
        self.depth = 0  # the queue's depth that prefetch_factor="auto" has found, else 0
        self.unpinnable: set[tuple[bool, int]] = set()  # failed (is_shared, device)
        self.fault = ""  # why torch uploads batches to a CUDA device instead of fastloop
        self.why = ""  # why the latest iterator takes its path
        self.not_ahead = "no workers of fastloop load it"  # why no epoch is read ahead, or ""
        # The native loader that the latest iterator of the array path has left to the next one.
        self.idle: Any = None
        self.keeps_indices = False  # the array path keeps the latest indices, for keep_indices()
        self.latest_ahead: Callable[[], Any] = nobody  # the latest iterator that may leave one
        # How many were dropped since one was taken over. From 2 on also epochs that were not tried.
        self.renewals = 0
        # See ``Fetch``; None: fastloop alone has made all samples so far.
        self.is_served = is_served
        self.left_collate: Any = None  # a collate function that fastloop does not accelerate
        self.left = 0, 0  # the ids of a dataset and a collate function that are Python's
        self.noted: dict[Any, str] = {}  # how this loader's iterators were made
        # For the latest array iterator: the CUDA device that batches are uploaded to or -1, whether
        # the device finishes the transforms, and the argument transforms_on.
        self.transforms_run: tuple[int, bool, str] = -1, False, "auto"
        self.changed = ""  # says that data were changed in place, once threads have noticed it
        # The counts of paths that run torch's iterators, and of memory that was replaced.
        self.counts = Counter(batches=0, waits=0, wait_ns=0, restarts=0)
        self.counts.update(ahead_hits=0, ahead_drops=0)
        self.latest: Callable[[], Any] = nobody  # counts the workers of the latest iterator
        self.last_count: WorkerCounts = (), {}

    def note_open(self, iterator: BaseIter) -> None:
        """Remember an iterator for close()."""
        # No WeakSet: a WeakSet runs Python when an iterator dies, and Ctrl-C would be lost there.
        with _lock:
            if len(self.open) >= _MOST_OPEN:
                self.open = [ref for ref in self.open if ref() is not None]
            self.open.append(weakref.ref(iterator))

    def open_destination(
        self, accelerator: Accelerator | None, is_pinned: bool, is_shared: bool, fields: int = 0
    ) -> tuple[BatchPool, Destination | None]:
        """Return memory for batches, and their destination; None: batches stay in that memory.

        Args:
            accelerator, is_pinned: the arguments of ``find_destination``.
            is_shared, fields: the arguments of ``memory``.
        """
        if accelerator is None and not is_pinned:
            return self.memory(is_shared, fields), None
        from fastloop.device.availability import find_upload_fault, has_uploads
        from fastloop.device.destinations import find_destination

        index = -1
        if accelerator is not None and has_uploads(accelerator):
            index = accelerator.device.index
        elif accelerator is not None:
            self.fault = find_upload_fault(accelerator)
        memory = self.memory(is_shared, fields, index)
        return memory, find_destination(accelerator, memory.device >= 0, is_pinned)

    def open_array_destination(
        self, accelerator: Accelerator | None, is_pinned: bool, workers: int, fields: int
    ) -> Destination | None:
        """Return the destination of the array path's batches; None: the memory of ``memory``."""
        from fastloop.device.destinations import find_destination

        # Without workers a copy by fastloop would wait for all work that the loop has queued.
        if accelerator is None or workers == 0:
            return find_destination(accelerator, False, is_pinned)
        return self.open_destination(accelerator, is_pinned, False, fields)[1]

    def open_worker_memory(
        self, loader: DataLoader[Any], accelerator: Accelerator | None
    ) -> tuple[BatchPool, Destination | None, int]:
        """Return memory for batches of worker processes, their destination, and the bytes that
        batches may take before the user has them."""
        is_pinned = is_pinned_by_torch(loader)
        memory, destination = self.open_destination(accelerator, is_pinned, is_shared=True)
        from fastloop.base.machine import budget_of

        # The other half of the budget is for memory that waits for reuse.
        return memory, destination, max(1, budget_of(loader) // 2)

    def read_budget(self, loader: DataLoader[Any]) -> int:
        """Return the bytes that batches in pinned memory may take."""
        from fastloop.base.machine import budget_of

        self.budget = budget_of(loader, self.budget)
        return self.budget

    def memory(self, is_shared: bool, fields: int = 0, device: int = -1) -> BatchPool:
        """Return memory for batches of this many tensors, pinned for the device if possible.
        `is_shared`: worker processes fill the memory."""
        name = "worker_memory" if is_shared else "array_memory"
        with _lock:
            memory = self._renew(getattr(self, name), fields, is_shared, device)
            setattr(self, name, memory)
            return memory

    def _renew(self, old: BatchPool | None, fields: int, is_shared: bool, device: int) -> BatchPool:
        """Return `old`, or new memory if `old` cannot be used: in a forked child, for a different
        device or for more tensors."""
        device = -1 if (is_shared, device) in self.unpinnable else device
        if old is not None:
            if old.is_own() and old.device == device and old.fields >= fields:
                return old
            self.counts.update(old.count())
            del self.counts["lent"]
        from fastloop.base.machine import choose_nodes

        nodes = choose_nodes(device) if self.numa == "auto" else 0
        try:
            return BatchPool(fields, is_shared, device, nodes)
        except RuntimeError as error:
            if device < 0:
                raise
            self.unpinnable.add((is_shared, device))
            name = "memory that worker processes share" if is_shared else "memory of batches"
            remedy = "containers may need --ulimit memlock=-1"
            self.fault = f"{name} cannot be pinned for the device ({error}); {remedy}"
            from fastloop.device.availability import warn_once

            warn_once(f"torch uploads batches in place of fastloop on cuda:{device}: {self.fault}")
        return BatchPool(fields, is_shared, nodes=nodes)

    def collate_here(self) -> Collate:
        """Return the collate of iterators without workers. The collate is kept for the next epoch
        with its batch memory, because new memory costs more than the copies into it."""
        # A forked child gets a new pool and must not use the old memory.
        pool = thread_pool()
        if self.collate is None or self.collate[0] is not pool:
            self.collate = pool, make_collate(thread_pool=pool)
        return self.collate[1]

    def count(self) -> Counter[str]:
        """Return the counts of all iterators so far, by name."""
        total = Counter(self.counts)
        for memory in (self.array_memory, self.worker_memory):
            total.update(memory.count() if memory is not None else {})
        return total

    @count_alone
    def add(self, **counts: int) -> None:
        """Add to counts, by name."""
        for name, count in counts.items():
            self.counts[name] += count

    def note_collate(self, fallbacks: Fallbacks) -> None:
        """Note the counts of the latest iterator, which has no workers."""
        self.latest = lambda: fallbacks

    def count_workers(self) -> WorkerCounts:
        """Return the counts of each worker of the latest iterator."""
        latest = self.latest()
        if latest is not None:
            self.last_count = latest.count()
        return self.last_count

    def trim(self) -> None:
        """Free memory that holds no batch."""
        self.count_workers()
        self.latest = nobody
        self.collate = self.idle = None
        self.collates.clear()
        for memory in (self.array_memory, self.worker_memory):
            if memory is not None and memory.is_own():
                memory.trim()


# Loaders of torch's class have their Shared here and not as an attribute, because frameworks copy
# and pickle attributes. The keys are compared by identity, because a loader need not be hashable.
shared_of: MutableMapping[DataLoader[Any], Shared] = WeakIdKeyDictionary()


def open_shared(loader: DataLoader[Any]) -> Shared:
    """Return the Shared of a loader of torch's class, which nobody can ask for a state."""
    if (shared := shared_of.get(loader)) is None:
        shared = shared_of.setdefault(loader, Shared(Position(can_be_asked=False)))
    return shared


_NO_FALLBACKS = Fallbacks(None)


class LoaderProxy:
    """A loader with changed values of some attributes."""

    def __init__(self, loader: DataLoader[Any], **others: Any) -> None:
        self._loader = loader
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class LockedIter(ResumableIter):
    """Mixin for torch's iterators: serialises next(), counts batches, refuses use after close().

    The mixin stands after one of torch's iterators in the list of bases.

    Attributes:
        _waits: 1 if next() makes the batch, which counts as a wait; else 0.
    """

    _is_closed = False
    _waits = 0

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._next_lock = NextLock()
        super().__init__(loader)

    def _note_state(self, worker: int, state: bytes | None) -> None:
        """Note the dataset's state after the next batch, before the batch is handed out."""
        epoch = self._epoch
        epoch.states.note(self._num_yielded + 1, worker, state, epoch.count())

    def __next__(self) -> Any:
        with self._next_lock.of_process():
            if self._is_closed:
                raise RuntimeError(CLOSED)
            begin_ns = perf_counter_ns()
            length: Any = self._IterableDataset_len_called
            try:
                if tools._is_profiler_enabled:
                    data = named("next", super().__next__)()
                elif length is not None:
                    data = super().__next__()  # which warns of a stream longer than its length
                else:
                    # Without a profiler torch's next() does no more than this, and its
                    # record_function takes a third of the time that a batch from workers costs.
                    next_data: Callable[[], Any] = self._next_data
                    data = next_data()
                    self._num_yielded += 1
            except StopIteration:
                self._epoch.is_over = True
                raise
            except RuntimeError as error:
                _add_size_remedy(error, self._dataset)
                raise
            waited_ns = self._waits * (perf_counter_ns() - begin_ns)
            self._shared.add(batches=1, waits=self._waits, wait_ns=waited_ns)
            return data

    def close(self) -> None:
        self._is_closed = True


def _add_size_remedy(error: RuntimeError, dataset: Any) -> None:
    """Add the remedies of fastloop's datasets to torch's error for samples of several shapes. The
    error may come from a worker."""
    if any(text in str(error) for text in _SIZE_ERRORS):
        error.args = ("\n".join([str(error).rstrip(), *size_remedies(dataset)]),)


class PlainIter(SingleIter, LockedIter):
    """The iterator of torch without workers, for a loader whose samples Python makes: fastloop
    stands in for torch's default collate, and torch's code does the rest.

    Attributes:
        is_collated: fastloop collates the batches.
    """

    _waits = 1
    _has_epochs = False

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._shared = shared
        self._begin_epoch(loader)
        super().__init__(loader)
        self.is_collated = self._auto_collation and is_default_collate(self._collate_fn)
        if self.is_collated:
            self._dataset_fetcher.collate_fn = core = shared.collate_here()
            shared.note_collate(Fallbacks(core))
        else:
            shared.note_collate(_NO_FALLBACKS)


class SyncIter(SingleIter, LockedIter):
    """The iterator of torch without workers, for any dataset: the dataset may have an epoch and a
    position, may write samples into the batch, and may have transforms that fastloop serves.

    Args:
        uses_native_collate: fastloop's collate replaces torch's default.

    Attributes:
        is_collated: fastloop collates the batches.
    """

    _waits = 1

    def __init__(self, loader: DataLoader[Any], shared: Shared, uses_native_collate: bool) -> None:
        self._shared = shared
        self._begin_epoch(loader)
        states = self._epoch.states
        taken: Any = loader
        if states is not None:
            states.reader = states.make_reader()
            if self._epoch.is_stream:
                taken = LoaderProxy(loader, dataset=states.reader)
            else:
                states.reader.load_dataset()
        self._datasets.call(super().__init__, taken)
        self._dataset = self._dataset_fetcher.dataset = loader.dataset
        is_tried = uses_native_collate and self._auto_collation
        found = Collation(self._dataset, self._collate_fn, is_tried, shared.collate_here)
        self._dataset_fetcher.collate_fn, self._lender = found.function, found.lender
        self.is_collated = found.core is not None
        self._is_served = bool(shared.is_served) and uses_native_collate
        shared.note_collate(found.fallbacks)

    def _next_data(self) -> Any:
        before, was_served = lend(self._lender), fetch.is_served
        fetch.is_served = self._is_served
        try:
            data = self._datasets.call(super()._next_data)
        finally:
            lend(before)
            fetch.is_served = was_served
        states = self._epoch.states
        if states is not None and states.is_read_ahead:
            self._note_state(0, states.reader.state_after(data))
        return data


class TorchProcessIter(MultiIter, LockedIter):
    """The iterator of torch over its own worker processes and queues."""

    _has_states = False
    _in_processes = True
    _waited_ns = 0  # the time waited since the last batch came

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._shared = shared
        self._begin_epoch(loader)
        init = self._datasets.wrap_init(loader.worker_init_fn)
        super().__init__(LoaderProxy(loader, worker_init_fn=init))

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            super()._reset(loader, first_iter)

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        if self._is_closed:  # a different thread has closed the iterator, and no batch will come
            raise RuntimeError(CLOSED)
        is_there, begin_ns = not self._data_queue.empty(), perf_counter_ns()
        result: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        self._waited_ns += 0 if is_there else perf_counter_ns() - begin_ns
        if result[0] and self._waited_ns > 0:
            self._shared.add(waits=1, wait_ns=self._waited_ns)
            self._waited_ns = 0
        return result

    def close(self) -> None:
        super().close()
        was_open = not self._shutdown
        self._shutdown_workers()
        # torch before 2.13 kills workers that do not end but does not reap them.
        for worker in self._workers if was_open else ():
            worker.join(_KILLED_S)

    def _finalize(self) -> None:
        super()._finalize()
        self._shutdown_workers()

    __del__ = FinalizerBase.__del__  # else torch's own __del__ would come first
