"""The tasks that workers are sent: how they are pickled, and how errors name them."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from fastloop.base.tensors import is_plain
from fastloop.base.torch_parts import ExceptionWrapper, Resume

NO_STATE = b""  # behind a batch; WorkerEnd.write takes bytes, and not None


class InitialState:
    """A task: send the state of the dataset before the first batch of an epoch.

    Args:
        epoch: an object that tells it from tasks of other epochs; stays in the parent.
    """

    def __init__(self, worker: int, epoch: object) -> None:
        self.worker = worker
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[InitialState], tuple[int, None]]:
        return InitialState, (self.worker, None)


class Resumption(Resume):
    """A task: begin another epoch. A worker process gets torch's own, without the number."""

    worker: int

    def __init__(self, worker: int) -> None:
        super().__init__()
        object.__setattr__(self, "worker", worker)  # torch's class is frozen

    def __reduce__(self) -> tuple[type[Resume], tuple[()]]:
        return Resume, ()


class _TaskPickler(pickle.Pickler):
    """Pickles of a tensor only the elements it shows, not its storage: samplers yield elements of
    large tensors."""

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


def quote_indices(indices: Any) -> str:
    """Return the indices of a batch as text, at most 20 of them."""
    try:
        if isinstance(indices, list) and len(indices) > 20:
            shown = ", ".join(repr(index) for index in indices[:20])
            return f"[{shown}, ... {len(indices)} in all]"
        return repr(indices)
    except Exception as error:  # a sampler may yield anything
        return f"which cannot be shown, {type(error).__name__}"


def add_batch(error: ExceptionWrapper, number: int, indices: Any) -> None:
    """Name the batch in an error that its worker met."""
    where = f"batch {number} (indices {quote_indices(indices)})"
    error.exc_msg = f"{error.exc_msg.rstrip()}\nThis happened in {where}."
