"""The multiprocessing context that torch's iterator is given.

The iterator asks it for a queue of results, an event, and a queue and a process for each worker,
and for nothing else. All of them lead to one block of shared memory (``_core.ParentEnd``).
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data._utils.worker import _worker_loop

from fastloop import _core
from fastloop.data.dataset_reader import DatasetReader
from fastloop.workers import worker_main
from fastloop.workers.dataset_transfer import DatasetTransfer, SharedFile
from fastloop.workers.lifecycle import WorkerPool, WorkerProcess
from fastloop.workers.request_queue import DoneEvent, IndexQueue, ResultQueue


def _is_sigint_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Context:
    """A multiprocessing context around the user's, for one iterator.

    Args:
        readers: of each worker, where its dataset can say where it stands.
    """

    def __init__(
        self,
        inner: BaseContext | None,
        parent_end: _core.ParentEnd,
        pool: WorkerPool,
        readers: Callable[[int], DatasetReader] | None = None,
    ) -> None:
        self._inner: Any = inner if inner is not None else torch.multiprocessing
        self._parent_end = parent_end
        self._pool = pool
        self._readers = readers
        self._file = SharedFile()
        self._queues = 0
        self._transfers: dict[int, DatasetTransfer] = {}  # of each worker

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
        if self._readers is not None:
            arguments["dataset"] = self._readers(worker)
        transfer = DatasetTransfer(arguments, self._parent_end.address(), worker, self._file)
        self._transfers[worker] = transfer
        return self._pool.add(self._make_process(transfer))

    def make_successor(self, worker: int, reader: DatasetReader | None) -> Any:
        """A process, not started, with the arguments of a worker that has ended.

        Args:
            reader: where its dataset goes on, if it can say where it stands.
        """
        transfer = self._transfers[worker]
        if reader is not None:
            transfer.replace(dataset=reader)
        return self._make_process(transfer)

    def _make_process(self, transfer: DatasetTransfer) -> Any:
        has_destination = self._parent_end.has_destination
        return self._inner.Process(
            target=worker_main.run_worker,
            args=(
                transfer,
                os.getpid(),
                not _is_sigint_blocked(),
                has_destination,
                self._readers is not None,
            ),
        )

    def close(self) -> None:
        """No more worker starts."""
        self._transfers.clear()
        self._file.close()
