"""The path of a loader, and why. It is chosen anew at every ``iter()``.

The array path takes exact types only, because a subclass may override anything. Torch's own code
runs for every other loader.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data.distributed import DistributedSampler

from fastloop.base.torch_parts import (
    BaseIter,
    MapFetcher,
    Methods,
    MultiIter,
    SingleIter,
    default_collate,
    default_convert,
    difference,
    is_known,
    new_arguments,
)
from fastloop.data.collate import is_default_collate
from fastloop.data.kinds import (
    derives_from_array_dataset,
    is_array_dataset,
    is_image_folder,
    is_sequence_collate,
)
from fastloop.data.samplers import ShuffleSampler
from fastloop.loader.arrays.columns import NotCoveredError
from fastloop.loader.arrays.hugging_face import is_hugging_face
from fastloop.loader.arrays.source import Source, below_subsets, gives_views, open_source
from fastloop.loader.resume.dataset_epochs import datasets_within

PATHS = ("auto", "array", "process", "thread", "sync", "torch")
# An index of these datasets, and of an ArrayDataset, may be a list of rows.
_TAKE_LISTS = (torch_data.TensorDataset, torch.Tensor, np.ndarray, np.memmap)
# These samplers yield ints and nothing else.
_INT_SAMPLERS = (
    DistributedSampler,
    torch_data.RandomSampler,
    torch_data.SequentialSampler,
    ShuffleSampler,
    torch_data.WeightedRandomSampler,
)
_NESTING = (torch_data.ConcatDataset, torch_data.StackDataset, torch_data.Subset)
_SAMPLE_METHODS = Methods(
    *(
        (cls, name)
        for cls in (*_NESTING, torch_data.TensorDataset)
        for name in ("__getitem__", "__getitems__")
    ),
    (MapFetcher, "fetch"),
)
_ITER_METHODS = Methods(
    *((cls, "__next__") for cls in (BaseIter, SingleIter, MultiIter)),
    *((cls, "_next_data") for cls in (SingleIter, MultiIter)),
    (BaseIter, "_next_index"),
)
# Functions that frameworks set as worker_init_fn: (module, function). They seed the random
# generators of a worker process and do nothing else; no Python runs in the array path's threads.
_SEEDERS = (
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
)


@dataclass(frozen=True)
class Route:
    path: str
    why: str
    source: Source | None = None


def choose_route(
    loader: DataLoader[Any], path: str = "auto", pin: bool = False, changed: str = ""
) -> Route:
    """Return the path that any torch ``DataLoader`` takes now.

    Args:
        path: as the argument of ``fastloop.DataLoader``.
        pin: an iterator will be made, so storages may be marked; else nothing is changed.
        changed: why threads that read the data during the epoch would not give torch's batches,
            or "".

    Raises:
        ValueError: ``path`` demands a path that does not take this loader.
    """
    for group in ("loader", "tensors"):
        if not is_known(group, "Loaders are left"):
            return Route("torch", difference(group))
    for name, default in new_arguments().items():
        if getattr(loader, name, default) is not default:
            return Route("torch", f"this version of fastloop does not know the argument {name}")
    if replaced := name_replaced_iterator():
        return Route("torch", f"torch's {replaced} was replaced by another")
    route = _choose(loader, path, pin, changed)
    if is_known(route.path, f"Loaders with path={route.path!r} are left"):
        return route
    return Route("torch", difference(route.path))


def name_replaced_iterator() -> str:
    """Return the name of a method of torch's iterators that was replaced by another, or ""."""
    return _ITER_METHODS.find_replaced()


def _choose(loader: DataLoader[Any], path: str, pin: bool, changed: str) -> Route:
    other = "process" if loader.num_workers > 0 else "sync"
    if path == "thread":
        _check_threads(loader)
    elif path != "torch" and isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return Route("torch", "the dataset is a data pipe")
    elif path in ("process", "sync") and path != other:
        raise ValueError(
            f"path={path!r} cannot load with num_workers={loader.num_workers}; 'process' needs "
            f"worker processes, 'sync' has none; use path={other!r}"
        )
    if path not in ("auto", "array"):
        return Route(path, f"path={path!r} was asked for")
    if changed and path == "auto" and loader.num_workers > 0:
        return Route("process", changed)
    _check_transforms(loader.dataset, path, other)
    try:
        return _array_route(loader, path, pin)
    except NotCoveredError as reason:
        if path == "array":
            raise ValueError(
                f"path='array' cannot load this: {reason}; use path='auto' for any dataset"
            ) from None
        return Route(other, str(reason))


def _check_threads(loader: DataLoader[Any]) -> None:
    """Raise ValueError for a loader that worker threads cannot serve."""
    dataset, workers, context = loader.dataset, loader.num_workers, loader.multiprocessing_context
    faults = {
        "with num_workers=0; pass the number of threads, or use path='sync', which has none": (
            workers == 0
        ),
        f"with multiprocessing_context={context!r}, as no process is started; leave it out, or use "
        "path='process'": context is not None,
        f"a DataPipe ({type(dataset).__name__}), which asks in which worker process it is; use "
        "path='process'": isinstance(dataset, IterDataPipe | MapDataPipe),
        f"an IterableDataset with num_workers={workers}: each thread would give all of it, as "
        "get_worker_info() is None in threads; pass num_workers=1, which reads ahead, or use "
        "path='process'": isinstance(dataset, IterableDataset) and workers > 1,
    }
    for fault, applies in faults.items():
        if applies:
            raise ValueError(f"path='thread' cannot load {fault}")


def _check_transforms(dataset: object, path: str, other: str) -> None:
    """Refuse a transform that C cannot run. Python would run it slower, and with other random
    numbers, so the user must ask for that path."""
    for found in datasets_within(dataset):
        if derives_from_array_dataset(found) and found._untranslated:
            raise ValueError(
                f"path={path!r} cannot load this: {found._untranslated}; use path={other!r}, which "
                "calls it for every sample"
            )


def _array_route(loader: DataLoader[Any], path: str, pin: bool) -> Route:
    """Return the array path. Raises NotCoveredError."""
    is_sequence = loader._auto_collation and is_sequence_collate(loader.collate_fn)
    has_init = loader.num_workers > 0 and loader.worker_init_fn is not None
    seeder = _name_seeder(loader.worker_init_fn) if has_init else ""
    if replaced := _SAMPLE_METHODS.find_replaced():
        raise NotCoveredError(f"torch's {replaced} was replaced by another")
    if not _has_default_collate(loader, is_sequence):
        raise NotCoveredError(
            difference("collate")
            or "collate_fn is not torch's default, or its registry was extended"
        )
    if has_init and not seeder:
        raise NotCoveredError("worker_init_fn runs in worker processes")
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise NotCoveredError("prefetch_factor is 0")
    if not loader._auto_collation:
        _check_singles(loader, path)
    source = open_source(loader.dataset, pin and loader.num_workers > 0, loader.collate_fn)
    collate = type(loader.collate_fn).__name__ if is_sequence else "default collate"
    why = f"{type(loader.dataset).__name__} of {source.kind}, {collate}"
    if getattr(source.dataset, "_transforms", None):
        why += ", transforms in C"
    if seeder:
        why += f"; {seeder} has nothing to seed in threads of C"
    return Route("array", why, source)


def _has_default_collate(loader: DataLoader[Any], is_sequence: bool) -> bool:
    if not loader._auto_collation:
        return loader.collate_fn is default_convert
    # PadCollate and PackCollate collate fields without sequences by torch's default.
    return is_default_collate(default_collate if is_sequence else loader.collate_fn)


def _name_seeder(init: Any) -> str:
    """Return the name of a worker_init_fn, or of the function of a partial, that only seeds; or
    ""."""
    function = init.func if type(init) is functools.partial else init
    for module, name in _SEEDERS:
        # A program that has the function has imported its module. A function that others have put
        # into that module has another __module__.
        is_there = function is getattr(sys.modules.get(module), name, None)
        if is_there and getattr(function, "__module__", None) == module:
            return name
    return ""


def _check_singles(loader: DataLoader[Any], path: str) -> None:
    """Raise NotCoveredError for single samples that are no arrays, and for a sampler that may yield
    lists where the dataset has no such sample."""
    dataset = below_subsets(loader.dataset)
    if is_image_folder(dataset):
        raise NotCoveredError("a single sample of an ImageFolder has an int, as torchvision's")
    if is_hugging_face(dataset):
        raise NotCoveredError("a single sample of a datasets.Dataset has other types than a batch")
    if type(loader.sampler) in _INT_SAMPLERS:
        if path != "array" and gives_views(loader):
            raise NotCoveredError("single samples are views of the data, as torch's")
        return
    name = "" if type(dataset) in _TAKE_LISTS else type(dataset).__name__
    if is_array_dataset(dataset):
        from fastloop.data.sequences.ragged import RaggedField

        is_ragged = any(isinstance(field, RaggedField) for field in dataset._fields)
        name = "RaggedArray" if is_ragged else ""
    if name:
        raise NotCoveredError(f"the sampler may yield what is no index of a {name}")
