"""The path that a loader takes, why, and the iterator of the path.

Any ``torch.utils.data.DataLoader`` has a path, which is chosen anew at every ``iter()``: fastloop
asks an ordered list of routes, and the first route that takes the loader wins. If no route takes
the loader, torch's own code runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from fastloop.base.checks import is_read_ahead, look_up, make_message
from fastloop.compat import torch_parts
from fastloop.compat.torch_parts import (
    BaseIter,
    Methods,
    MultiIter,
    SingleIter,
    difference,
    is_known,
)
from fastloop.data.columns import (
    LEFT_COLLATE,
    Columns,
    NotCoveredError,
    Request,
    adapters,
    below_subsets,
    datasets_within,
    find_adapter,
    find_collate,
    find_columns,
    is_default_collate,
)
from fastloop.loader.shared import LoaderProxy, PlainIter, Shared, SyncIter, TorchProcessIter

PATHS = ("auto", "array", "process", "thread", "sync", "torch")
PIPES = IterDataPipe, MapDataPipe
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
    columns: Columns | None = None
    samples: Any = None  # the object that stands in for the dataset


def is_plain(loader: DataLoader[Any], shared: Shared) -> bool:
    """Tell at once that Python makes the samples: fastloop does not know the collate function, or
    torch's default collates a dataset whose class fastloop does not know.

    Args:
        loader: has no workers.
        shared: has what fastloop has found out about the loader before.
    """
    dataset: Any = loader.dataset
    collate_fn = loader.collate_fn
    # If something within the dataset changes later, Python makes the samples, as in torch.
    if shared.left != (left := (id(dataset), id(collate_fn))):
        if collate_fn is torch_parts.default_collate or collate_fn is torch_parts.default_convert:
            if _may_be_gathered(dataset):
                return False
        elif (
            collate_fn is not shared.left_collate and find_collate(collate_fn) is not None
        ) or _find_samples(dataset) is not None:
            return False
        shared.left = left
    # Datasets with epochs raise errors of their own, so they need their own iterators.
    is_torch_known = is_known("tensors", "Loaders are left") and not torch_parts.new_arguments()
    return is_torch_known and next(datasets_within(dataset), None) is None


def _may_be_gathered(dataset: Any) -> bool:
    """Tell whether samples of a dataset, which workers do not copy, may be rows of arrays."""
    is_within = False
    while (kind := type(dataset)) in (torch_data.Subset, torch_data.ConcatDataset):
        if kind is torch_data.Subset:
            dataset = dataset.dataset
        else:  # one part that cannot be gathered is enough
            is_within, dataset = True, next(iter(dataset.datasets), None)
    answer = find_columns(dataset)
    # A list may change without workers, so its samples are not stacked. Datasets of the program's
    # are not traced within others.
    is_left = kind in (list, tuple) or (is_within and answer is adapters().trace)
    return answer is not None and not is_left


def choose_route(
    loader: DataLoader[Any], path: str, changed: str, pin_storages: bool = False
) -> Route:
    """Return the path that any torch ``DataLoader`` takes now.

    Args:
        path: the argument of ``fastloop.DataLoader``.
        changed: why threads would not give torch's batches (the data were changed), or "".
        pin_storages: an iterator will be made, so storages may be marked as not resizable.

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
        return Route("torch", f"torch's {replaced} was replaced by the program")
    search = _Search(loader, path, changed, pin_storages)
    route = None
    for take in _ROUTES:
        route = route or take(search)
    route = route or Route(search.sample_path, search.why)
    if is_known(route.path, f"Loaders with path={route.path!r} are left"):
        return route
    return Route("torch", difference(route.path))


def fast_iterator(
    loader: DataLoader[Any],
    path: str,
    shared: Shared,
    accelerator: Any = None,
    make_torch_iterator: Callable[[], Any] | None = None,
) -> Any:
    """Return the fastest iterator that gives the batches of torch's ``iter(loader)``.

    Args:
        loader: any torch DataLoader, or an object with the attributes of a loader that torch's
            iterators read. The caller warns of more workers than CPUs, as with torch's iterators.
        path: the argument of ``fastloop.DataLoader``.
        shared: memory and counts of the loader's earlier iterators.
        accelerator: the device that the user wants batches on. If the iterator's ``is_on_device``
            is true, batches are on this device, else in CPU memory.
        make_torch_iterator: makes the iterator that torch alone would make, for a release of torch
            whose iterators fastloop does not know, or whose methods a program has replaced.
    """
    if make_torch_iterator is not None and (
        _ITER_METHODS.find_replaced() or not is_known("torch", "Loaders are left")
    ):
        return make_torch_iterator()
    # torch's loaders have no transforms_on, and no states.
    wanted = look_up(loader, "transforms_on", "auto") if shared.position.can_be_asked else "auto"
    is_new = shared.array_memory is None  # the loader's batches have not been gathered so far
    if loader.num_workers == 0 and path == "auto" and is_new and is_plain(loader, shared):
        if loader.collate_fn is not shared.left_collate:
            shared.why = ""  # none that a report needs
        if wanted == "auto" and not (shared.is_served or shared.position.has_cursor):
            return PlainIter(loader, shared)
        if wanted == "auto" and not isinstance(loader.dataset, PIPES):
            return SyncIter(loader, shared, uses_native_collate=True)
    route = choose_route(loader, path, shared.changed, pin_storages=True)
    if wanted != "auto":
        _check_transforms(loader, route, wanted)
    shared.why = route.why
    shared.left_collate = loader.collate_fn if route.why.startswith(LEFT_COLLATE) else None
    # Iterators over workers are imported when the first one is made: most programs use one kind of
    # workers, or none.
    if route.path == "thread":
        from fastloop.loader.workers.threads import ThreadIter

        return ThreadIter(loader, shared, accelerator)
    if route.columns is not None:
        return _array_iterator(loader, route.columns, shared, accelerator, path)
    if route.samples is not None:
        collate_fn = route.samples._collate_of(loader.collate_fn)
        loader = LoaderProxy(loader, dataset=route.samples, collate_fn=collate_fn)  # type: ignore[assignment]
    if loader.num_workers > 0:
        from fastloop.compat.moves import check_forks

        check_forks(loader.multiprocessing_context, loader.num_workers)
    if route.path == "process":
        from fastloop.loader.workers.processes import ProcessIter

        return ProcessIter(loader, shared, accelerator)
    if loader.num_workers > 0:
        return TorchProcessIter(loader, shared)
    return SyncIter(loader, shared, uses_native_collate=route.path == "sync")


def _array_iterator(
    loader: DataLoader[Any], columns: Columns, shared: Shared, accelerator: Any, path: str
) -> Any:
    if columns.device is not None:
        from fastloop.loader.arrays.resident import ResidentIter

        return ResidentIter(loader, columns, shared, accelerator)
    from fastloop.loader.arrays.iterator import ArrayIter

    original, iterator_class = columns.original, ArrayIter
    if original is not None:
        iterator_class = original.iterator_class(loader.num_workers)
        shared.not_ahead = "fastloop compares its batches with another library's"
    elif loader.num_workers > 0 and is_read_ahead(loader):
        from fastloop.loader.arrays.ahead import AheadIter

        iterator_class = AheadIter
    return iterator_class(loader, columns, shared, accelerator, is_live=path == "array")


def iterate_without_broken_workers(loader: DataLoader[Any], iterate: Callable[[], Any]) -> Any:
    """Call `iterate`, torch's ``__iter__``, without persistent workers that a fork, a death or
    Ctrl-C has made useless."""
    _drop_broken_workers(loader)
    try:
        return iterate()
    except RuntimeError:
        if not _drop_broken_workers(loader):  # a killed worker may seem alive for a moment
            raise
        return iterate()


def _drop_broken_workers(loader: DataLoader[Any]) -> bool:
    """Tell whether there were broken workers. The next iterator continues with their seed."""
    iterator: Any = look_up(loader, "_iterator")
    if not look_up(iterator, "is_broken", bool)():
        return False
    iterator.close()
    iterator._shared.position.kept_seed = iterator._base_seed
    loader._iterator = None
    return True


def _check_transforms(loader: Any, route: Route, wanted: str) -> None:
    """Raise ValueError for a loader whose transforms cannot run as `transforms_on` demands."""
    columns = route.columns
    images: list[Any] = [c for c in columns.all if c.plan] if columns is not None else []
    resident = columns.device if columns is not None else None

    def refuse(rule: str, fault: str) -> None:
        raise ValueError(make_message("transforms_on", f"{rule} for this loader", wanted, fault))

    if resident is not None:
        if wanted == "cpu" and images:
            there = f"the data are on {resident}, whose kernels transform them: dataset.to('cpu')"
            refuse("'auto' or 'device'", there)
        return
    if wanted != "device":
        return
    rule = "'auto' or 'cpu'"
    if columns is None:
        refuse(rule, f"the loader takes path={route.path!r}: {route.why}")
    if loader.device is None:
        refuse(rule, "no device= is passed")
    if loader.num_workers == 0:
        refuse(rule, "num_workers is 0, and threads must fill the batches that are uploaded")
    for column in images:
        if not column.plan.map_length:
            refuse(
                rule,
                f"{column.name}: its transform does more than crop, pad, flip, resize once, change "
                "colours, erase and cast, in this order, or pads before it resizes, or takes "
                "images of several sizes",
            )


class _Search:
    """A search for the route of a loader. Arguments are documented at ``choose_route``.

    Attributes:
        why: the reason that the array route gave, for the routes after it.
    """

    why = ""

    def __init__(
        self, loader: DataLoader[Any], path: str, changed: str, pin_storages: bool
    ) -> None:
        self.loader, self.path = loader, path
        self.changed, self.pin_storages = changed, pin_storages

    @property
    def sample_path(self) -> str:
        """The path on which Python makes the samples."""
        return "process" if self.loader.num_workers > 0 else "sync"


# ---- the routes, in the order in which they are asked; a route that returns None passes


def _route_that_was_asked_for(search: _Search) -> Route | None:
    path, workers = search.path, search.loader.num_workers
    if path == "thread":
        if fault := _why_no_threads(search.loader):
            raise ValueError(f"path='thread' cannot load this: {fault}")
    elif path != "torch" and isinstance(search.loader.dataset, PIPES):
        return Route("torch", "the dataset is a data pipe")
    if path in ("process", "sync") and path != search.sample_path:
        fault = f"path={path!r} cannot load this: num_workers={workers}"
        raise ValueError(f"{fault}; use path={search.sample_path!r}")
    if path not in ("auto", "array"):
        return Route(path, f"path={path!r} was asked for")
    if search.changed and path == "auto" and workers > 0:
        return Route("process", search.changed)
    return None


def _why_no_threads(loader: DataLoader[Any]) -> str:
    dataset, workers, context = loader.dataset, loader.num_workers, loader.multiprocessing_context
    if workers == 0:
        return "num_workers=0; pass the number of threads"
    if context is not None:
        return f"multiprocessing_context={context!r}; leave multiprocessing_context out"
    if isinstance(dataset, PIPES):
        return "a DataPipe asks in which worker process it runs; use path='process'"
    if isinstance(dataset, IterableDataset) and workers > 1:
        fault = f"with num_workers={workers} each thread would give the whole IterableDataset"
        return f"{fault}; pass num_workers=1, which reads ahead, or use path='process'"
    return ""


def _array_route(search: _Search) -> Route | None:
    try:
        return _take_arrays(search.loader, search.path, search.pin_storages)
    except NotCoveredError as error:
        search.why = str(error)
    for found in datasets_within(search.loader.dataset):
        # Python would run the transform slower and with different random numbers, so only the user
        # may choose that path.
        if reason := look_up(found, "_untranslated", ""):  # an ArrayDataset or a subclass has one
            remedy = f"use path={search.sample_path!r}, which calls it for every sample"
            raise ValueError(f"path={search.path!r} cannot load this: {reason}; {remedy}")
    if search.path == "array":
        raise ValueError(f"path='array' cannot load this: {search.why}; use path='auto'")
    return None


def _take_arrays(loader: DataLoader[Any], path: str, pin_storages: bool) -> Route:
    """Return the array route of a loader. Raises NotCoveredError."""
    from fastloop.loader.arrays.iterator import find_blocks, open_columns, yields_ints

    workers, seeder = loader.num_workers, ""
    batches: Any = loader._index_sampler  # a program's batch_sampler has a sampler of its own
    if replaced := _SAMPLE_METHODS.find_replaced():
        raise NotCoveredError(f"torch's {replaced} was replaced by the program")
    request = Request(
        collate_fn=loader.collate_fn,
        is_batched=loader._auto_collation,
        sampler=batches.sampler if type(batches) is torch_data.BatchSampler else loader.sampler,
        has_ints=lambda: yields_ints(loader.sampler),
        in_blocks=lambda: find_blocks(loader._index_sampler) is not None,
        workers=workers,
        in_order=loader.in_order,
        has_init=workers > 0 and loader.worker_init_fn is not None,
        is_asked=path == "array",
        device=look_up(loader, "device"),
        why_no_kernels=_why_no_kernels,
    )
    if request.has_init and not (seeder := adapters().name_of_seeder(loader.worker_init_fn)):
        raise NotCoveredError("worker_init_fn runs in worker processes")
    if workers > 0 and loader.prefetch_factor == 0:
        raise NotCoveredError("prefetch_factor is 0")
    columns = open_columns(loader.dataset, request, pin_storages and workers > 0)
    if columns.device is not None and columns.register is None:
        from fastloop.loader.arrays.resident import check_resident

        check_resident(loader, columns)
    does_nothing = f"; {seeder} has nothing to seed in fastloop's threads" if seeder else ""
    return Route("array", columns.why + does_nothing, columns)


def _why_no_kernels(device: torch.device) -> str:
    from fastloop.loader.arrays.resident import why_no_kernels

    return why_no_kernels(device)


def _find_samples(dataset: Any) -> Any:
    """Return the function of an adapter that may give the samples of a dataset, or None."""
    return look_up(find_adapter(type(below_subsets(dataset)[0])), "samples_of")


def _sample_route(search: _Search) -> Route | None:
    """Take a loader whose samples an adapter makes instead of the dataset."""
    loader = search.loader
    find = _find_samples(loader.dataset)
    if find is None or not loader._auto_collation:
        return None
    is_collated = is_default_collate(loader.collate_fn)
    try:
        found = find(loader.dataset, is_collated, loader.num_workers)
    except ValueError as error:
        return Route(search.sample_path, str(error))
    kind = type(below_subsets(loader.dataset)[0]).__name__
    more = found._why if found is not None else ""
    return found and Route(search.sample_path, f"samples of {kind} by fastloop{more}", None, found)


_ROUTES: tuple[Callable[[_Search], Route | None], ...] = (
    _route_that_was_asked_for,
    _array_route,
    _sample_route,
)
