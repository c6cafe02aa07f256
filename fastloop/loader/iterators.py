"""Iterators: the array path's, the process and sync paths', and torch's own with a count.

``fast_iterator`` is the one seam: it works for any ``torch.utils.data.DataLoader``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.autograd import profiler
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils import pin_memory
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from fastloop import _core
from fastloop.base.memory import budget_of
from fastloop.base.next_lock import NextLock
from fastloop.base.openmp import team
from fastloop.data.collate import is_default_collate, make_collate
from fastloop.device.accelerator import Accelerator
from fastloop.device.array_destinations import (
    Blocks,
    DeviceBlocks,
    PinnedBlocks,
    find_upload_fault,
    has_uploads,
)
from fastloop.device.availability import warn_once
from fastloop.device.reply_destinations import on_device, on_the_way, pinned
from fastloop.loader.epoch import Epoch, Position, Resumable, rest_of_blocks
from fastloop.loader.index_blocks import find_blocks
from fastloop.loader.process_iter import CLOSED, ProcessIter
from fastloop.loader.route import NotCoveredError, Source, find_route, find_source

_BLOCKS, _BATCHES, _SINGLES = 0, 1, 2


COUNTS = ("batches", "samples", "bytes", "waits", "wait_ns", "lent", "replaced")


Workers = tuple[tuple[int, int, int], ...]


class Shared:
    """What the iterators of one loader share: batch memory, counts, and where they stand."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position or Position()
        self.open: list[weakref.ref[Any]] = []  # iterators that close() ends
        self.slots: _core.BatchPool | None = None  # the array path's
        self.worker_slots: _core.BatchPool | None = None  # the process path's
        self.collate: tuple[_core.ThreadPool, _core.Collate] | None = None  # the sync path's
        self.unpinned_device = -1  # one whose copies cannot be from there
        self.fault = ""  # why C does not upload, where it was meant to
        self.past: dict[str, int] = {}
        self.batches = 0  # of paths that run torch's iterators
        self.waits = 0
        self.wait_ns = 0
        self.latest: Callable[[], Any] = lambda: None  # the iterator that counts its workers
        self.last_count: tuple[Workers, dict[str, int]] = (), {}

    def note_open(self, iterator: _BaseDataLoaderIter) -> None:
        # Not a WeakSet: it runs Python when an iterator dies, where Ctrl-C would be lost.
        self.open = [*(ref for ref in self.open if ref() is not None), weakref.ref(iterator)]

    def _retire(self, slots: _core.BatchPool | None) -> None:
        if slots is not None:
            for name, value in slots.count().items():
                if name in COUNTS and name != "lent":
                    self.past[name] = self.past.get(name, 0) + value

    def slots_for(self, fields: int, device: int = -1) -> _core.BatchPool:
        """The pool: a new one in a forked child, for more fields than the last one took, and for
        uploads to another device."""
        slots = self.slots
        is_usable = slots is not None and slots.is_own() and slots.device == device
        if slots is None or not is_usable or slots.fields < fields:
            self._retire(slots)
            self.slots = slots = _core.BatchPool(fields, device=device)
        return slots

    def slots_for_workers(self, device: int = -1) -> _core.BatchPool:
        """The pool for batches of workers. If they go on to a device, it is one for copies to it,
        unless memory that is shared cannot be pinned here."""
        slots = self.worker_slots
        device = -1 if device == self.unpinned_device else device
        if slots is None or not slots.is_own() or slots.device != device:
            self._retire(slots)
            try:
                slots = _core.BatchPool(0, is_shared=True, device=device)
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
                slots = _core.BatchPool(0, is_shared=True)
            self.worker_slots = slots
        return slots

    def collate_here(self) -> _core.Collate:
        """The collate of iterators without workers. It stays for the next epoch, because its batch
        memory does: new memory costs more than what is copied into it."""
        threads = team()  # another one in a forked child, where the memory is not to be used again
        if self.collate is None or self.collate[0] is not threads:
            self.collate = threads, make_collate(thread_pool=threads)
        return self.collate[1]

    def count(self) -> dict[str, int]:
        pools = [slots for slots in (self.slots, self.worker_slots) if slots is not None]
        counts = [self.past, *(slots.count() for slots in pools)]
        return {name: sum(count.get(name, 0) for count in counts) for name in COUNTS}

    def count_wait(self, wait_ns: int) -> None:
        self.waits += 1
        self.wait_ns += wait_ns

    def count_workers(self) -> tuple[Workers, dict[str, int]]:
        """(batches, ns at work, ns waiting) of each worker, and fallbacks by reason."""
        latest = self.latest()
        if latest is not None:
            self.last_count = latest.count()
        return self.last_count

    def trim(self) -> None:
        self.collate = None
        for slots in (self.slots, self.worker_slots):
            if slots is not None and slots.is_own():
                slots.trim()


def _profile_name(workers: int) -> str:
    """What profiles call a batch of torch's loader."""
    kind = _MultiProcessingDataLoaderIter if workers > 0 else _SingleProcessDataLoaderIter
    return f"enumerate(DataLoader)#{kind.__name__}.__next__"


class _InBlocks:
    """In the place of an iterator over the sampler, where C cuts batches out of whole blocks: what
    others took from those would be missing in the epoch."""

    def __iter__(self) -> _InBlocks:
        return self

    def __next__(self) -> Any:
        raise RuntimeError(
            "_sampler_iter of an iterator on the array path gives no batches, because the sampler "
            "is read in blocks; pass path='torch' to the loader, or use load_state_dict() to skip"
        )


class _ArrayIter(Resumable):
    """torch's base iterator over batches that C gathers.

    Random numbers are drawn when torch draws them: the base seed here, the permutation when the
    first index is needed.
    """

    _workers = ()  # torch's name for the worker processes

    def __init__(
        self,
        loader: DataLoader[Any],
        source: Source,
        shared: Shared,
        link: Accelerator | None,
    ) -> None:
        self._shared = shared
        super().__init__(loader)
        self._profile_name = _profile_name(self._num_workers)
        self._source = source
        # Where batches arrive; None: in CPU memory of ours.
        self._blocks: Blocks | None = None
        if link is None and self._pin_memory:
            self._blocks = PinnedBlocks(source)
        elif link is not None and self._has_uploads(link):
            self._blocks = DeviceBlocks(source, link)
        elif link is not None and link.device.type != "cpu":
            self._blocks = Blocks(source, link.pinned)
        self._pin_memory = self._pin_memory and link is None
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._open_feed(loader)
        # torch's iterator with workers ends its __init__ with a _reset, and so asks the sampler
        # for an iterator twice; samplers that draw in __iter__ can tell.
        if self._num_workers > 0:
            self._reset(loader, first_iter=True)
        else:
            self._restart()

    def _has_uploads(self, link: Accelerator) -> bool:
        # Without workers such a copy would wait for all that the loop has queued.
        if self._num_workers == 0:
            return False
        self._shared.fault = find_upload_fault(link)
        return has_uploads(link)

    @property
    def is_on_device(self) -> bool:
        """Whether batches are there when they are handed out."""
        return isinstance(self._blocks, DeviceBlocks)

    def _open_feed(self, loader: DataLoader[Any]) -> None:
        source, blocks = self._source, self._blocks
        fetcher = _MapDatasetFetcher(
            self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )
        if self._num_workers == 0:
            self._dataset_fetcher = fetcher  # by torch's name, for others
        self._is_closed = False
        self._feed = _core.ArrayLoader(
            table=source.table,
            slots=self._shared.slots_for(len(source.columns), blocks.index if blocks else -1),
            fetch=fetcher.fetch,
            keys=source.keys,
            maps=source.maps,
            workers=self._num_workers,
            prefetch=loader.prefetch_factor or 1,
            # One worker of torch's keeps the order in any case; here the consumer helps it.
            in_order=loader.in_order or self._num_workers == 1,
            persistent=self._persistent_workers,
            timeout=self._timeout,
            new_block=blocks.new if blocks else None,
            split=blocks.split if blocks else None,
            **self._budget(loader),
        )

    def _budget(self, loader: DataLoader[Any]) -> dict[str, int]:
        """Of pinned memory. What is not pinned is gathered when it is wanted, or soon before."""
        if self._blocks is None or self._num_workers == 0:
            return {}
        return {"budget": budget_of(loader)}

    def _restart(self) -> None:
        if self._blocks is not None:
            self._blocks.check()
        sampler = self._index_sampler
        blocks = find_blocks(sampler) if self._auto_collation else None
        if blocks is not None:
            self._sampler_iter = _InBlocks()
            self._feed.restart(self._from_here(blocks, rest_of_blocks), _BLOCKS, sampler)
        else:
            kind = _BATCHES if self._auto_collation else _SINGLES
            self._feed.restart(self._sampler_iter, kind, None)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        # At its end a feed closes, unless it is persistent; a forked child has none.
        is_usable = self._persistent_workers and not self._is_closed and self._feed.is_own()
        if not first_iter and not is_usable:
            self._open_feed(loader)
        self._restart()

    def _look_again(self) -> None:
        """Other tensors were put into the TensorDataset between two batches."""
        try:
            source = find_source(self._dataset, pin=False)
            self._feed.use(source.table)
        except (NotCoveredError, ValueError) as error:
            raise RuntimeError(
                f"the tensors of the dataset were replaced during iteration and {error}; "
                "call iter() on the loader again"
            ) from error
        self._source = source

    def _next_data(self) -> Any:
        if self._num_workers == 0 and self._source.is_stale():
            self._look_again()
        try:
            data = next(self._feed)
        except StopIteration:
            self._epoch.is_over = True
            raise
        if self._pin_memory:
            return pin_memory.pin_memory(data)  # type: ignore[no-untyped-call]
        return data

    def __next__(self) -> Any:
        if self._blocks is not None:
            self._blocks.check()
        if profiler._is_profiler_enabled or self._pin_memory or self._source.is_stale():
            return super().__next__()
        try:
            data = next(self._feed)
        except StopIteration:
            self._epoch.is_over = True
            raise
        self._num_yielded += 1
        return data

    def close(self) -> None:
        self._is_closed = True
        self._feed.close()

    def _shutdown_workers(self) -> None:
        """torch's name for it, which others call."""
        self.close()


class _Counted(NextLock, _BaseDataLoaderIter):
    """Over one of torch's iterators: counts what it gives, can be shared by threads and closed."""

    _epoch: Epoch

    def __init__(self, loader: DataLoader[Any], shared: Shared, *more: Any) -> None:
        self._shared = shared
        self._is_closed = False
        self._turns = {}
        super().__init__(loader, *more)

    def __next__(self) -> Any:
        with self._turn():
            return super().__next__()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        with self._turn():
            super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        try:
            next_data: Callable[[], Any] = super()._next_data
            data = next_data()
        except StopIteration:
            self._epoch.is_over = True
            raise
        self._shared.batches += 1
        return data

    def close(self) -> None:
        self._is_closed = True


class _CountedSingle(_Counted, _SingleProcessDataLoaderIter, Resumable):
    def _next_data(self) -> Any:
        begin_ns = perf_counter_ns()
        data = super()._next_data()
        self._shared.count_wait(perf_counter_ns() - begin_ns)
        return data


class _Unprofiled(NextLock, _BaseDataLoaderIter):
    """Without a profiler torch's __next__ does no more than this; its record_function is a third
    of what a batch from workers costs this process."""

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled or self._dataset_kind != _DatasetKind.Map:
            return super().__next__()
        with self._turn():
            next_data: Callable[[], Any] = self._next_data
            data = next_data()
            self._num_yielded += 1
            return data


class _SyncIter(_Unprofiled, _CountedSingle):
    """torch's iterator without workers, with the collate in C."""

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        super().__init__(loader, shared)
        if self._auto_collation and is_default_collate(self._collate_fn):
            self._dataset_fetcher.collate_fn = self._collate = shared.collate_here()
            self._begun = self._collate.fallbacks()
            shared.latest = weakref.ref(self)

    def count(self) -> tuple[Workers, dict[str, int]]:
        counts = self._collate.fallbacks().items()
        news = {reason: count - self._begun.get(reason, 0) for reason, count in counts}
        return (), {reason: count for reason, count in news.items() if count > 0}

    def _finalize(self) -> None:
        if hasattr(self, "_collate"):
            self._shared.last_count = self.count()
        super()._finalize()


class _CountedMulti(_Counted, _MultiProcessingDataLoaderIter, Resumable):
    def close(self) -> None:
        super().close()
        self._shutdown_workers()

    def _finalize(self) -> None:
        super()._finalize()
        self._shutdown_workers()

    __del__ = _core.FinalizerBase.__del__  # torch's own stands before ours


class _TorchMulti(_CountedMulti):
    """Over torch's own transport."""

    _waited_ns = 0  # since the last batch came

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        if self._is_closed:  # by another thread, and nothing comes any more
            raise RuntimeError(CLOSED)
        # Of torch's queue what arrives is read and unpickled by get(), which is no wait.
        reader = getattr(self._data_queue, "_reader", None)
        begin_ns = perf_counter_ns()
        is_there = not self._data_queue.empty()
        if not is_there and reader is not None:
            reader.poll(timeout)
            timeout = max(timeout - (perf_counter_ns() - begin_ns) / 1e9, 0)
            self._waited_ns += perf_counter_ns() - begin_ns
        result: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        if not is_there and reader is None:
            self._waited_ns += perf_counter_ns() - begin_ns
        if result[0] and self._waited_ns > 0:
            self._shared.count_wait(self._waited_ns)
            self._waited_ns = 0
        return result


class _ProcessIter(_Unprofiled, _CountedMulti, ProcessIter):
    def _finalize(self) -> None:
        Resumable._finalize(self)
        self._end()

    def __init__(
        self, loader: DataLoader[Any], shared: Shared, link: Accelerator | None = None
    ) -> None:
        index = -1
        if link is not None and has_uploads(link):
            index = link.device.index
        elif link is not None:
            shared.fault = find_upload_fault(link)
        slots = shared.slots_for_workers(index)
        if link is None:
            place = pinned(loader)
        elif slots.device >= 0:
            place = on_device(link)
        else:
            place = on_the_way(link)
        try:
            super().__init__(loader, shared, slots, place)
            shared.latest = weakref.ref(self)
        except BaseException:
            # Ctrl-C, say, or an error of the sampler: a traceback that is kept must not keep the
            # workers that have started.
            self.abandon()
            raise

    def count(self) -> tuple[Workers, dict[str, int]]:
        return self._parent_end.count()

    def _shutdown_workers(self) -> None:
        super()._shutdown_workers()
        if hasattr(self, "_parent_end"):
            self._shared.last_count = self.count()


# Profiles name the range after the iterator's class.
_SyncIter.__name__ = _SingleProcessDataLoaderIter.__name__
_ProcessIter.__name__ = _MultiProcessingDataLoaderIter.__name__
_CountedSingle.__name__ = _SingleProcessDataLoaderIter.__name__
_TorchMulti.__name__ = _MultiProcessingDataLoaderIter.__name__


_ITERATORS: dict[tuple[str, bool], Callable[..., _BaseDataLoaderIter]] = {
    ("sync", False): _SyncIter,
    ("torch", True): _TorchMulti,
    ("torch", False): _CountedSingle,
}


def fast_iterator(
    loader: DataLoader[Any],
    path: str = "auto",
    shared: Shared | None = None,
    link: Accelerator | None = None,
) -> _BaseDataLoaderIter:
    """The fastest iterator that gives what ``iter(loader)`` of torch gives.

    Args:
        loader: any torch DataLoader.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with; fresh ones by default.
        link: to the device where batches are wanted. They are there if the iterator's
            ``is_on_device`` is true, else in CPU memory.
    """
    shared = shared or Shared()
    route = find_route(loader, path, pin=True)
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    if route.source is not None:
        return _ArrayIter(loader, route.source, shared, link)
    if route.path == "process":
        return _ProcessIter(loader, shared, link)
    return _ITERATORS[route.path, loader.num_workers > 0](loader, shared)
