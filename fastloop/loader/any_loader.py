"""What a loader of torch's class has done so far, as it is or wrapped by a framework."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from fastloop.loader.dataloader import DataLoader
from fastloop.loader.extras import extras_of_torchs
from fastloop.loader.shared import shared_of
from fastloop.loader.stats import LoaderStats, stats_of

# Where frameworks keep the loader that they have wrapped: accelerate, its wrapper for XLA, Fabric.
_WRAPPED = ("base_dataloader", "dataloader", "_dataloader")


def stats(loader: Any) -> LoaderStats:
    """What any loader has done so far, and which path it takes now. Costs no sync.

    Args:
        loader: a ``fastloop.DataLoader``; a loader of torch's class, which ``fastloop.patch()``
            serves; or what accelerate or Fabric has made of one.

    Returns:
        As ``fastloop.DataLoader.stats()``. A loader that torch alone has iterated so far has
        ``path="torch"`` and counts of 0: torch counts nothing.

    Raises:
        TypeError: ``loader`` is none.
    """
    found = _unwrap(loader)
    if isinstance(found, DataLoader):
        return found.stats()
    shared = shared_of.get(found)
    if shared is not None:
        return stats_of(found, extras_of_torchs(found).path, shared)
    why = "fastloop has made no iterator of this loader; call fastloop.patch() before iter()"
    return LoaderStats("torch", why, 0, None, None, 0, 0.0, 0, 0)


def _unwrap(loader: Any) -> Any:
    """The loader of torch's class, or of ours, in what frameworks have put around it. By its type:
    wrappers say that they are of the class of what they hold."""
    found = loader
    while not issubclass(type(found), torch.utils.data.DataLoader):
        inside = (vars(found).get(name) for name in _WRAPPED if hasattr(found, "__dict__"))
        found = next((value for value in inside if value is not None), None)
        if found is None:
            raise TypeError(
                f"loader is of type {type(loader).__qualname__}, which holds no torch DataLoader; "
                "pass a loader, or what accelerate or Fabric has made of one"
            )
    return found
