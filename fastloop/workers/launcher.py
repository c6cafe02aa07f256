"""Starts the worker processes of an iterator, and the successors of dead ones."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.context import BaseContext
from pickle import PicklingError
from typing import Any

import torch.multiprocessing

from fastloop._core import ParentEnd
from fastloop.data.stateful import DatasetReader
from fastloop.workers import main as worker_main
from fastloop.workers.dataset_transfer import DatasetTransfer, SharedFile
from fastloop.workers.lifecycle import WorkerPool, WorkerProcess


def _is_sigint_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Launcher:
    """Makes processes in the user's multiprocessing context, for one iterator.

    Args:
        context: the user's; None: torch's.
        readers: of each worker, where its dataset can say where it stands.
    """

    def __init__(
        self,
        context: BaseContext | None,
        parent_end: ParentEnd,
        pool: WorkerPool,
        readers: Callable[[int], DatasetReader] | None = None,
    ) -> None:
        self._context: Any = context if context is not None else torch.multiprocessing
        self._parent_end = parent_end
        self._pool = pool
        self._readers = readers
        self._file = SharedFile()
        self._transfers: dict[int, DatasetTransfer] = {}  # of each worker

    def start(self, arguments: dict[str, Any]) -> WorkerProcess:
        """A worker that runs.

        Args:
            arguments: of torch's worker loop, without its queues.
        """
        worker = arguments["worker_id"]
        if self._readers is not None:
            arguments["dataset"] = self._readers(worker)
        transfer = DatasetTransfer(arguments, self._parent_end.address(), worker, self._file)
        self._transfers[worker] = transfer
        process = self._pool.add(self._make_process(transfer))
        try:
            process.start()
        except (TypeError, AttributeError, PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. "
                "This might be because the worker Process arguments are not picklable. "
                "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
                "to 'forkserver', which requires the worker Process arguments to be picklable. "
                "You can also try multiprocessing.set_start_method('fork').",
                stacklevel=2,
            )
            raise
        return process

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
        return self._context.Process(
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
