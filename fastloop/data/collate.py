"""torch's default_collate with the work in C: the Python it needs around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from fastloop._core import Collate, ThreadPool, WorkerEnd
from fastloop.base.torch_parts import collate_functions, default_collate, is_known


@cache
def _defaults() -> dict[Any, Callable[..., Any]]:
    """The functions of leaves, by type, that C stands in for."""
    torchs = collate_functions()
    return {
        torch.Tensor: torchs.collate_tensor_fn,
        np.ndarray: torchs.collate_numpy_array_fn,
        (np.bool_, np.number, np.object_): torchs.collate_numpy_scalar_fn,
        float: torchs.collate_float_fn,
        int: torchs.collate_int_fn,
        str: torchs.collate_str_fn,
        bytes: torchs.collate_str_fn,
    }


def is_default_collate(collate_fn: object) -> bool:
    """Whether it is torch's ``default_collate``, and as torch made it."""
    return (
        collate_fn is default_collate
        and is_known("collate", "default_collate is left")
        and collate_functions().default_collate_fn_map == _defaults()
    )


def _walk_container(fast: Collate, batch: Any) -> Any:
    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return fast.stack(batch)

    leaves: dict[Any, Callable[..., Any]] = dict.fromkeys(_defaults(), stack)
    return collate_functions().collate(batch, collate_fn_map=leaves)


def make_collate(
    worker_end: WorkerEnd | None = None, thread_pool: ThreadPool | None = None
) -> Collate:
    """A function that gives what ``default_collate`` gives.

    Args:
        worker_end: in a worker process, where batches are built.
        thread_pool: threads that share long copies; None: the caller's alone.
    """
    return Collate(
        torch=torch,
        memmap_type=np.memmap,
        registry=collate_functions().default_collate_fn_map,
        others=_walk_container,
        fallback=default_collate,
        worker_end=worker_end,
        thread_pool=thread_pool,
    )
