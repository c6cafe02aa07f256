"""The iterator over worker processes, which holds a pool of workers and a channel.

``worker_iter.py`` orders the batches. The channel carries tasks and replies through shared memory
(``fastloop/workers``); the pool is the workers' life (``workers/lifecycle.py``). This module
connects the three, and says what happens when a worker dies, on Ctrl-C, and at the end.
"""

from __future__ import annotations

import operator
import threading
import warnings
import weakref
from time import monotonic
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop._core import ParentEnd, Reply
from fastloop.base.interrupts import interrupts_held
from fastloop.base.machine import budget_of
from fastloop.base.torch_parts import DatasetKind, ExceptionWrapper, Resume, StreamEnd
from fastloop.data.stateful import DatasetReader
from fastloop.device.accelerator import Accelerator
from fastloop.device.availability import find_upload_fault, has_uploads
from fastloop.device.destinations import find_destination, is_pinned_by_torch
from fastloop.loader.shared import CLOSED, Shared, WorkerCounts
from fastloop.loader.workers.common import TAKEN_MEANWHILE, WorkerIter
from fastloop.workers.batch_pickle import OBJECT, unpack
from fastloop.workers.delivery import Delivery
from fastloop.workers.launcher import Launcher
from fastloop.workers.lifecycle import CHECK_S, WorkerPool, is_exiting
from fastloop.workers.restarts import Restarts, is_batch
from fastloop.workers.task_errors import add_batch, quote_indices
from fastloop.workers.tasks import InitialState, Resumption, pickle_task

# With on_worker_death="restart", how often a parent that gets batches looks for dead workers.
_LOOK_S = 1.0
_STREAM = (
    "its samples come from an IterableDataset, which alone knew where it stood; to have workers "
    "replaced, give it state_dict() and load_state_dict(), or pass a map-style dataset "
    "(__getitem__ and __len__)"
)


def _requests_of(loader: DataLoader[Any]) -> int:
    """Room for the requests of two epochs in a worker's queue, as a power of two. If a worker gets
    more than its share, as when others have ended, some wait in this process."""
    return 1 << (2 * operator.index(loader.prefetch_factor or 1) + 15).bit_length()


def _import_for_workers() -> None:
    """What torch's worker loop imports: else every worker does, and Ctrl-C meets it there."""
    with interrupts_held():  # in the middle of it extension modules would be left half made
        import numpy.random  # noqa: F401


class ProcessIter(WorkerIter):
    """An iterator over a pool of worker processes and a channel in shared memory."""

    def __init__(
        self, loader: DataLoader[Any], shared: Shared, accelerator: Accelerator | None = None
    ) -> None:
        _import_for_workers()
        self._shared = shared
        self._depth = self._find_depth(loader)
        index = -1
        if accelerator is not None and has_uploads(accelerator):
            index = accelerator.device.index
        elif accelerator is not None:
            shared.fault = find_upload_fault(accelerator)
        memory = shared.memory_for_workers(index)
        destination = find_destination(
            accelerator, copies_in_c=memory.device >= 0, is_pinned=is_pinned_by_torch(loader)
        )
        restarts = getattr(loader, "on_worker_death", "raise") == "restart"
        self._restarts = Restarts() if restarts else None
        self._refused: dict[int, str] = {}  # dead workers that nobody replaces: why
        self._last_words: dict[int, str] = {}  # how workers died whose requests are given up
        self._next_look = 0.0
        # Half of the budget may be under way, as much again may wait for reuse.
        budget = max(1, budget_of(loader) // 2)
        self._parent_end = ParentEnd(
            memory,
            torch.Tensor,
            loader.num_workers,
            _requests_of(loader),
            budget,
            destination,
            restarts,
        )
        self._delivery = Delivery(self._parent_end, destination) if destination else None
        self._pool = WorkerPool()
        try:
            self._begin_epoch(loader, in_workers=True)
            states = self._epoch.states
            self._launcher = Launcher(
                loader.multiprocessing_context,
                self._parent_end,
                self._pool,
                None if states is None else states.make_reader,
            )
            try:
                super().__init__(self._as_torch_takes(loader))
            finally:
                if not restarts:
                    self._launcher.close()
            self._await_begin()
            shared.latest = weakref.ref(self)
        except BaseException:
            # Ctrl-C, say, or an error of the sampler: a traceback that is kept must not keep the
            # workers that have started.
            self._abandon()
            raise

    @property
    def is_on_device(self) -> bool:
        """Whether batches are there when they are handed out."""
        return self._delivery is not None and self._delivery.is_on_device

    def count(self) -> WorkerCounts:
        return self._parent_end.count()

    def _check_process(self) -> None:
        """In a forked child batches of the parent's would be over memory that it writes to."""
        if not self._pool.is_own():
            raise RuntimeError(
                "the workers of this iterator belong to the parent process; call iter() on the "
                "loader in the child"
            )

    def _begin_epoch(self, loader: DataLoader[Any], in_workers: bool = False) -> None:
        before = None if in_workers else self._epoch.states
        super()._begin_epoch(loader, in_workers)
        if before is not None and self._epoch.states is not None:
            self._epoch.states.follow(before)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            self._check_process()
            self._parent_end.start_epoch()
            self._ends: list[tuple[Any, Any, bytes | None]] = []  # of workers that owe a batch
            self._expect_states()
            # Of each worker: the last task that it answered.
            self._newest = [-1] * self._num_workers
            self._is_whole = False
            # Workers that have yet to answer that this epoch begins.
            self._resuming = set(range(0 if first_iter else self._num_workers))
            if self._restarts is not None:
                self._restarts.start_epoch()
            if self._delivery is not None:
                self._delivery.restart(0 if self._in_order else -1)
            super()._reset(loader, first_iter)
            self._is_whole = True

    def _start_worker(self, arguments: dict[str, Any]) -> Any:
        return self._launcher.start(arguments)

    def _send(self, worker: int, task: Any) -> None:
        if task is None:
            self._parent_end.end(worker)
            return
        if isinstance(task, Resume):
            task = Resumption(worker, task)
        self._parent_end.submit(worker, pickle_task(task), task)

    # ---- batches

    def _next_data(self) -> Any:
        self._check_process()
        try:
            data = self._deliver_next()
        except RuntimeError:
            if self._parent_end.is_overwritten:
                self._shutdown_workers()  # nothing that they share can be relied on
            raise
        if self._epoch.states is not None:
            data, state = data
            self._note_state(self._last_worker, state or None)
        return data

    def _deliver_next(self) -> Any:
        delivery = self._delivery
        if delivery is None:
            return super()._next_data()
        delivery.check()
        if not delivery.is_behind:
            try:
                delivery.put(super()._next_data())
            except StopIteration:
                delivery.end_epoch()
                raise
        return delivery.take(self._rcvd_idx if self._in_order else -1)

    def _bytes_of(self, data: Any) -> int:
        """The mean: what is here may not be a batch yet."""
        count = self._shared.count()
        return int(count["bytes"] // max(1, count["batches"]))

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        data = super()._process_data(data, worker_idx)
        self._last_worker = worker_idx
        if self._delivery is None and type(data) is Reply:
            return unpack(data)
        return data

    def _get_data(self) -> tuple[Any, Any]:
        try:
            return super()._get_data()
        except KeyboardInterrupt:
            # A traceback that is kept must not keep what is left of the workers.
            with interrupts_held():
                if self._pool.await_interrupted(self._workers_status):
                    self._shutdown_workers()
            raise

    def _poll(self, timeout: float) -> tuple[bool, Any]:
        self._check_process()
        if self._arrived:
            return True, self._arrived.popleft()
        deadline = monotonic() + timeout
        rest = timeout
        if self._restarts is not None and deadline - timeout > self._next_look:
            # With in_order=False the batches of others would hide a death.
            self._next_look = deadline - timeout + _LOOK_S
            dead = self._pool.find_dead(self._workers_status)
            self._replace([n for n in dead if not self._parent_end.has_replies(n)])
        while True:
            received = self._receive(max(min(rest, CHECK_S), 0))
            if received is None:
                received = self._look_for_dead()
            if received is not None:
                return True, received
            rest = deadline - monotonic()
            if rest <= 0:
                return False, None

    def _receive(self, timeout: float) -> tuple[Any, Any] | None:
        """What a worker has sent for this epoch; None once nothing of it is there."""
        while True:
            for end in self._ends:
                if not self._parent_end.owes(end[1].worker_id):
                    self._ends.remove(end)
                    return self._finish(*end)
            reply = self._parent_end.receive(timeout)
            if reply is None:
                return None
            received = self._read(*reply)
            if received is not None:
                return received
            timeout = 0

    def _read(self, task: Any, reply: Reply) -> tuple[Any, Any] | None:
        """What a reply is: a task's number and its batch, error or end."""
        states = self._epoch.states
        if isinstance(task, InitialState):
            self._note_initial(task, self._unpack_object(reply))
            return None
        if isinstance(task, Resumption):
            self._resuming.discard(task.worker)
            return task.task, unpack(reply)
        number, indices = task
        if number not in self._task_info:
            return None  # of the epoch before
        worker = self._task_info[number][0]
        self._newest[worker] = max(self._newest[worker], number)
        if reply.kind != OBJECT:
            if states is not None:
                states.receive(worker)
            return number, reply
        data, state = self._unpack_object(reply), None
        if states is not None and isinstance(data, tuple):
            data, state = data[0], data[1] or None
        if isinstance(data, ExceptionWrapper):
            add_batch(data, number, indices)
        if isinstance(data, StreamEnd):
            if self._parent_end.owes(data.worker_id):
                self._ends.append((number, data, state))
                return None
            return self._finish(number, data, state)
        return number, data

    def _unpack_object(self, reply: Reply) -> Any:
        try:
            return unpack(reply)
        except Exception:
            if self._parent_end.is_overwritten:
                raise
            # An error of a class that this process does not have, say.
            return ExceptionWrapper(  # type: ignore[no-untyped-call]
                where="while reading what a DataLoader worker process has sent"
            )

    def _finish(self, number: int, end: StreamEnd, state: bytes | None) -> tuple[Any, Any]:
        if self._epoch.states is not None:
            self._epoch.states.end(end.worker_id, state)
        self._parent_end.cancel(end.worker_id, is_gone=False)
        return number, end

    # ---- states of the dataset

    def await_states(self) -> None:
        """Until each worker has sent the state that it began with: that takes as long as workers
        take to start. What else comes is kept for next()."""
        with self._next_lock.of_process():
            while self._awaited and not self._shutdown and self._pool.is_own():
                received = self._receive(CHECK_S)
                if received is not None:
                    self._arrived.append(received)
                elif self._pool.find_dead(self._workers_status):
                    return  # next() says why

    # ---- workers that die

    def is_broken(self) -> bool:
        """Whether another epoch needs new workers: Ctrl-C, say, has ended some of these, or came
        while they were told of an epoch, or this process is a fork of theirs."""
        return (
            not self._pool.is_own()
            or self._shutdown
            or not self._is_whole
            or not (self._has_restarts() or self._pool.are_all_alive())
        )

    def _has_restarts(self) -> bool:
        """Whether workers that are dead now get successors when they are wanted."""
        if self._restarts is None or self._refused:
            return False
        if self._dataset_kind == DatasetKind.Map:
            return True
        states = self._epoch.states
        dead = self._pool.find_dead([True] * self._num_workers)
        return states is not None and all(map(states.can_succeed, dead))

    def _look_for_dead(self) -> tuple[Any, Any] | None:
        """After a wait in which nothing came: raises if nothing will."""
        if self._parent_end.is_closed():
            raise RuntimeError(CLOSED)
        dead = self._pool.find_dead(self._workers_status)
        # Asked after that look: if multiprocessing has ended one by then, the exit had begun.
        if is_exiting() and threading.current_thread().daemon:
            return None  # the interpreter soon ends this thread, too
        # What they have sent before is there to be seen now.
        received = self._receive(0) if dead else None
        if received is None and self._restarts is not None:
            dead = self._replace(dead)
        if received is None and dead:
            self._give_up(dead)
            if not self._awaits_others(dead):
                self._raise_for(dead)
        if received is None and self._parent_end.is_idle():
            raise RuntimeError(TAKEN_MEANWHILE)
        return received

    def _awaits_others(self, dead: list[int]) -> bool:
        """Whether a batch of one that is dead is there, and waits for those of others before it."""
        first = self._task_info.get(self._rcvd_idx, (-1,))[0]
        return first not in dead and any(
            len(info) == 2 and info[0] in dead for info in self._task_info.values()
        )

    def _replace(self, dead: list[int]) -> list[int]:
        """Starts successors of dead workers whose replies have all been received; the numbers of
        those that get none."""
        for number in dead:
            if number not in self._refused:
                text = self._explain_death(number)
                fault, reader = self._find_place(number)
                fault = fault or self._find_fault(number) or self._start_successor(number, reader)
                if fault:
                    self._refused[number] = f"It is not replaced: {fault}."
                    continue
                self._shared.add(restarts=1)
                warnings.warn(
                    f"{text}A new process takes its place and loads its unfinished batches again.",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return [number for number in dead if number in self._refused]

    def _find_place(self, number: int) -> tuple[str, DatasetReader | None]:
        """Why a dead worker's part of the dataset cannot be gone on with, or ""; and how to."""
        states, is_map = self._epoch.states, self._dataset_kind == DatasetKind.Map
        if states is None:
            return "" if is_map else _STREAM, None
        first = self._parent_end.first_task(number)
        if not is_map and isinstance(first, tuple) and first[0] < self._newest[number]:
            return f"batch {first[0]} was too large for the memory there was, and others came", None
        try:
            reader = states.make_successor(number, is_resuming=number in self._resuming)
        except Exception as error:  # of the user's state_dict()
            return f"it is not known where it stood ({type(error).__name__}: {error})", None
        return "" if is_map or reader is not None else _STREAM, reader

    def _find_fault(self, number: int) -> str:
        assert self._restarts is not None
        try:
            code = self._pool.await_end(number)
        except TimeoutError:
            return "its process may not have ended, as the fork server that would know has died"
        taken, task = self._parent_end.begun(number)
        if is_batch(task) and task[0] not in self._task_info:
            task = None  # of the epoch before: nobody waits for it
        return self._restarts.find_fault(number, code, taken, task)

    def _start_successor(self, number: int, reader: DatasetReader | None) -> str:
        """Why there is none, or ""."""
        successor = None
        with interrupts_held():
            if self._parent_end.restart(number):
                try:
                    process = self._launcher.make_successor(number, reader)
                    successor = self._pool.replace(number, process)
                except Exception as error:
                    if not self._parent_end.is_closed():
                        return f"no process could be started ({type(error).__name__}: {error})"
            if successor is not None:
                workers: list[Any] = self._workers
                workers[number] = successor
        if successor is None:
            raise RuntimeError(CLOSED)
        return ""

    def _give_up(self, dead: list[int]) -> None:
        """What they were to make never comes: others may need the memory that is kept for it."""
        for number in dead:
            if number not in self._last_words:
                text = self._explain_death(number) + self._refused.get(number, "")
                self._last_words[number] = text
                self._parent_end.cancel(number, is_gone=True)

    def _raise_for(self, dead: list[int]) -> None:
        for number in dead:
            self._send(number, None)
            self._workers_status[number] = False
        raise RuntimeError("\n".join(self._last_words[number] for number in dead))

    def _explain_death(self, number: int) -> str:
        task = ""
        taken, first = self._parent_end.begun(number)
        if not is_batch(first):
            first = self._parent_end.first_task(number)
        if isinstance(first, tuple):
            task = f"; it was to make batch {first[0]} (indices {quote_indices(first[1])})"
        return self._pool.explain_death(number, task, taken > 0, self._restarts is not None)

    # ---- the end

    def _shutdown_workers(self) -> None:
        if hasattr(self, "_parent_end"):
            self._shared.last_count = self.count()
        # At exit multiprocessing ends the workers, and a forked child has none.
        if getattr(self, "_shutdown", True) or is_exiting() or not self._pool.is_own():
            return
        try:
            self._parent_end.close()
            self._pool.stop()
        finally:
            with interrupts_held():
                self._shutdown = True
                self._parent_end.start_epoch()
                self._task_info = {}
                if self._delivery is not None:
                    self._delivery.drop()
                self._launcher.close()
                if self._pool.forget_ended():
                    self._parent_end.release()

    def _let_go(self) -> None:
        super()._let_go()
        if hasattr(self, "_pool"):
            self._pool.clear()
