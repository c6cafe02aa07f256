"""The multiprocessing context that torch's iterator is given.

The iterator asks it for a queue of results, an event, and a queue and a process for each worker,
and for nothing else. All of them lead to one block of shared memory (``_core.ParentEnd``).
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import signal
import threading
import weakref
from multiprocessing import forkserver
from multiprocessing import process as processes
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from time import monotonic, sleep
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data._utils.worker import _worker_loop

from fastloop import _core
from fastloop.base.interrupts import interrupts_held
from fastloop.workers import worker_main
from fastloop.workers.dataset_transfer import DatasetTransfer, SharedFile
from fastloop.workers.request_queue import DoneEvent, IndexQueue, ResultQueue

# So long at most a dead worker goes unnoticed by a parent that waits.
LOOK_S = 0.05


_all_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown_workers() -> None:
    for process in list(_all_workers):
        processes._children.discard(process)  # type: ignore[attr-defined]


@functools.cache
def _watch_forks() -> None:
    """At the exit of a process that the program forks, multiprocessing would end the workers of
    its parent."""
    os.register_at_fork(after_in_child=_disown_workers)


class WorkerProcess:
    """A process of the user's context that is started without Ctrl-C reaching it too early."""

    def __init__(self, process: Any) -> None:
        _watch_forks()
        _all_workers.add(process)
        self._process = process
        self._forked = 0  # what _core knows it by
        process.daemon = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._start()
            return
        method = getattr(self._process, "_start_method", None) or multiprocessing.get_start_method()
        if method == "forkserver":
            forkserver.ensure_running()  # it must not inherit what is blocked here
        with interrupts_held():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self) -> None:
        self._forked = _core.expect_fork()
        try:
            self._process.start()
        finally:
            _core.fork_expected()

    def forget(self) -> None:
        """It has ended: memory of batches that it had inherited may be used again."""
        _core.fork_ended(self._forked)

    def is_alive(self) -> bool:
        if not self._process.is_alive():
            return False
        try:
            os.kill(self._process.pid, 0)
        except ProcessLookupError:  # something else in this program has waited for it
            return False
        return True

    def join(self, timeout: float) -> None:
        """Waits for the end of the process itself.

        multiprocessing waits for the worker's end of a pipe, which a worker can close long before
        that, and which processes it has started can hold open long after.
        """
        deadline = monotonic() + timeout
        while self.is_alive() and (rest := deadline - monotonic()) > 0:
            if wait([self._process.sentinel], min(rest, LOOK_S)):
                sleep(min(rest, 0.001))


def _is_sigint_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Context:
    """A multiprocessing context around the user's, for one iterator."""

    def __init__(self, inner: BaseContext | None, parent_end: _core.ParentEnd) -> None:
        self._inner: Any = inner if inner is not None else torch.multiprocessing
        self._parent_end = parent_end
        self._file = SharedFile()
        self._queues = 0
        self.workers: list[WorkerProcess] = []

    def Queue(self) -> ResultQueue:  # noqa: N802
        self._queues += 1
        if self._queues == 1:
            return ResultQueue()
        return IndexQueue(self._parent_end, self._queues - 2)

    def Event(self) -> DoneEvent:  # noqa: N802
        return DoneEvent(self._parent_end)

    def Process(self, target: Any, args: tuple[Any, ...]) -> WorkerProcess:  # noqa: N802
        arguments = dict(inspect.signature(_worker_loop).bind(*args).arguments)
        for ours in ("index_queue", "data_queue", "done_event"):
            del arguments[ours]
        worker = arguments["worker_id"]
        transfer = DatasetTransfer(arguments, self._parent_end.address(), worker, self._file)
        has_destination = self._parent_end.has_destination
        process = self._inner.Process(
            target=worker_main.run_worker,
            args=(transfer, os.getpid(), not _is_sigint_blocked(), has_destination),
        )
        self.workers.append(WorkerProcess(process))
        return self.workers[-1]

    def close(self) -> None:
        """All workers have started."""
        self._file.close()
