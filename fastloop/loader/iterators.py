"""The iterator of a loader: the path that a loader takes, why, and the iterator of that path. Any
``torch.utils.data.DataLoader`` has a path. It is chosen anew at every ``iter()``; loaders that no
path of fastloop takes run torch's own code.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from fastloop._core import SequenceColumn
from fastloop.base.checks import check_value, look_up, refuse_if
from fastloop.compat import torch_parts
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.torch_parts import (
    BaseIter,
    Methods,
    MultiIter,
    SingleIter,
    difference,
    is_known,
)
from fastloop.data.collate import SEQUENCE_COLLATES, below_subsets, is_default_collate, kind_of
from fastloop.data.epochs import datasets_within
from fastloop.data.field import Field
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.device.availability import fault_of
from fastloop.loader.arrays import columns
from fastloop.loader.arrays.columns import Columns, NotCoveredError, leave_if
from fastloop.loader.arrays.iterator import ArrayIter, yields_ints
from fastloop.loader.device_iter import DeviceIter, join_transforms
from fastloop.loader.shared import LoaderProxy, Shared, SyncIter, TorchProcessIter

PATHS = ("auto", "array", "process", "thread", "sync", "torch")
# An index of these datasets, and of an ArrayDataset, may be a list of rows.
_TAKE_LISTS = (torch_data.TensorDataset, torch.Tensor, np.ndarray, np.memmap)
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
# Functions that frameworks set as worker_init_fn. They seed the random generators of a worker
# process, torch's too; no Python runs in the array path's threads.
_SEEDERS = (
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
)


# The attributes in which frameworks keep a loader that they have wrapped: accelerate, its wrapper
# for XLA, Fabric.
_WRAPPED = ("base_dataloader", "dataloader", "_dataloader")


class Route(NamedTuple):
    path: str
    why: str
    source: Columns | None = None
    samples: Any = None  # stand in for the dataset


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
    is_left = bool(_ITER_METHODS.find_replaced()) or not is_known("torch", "Loaders are left")
    iterator = torchs_own() if is_left else fast_iterator(loader, path, shared, accelerator)
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


def is_users_own(loader: DataLoader[Any], shared: Shared) -> bool:
    """Tell at once that the user's collate makes the batches in this process, whatever the dataset.
    No path is faster than torch then, and ``PlainIter`` loads it."""
    collate_fn = loader.collate_fn
    if collate_fn is torch_parts.default_collate or collate_fn is torch_parts.default_convert:
        return False
    if collate_fn is not shared.left_collate:
        module = str(look_up(collate_fn, "__module__", ""))
        if module.startswith(("fastloop.", "transformers.")):
            return False
    if loader.num_workers > 0 or torch_parts.new_arguments() or _ITER_METHODS.find_replaced():
        return False
    # Datasets with epochs have errors of their own, too.
    is_torch_known = is_known("torch", "Loaders are left")
    return is_torch_known and next(datasets_within(loader.dataset), None) is None


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
    is_left = route.why.startswith(columns.LEFT_COLLATE)
    shared.left_collate = loader.collate_fn if is_left else None
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
    route = _choose(loader, path, pin, changed)
    if is_known(route.path, f"Loaders with path={route.path!r} are left"):
        return route
    return Route("torch", difference(route.path))


def _choose(loader: DataLoader[Any], path: str, pin: bool, changed: str) -> Route:
    other = "process" if loader.num_workers > 0 else "sync"
    if path == "thread":
        _check_threads(loader)
    elif path != "torch" and isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return Route("torch", "the dataset is a data pipe")
    elif path in ("process", "sync") and path != other:
        fault = f"path={path!r} cannot load with num_workers={loader.num_workers}"
        raise ValueError(f"{fault}; use path={other!r}")
    if path not in ("auto", "array"):
        return Route(path, f"path={path!r} was asked for")
    if changed and path == "auto" and loader.num_workers > 0:
        return Route("process", changed)
    for found in datasets_within(loader.dataset):
        # Python would run the transform slower, and with other random numbers, so the user must ask
        # for that path.
        if reason := look_up(found, "_untranslated", ""):  # of an ArrayDataset or a subclass
            remedy = f"use path={other!r}, which calls it for every sample"
            raise ValueError(f"path={path!r} cannot load this: {reason}; {remedy}")
    try:
        return _array_route(loader, path, pin)
    except NotCoveredError as error:
        if path == "array":
            raise ValueError(f"path='array' cannot load this: {error}; use path='auto'") from None
        return _route_of_samples(loader, Route(other, str(error)))


def _route_of_samples(loader: DataLoader[Any], route: Route) -> Route:
    """Return the route, with ``FolderSamples`` in place of the dataset where C can make its samples
    but not whole batches."""
    kind = type(below_subsets(loader.dataset)[0])
    is_default = loader._auto_collation and is_default_collate(loader.collate_fn)
    folder = getattr(sys.modules.get("torchvision.datasets"), "ImageFolder", None)
    if not is_default or kind is not folder:
        return route
    from fastloop.data.image_folder.torchvision_folder import FolderSamples

    try:
        return Route(route.path, "samples of ImageFolder by C", None, FolderSamples(loader.dataset))
    except ValueError as error:
        return Route(route.path, str(error))


def _check_threads(loader: DataLoader[Any]) -> None:
    """Raise ValueError for a loader that worker threads cannot serve."""
    dataset, workers, context = loader.dataset, loader.num_workers, loader.multiprocessing_context
    is_pipe = isinstance(dataset, IterDataPipe | MapDataPipe)
    is_split = isinstance(dataset, IterableDataset) and workers > 1
    faults = {
        "with num_workers=0; pass the number of threads": workers == 0,
        f"with multiprocessing_context={context!r}; leave it out": context is not None,
        "a DataPipe, which asks in which worker process it is; use path='process'": is_pipe,
        f"an IterableDataset with num_workers={workers}: each thread would give all of it; pass "
        "num_workers=1, which reads ahead, or use path='process'": is_split,
    }
    for fault, applies in faults.items():
        refuse_if(applies, f"path='thread' cannot load {fault}")


def _array_route(loader: DataLoader[Any], path: str, pin: bool) -> Route:
    """Return the array path. Raises NotCoveredError."""
    dataset, _ = below_subsets(loader.dataset)
    is_sequence = loader._auto_collation and kind_of(loader.collate_fn) in SEQUENCE_COLLATES
    has_init = loader.num_workers > 0 and loader.worker_init_fn is not None
    seeder = _name_seeder(loader.worker_init_fn) if has_init else ""
    if replaced := _SAMPLE_METHODS.find_replaced():
        raise NotCoveredError(f"torch's {replaced} was replaced by another")
    is_hugging = loader._auto_collation and _is_hugging_face(dataset, loader.collate_fn)
    # PadCollate and PackCollate collate fields without sequences by torch's default.
    has_own = is_sequence or is_hugging
    collate_fn = torch_parts.default_collate if has_own else loader.collate_fn
    is_default = collate_fn is torch_parts.default_convert
    if loader._auto_collation:
        is_default = is_default_collate(collate_fn)
    why = "collate_fn is not torch's default, or its registry was extended"
    leave_if(not is_default, difference("collate") or why)
    leave_if(has_init and not seeder, "worker_init_fn runs in worker processes")
    leave_if(loader.num_workers > 0 and loader.prefetch_factor == 0, "prefetch_factor is 0")
    if not loader._auto_collation:
        _check_singles(loader, path, dataset)
    taker = _taker_of(loader, dataset, is_hugging)
    fetcher, unfetched = _find_fetcher(loader, dataset)
    source = columns.open_source(loader.dataset, pin and loader.num_workers > 0, taker, fetcher)
    if not loader._auto_collation and path != "array":
        gaps = next((column.name for column in source.all if column.has_gaps), "")
        leave_if(gaps, f"single samples of {gaps} have strides, which torch's keep")
    if source.device is not None and fetcher is None:
        _check_resident(loader, source, f"the data are on {source.device}")
    name = look_up(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
    how = name if has_own else "default collate"
    why = f"{type(loader.dataset).__name__} of {source.kind}, {how}"
    if look_up(dataset, "_transforms"):
        why += ", transforms in C"
    if seeder:
        why += f"; {seeder} has nothing to seed in threads of C"
    return Route("array", why + unfetched, source)


def _find_fetcher(loader: Any, dataset: Any) -> tuple[torch.device | None, str]:
    """Return the device that reads the rows of a dataset in host memory, or None; and why its
    ``gather="device"`` has no effect, or ""."""
    if kind_of(dataset) != "ArrayDataset" or dataset._gather != "device":
        return None, ""
    given = look_up(loader, "device")
    wanted = torch.device("cpu" if given is None else given)
    on = "FASTLOOP_DISABLE_CUDA" if kernels_are_disabled() else fault_of(wanted)
    reasons = {
        f"with device={given!r}": wanted.type not in columns._RESIDENT,
        f"with num_workers={loader.num_workers}": loader.num_workers > 0,
        f"with {kind_of(loader.collate_fn)}": kind_of(loader.collate_fn) in SEQUENCE_COLLATES,
        f"without kernels ({on})": on,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), "")
    return (None, f"; gather='device' has no effect {reason}") if reason else (wanted, "")


def _check_resident(loader: DataLoader[Any], source: columns.Columns, where: str) -> None:
    """Raise NotCoveredError for a loader whose batches the device does not gather."""
    leave_if(loader.num_workers > 0, f"{where}, which gathers them with num_workers=0")
    leave_if(loader.pin_memory, f"{where}, and pin_memory is for data in host memory")
    sequences = any(isinstance(column.source, SequenceColumn) for column in source.all)
    if sequences or any(column.plan for column in source.all):
        from fastloop.loader.arrays.resident import runs_kernels

        what = "sequences" if sequences else "a transform"
        leave_if(not runs_kernels(source.device), f"{where}, which runs no kernel of {what}")


def _name_seeder(init: Any) -> str:
    """Return the name of a worker_init_fn, or of the function of a partial, if a framework's module
    defines it to seed a worker; or ""."""
    is_partial = type(init) is functools.partial
    function = init.func if is_partial else init
    given = (*init.args, *init.keywords.values()) if is_partial else ()
    for module, name in _SEEDERS:
        theirs: dict[str, Any] = getattr(sys.modules.get(module), "__dict__", {})
        if theirs.get(name) is not function or type(function) is not FunctionType:
            continue
        is_sound = set(map(type, given)) <= {int} and _takes_a_number(init)
        return name if is_sound and function.__globals__ is theirs else ""
    return ""


def _takes_a_number(function: Callable[..., Any]) -> bool:
    """Tell whether a call with one argument fits the parameters of a function or partial."""
    try:
        inspect.signature(function).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def _check_singles(loader: DataLoader[Any], path: str, dataset: object) -> None:
    """Raise NotCoveredError for single samples that C does not make, and for a sampler that may
    yield lists of rows, which index only some datasets."""
    kind = kind_of(dataset)
    if kind == "ImageFolder":
        raise NotCoveredError("a single sample of an ImageFolder has an int, as torchvision's")
    if kind == "Dataset":
        raise NotCoveredError("a single sample of a datasets.Dataset has other types than a batch")
    if yields_ints(loader.sampler):
        if path != "array" and columns.gives_views(dataset, loader.num_workers):
            raise NotCoveredError("single samples are views of the data, as torch's")
        return
    name = "" if kind in _TAKE_LISTS else type(dataset).__name__
    if kind == "ArrayDataset":
        name = "RaggedArray" if _has_sequences(dataset) else ""
    leave_if(name, f"the sampler may yield values that do not index a {name}")


def _is_hugging_face(dataset: object, collate_fn: object) -> bool:
    """Tell whether these are a datasets.Dataset and a collate function of transformers."""
    module = str(look_up(collate_fn, "__module__", ""))
    return kind_of(dataset) == "Dataset" and module.startswith("transformers.")


def _taker_of(loader: DataLoader[Any], dataset: object, is_hugging: bool) -> columns.Taker | None:
    if kind_of(loader.collate_fn) in SEQUENCE_COLLATES:
        from fastloop.loader.arrays.sequences import take_sequences

        return functools.partial(take_sequences, collate_fn=loader.collate_fn)
    if not loader._auto_collation and _has_sequences(dataset):
        from fastloop.loader.arrays.sequences import take_ragged

        return take_ragged
    if loader._auto_collation and type(dataset).__module__.startswith("torchvision.datasets."):
        from fastloop.loader.arrays.vision import take_vision

        return functools.partial(take_vision, loader=loader)
    is_torchs = type(loader.batch_sampler) is torch_data.BatchSampler
    if type(dataset) in (list, tuple) and is_torchs and yields_ints(loader.sampler):
        return functools.partial(columns.take_samples, loader=loader)
    if kind_of(dataset) != "Dataset":
        return None
    from fastloop.loader.arrays.hugging_face import take_collated, take_formatted

    if is_hugging:
        return functools.partial(take_collated, collate_fn=loader.collate_fn)
    return take_formatted


def _has_sequences(dataset: Any) -> bool:
    """Tell whether `dataset` is an ArrayDataset with RaggedArrays."""
    is_array = kind_of(dataset) == "ArrayDataset"
    return is_array and not all(isinstance(field, Field) for field in dataset._fields)
