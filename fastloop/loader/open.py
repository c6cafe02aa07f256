"""The iterator of a loader: that of the path which the loader takes, on the device that the user
wants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.checks import check_value, look_up
from fastloop.compat.torch_parts import BaseIter
from fastloop.data.collate import is_default_collate
from fastloop.data.columns import LEFT_COLLATE
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.device_iter import DeviceIter, join_transforms
from fastloop.loader.route import Route, choose_route, is_torch_altered
from fastloop.loader.shared import LoaderProxy, Shared, SyncIter, TorchProcessIter

# The attributes in which frameworks keep a loader that they have wrapped.
_WRAPPED = ("base_dataloader", "dataloader", "_dataloader")


def open_iterator(
    loader: DataLoader[Any],
    shared: Shared,
    torchs_own: Callable[[], Any],
    path: str = "auto",
    device: torch.device | str | int | None = None,
    transform: Callable[[Any], Any] | None = None,
    is_static: bool = False,
    batch_transform: Callable[[Any], Any] | None = None,
) -> Any:
    """Return an iterator over the loader's batches on `device`, transformed.

    Args:
        loader: any torch DataLoader, as for ``fast_iterator``.
        torchs_own: makes the iterator that torch alone would make. It is used where this version of
            fastloop does not know torch's iterators, or others have changed them.
        path, device, transform, is_static, batch_transform: arguments of ``fastloop.DataLoader``.
    """
    is_plain = transform is None and not is_static
    accelerator = None
    if device is not None and not (is_plain and torch.device(device).type == "cpu"):
        accelerator = open_accelerator(device)
    iterator = (
        torchs_own() if is_torch_altered() else fast_iterator(loader, path, shared, accelerator)
    )
    if accelerator is None and device is not None and getattr(iterator, "is_resident", False):
        accelerator = open_accelerator(device)  # the CPU, for data that lie elsewhere
    if batch_transform is not None:
        # Nobody else holds a batch that torch's collate has made.
        may_overwrite = loader._auto_collation and is_default_collate(loader.collate_fn)
        transform = join_transforms(iterator, batch_transform, may_overwrite, transform)
        return DeviceIter(iterator, accelerator, transform, is_static)
    if accelerator is None or (is_plain and getattr(iterator, "is_on_device", False)):
        return iterator
    return DeviceIter(iterator, accelerator, transform, is_static)


def fast_iterator(
    loader: DataLoader[Any], path: str, shared: Shared, accelerator: Accelerator | None
) -> BaseIter:
    """Return the fastest iterator that gives the batches of torch's ``iter(loader)``.

    Args:
        loader: any torch DataLoader, or an object with those attributes of one that torch's
            iterators read. The caller warns of more workers than CPUs, as with torch's iterators.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with.
        accelerator: the device of the batches. They are there if the iterator's ``is_on_device``
            is true, else in CPU memory.
    """
    route = choose_route(loader, path, shared.changed, pin=True)
    _check_place(loader, route)
    shared.why = route.why
    shared.left_collate = loader.collate_fn if route.why.startswith(LEFT_COLLATE) else None
    # Iterators over workers are imported when the first is made: most programs have one kind or
    # none.
    if route.path == "thread":
        from fastloop.loader.workers.threads import ThreadIter

        return ThreadIter(loader, shared, accelerator)
    if (source := route.source) is not None:
        if source.device is not None:
            from fastloop.loader.arrays.resident import ResidentIter

            return ResidentIter(loader, source, shared, accelerator)
        if source.original is not None and source.original.needs_indices(loader.num_workers):
            from fastloop.loader.arrays.compared import ComparedIter

            return ComparedIter(loader, source, shared, accelerator, is_live=path == "array")
        return ArrayIter(loader, source, shared, accelerator, is_live=path == "array")
    if route.samples is not None:
        loader = LoaderProxy(loader, dataset=route.samples)  # type: ignore[assignment]
    if route.path == "process":
        from fastloop.loader.workers.processes import ProcessIter

        return ProcessIter(loader, shared, accelerator)
    if loader.num_workers > 0:
        return TorchProcessIter(loader, shared)
    return SyncIter(loader, shared, has_own_collate=route.path == "sync")


def _check_place(loader: Any, route: Route) -> None:
    """Raise ValueError for a loader whose transforms cannot run where `transforms_on` says."""
    wanted = look_up(loader, "transforms_on", "auto")  # torch's loaders have none
    source = route.source
    images: list[Any] = [c for c in source.all if c.plan] if source is not None else []
    resident = source.device if source is not None else None
    if wanted == "cpu" and resident is not None and images:
        there = f"the data are on {resident}, where a kernel does it: dataset.to('cpu')"
        check_value("transforms_on", wanted, False, "'auto' or 'device' for this loader", there)
    if wanted != "device" or resident is not None:
        return
    computed = next((column.name for column in images if not column.plan.map_length), "")
    faults = {
        f"it takes path={route.path!r}: {route.why}": source is None,
        "no device= is passed": loader.device is None,
        "num_workers is 0, and threads must fill what is uploaded": loader.num_workers == 0,
        f"{computed}: its transform does more than crop, pad, flip, resize once, change colours, "
        "erase and cast, in this order, or pads before it resizes, or takes images of several "
        "sizes": computed,
    }
    for fault, applies in faults.items():
        check_value("transforms_on", wanted, not applies, "'auto' or 'cpu' for this loader", fault)


def unwrap(loader: Any) -> Any:
    """Return the loader of torch's class, or of a subclass, inside the wrappers of frameworks; the
    innermost object where there is none."""
    # By type(), not isinstance(): accelerate's wrappers fake `__class__`.
    while not issubclass(type(loader), DataLoader):
        inside = (look_up(loader, "__dict__", {}).get(name) for name in _WRAPPED)
        found = next((value for value in inside if value is not None), None)
        if found is None:
            break
        loader = found
    return loader


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
    iterator: Any = look_up(loader, "_iterator")
    if not look_up(iterator, "is_broken", bool)():
        return False
    iterator.close()
    iterator._shared.position.kept_seed = iterator._base_seed
    loader._iterator = None
    return True
