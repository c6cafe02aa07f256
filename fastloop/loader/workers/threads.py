"""The iterator over worker threads of this process.

``common.py`` orders the batches, ``workers/threads.py`` has the threads. This module starts and
ends them, and says what their replies mean.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import ExceptionWrapper, StreamEnd
from fastloop.data.stateful import DatasetReader
from fastloop.device.accelerator import Accelerator
from fastloop.device.destinations import is_pinned_by_torch
from fastloop.loader.shared import CLOSED, Shared, WorkerCounts
from fastloop.loader.workers.common import TAKEN_MEANWHILE, WorkerIter
from fastloop.workers.tasks import InitialState
from fastloop.workers.threads import PATIENCE_S, WorkerThread, await_end


class ThreadIter(WorkerIter):
    """An iterator over threads."""

    def __init__(
        self, loader: DataLoader[Any], shared: Shared, accelerator: Accelerator | None = None
    ) -> None:
        # If several threads read a dataset, nobody knows where it stands behind a batch.
        self._has_states = loader.num_workers == 1
        self._pin: str | None = None
        if accelerator is None and is_pinned_by_torch(loader):  # uploads pin memory themselves
            current = torch.accelerator.current_accelerator()
            self._pin = current.type if current is not None else None
        self._data_queue: Any = SimpleQueue()
        self._done = SimpleNamespace(is_set=False)
        self._waited_ns = 0  # since the last reply
        super().__init__(loader, shared, [])

    def _start_worker(self, arguments: dict[str, Any], reader: DatasetReader | None) -> None:
        thread = WorkerThread(
            arguments,
            results=self._data_queue,
            done=self._done,
            epochs=self._datasets,
            stock=self._shared.collates,
            pin=self._pin,
            reader=reader,
        )
        self._workers.append(thread)
        thread.start()

    def _send(self, worker: int, task: Any) -> None:
        self._workers[worker].put(task)

    def count(self) -> WorkerCounts:
        fallbacks: Counter[str] = Counter()
        for thread in self._workers:
            fallbacks.update(thread.fallbacks())
        counts = [(t.batches, t.busy_ns, t.wait_ns, t.lock_ns) for t in self._workers]
        return tuple(counts), dict(+fallbacks)

    def _begin_epoch(self, loader: DataLoader[Any], in_workers: bool = False) -> None:
        super()._begin_epoch(loader, in_workers)
        if self._epoch.states is not None:
            self._epoch.states.is_here = True

    # ---- batches

    def _receive(self, timeout: float) -> tuple[Any, Any] | None:
        while True:
            begin_ns = perf_counter_ns()
            is_there = not self._data_queue.empty()
            try:
                reply = self._data_queue.get(timeout=timeout)
            except Empty:
                return None
            finally:
                if not is_there:
                    self._waited_ns += perf_counter_ns() - begin_ns
            if self._waited_ns > 0:
                self._shared.add(waits=1, wait_ns=self._waited_ns)
                self._waited_ns = 0
            received = self._read(*reply)
            if received is not None:
                return received
            timeout = 0

    def _read(self, task: Any, data: Any) -> tuple[Any, Any] | None:
        """Return the task that a reply answers, as `_get_data`; None if next() does not want it."""
        states = self._epoch.states
        if isinstance(task, InitialState):
            self._note_initial(task, data)
            return None
        if states is None or task not in self._task_info:  # from the epoch before
            return task, data
        data, state = data
        if isinstance(data, StreamEnd):
            states.end(0, state)
        elif not isinstance(data, ExceptionWrapper):
            states.receive(0)
            data = data, state
        return task, data

    def _look_for_dead(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        for number in self._find_dead():
            raise RuntimeError(f"DataLoader worker thread {number} ended unexpectedly")
        if self._tasks_outstanding <= 0 and self._is_whole and not self._awaited:
            raise RuntimeError(TAKEN_MEANWHILE)

    # ---- the end

    def _can_resume(self) -> bool:
        return not self._done.is_set and super()._can_resume()

    def _end_workers(self) -> None:
        for thread in self._workers:
            thread.stop()
        self._shutdown = True  # not before: if Ctrl-C comes, the finalizer does it again
        for thread in await_end(self._workers):
            frame = sys._current_frames().get(thread.ident or 0)
            line = "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
            warnings.warn(
                f"worker thread {thread.number} is still in code of the dataset{line}, "
                f"{PATIENCE_S} s after its iterator was closed. A thread cannot be ended: it goes "
                "on in the background until that code returns",
                RuntimeWarning,
                stacklevel=2,
            )
        self._shared.last_count = self.count()
