"""What the iterators over worker processes and worker threads have in common: torch's iterator
without its thread for pinning and its handler of SIGCHLD, and how it ends."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastloop import _core
from fastloop.base.interrupts import interrupt_later, interrupts_held
from fastloop.base.memory import budget_of
from fastloop.base.nested import list_leaves
from fastloop.data.dataset_reader import is_stateful
from fastloop.loader.queue_depth import AutoDepth, QueueDepth
from fastloop.loader.shared import LockedIter
from fastloop.workers.lifecycle import is_exiting
from fastloop.workers.request_queue import InitialState

TAKEN_MEANWHILE = (
    "this iterator waits for a batch that was taken meanwhile: next() was called on it "
    "from inside next(), by a signal handler or a sampler"
)


class WorkerIter(_MultiProcessingDataLoaderIter, LockedIter):
    """torch's iterator over workers that ``_shutdown_workers`` of a subclass ends."""

    # ---- the depth of the queue, with prefetch_factor="auto"

    _depth: QueueDepth | None = None

    def _find_depth(self, loader: DataLoader[Any]) -> QueueDepth | None:
        """What an iterator has found stays for the next one."""
        wanted = loader.prefetch_factor
        if not isinstance(wanted, AutoDepth):
            return None
        found = self._shared.depth or wanted
        return QueueDepth(loader.num_workers, budget_of(loader), found)

    def _bytes_of(self, data: Any) -> int:
        """What a batch takes of the memory budget."""
        leaves = (leaf for _, leaf in list_leaves(data))
        return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._depth is not None:
            self._depth.start_epoch()
            self._prefetch_factor = self._depth.value
        super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        if self._depth is None:
            return super()._next_data()  # type: ignore[no-untyped-call]
        before = self._shared.count()["waits"]
        data = super()._next_data()  # type: ignore[no-untyped-call]
        if self._shared.count()["waits"] == before:
            self._depth.take()
        else:
            self._depth.wait(self._bytes_of(data))
        grown = self._depth.value - self._prefetch_factor
        self._prefetch_factor = self._shared.depth = self._depth.value
        for _ in range(grown * self._num_workers):
            self._try_put_index()
        return data

    # ---- states of the dataset

    def _expect_states(self) -> None:
        """An epoch begins."""
        self._arrived: deque[tuple[Any, Any]] = deque()  # before torch's code asked for it
        self._awaited: set[int] = set()  # workers whose first state has not come
        self._fault: ExceptionWrapper | None = None  # of a worker that could not begin

    def _try_put_index(self) -> None:
        if self._send_idx == 0 and not self._awaited:
            self._ask_initial_states()
        # Not while more is under way than a queue that has shrunk may hold.
        limit = self._prefetch_factor * self._num_workers
        if self._depth is None or self._tasks_outstanding < limit:
            super()._try_put_index()

    def _ask_initial_states(self) -> None:
        """Once an epoch, before its first task."""
        states = self._epoch.states
        if states is not None and (states.wants_initial or self._waits_to_begin()):
            self._awaited.update(range(self._num_workers))
            for worker in range(self._num_workers):
                self._index_queues[worker].put(InitialState(worker, states))

    def _note_initial(self, task: InitialState, state: Any) -> None:
        states = self._epoch.states
        if states is None or task.epoch is not states:
            return
        self._awaited.discard(task.worker)
        if isinstance(state, ExceptionWrapper):
            self._fault = self._fault or state
        elif states.wants_initial:
            states.begin(task.worker, state)

    def _waits_to_begin(self) -> bool:
        """Not for workers that may be replaced meanwhile: next() meets what becomes of them."""
        return is_stateful(self._dataset) and getattr(self, "_restarts", None) is None

    def _await_begin(self) -> None:
        """Where the dataset says where it stands, iter() returns when its workers have begun: so it
        raises why one could not, and the loader has all states even if this iterator is dropped."""
        if self._waits_to_begin():
            self.await_states()
            if self._fault is not None:
                self._fault.reraise()  # type: ignore[no-untyped-call]

    # torch pins in a thread of its own, which these have no use for.

    @property
    def _pin_memory(self) -> bool:
        return False

    @_pin_memory.setter
    def _pin_memory(self, wanted: bool) -> None:
        pass

    def _leave_handler(self) -> None:
        """torch's handler of SIGCHLD would raise a text of its own for workers."""
        if self._worker_pids_set:
            self._worker_pids_set = False  # first: after Ctrl-C here, _abandon() takes them out
            torch._C._remove_worker_pids(id(self))

    def _abandon(self) -> None:
        """What an __init__ that fails leaves behind, at whatever place."""
        with interrupts_held():
            self._shutdown_workers()
            with suppress(ValueError):  # or the next iterator at this address could not be made
                torch._C._remove_worker_pids(id(self))

    def _fill_in(self) -> None:
        """What torch's __init__ did not come to and its _shutdown_workers() looks for."""
        found = self.__dict__
        found.setdefault("_workers_done_event", threading.Event())
        found.setdefault("_index_queues", [])
        workers = found.setdefault("_workers", [])
        found.setdefault("_workers_status", [False] * len(workers))

    def close(self) -> None:
        super().close()
        self._shutdown_workers()

    def _finalize(self) -> None:
        """Again, if Ctrl-C came before it was held back. At the end of the process the names of
        this module may be gone."""
        self._keep_count()
        if not self._is_exiting():
            with interrupts_held(interrupt_later):
                self._shutdown_workers()
                self._let_go()

    _is_exiting = staticmethod(is_exiting)

    def _let_go(self) -> None:
        """Of what runs Python when it is freed: here, where Ctrl-C is not lost. Other finalizers
        may yet look for the list."""
        self._workers = []

    __del__ = _core.FinalizerBase.__del__  # torch's own stands before it
