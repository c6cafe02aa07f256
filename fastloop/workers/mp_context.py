"""The parent's side of the transport: what torch's iterator asks a multiprocessing context for.

torch's iterator makes a result queue, an event, and a queue and a process for each worker, and
touches nothing else. Here all of them are one block of shared memory (``_core.ParentEnd``).
"""

from __future__ import annotations

import collections
import heapq
import inspect
import io
import os
import pickle
import queue
import signal
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data._utils.worker import _worker_loop

from fastloop import _core
from fastloop.base.tensors import is_plain
from fastloop.workers import worker_main
from fastloop.workers.dataset_transfer import DatasetTransfer, SharedFile
from fastloop.workers.lifecycle import WorkerPool, WorkerProcess


class _TaskPickler(pickle.Pickler):
    """Of an index that is a tensor it takes what the tensor looks at, not all of its storage:
    samplers yield elements of large tensors."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.device.type != "cpu" or not is_plain(obj):
            return NotImplemented
        try:
            return torch.from_numpy, (obj.numpy(),)
        except TypeError:  # NumPy has no such dtype
            copy: Any = obj.clone()
            return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _pickle_task(task: Any) -> bytes:
    indices = task[1] if isinstance(task, tuple) else None
    if type(indices) is list and indices and type(indices[0]) is int:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
    file = io.BytesIO()
    _TaskPickler(file, pickle.HIGHEST_PROTOCOL).dump(task)
    return file.getvalue()


class Transport:
    """Requests to workers and their replies, within a budget of memory.

    What the budget or the queue does not take yet waits here, and goes out in order.
    """

    def __init__(self, hub: _core.ParentEnd) -> None:
        self.hub = hub
        self._waiting: collections.deque[tuple[int, Any, bytes]] = collections.deque()
        self._again: list[tuple[int, int, int, int]] = []  # number, worker, request, bytes
        self._owed: dict[int, int] = {}  # worker of each batch that was too large, by number
        self._is_between = False  # between epochs: what still arrives is not wanted

    def ask(self, worker: int, task: Any) -> None:
        payload = _pickle_task(task)
        self._is_between = self._is_between and not isinstance(task, tuple)
        if self._waiting or self._again or not self.hub.send(worker, payload, task, False):
            self._waiting.append((worker, task, payload))

    def _send(self, is_forced: bool) -> None:
        while self._again:
            _, worker, request, size = self._again[0]
            if not self.hub.send_again(worker, request, size, is_forced):
                return
            heapq.heappop(self._again)
            is_forced = False
        while self._waiting:
            worker, task, payload = self._waiting[0]
            if not self.hub.send(worker, payload, task, is_forced):
                return
            self._waiting.popleft()
            is_forced = False

    def take(self, timeout: float) -> tuple[Any, _core.Reply] | None:
        """The next reply and its task. None if there is none, after ``timeout`` seconds or a
        signal; then all that workers have sent before this call has been taken."""
        while True:
            if self._waiting or self._again:
                self._send(is_forced=False)
                if self.hub.unanswered == 0:
                    self._send(is_forced=True)  # nothing comes back that could make room
            reply: Any = self.hub.take(timeout)
            if reply is None:
                return None
            number = reply[0][0] if isinstance(reply[0], tuple) else -1
            if len(reply) == 2:
                if self._owed:
                    self._owed.pop(number, None)
                return reply  # type: ignore[no-any-return]
            if not self._is_between:
                _, worker, request, size = reply
                self._owed[number] = worker
                # Packed once more, it may take a little more.
                heapq.heappush(self._again, (number, worker, request, size + size // 8 + 4096))
            timeout = 0  # the others that are there; this one is to be sent again

    def is_idle(self) -> bool:
        """Whether no worker is asked for anything."""
        return not (self._waiting or self._again or self.hub.unanswered)

    def owes(self, worker: int) -> bool:
        """Whether a batch the worker was to make is still to be sent again."""
        return worker in self._owed.values()

    def cancel(self, worker: int, is_gone: bool) -> None:
        """The worker makes no more of the batches it was asked for."""
        self.hub.cancel(worker, is_gone)
        kept = [entry for entry in self._waiting if entry[0] != worker]
        self._waiting = collections.deque(kept)
        self._again = [entry for entry in self._again if entry[1] != worker]
        heapq.heapify(self._again)
        self._owed = {number: at for number, at in self._owed.items() if at != worker}

    def under_way(self, worker: int) -> list[tuple[int, Any]]:
        """(number, indices) of the batches the worker was to make, in order."""
        tasks = [*self.hub.tasks(worker), *(task for at, task, _ in self._waiting if at == worker)]
        return sorted((task for task in tasks if isinstance(task, tuple)), key=lambda task: task[0])

    def forget(self) -> None:
        """A new epoch: what was not sent is not wanted any more."""
        self._waiting.clear()
        self._again.clear()
        self._owed.clear()
        self._is_between = True


class _ResultQueue:
    """What torch's iterator takes for its result queue; ours reads the transport."""

    def get(self, timeout: float | None = None) -> Any:
        raise queue.Empty

    def put(self, item: Any) -> None:
        raise NotImplementedError("results come from workers alone")

    def qsize(self) -> int:
        raise NotImplementedError("see the loader's stats() for what its workers do")

    def cancel_join_thread(self) -> None:
        pass

    def close(self) -> None:
        pass


class _IndexQueue(_ResultQueue):
    def __init__(self, transport: Transport, worker: int) -> None:
        self._transport = transport
        self._worker = worker

    def put(self, item: Any) -> None:
        if item is None:
            self._transport.hub.end(self._worker)
        else:
            self._transport.ask(self._worker, item)


class _Event:
    def __init__(self, hub: _core.ParentEnd) -> None:
        self.set = hub.close
        self.is_set = hub.is_closed


def _is_sigint_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Context:
    """A multiprocessing context around the user's, for one iterator."""

    def __init__(self, inner: BaseContext | None, transport: Transport, pool: WorkerPool) -> None:
        self._inner: Any = inner if inner is not None else torch.multiprocessing
        self._transport = transport
        self._pool = pool
        self._cargo = SharedFile()
        self._queues = 0

    def Queue(self) -> _ResultQueue:  # noqa: N802
        self._queues += 1
        if self._queues == 1:
            return _ResultQueue()
        return _IndexQueue(self._transport, self._queues - 2)

    def Event(self) -> _Event:  # noqa: N802
        return _Event(self._transport.hub)

    def Process(self, target: Any, args: tuple[Any, ...]) -> WorkerProcess:  # noqa: N802
        arguments = dict(inspect.signature(_worker_loop).bind(*args).arguments)
        for ours in ("index_queue", "data_queue", "done_event"):
            del arguments[ours]
        worker = arguments["worker_id"]
        shipment = DatasetTransfer(arguments, self._transport.hub.address(), worker, self._cargo)
        lands = self._transport.hub.lands
        process = self._inner.Process(
            target=worker_main.run_worker,
            args=(shipment, os.getpid(), not _is_sigint_blocked(), lands),
        )
        return self._pool.add(process)

    def close(self) -> None:
        """All workers have started."""
        self._cargo.close()
