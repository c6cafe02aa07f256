"""The iterator over worker processes: torch's own, which holds a pool of workers and a channel.

torch's code asks for batches in its order and counts what is under way. The channel carries its
requests and the replies through shared memory (``fastloop/workers``); the pool is the workers' life
(``workers/lifecycle.py``). This module turns what the channel gives into what torch's code expects,
and says what happens when a worker dies, on Ctrl-C, and at the end.
"""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy.random  # noqa: F401 - here, or every worker imports it again, and Ctrl-C meets it there
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastloop import _core
from fastloop.base.interrupts import interrupt_later, interrupts_held
from fastloop.base.memory import budget_of
from fastloop.device.accelerator import Accelerator
from fastloop.device.availability import find_upload_fault, has_uploads
from fastloop.device.destinations import find_destination, is_pinned_by_torch
from fastloop.loader.shared import CLOSED, LockedIter, Shared, WorkerCounts
from fastloop.workers.batch_pickle import OBJECT, unpack
from fastloop.workers.delivery import Delivery
from fastloop.workers.lifecycle import CHECK_S, WorkerPool, is_exiting
from fastloop.workers.mp_context import Context


def _find_depth(loader: DataLoader[Any]) -> int:
    """Room for the requests of two epochs in a worker's queue, as a power of two. If a worker gets
    more than its share, as when others have ended, some wait in this process."""
    return 1 << (2 * (loader.prefetch_factor or 1) + 15).bit_length()


def _quote(indices: Any) -> str:
    if isinstance(indices, list) and len(indices) > 20:
        shown = ", ".join(repr(index) for index in indices[:20])
        return f"[{shown}, ... {len(indices)} in all]"
    return repr(indices)


class ProcessIter(_MultiProcessingDataLoaderIter, LockedIter):
    """torch's iterator over a pool of worker processes and a channel in shared memory."""

    def __init__(
        self, loader: DataLoader[Any], shared: Shared, accelerator: Accelerator | None = None
    ) -> None:
        self._shared = shared
        index = -1
        if accelerator is not None and has_uploads(accelerator):
            index = accelerator.device.index
        elif accelerator is not None:
            shared.fault = find_upload_fault(accelerator)
        memory = shared.memory_for_workers(index)
        destination = find_destination(
            accelerator, copies_in_c=memory.device >= 0, is_pinned=is_pinned_by_torch(loader)
        )
        # Half of the budget may be under way, as much again may wait for reuse.
        budget = max(1, budget_of(loader) // 2)
        self._parent_end = _core.ParentEnd(
            memory,
            torch.Tensor,
            loader.num_workers,
            _find_depth(loader),
            budget,
            destination,
        )
        self._delivery = Delivery(self._parent_end, destination) if destination else None
        self._pool = WorkerPool()
        context = Context(loader.multiprocessing_context, self._parent_end, self._pool)
        try:
            self._begin_epoch(loader, in_workers=True)
            super().__init__(self._as_torch_takes(loader, multiprocessing_context=context))
            shared.latest = weakref.ref(self)
        except BaseException:
            # Ctrl-C, say, or an error of the sampler: a traceback that is kept must not keep the
            # workers that have started.
            self._abandon()
            raise
        finally:
            context.close()

    # torch pins in a thread of its own, which this iterator has no use for.

    @property
    def _pin_memory(self) -> bool:
        return False

    @_pin_memory.setter
    def _pin_memory(self, wanted: bool) -> None:
        pass

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

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            self._check_process()
            if self._worker_pids_set:
                # torch's handler of SIGCHLD would raise a text of its own for these.
                torch._C._remove_worker_pids(id(self))
                self._worker_pids_set = False
            self._parent_end.start_epoch()
            self._ends: list[tuple[Any, Any]] = []  # of workers that owe a batch
            self._is_whole = False
            if self._delivery is not None:
                self._delivery.restart(0 if self._in_order else -1)
            super()._reset(loader, first_iter)
            self._is_whole = True

    # ---- batches

    def _next_data(self) -> Any:
        self._check_process()
        try:
            return self._deliver_next()
        except RuntimeError:
            if self._parent_end.is_overwritten:
                self._shutdown_workers()  # nothing that they share can be relied on
            raise

    def _deliver_next(self) -> Any:
        delivery = self._delivery
        if delivery is None:
            return super()._next_data()  # type: ignore[no-untyped-call]
        delivery.check()
        if not delivery.is_behind:
            try:
                delivery.put(super()._next_data())  # type: ignore[no-untyped-call]
            except StopIteration:
                delivery.end_epoch()
                raise
        return delivery.take(self._rcvd_idx if self._in_order else -1)

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        data = super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]
        if self._delivery is None and type(data) is _core.Reply:
            return unpack(data)
        return data

    def _get_data(self) -> tuple[Any, Any]:
        try:
            data: tuple[Any, Any] = super()._get_data()  # type: ignore[no-untyped-call]
            return data
        except KeyboardInterrupt:
            # A traceback that is kept must not keep what is left of the workers.
            with interrupts_held():
                if self._pool.await_interrupted(self._workers_status):
                    self._shutdown_workers()
            raise

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        self._check_process()
        deadline = monotonic() + timeout
        rest = timeout
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

    def _read(self, task: Any, reply: _core.Reply) -> tuple[Any, Any] | None:
        """What a reply is to torch's code: a task's number and its batch, error or end."""
        if not isinstance(task, tuple):
            return task, unpack(reply)  # a worker has resumed
        number, indices = task
        if number not in self._task_info:
            return None  # of the epoch before
        if reply.kind != OBJECT:
            return number, reply
        data = self._unpack_object(reply)
        if isinstance(data, ExceptionWrapper):
            where = f"batch {number} (indices {_quote(indices)})"
            data.exc_msg = f"{data.exc_msg.rstrip()}\nThis happened in {where}."
        if isinstance(data, _IterableDatasetStopIteration):
            if self._parent_end.owes(data.worker_id):
                self._ends.append((number, data))
                return None
            return self._finish(number, data)
        return number, data

    def _unpack_object(self, reply: _core.Reply) -> Any:
        try:
            return unpack(reply)
        except Exception:
            if self._parent_end.is_overwritten:
                raise
            # An error of a class that this process does not have, say.
            return ExceptionWrapper(  # type: ignore[no-untyped-call]
                where="while reading what a DataLoader worker process has sent"
            )

    def _finish(self, number: int, end: _IterableDatasetStopIteration) -> tuple[Any, Any]:
        self._parent_end.cancel(end.worker_id, is_gone=False)
        return number, end

    # ---- workers that die

    def is_broken(self) -> bool:
        """Whether another epoch needs new workers: Ctrl-C, say, has ended some of these, or came
        while they were told of an epoch, or this process is a fork of theirs."""
        return (
            not self._pool.is_own()
            or self._shutdown
            or not self._is_whole
            or not self._pool.are_all_alive()
        )

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
        if received is None and dead and not self._awaits_others(dead):
            self._raise_for(dead)
        if received is None and self._parent_end.is_idle():
            raise RuntimeError(
                "this iterator waits for a batch that was taken meanwhile: next() was called on it "
                "from inside next(), by a signal handler or a sampler"
            )
        return received

    def _awaits_others(self, dead: list[int]) -> bool:
        """Whether a batch of one that is dead is there, and waits for those of others before it."""
        first = self._task_info.get(self._rcvd_idx, (-1,))[0]
        return first not in dead and any(
            len(info) == 2 and info[0] in dead for info in self._task_info.values()
        )

    def _raise_for(self, dead: list[int]) -> None:
        text = "\n".join(self._explain_death(number) for number in dead)
        for number in dead:
            self._mark_worker_as_unavailable(number)
            self._parent_end.cancel(number, is_gone=True)
        raise RuntimeError(text)

    def _explain_death(self, number: int) -> str:
        task = ""
        first = self._parent_end.first_task(number)
        if first is not None:
            task = f"; it was to make batch {first[0]} (indices {_quote(first[1])})"
        return self._pool.explain_death(number, task)

    # ---- the end

    def _shutdown_workers(self) -> None:
        if hasattr(self, "_parent_end"):
            self._shared.last_count = self.count()
        # At exit multiprocessing ends the workers, and a forked child has none.
        if getattr(self, "_shutdown", True) or is_exiting() or not self._pool.is_own():
            return
        if not hasattr(self, "_workers_status"):  # a worker could not be started
            self._workers_status = [False] * len(self._workers)
        try:
            self._parent_end.close()
            self._pool.stop()
        finally:
            with interrupts_held():
                super()._shutdown_workers()
                self._parent_end.start_epoch()
                self._task_info = {}
                if self._delivery is not None:
                    self._delivery.drop()
                if self._pool.forget_ended():
                    self._parent_end.release()

    def _abandon(self) -> None:
        """What an __init__ that fails leaves behind, at whatever place."""
        with interrupts_held():
            self._shutdown_workers()
            with suppress(ValueError):  # or the next iterator at this address could not be made
                torch._C._remove_worker_pids(id(self))

    def close(self) -> None:
        super().close()
        self._shutdown_workers()

    def _finalize(self) -> None:
        """Again, if Ctrl-C came before it was held back."""
        LockedIter._finalize(self)
        if not is_exiting():
            with interrupts_held(interrupt_later):
                self._shutdown_workers()
                # Here, where Ctrl-C is not lost. Other finalizers may yet look for the list.
                self._workers = []
                if hasattr(self, "_pool"):
                    self._pool.clear()

    __del__ = _core.FinalizerBase.__del__  # torch's own stands before it
