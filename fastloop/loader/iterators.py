"""The iterator of a loader: the fast one for any ``torch.utils.data.DataLoader``, and around it the
one that puts batches on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import BaseIter, is_known
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.device.prefetch import DeviceIter, TorchDeviceIter
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.plain.torch_iters import SyncIter, TorchProcessIter
from fastloop.loader.route import choose_route, name_replaced_iterator
from fastloop.loader.shared import Shared


def open_iterator(
    loader: DataLoader[Any],
    shared: Shared,
    torchs_own: Callable[[], Any],
    path: str = "auto",
    device: torch.device | str | int | None = None,
    transform: Callable[[Any], Any] | None = None,
    is_static: bool = False,
) -> Any:
    """Return an iterator over the loader's batches on `device`, transformed.

    Args:
        loader: any torch DataLoader, as for ``fast_iterator``.
        torchs_own: makes the iterator that torch alone would make. It is used where this version of
            fastloop does not know torch's iterators, or others have changed them.
        path, device, transform, is_static: as the arguments of ``fastloop.DataLoader``.
    """
    is_plain = transform is None and not is_static
    accelerator = None
    if device is not None and not (is_plain and torch.device(device).type == "cpu"):
        accelerator = open_accelerator(device)
    is_left = bool(name_replaced_iterator()) or not is_known("torch", "Loaders are left")
    iterator = torchs_own() if is_left else fast_iterator(loader, path, shared, accelerator)
    if accelerator is None or (is_plain and getattr(iterator, "is_on_device", False)):
        return iterator
    kind = TorchDeviceIter if is_left else DeviceIter
    return kind(iterator, accelerator, transform, is_static)


def fast_iterator(
    loader: DataLoader[Any],
    path: str = "auto",
    shared: Shared | None = None,
    accelerator: Accelerator | None = None,
) -> BaseIter:
    """Return the fastest iterator that gives the batches of torch's ``iter(loader)``.

    Args:
        loader: any torch DataLoader, or an object with those attributes of one that torch's
            iterators read. The caller warns of more workers than CPUs, as with torch's iterators.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with; fresh ones by default.
        accelerator: the device of the batches. They are there if the iterator's ``is_on_device``
            is true, else in CPU memory.
    """
    shared = shared or Shared()
    route = choose_route(loader, path, pin=True, changed=shared.changed)
    # Iterators over workers are imported when the first is made: most programs have one kind or
    # none.
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
    """Call `iterate`, torch's ``__iter__``, without persistent workers that a fork, a death or
    Ctrl-C has made useless."""
    _drop_broken_workers(loader)
    try:
        return iterate()
    except RuntimeError:
        if not _drop_broken_workers(loader):  # they were still alive above, but dying
            raise
        return iterate()


def _drop_broken_workers(loader: DataLoader[Any]) -> bool:
    """Tell whether there were broken workers."""
    iterator: Any = getattr(loader, "_iterator", None)
    if not getattr(iterator, "is_broken", bool)():
        return False
    iterator.close()
    iterator._shared.position.keeps_seed = True
    loader._iterator = None
    return True
