"""torch's queues and event over the parent end: what torch's iterator puts in, and asks of, its
multiprocessing context.

torch's iterator puts tasks into a queue for each worker and reads one queue of results. Ours reads
replies from ``_core.ParentEnd`` itself, so the queue of results is only there to be asked for.
"""

from __future__ import annotations

import io
import pickle
import queue
from typing import Any

import torch
from torch.utils.data._utils.worker import _ResumeIteration

from fastloop import _core
from fastloop.base.tensors import is_plain

NO_STATE = b""  # behind a batch; WorkerEnd.write takes bytes, and not None


class InitialState:
    """A task of ours: to send the state of the dataset before the first batch of an epoch.

    Args:
        epoch: whatever tells it from those of other epochs; stays in the parent.
    """

    def __init__(self, worker: int, epoch: object) -> None:
        self.worker = worker
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[InitialState], tuple[int, None]]:
        return InitialState, (self.worker, None)


class Resumption:
    """Tells a worker that an epoch begins.

    Args:
        task: torch's, which the worker is sent and the iterator is answered.
    """

    def __init__(self, worker: int, task: _ResumeIteration) -> None:
        self.worker = worker
        self.task = task

    def __reduce__(self) -> tuple[type[_ResumeIteration], tuple[Any]]:
        return _ResumeIteration, (self.task.seed,)


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


def pickle_task(task: Any) -> bytes:
    indices = task[1] if isinstance(task, tuple) else None
    if type(indices) is list and indices and type(indices[0]) is int:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
    file = io.BytesIO()
    _TaskPickler(file, pickle.HIGHEST_PROTOCOL).dump(task)
    return file.getvalue()


class ResultQueue:
    """What torch's iterator holds as its queue of results."""

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


class IndexQueue(ResultQueue):
    """The tasks of one worker; None is the last."""

    def __init__(self, parent_end: _core.ParentEnd, worker: int) -> None:
        self._parent_end = parent_end
        self._worker = worker

    def put(self, item: Any) -> None:
        if item is None:
            self._parent_end.end(self._worker)
        else:
            if isinstance(item, _ResumeIteration):
                item = Resumption(self._worker, item)
            self._parent_end.submit(self._worker, pickle_task(item), item)


class DoneEvent:
    """The event that ends all work."""

    def __init__(self, parent_end: _core.ParentEnd) -> None:
        self.set = parent_end.close
        self.is_set = parent_end.is_closed
