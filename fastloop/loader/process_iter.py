"""The iterator over worker processes: torch's own, over shared memory."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import numpy.random  # noqa: F401 - here, or every worker imports it again, and Ctrl-C meets it there
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, _utils
from torch.utils.data._utils.worker import _IterableDatasetStopIteration
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from fastloop import _core
from fastloop.base.interrupts import (
    has_met_interrupt,
    interrupt_later,
    interrupts_held,
    is_interrupted,
)
from fastloop.base.memory import budget_of, describe_memory
from fastloop.device.reply_destinations import Destination, Landing
from fastloop.workers.batch_pickle import OBJECT, unpack
from fastloop.workers.mp_context import LOOK_S, Context

# From the wish to stop: so long workers may end by themselves, then so long after SIGTERM.
_POLITE_S, _FIRM_S = 2.5, 1.0

CLOSED = "the loader of this iterator was closed; call iter() on it again"


def _is_exiting() -> bool:
    return _utils is None or _utils.python_exit_status is not False  # type: ignore[redundant-expr]


class _LoaderProxy:
    """A loader as torch's iterator sees it, with a context of ours."""

    def __init__(self, loader: DataLoader[Any], context: Context) -> None:
        self._loader = loader
        self.multiprocessing_context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _depth(loader: DataLoader[Any]) -> int:
    """Room for the tasks of two epochs in a worker's queue, as a power of two. If a worker gets
    more than its share, as when others have ended, some wait in this process."""
    return 1 << (2 * (loader.prefetch_factor or 1) + 15).bit_length()


def _quote(indices: Any) -> str:
    if isinstance(indices, list) and len(indices) > 20:
        shown = ", ".join(repr(index) for index in indices[:20])
        return f"[{shown}, ... {len(indices)} in all]"
    return repr(indices)


class ProcessIter(_MultiProcessingDataLoaderIter):
    """Batches come through shared memory; all else is torch's."""

    _pid = -1

    def __init__(
        self, loader: DataLoader[Any], slots: _core.BatchPool, place: Destination | None
    ) -> None:
        workers, lands = loader.num_workers, place is not None
        # Half may be under way, as much again may wait for reuse.
        budget = max(1, budget_of(loader) // 2)
        self._parent_end = _core.ParentEnd(
            slots, torch.Tensor, workers, _depth(loader), budget, lands
        )
        self._landing = Landing(self._parent_end, place) if place is not None else None
        self._pid = os.getpid()
        context = Context(loader.multiprocessing_context, self._parent_end)
        self._started = context.workers
        try:
            super().__init__(_LoaderProxy(loader, context))
        finally:
            context.close()

    # torch pins in a thread of its own, which this iterator has no use for: see Landing.

    @property
    def _pin_memory(self) -> bool:
        return False

    @_pin_memory.setter
    def _pin_memory(self, wanted: bool) -> None:
        pass

    def _check_process(self) -> None:
        """In a forked child batches of the parent's would be over memory that it writes to."""
        if self._pid != os.getpid():
            raise RuntimeError(
                "the workers of this iterator belong to the parent process; call iter() on the "
                "loader in the child"
            )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._check_process()
        if self._worker_pids_set:
            # torch's handler of SIGCHLD would raise a text of its own for these.
            torch._C._remove_worker_pids(id(self))
            self._worker_pids_set = False
        self._parent_end.start_epoch()
        self._ended: list[tuple[Any, Any]] = []  # the end of a worker that owes a batch
        self._is_whole = False
        if self._landing is not None:
            self._landing.restart(0 if self._in_order else -1)
        super()._reset(loader, first_iter)
        self._is_whole = True

    @property
    def is_on_device(self) -> bool:
        """Whether batches are there when they are handed out."""
        return self._landing is not None and self._landing.is_on_device

    def _next_data(self) -> Any:
        self._check_process()
        try:
            return self._take_next()
        except RuntimeError:
            if self._parent_end.is_overwritten:
                self._shutdown_workers()  # nothing that they share can be relied on
            raise

    def _take_next(self) -> Any:
        landing = self._landing
        if landing is None:
            return super()._next_data()  # type: ignore[no-untyped-call]
        landing.check()
        if not landing.is_behind:
            try:
                landing.put(super()._next_data())  # type: ignore[no-untyped-call]
            except StopIteration:
                landing.rest()
                raise
        return landing.take(self._rcvd_idx if self._in_order else -1)

    def _get_data(self) -> tuple[Any, Any]:
        try:
            data: tuple[Any, Any] = super()._get_data()  # type: ignore[no-untyped-call]
            return data
        except KeyboardInterrupt:
            self._follow_interrupted_workers()
            raise

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        self._check_process()
        deadline = monotonic() + timeout
        rest = timeout
        while True:
            received = self._look(max(min(rest, LOOK_S), 0))
            if received is None:
                received = self._look_for_dead()
            if received is not None:
                return True, received
            rest = deadline - monotonic()
            if rest <= 0:
                return False, None

    def _look(self, timeout: float) -> tuple[Any, Any] | None:
        """What a worker has sent for this epoch; None once nothing of it is there."""
        while True:
            for end in self._ended:
                if not self._parent_end.owes(end[1].worker_id):
                    self._ended.remove(end)
                    return self._finish(*end)
            reply = self._parent_end.receive(timeout)
            if reply is None:
                return None
            received = self._receive(*reply)
            if received is not None:
                return received
            timeout = 0

    def _look_for_dead(self) -> tuple[Any, Any] | None:
        """After a wait in which nothing came: raises if nothing will."""
        if self._parent_end.is_closed():
            raise RuntimeError(CLOSED)
        if _is_exiting() and threading.current_thread().daemon:
            return None  # multiprocessing ends the workers, and the interpreter soon this thread
        dead = self._dead()
        # What they have sent before is there to be seen now.
        received = self._look(0) if dead else None
        if received is None and dead and not self._is_in_turn(dead):
            self._raise_for(dead)
        if received is None and self._parent_end.is_idle():
            raise RuntimeError(
                "this iterator waits for a batch that was taken meanwhile: next() was called on it "
                "from inside next(), by a signal handler or a sampler"
            )
        return received

    def _is_in_turn(self, dead: list[int]) -> bool:
        """Whether a batch of one that is dead waits for its turn, which others can bring about."""
        first = self._task_info.get(self._rcvd_idx, (-1,))[0]
        return first not in dead and any(
            len(info) == 2 and info[0] in dead for info in self._task_info.values()
        )

    def _receive(self, task: Any, parcel: _core.Reply) -> tuple[Any, Any] | None:
        if not isinstance(task, tuple):
            return task, unpack(parcel)  # a worker has resumed
        number, indices = task
        if number not in self._task_info:
            return None  # of the epoch before
        if parcel.kind != OBJECT:
            return number, parcel
        data = self._unpack_object(parcel)
        if isinstance(data, ExceptionWrapper):
            where = f"batch {number} (indices {_quote(indices)})"
            data.exc_msg = f"{data.exc_msg.rstrip()}\nThis happened in {where}."
        if isinstance(data, _IterableDatasetStopIteration):
            if self._parent_end.owes(data.worker_id):
                self._ended.append((number, data))
                return None
            return self._finish(number, data)
        return number, data

    def _unpack_object(self, parcel: _core.Reply) -> Any:
        try:
            return unpack(parcel)
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

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        data = super()._process_data(data, worker_idx)  # type: ignore[no-untyped-call]
        if self._landing is None and type(data) is _core.Reply:
            return unpack(data)
        return data

    # ---- workers that die

    def is_broken(self) -> bool:
        """Whether another epoch needs new workers: Ctrl-C, say, has ended some of these, or came
        while they were told of an epoch, or this process is a fork of theirs."""
        return (
            self._pid != os.getpid()
            or self._shutdown
            or not self._is_whole
            or not all(worker.is_alive() for worker in self._workers)
        )

    def _follow_interrupted_workers(self) -> None:
        """Ctrl-C at a terminal ends the workers, too. A traceback that is kept must not keep what
        is left of them. Pressed again, it ends them in any case."""
        begin = monotonic()
        with interrupts_held():
            while not self._dead() and not is_interrupted():
                is_reached = any(has_met_interrupt(worker.pid) for worker in self._workers)
                if monotonic() - begin > (_FIRM_S if is_reached else LOOK_S):
                    return
                sleep(0.002)
            self._shutdown_workers()

    def _dead(self) -> list[int]:
        return [
            number
            for number, worker in enumerate(self._workers)
            if self._workers_status[number] and not worker.is_alive()
        ]

    def _raise_for(self, dead: list[int]) -> None:
        text = "\n".join(self._explain_death(number) for number in dead)
        for number in dead:
            self._mark_worker_as_unavailable(number)
            self._parent_end.cancel(number, is_gone=True)
        raise RuntimeError(text)

    def _explain_death(self, number: int) -> str:
        worker = self._workers[number]
        text = f"DataLoader worker (pid {worker.pid}) "
        worker.join(1)  # the server of forked processes may be about to tell the exit code
        code = worker.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"{-code}"
            text += f"is killed by signal: {name} ({signal.strsignal(-code)})"
        elif code is not None:
            text += f"exited unexpectedly with exit code {code}"
        else:
            text += "exited unexpectedly; something else in this program has taken its exit code"
        task = self._parent_end.first_task(number)
        if task is not None:
            text += f"; it was to make batch {task[0]} (indices {_quote(task[1])})"
        text += ". "
        if code == -signal.SIGKILL:
            text += f"Most likely the system was out of memory: {describe_memory()}. "
        elif code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            text += "Run with num_workers=0 under python -X faulthandler to see where. "
        return text

    # ---- the end

    def _shutdown_workers(self) -> None:
        # A forked child has no workers, and at exit multiprocessing ends them.
        if _is_exiting() or self._pid != os.getpid():
            return
        if not getattr(self, "_shutdown", True):
            if not hasattr(self, "_workers_status"):  # a worker could not be started
                self._workers_status = [False] * len(self._workers)
            try:
                self._stop_workers()
            finally:
                with interrupts_held():
                    super()._shutdown_workers()
                    self._parent_end.start_epoch()
                    self._task_info = {}
                    if self._landing is not None:
                        self._landing.drop()
                    if not self._living():
                        self._parent_end.release()
                        for worker in self._started:
                            worker.forget()

    def abandon(self) -> None:
        """What an __init__ that fails leaves behind, at whatever place."""
        with interrupts_held():
            self._shutdown_workers()
            with suppress(ValueError):  # or the next iterator at this address could not be made
                torch._C._remove_worker_pids(id(self))

    def _stop_workers(self) -> None:
        """Ends all workers within some seconds, whatever they are doing."""
        self._parent_end.close()
        try:
            self._join_workers(_POLITE_S)
            for worker in self._living():
                worker.terminate()
            self._join_workers(_FIRM_S)
        finally:
            for worker in self._living():
                worker.kill()
            self._join_workers(_FIRM_S)

    def _living(self) -> list[Any]:
        return [worker for worker in self._started if worker.is_alive()]

    def _join_workers(self, seconds: float) -> None:
        deadline = monotonic() + seconds
        for worker in self._living():
            while worker.is_alive() and (rest := deadline - monotonic()) > 0:
                if is_interrupted():
                    return
                worker.join(min(rest, LOOK_S))

    def _end(self) -> None:
        """What a finalizer does; again, if Ctrl-C came before it was held back."""
        if not _is_exiting():
            with interrupts_held(interrupt_later):
                self._shutdown_workers()
                # multiprocessing runs Python when they die: here, where Ctrl-C is not lost.
                fields = vars(self)
                fields["_workers"] = []  # other finalizers may yet look for it
                fields.get("_started", []).clear()
