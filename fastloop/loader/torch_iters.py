"""torch's own iterators with counts: without workers, where the collate is in C if it applies, and
over torch's worker processes."""

from __future__ import annotations

import weakref
from time import perf_counter_ns
from typing import Any

from torch.utils.data import DataLoader

from fastloop._core import FinalizerBase
from fastloop.base.torch_parts import MultiIter, SingleIter
from fastloop.data.collate import Collation, call_lent
from fastloop.loader.shared import CLOSED, LoaderProxy, LockedIter, Shared, WorkerCounts

_KILLED_S = 5.0  # for a worker after SIGTERM


class SyncIter(SingleIter, LockedIter):
    """The iterator of torch without workers.

    Args:
        has_own_collate: the collate is in C where torch's default is asked for.
    """

    def __init__(self, loader: DataLoader[Any], shared: Shared, has_own_collate: bool) -> None:
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
        is_tried = has_own_collate and self._auto_collation
        found = Collation(self._dataset, self._collate_fn, is_tried, shared.collate_here)
        self._dataset_fetcher.collate_fn, self._collation = found.function, found
        shared.latest = weakref.ref(self)

    def _next_data(self) -> Any:
        begin_ns = perf_counter_ns()
        data = self._datasets.call(call_lent, self._collation.lender, super()._next_data)
        self._shared.add(waits=1, wait_ns=perf_counter_ns() - begin_ns)
        states = self._epoch.states
        if states is not None and states.is_read_ahead:
            assert states.reader is not None
            self._note_state(0, states.reader.take_behind(data))
        return data

    def count(self) -> WorkerCounts:
        return (), self._collation.fallbacks()

    def _finalize(self) -> None:
        if "_collation" in vars(self):
            self._shared.last_count = self.count()
        super()._finalize()


class TorchProcessIter(MultiIter, LockedIter):
    """The iterator of torch over its own worker processes and queues."""

    _has_states = False
    _waited_ns = 0  # since the last batch came

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._shared = shared
        self._begin_epoch(loader, in_workers=True)
        super().__init__(self._as_torch_takes(loader))

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            super()._reset(loader, first_iter)

    def _try_get_data(self, timeout: float = 5.0) -> tuple[bool, Any]:
        if self._is_closed:  # by another thread, and nothing comes any more
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
        # torch before 2.13 kills workers that do not end, and leaves them as zombies.
        for worker in self._workers if was_open else ():
            worker.join(_KILLED_S)

    def _finalize(self) -> None:
        super()._finalize()
        self._shutdown_workers()

    __del__ = FinalizerBase.__del__  # torch's own stands before it
