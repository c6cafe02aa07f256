"""The one seam: the fast iterator for any ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import BaseIter, is_known
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.device_iter import DeviceIter, TorchDeviceIter
from fastloop.loader.extras import Extras
from fastloop.loader.plain.torch_iters import SyncIter, TorchProcessIter
from fastloop.loader.route import find_replaced_iterator, find_route
from fastloop.loader.shared import Shared


def iterator_with(
    extras: Extras, loader: DataLoader[Any], shared: Shared, torchs_own: Callable[[], Any]
) -> Any:
    """As ``fast_iterator``, its batches on ``extras.device``, transformed.

    Args:
        loader: has those extras as attributes that iterators look at.
        torchs_own: makes the iterator that torch alone would make. It is used where this version of
            fastloop does not know torch's iterators, or others have changed them.
    """
    is_plain = extras.device_transform is None and not extras.static_buffers
    accelerator = None
    if extras.device is not None and not (is_plain and torch.device(extras.device).type == "cpu"):
        accelerator = open_accelerator(extras.device)
    is_left = bool(find_replaced_iterator()) or not is_known("torch", "Loaders are left")
    iterator = torchs_own() if is_left else fast_iterator(loader, extras.path, shared, accelerator)
    if accelerator is None or (is_plain and getattr(iterator, "is_on_device", False)):
        return iterator
    kind = TorchDeviceIter if is_left else DeviceIter
    return kind(iterator, accelerator, extras.device_transform, extras.static_buffers)


def fast_iterator(
    loader: DataLoader[Any],
    path: str = "auto",
    shared: Shared | None = None,
    accelerator: Accelerator | None = None,
) -> BaseIter:
    """The fastest iterator that gives what ``iter(loader)`` of torch gives.

    Args:
        loader: any torch DataLoader, or what has as much of one as torch's iterators read. That
            there are no more workers than CPUs is for the caller to check, as with torch's.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with; fresh ones by default.
        accelerator: where batches are wanted. They are there if the iterator's ``is_on_device``
            is true, else in CPU memory.
    """
    shared = shared or Shared()
    route = find_route(loader, path, pin=True, changed=shared.changed)
    # Those over workers are imported when the first is made: most programs have one kind or none.
    if route.path == "thread":
        from fastloop.loader.workers.threads import ThreadIter

        return ThreadIter(loader, shared, accelerator)
    if route.source is not None:
        return ArrayIter(loader, route.source, shared, accelerator, is_live=path == "array")
    if route.path == "process":
        from fastloop.loader.workers.processes import ProcessIter

        return ProcessIter(loader, shared, accelerator)
    if loader.num_workers > 0:
        return TorchProcessIter(loader, shared)
    return SyncIter(loader, shared, has_own_collate=route.path == "sync")


def iterate_anew(loader: DataLoader[Any], iterate: Callable[[], Any]) -> Any:
    """What `iterate`, torch's ``__iter__``, returns. A fork, a death or Ctrl-C may have left
    persistent workers useless: they are dropped before."""
    _drop_broken_workers(loader)
    try:
        return iterate()
    except RuntimeError:
        if not _drop_broken_workers(loader):  # they were still alive above, but dying
            raise
        return iterate()


def _drop_broken_workers(loader: DataLoader[Any]) -> bool:
    """Whether there were some."""
    iterator: Any = getattr(loader, "_iterator", None)
    if not getattr(iterator, "is_broken", bool)():
        return False
    iterator.close()
    iterator._shared.position.kept_seed = iterator._base_seed
    loader._iterator = None
    return True
