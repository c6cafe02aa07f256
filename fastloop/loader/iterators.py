"""The one seam: the fast iterator for any ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastloop.device.accelerator import Accelerator
from fastloop.loader.array_iter import ArrayIter
from fastloop.loader.process_iter import ProcessIter
from fastloop.loader.route import find_route
from fastloop.loader.shared import Shared
from fastloop.loader.torch_iters import SyncIter, TorchProcessIter


def fast_iterator(
    loader: DataLoader[Any],
    path: str = "auto",
    shared: Shared | None = None,
    accelerator: Accelerator | None = None,
) -> _BaseDataLoaderIter:
    """The fastest iterator that gives what ``iter(loader)`` of torch gives.

    Args:
        loader: any torch DataLoader.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with; fresh ones by default.
        accelerator: where batches are wanted. They are there if the iterator's ``is_on_device``
            is true, else in CPU memory.
    """
    shared = shared or Shared()
    route = find_route(loader, path, pin=True)
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    if route.source is not None:
        return ArrayIter(loader, route.source, shared, accelerator)
    if route.path == "process":
        return ProcessIter(loader, shared, accelerator)
    if loader.num_workers > 0:
        return TorchProcessIter(loader, shared)
    return SyncIter(loader, shared, has_own_collate=route.path == "sync")
