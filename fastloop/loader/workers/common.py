"""The order of batches over workers, processes or threads: which worker gets the next task, which
batch is next, and how an iterator ends.

``WorkerIter`` does what torch's iterator over worker processes does (``torch_parts`` lists the
methods under "workers"), without its queues, its thread for pinning and its handler of SIGCHLD. It
is a subclass because frameworks ask ``isinstance``; none of torch's methods between it and the base
of all iterators runs.
"""

from __future__ import annotations

from collections import deque
from itertools import cycle, islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later, interrupts_held
from fastloop.base.machine import budget_of
from fastloop.base.nested import list_leaves
from fastloop.base.torch_parts import ExceptionWrapper, MultiIter, Resume, StreamEnd
from fastloop.data.stateful import is_stateful
from fastloop.loader.shared import LockedIter
from fastloop.loader.workers.queue_depth import AutoDepth, QueueDepth
from fastloop.workers.lifecycle import is_exiting
from fastloop.workers.tasks import InitialState

# How long a wait lasts before it begins anew; torch's has the same.
POLL_S = 5.0
TAKEN_MEANWHILE = (
    "this iterator waits for a batch that was taken meanwhile: next() was called on it "
    "from inside next(), by a signal handler or a sampler"
)


class WorkerIter(MultiIter, LockedIter):
    """An iterator over workers. Subclasses start them, send them tasks, receive what they make and
    end them.

    Attributes (names and meanings are torch's):
        _task_info: by number of a task that is not handed out: its worker, and its data once it has
            come before its turn.
        _tasks_outstanding: tasks whose data has not come.
        _send_idx, _rcvd_idx: the numbers of the next task to send, and to hand out.
        _workers_status: which workers still have work in this epoch.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        LockedIter.__init__(self, loader)
        self._prefetch_factor: int = loader.prefetch_factor or 0
        self._in_order = loader.in_order
        for name, value in (
            ("num_workers", self._num_workers),
            ("prefetch_factor", self._prefetch_factor),
        ):
            if value <= 0:
                raise AssertionError(
                    f"{name} must be greater than 0 for MultiProcessingDataLoaderIter"
                )
        self._worker_init_fn = loader.worker_init_fn
        self._workers: list[Any] = []
        self._shutdown = False
        for number in range(self._num_workers):
            self._workers.append(self._start_worker(self._arguments_of(number)))
        self._reset(loader, first_iter=True)

    # ---- what subclasses do

    def _start_worker(self, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _send(self, worker: int, task: Any) -> None:
        """Sends (number, indices), a Resume or an InitialState; None is a worker's last task."""
        raise NotImplementedError

    def _poll(self, timeout: float) -> tuple[bool, Any]:
        """Whether something came within `timeout` seconds, and the task's number and its data."""
        raise NotImplementedError

    def _shutdown_workers(self) -> None:
        raise NotImplementedError

    # ---- the order of batches

    def _arguments_of(self, worker: int) -> dict[str, Any]:
        """What torch's worker loop takes besides queues."""
        return {
            "dataset_kind": self._dataset_kind,
            "dataset": self._dataset,
            "auto_collation": self._auto_collation,
            "collate_fn": self._collate_fn,
            "drop_last": self._drop_last,
            "base_seed": self._base_seed,
            "init_fn": self._worker_init_fn,
            "worker_id": worker,
            "num_workers": self._num_workers,
            "persistent_workers": self._persistent_workers,
            "shared_seed": None,  # of data pipes, which torch loads
        }

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._depth is not None:
            self._depth.start_epoch()
            self._prefetch_factor = self._depth.value
        LockedIter._reset(self, loader, first_iter)
        workers = range(self._num_workers)
        self._send_idx = self._rcvd_idx = self._tasks_outstanding = 0
        self._task_info: dict[int, tuple[Any, ...]] = {}
        self._workers_status = [True for _ in workers]
        self._workers_num_tasks = [0 for _ in workers]
        states = self._epoch.states
        # A resumed epoch goes on with the worker whose turn it was.
        self._turns = islice(cycle(workers), 0 if states is None else states.first_worker, None)
        if not first_iter:
            for worker in workers:
                self._send(worker, Resume())
            answers = self._num_workers
            while answers > 0:
                answers -= isinstance(self._get_data()[0], Resume)
        for _ in range(self._prefetch_factor * self._num_workers):
            self._try_put_index()

    def _get_data(self) -> tuple[Any, Any]:
        """The next task's number, of those that have come, and its data."""
        while True:
            is_there, data = self._poll(self._timeout or POLL_S)
            if is_there:
                return data  # type: ignore[no-any-return]
            if self._timeout > 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")

    def _next_data(self) -> Any:
        if self._depth is None:
            return self._take_next()
        before = self._shared.count()["waits"]
        data = self._take_next()
        if self._shared.count()["waits"] == before:
            self._depth.take()
        else:
            self._depth.wait(self._bytes_of(data))
        grown = self._depth.value - self._prefetch_factor
        self._prefetch_factor = self._shared.depth = self._depth.value
        for _ in range(grown * self._num_workers):
            self._try_put_index()
        return data

    def _take_next(self) -> Any:
        """The batch whose turn it is; with in_order=False, the first that comes."""
        while True:
            self._pass_ended()
            worker, *data = self._task_info[self._rcvd_idx]
            if data:
                del self._task_info[self._rcvd_idx]
                self._rcvd_idx += 1
                return self._process_data(data[0], worker)
            if self._shutdown or self._tasks_outstanding <= 0:
                raise AssertionError(
                    "Invalid iterator state: shutdown or no outstanding tasks when fetching next "
                    "data"
                )
            number, arrived = self._get_data()
            self._tasks_outstanding -= 1
            if isinstance(arrived, StreamEnd):
                self._end_share(arrived.worker_id)
            elif number != self._rcvd_idx and self._in_order:
                self._task_info[number] += (arrived,)
            else:
                if number == self._rcvd_idx:
                    self._rcvd_idx += 1
                return self._process_data(arrived, self._task_info.pop(number)[0])

    def _pass_ended(self) -> None:
        """Passes over tasks of workers whose share of a stream has ended. StopIteration where no
        task is left."""
        while self._rcvd_idx < self._send_idx:
            info = self._task_info.get(self._rcvd_idx)
            if info is not None:
                if len(info) == 2 or self._workers_status[info[0]]:
                    return
                del self._task_info[self._rcvd_idx]
            self._rcvd_idx += 1
        if not self._persistent_workers:
            self._shutdown_workers()
        raise StopIteration

    def _end_share(self, worker: int) -> None:
        """A worker's share of a stream has ended: others get its tasks."""
        if not self._persistent_workers:
            self._send(worker, None)
        self._workers_status[worker] = False
        self._try_put_index()

    def _process_data(self, data: Any, worker: int) -> Any:
        self._workers_num_tasks[worker] -= 1
        self._try_put_index()
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data

    def _try_put_index(self) -> None:
        if self._send_idx == 0 and not self._awaited:
            self._ask_initial_states()
        limit = self._prefetch_factor * self._num_workers
        if self._tasks_outstanding >= limit:
            if self._depth is None:
                raise AssertionError("Number of outstanding tasks exceeded maximum allowed tasks")
            return  # a queue that has shrunk holds less than is under way
        try:
            indices = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        worker = self._choose_worker(limit)
        if worker is None:
            return
        self._send(worker, (self._send_idx, indices))
        self._task_info[self._send_idx] = (worker,)
        self._workers_num_tasks[worker] += 1
        self._tasks_outstanding += 1
        self._send_idx += 1

    def _choose_worker(self, limit: int) -> int | None:
        """The next worker in turn that has work in this epoch; with in_order=False, one that has
        less under way than its part of `limit`."""
        for worker in islice(self._turns, self._num_workers):
            if self._workers_status[worker] and (
                self._in_order
                or self._workers_num_tasks[worker] < limit // sum(self._workers_status)
            ):
                return worker
        return None

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

    # ---- states of the dataset

    def _expect_states(self) -> None:
        """An epoch begins."""
        self._arrived: deque[tuple[Any, Any]] = deque()  # before anybody asked for it
        self._awaited: set[int] = set()  # workers whose first state has not come
        self._fault: ExceptionWrapper | None = None  # of a worker that could not begin

    def _ask_initial_states(self) -> None:
        """Once an epoch, before its first task."""
        states = self._epoch.states
        if states is not None and (states.wants_initial or self._waits_to_begin()):
            self._awaited.update(range(self._num_workers))
            for worker in range(self._num_workers):
                self._send(worker, InitialState(worker, states))

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

    # ---- the end

    def _abandon(self) -> None:
        """What an __init__ that fails leaves behind, at whatever place."""
        with interrupts_held():
            self._shutdown_workers()

    def close(self) -> None:
        LockedIter.close(self)
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

    __del__ = FinalizerBase.__del__  # torch's own stands before it
