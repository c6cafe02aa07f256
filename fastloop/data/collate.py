"""torch's default_collate with the work in C: the Python it needs around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate
from torch.utils.data._utils.collate import default_collate  # torch's, whatever is put in its place

from fastloop import _core

_DEFAULTS = {
    torch.Tensor: collate.collate_tensor_fn,
    np.ndarray: collate.collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate.collate_numpy_scalar_fn,
    float: collate.collate_float_fn,
    int: collate.collate_int_fn,
    str: collate.collate_str_fn,
    bytes: collate.collate_str_fn,
}


def is_default_collate(collate_fn: object) -> bool:
    """Whether it is torch's ``default_collate``, and as torch made it."""
    return collate_fn is default_collate and collate.default_collate_fn_map == _DEFAULTS


def _walk_container(fast: _core.Collate, batch: Any) -> Any:
    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return fast.stack(batch)

    leaves: dict[Any, Callable[..., Any]] = dict.fromkeys(_DEFAULTS, stack)
    return collate.collate(batch, collate_fn_map=leaves)


def make_collate(
    worker_end: _core.WorkerEnd | None = None, thread_pool: _core.ThreadPool | None = None
) -> _core.Collate:
    """A function that gives what ``default_collate`` gives.

    Args:
        worker_end: in a worker process, where batches are built.
        thread_pool: threads that share long copies; None: the caller's alone.
    """
    return _core.Collate(
        torch=torch,
        memmap_type=np.memmap,
        registry=collate.default_collate_fn_map,
        others=_walk_container,
        fallback=default_collate,
        worker_end=worker_end,
        thread_pool=thread_pool,
    )
