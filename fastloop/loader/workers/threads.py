"""The iterator over worker threads of this process.

``worker_iter.py`` orders the batches, ``workers/threads.py`` has the threads; here is what becomes
of them: forks, ``close()``, the end.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections import Counter
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import ExceptionWrapper, StreamEnd
from fastloop.device.accelerator import Accelerator
from fastloop.device.destinations import is_pinned_by_torch
from fastloop.loader.shared import CLOSED, Shared, WorkerCounts
from fastloop.loader.workers.common import TAKEN_MEANWHILE, WorkerIter
from fastloop.workers.lifecycle import CHECK_S, is_exiting
from fastloop.workers.tasks import InitialState
from fastloop.workers.threads import PATIENCE_S, Done, WorkerThread, await_end

_NOTHING = object()  # what a wait gives in which nothing came


def _find_pin(loader: DataLoader[Any], accelerator: Accelerator | None) -> str | None:
    """What is uploaded goes through pinned memory anyway."""
    if accelerator is not None or not is_pinned_by_torch(loader):
        return None
    current = torch.accelerator.current_accelerator()
    return current.type if current is not None else None


def _find_line(thread: WorkerThread) -> str:
    """Where its code is now, for people."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"


class ThreadIter(WorkerIter):
    """An iterator over threads."""

    def __init__(
        self, loader: DataLoader[Any], shared: Shared, accelerator: Accelerator | None = None
    ) -> None:
        self._shared = shared
        self._depth = self._find_depth(loader)
        self._pid = os.getpid()
        # Where a dataset stands behind a batch nobody knows if several threads read it at once.
        self._has_states = loader.num_workers == 1
        self._begin_epoch(loader)
        self._pin = _find_pin(loader, accelerator)
        self._threads: list[WorkerThread] = []  # those that were not started, too
        self._data_queue: Any = SimpleQueue()
        self._done = Done()
        try:
            super().__init__(loader)
            self._await_begin()
            shared.latest = weakref.ref(self)
        except BaseException:
            # Ctrl-C, say: a traceback that is kept must not keep the threads.
            self._abandon()
            raise

    def _start_worker(self, arguments: dict[str, Any]) -> WorkerThread:
        states = self._epoch.states
        thread = WorkerThread(
            arguments,
            results=self._data_queue,
            done=self._done,
            epochs=self._datasets,
            stock=self._shared.collates,
            pin=self._pin,
            reader=None if states is None else states.make_reader(arguments["worker_id"]),
        )
        self._threads.append(thread)
        thread.start()
        return thread

    def _send(self, worker: int, task: Any) -> None:
        self._threads[worker].put(task)

    def count(self) -> WorkerCounts:
        fallbacks: Counter[str] = Counter()
        for thread in self._threads:
            fallbacks.update(thread.fallbacks())
        counts = [(t.batches, t.busy_ns, t.wait_ns, t.lock_ns) for t in self._threads]
        return tuple(counts), dict(+fallbacks)

    def _is_own(self) -> bool:
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        if not self._is_own():
            raise RuntimeError(
                "the worker threads of this iterator are the parent process's; call iter() on the "
                "loader in the child"
            )

    def _begin_epoch(self, loader: DataLoader[Any], in_workers: bool = False) -> None:
        super()._begin_epoch(loader, in_workers)
        if self._epoch.states is not None:
            self._epoch.states.is_here = True

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            self._check_process()
            self._expect_states()
            self._is_whole = False
            super()._reset(loader, first_iter)
            self._is_whole = True

    # ---- batches

    def _next_data(self) -> Any:
        self._check_process()
        try:
            data = super()._next_data()
        except AssertionError:  # the iterator is not open
            if self._is_closed:
                raise RuntimeError(CLOSED) from None
            raise
        if self._epoch.states is not None:
            data, state = data
            self._note_state(0, state)
        return data

    def _poll(self, timeout: float) -> tuple[bool, Any]:
        if self._arrived:
            return True, self._arrived.popleft()
        while True:
            is_there, reply = self._receive(timeout)
            received = self._read(*reply) if is_there else None
            if received is not None or not is_there:
                return is_there, received

    def _read(self, task: Any, data: Any) -> tuple[Any, Any] | None:
        """What a reply is: a task's number and its batch, error or end."""
        states = self._epoch.states
        if isinstance(task, InitialState):
            self._note_initial(task, data)
            return None
        if states is None or task not in self._task_info:  # of the epoch before
            return task, data
        data, state = data
        if isinstance(data, StreamEnd):
            states.end(0, state)
        elif not isinstance(data, ExceptionWrapper):
            states.receive(0)
            data = data, state
        return task, data

    def await_states(self) -> None:
        """Until the thread has said where it begins. What else comes is kept for next()."""
        with self._next_lock.of_process():
            while self._awaited and not self._is_closed and self._is_own():
                is_there, reply = self._receive(CHECK_S)
                received = self._read(*reply) if is_there else None
                if received is not None:
                    self._arrived.append(received)

    def _receive(self, timeout: float) -> tuple[bool, Any]:
        try:
            received = self._data_queue.get_nowait()
        except Empty:
            begin_ns = perf_counter_ns()
            received = self._wait(begin_ns + round(timeout * 1e9))
            if received is _NOTHING:
                return False, None
            self._shared.add(waits=1, wait_ns=perf_counter_ns() - begin_ns)
        return True, received

    def _wait(self, deadline_ns: int) -> Any:
        """In steps: Ctrl-C that another thread of the program has taken does not end a wait, nor
        does close()."""
        while True:
            rest = (deadline_ns - perf_counter_ns()) / 1e9
            try:
                return self._data_queue.get(timeout=max(min(rest, CHECK_S), 0))
            except Empty:
                self._look_for_reason()
            if rest <= 0:
                return _NOTHING

    def _look_for_reason(self) -> None:
        """After a wait in which nothing came: raises if nothing will."""
        if self._is_closed:
            raise RuntimeError(CLOSED)
        for number, thread in enumerate(self._threads):
            if self._workers_status[number] and not thread.is_alive():
                raise RuntimeError(f"DataLoader worker thread {number} ended unexpectedly")
        if self._tasks_outstanding <= 0 and self._is_whole and not self._awaited:
            raise RuntimeError(TAKEN_MEANWHILE)

    # ---- the end

    def is_broken(self) -> bool:
        """Whether another epoch needs new threads."""
        return (
            not self._is_own()
            or self._shutdown
            or self._is_closed
            or not self._is_whole
            or self._done.is_set()
            or not all(thread.is_alive() for thread in self._threads)
        )

    def _shutdown_workers(self) -> None:
        # At exit they have been ended, and a forked child has none.
        if getattr(self, "_shutdown", True) or is_exiting() or not self._is_own():
            return
        for thread in self._threads:
            thread.stop()
        self._shutdown = True  # not before: if Ctrl-C comes, the finalizer does it again
        for thread in await_end(self._threads):
            warnings.warn(
                f"worker thread {thread.number} is still in code of the dataset"
                f"{_find_line(thread)}, {PATIENCE_S} s after its iterator was closed. A thread "
                "cannot be ended: it goes on in the background until that code returns",
                RuntimeWarning,
                stacklevel=2,
            )
        self._shared.last_count = self.count()
