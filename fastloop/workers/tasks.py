"""The tasks that worker processes are sent, and how they are pickled."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from fastloop.base.tensors import is_plain
from fastloop.base.torch_parts import Resume

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

    def __init__(self, worker: int, task: Resume) -> None:
        self.worker = worker
        self.task = task

    def __reduce__(self) -> tuple[type[Resume], tuple[Any]]:
        return Resume, (self.task.seed,)


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
