"""The path that a loader takes, and why. Any ``torch.utils.data.DataLoader`` has a path, which is
chosen anew at every ``iter()``: an ordered list of routes is asked, and the first that takes the
loader wins. Loaders that no path of fastloop takes run torch's own code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from fastloop.base.checks import look_up, refuse_if
from fastloop.compat import torch_parts
from fastloop.compat.torch_parts import (
    BaseIter,
    Methods,
    MultiIter,
    SingleIter,
    difference,
    is_known,
)
from fastloop.data.collate import is_default_collate
from fastloop.data.columns import Columns, NotCoveredError, adapters, below_subsets, find_collate
from fastloop.data.epochs import datasets_within
from fastloop.loader.arrays.source import check_resident, open_source, request_of

PATHS = ("auto", "array", "process", "thread", "sync", "torch")
_NESTING = (torch_data.ConcatDataset, torch_data.StackDataset, torch_data.Subset)
_SAMPLED = (*_NESTING, torch_data.Dataset, torch_data.TensorDataset)
_SAMPLE_METHODS = Methods(
    *((cls, name) for cls in _SAMPLED for name in ("__getitem__", "__getitems__")),
    (torch_parts.MapFetcher, "fetch"),
)
_ITER_METHODS = Methods(
    *((cls, "__next__") for cls in (BaseIter, SingleIter, MultiIter)),
    *((cls, "_next_data") for cls in (SingleIter, MultiIter)),
    (BaseIter, "_next_index"),
)


class Route(NamedTuple):
    path: str
    why: str
    source: Columns | None = None
    samples: Any = None  # stand in for the dataset


def is_torch_altered() -> bool:
    """Tell whether this version of fastloop does not know torch's iterators, or a program has
    replaced their methods."""
    return bool(_ITER_METHODS.find_replaced()) or not is_known("torch", "Loaders are left")


def is_users_own(loader: DataLoader[Any], left_collate: object) -> bool:
    """Tell at once that the user's collate makes the batches in this process, whatever the dataset.
    No path is faster than torch then, and ``PlainIter`` loads it.

    Args:
        left_collate: the collate function that fastloop has left to the loader before, or None.
    """
    collate_fn = loader.collate_fn
    if collate_fn is torch_parts.default_collate or collate_fn is torch_parts.default_convert:
        return False
    if collate_fn is not left_collate and find_collate(collate_fn) is not None:
        return False
    if loader.num_workers > 0 or torch_parts.new_arguments() or _ITER_METHODS.find_replaced():
        return False
    # Datasets with epochs have errors of their own, too.
    is_torch_known = is_known("torch", "Loaders are left")
    return is_torch_known and next(datasets_within(loader.dataset), None) is None


def choose_route(loader: DataLoader[Any], path: str, changed: str, pin: bool = False) -> Route:
    """Return the path that any torch ``DataLoader`` takes now.

    Args:
        path: as the argument of ``fastloop.DataLoader``.
        changed: why threads would not give torch's batches (the data have changed), or "".
        pin: an iterator will be made, so storages may be marked as not resizable.

    Raises:
        ValueError: ``path`` demands a path that does not take this loader.
    """
    for group in ("loader", "tensors"):
        if not is_known(group, "Loaders are left"):
            return Route("torch", difference(group))
    for name, default in torch_parts.new_arguments().items():
        if look_up(loader, name, default) is not default:
            return Route("torch", f"this version of fastloop does not know the argument {name}")
    if replaced := _ITER_METHODS.find_replaced():
        return Route("torch", f"torch's {replaced} was replaced by another")
    search = _Search(loader, path, changed, pin)
    route = None
    for take in _ROUTES:
        route = route or take(search)
    route = route or Route(search.other, search.why)
    if is_known(route.path, f"Loaders with path={route.path!r} are left"):
        return route
    return Route("torch", difference(route.path))


@dataclass
class _Search:
    """A search for the route of a loader; arguments as for ``choose_route``.

    Attributes:
        why: the reason that the array route gave, for the routes after it.
    """

    loader: DataLoader[Any]
    path: str
    changed: str
    pin: bool
    why: str = ""

    @property
    def other(self) -> str:
        """The path on which Python makes the samples."""
        return "process" if self.loader.num_workers > 0 else "sync"


# ---- the routes, in the order in which they are asked; None: the next one is asked


def _thread_route(search: _Search) -> Route | None:
    if search.path != "thread":
        return None
    loader = search.loader
    dataset, workers, context = loader.dataset, loader.num_workers, loader.multiprocessing_context
    fault = ""
    if workers == 0:
        fault = "with num_workers=0; pass the number of threads"
    elif context is not None:
        fault = f"with multiprocessing_context={context!r}; leave it out"
    elif isinstance(dataset, IterDataPipe | MapDataPipe):
        fault = "a DataPipe, which asks in which worker process it is; use path='process'"
    elif isinstance(dataset, IterableDataset) and workers > 1:
        fault = f"an IterableDataset with num_workers={workers}: each thread would give all of "
        fault += "it; pass num_workers=1, which reads ahead, or use path='process'"
    refuse_if(fault, f"path='thread' cannot load {fault}")
    return Route("thread", "path='thread' was asked for")


def _route_that_was_asked_for(search: _Search) -> Route | None:
    path, workers = search.path, search.loader.num_workers
    if path != "torch" and isinstance(search.loader.dataset, IterDataPipe | MapDataPipe):
        return Route("torch", "the dataset is a data pipe")
    if path in ("process", "sync") and path != search.other:
        fault = f"path={path!r} cannot load with num_workers={workers}"
        raise ValueError(f"{fault}; use path={search.other!r}")
    if path not in ("auto", "array"):
        return Route(path, f"path={path!r} was asked for")
    if search.changed and path == "auto" and workers > 0:
        return Route("process", search.changed)
    return None


def _array_route(search: _Search) -> Route | None:
    loader, path = search.loader, search.path
    for found in datasets_within(loader.dataset):
        # Python would run the transform slower, and with other random numbers, so the user must ask
        # for that path.
        if reason := look_up(found, "_untranslated", ""):  # of an ArrayDataset or a subclass
            remedy = f"use path={search.other!r}, which calls it for every sample"
            raise ValueError(f"path={path!r} cannot load this: {reason}; {remedy}")
    try:
        return _take_arrays(loader, path, search.pin and loader.num_workers > 0)
    except NotCoveredError as error:
        search.why = str(error)
    if path == "array":
        raise ValueError(f"path='array' cannot load this: {search.why}; use path='auto'")
    return None


def _take_arrays(loader: DataLoader[Any], path: str, pin: bool) -> Route:
    """Raises NotCoveredError."""
    if replaced := _SAMPLE_METHODS.find_replaced():
        raise NotCoveredError(f"torch's {replaced} was replaced by another")
    request, seeder = request_of(loader, path), ""
    if request.has_init and not (seeder := adapters().name_of_seeder(loader.worker_init_fn)):
        raise NotCoveredError("worker_init_fn runs in worker processes")
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise NotCoveredError("prefetch_factor is 0")
    source = open_source(loader.dataset, request, pin)
    if source.device is not None and not source.is_fetched:
        check_resident(loader, source)
    does_nothing = f"; {seeder} has nothing to seed in threads of C" if seeder else ""
    return Route("array", source.why + does_nothing, source)


def _sample_route(search: _Search) -> Route | None:
    """Take a loader whose samples an adapter makes, in place of the dataset."""
    loader = search.loader
    kind = type(below_subsets(loader.dataset)[0])
    adapter = adapters().find(kind)
    is_default = loader._auto_collation and is_default_collate(loader.collate_fn)
    if adapter is None or not is_default:
        return None
    try:
        found = adapter.samples_of(loader.dataset)
    except ValueError as error:
        return Route(search.other, str(error))
    return found and Route(search.other, f"samples of {kind.__name__} by C", None, found)


_ROUTES: tuple[Callable[[_Search], Route | None], ...] = (
    _thread_route,
    _route_that_was_asked_for,
    _array_route,
    _sample_route,
)
