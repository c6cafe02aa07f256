"""Which path a loader takes, and why. It is decided anew at every ``iter()``.

The array path takes exact types only, because a subclass may override anything. What it does not
take runs torch's own code.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop._core import Table
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
from fastloop.data.epochs import datasets_within
from fastloop.data.index_blocks import Vector
from fastloop.data.kinds import (
    derives_from_array_dataset,
    is_array_dataset,
    is_image_folder,
    is_sequence_collate,
    is_token_dataset,
)
from fastloop.data.samplers import ShuffleSampler
from fastloop.loader.arrays.columns import Held, NotCoveredError, Structure
from fastloop.loader.arrays.nested import columns_within, find_rows
from fastloop.loader.arrays.packages import (
    columns_of_hugging_face,
    indices_of_hugging_face,
    is_hugging_face,
)

# What an index that is a list takes of them, and of an ArrayDataset, are the rows in it.
_TAKE_LISTS = (TensorDataset, torch.Tensor, np.ndarray, np.memmap)
PATHS = ("auto", "array", "process", "thread", "sync", "torch")
# Those that yield ints and nothing else.
_INDEX_SAMPLERS = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    ShuffleSampler,
    WeightedRandomSampler,
)
_SAMPLE_METHODS = Methods(
    *(
        (cls, name)
        for cls in (ConcatDataset, Dataset, StackDataset, Subset, TensorDataset)
        for name in ("__getitem__", "__getitems__")
    ),
    (MapFetcher, "fetch"),
)
_ITER_METHODS = Methods(
    *((cls, "__next__") for cls in (BaseIter, SingleIter, MultiIter)),
    *((cls, "_next_data") for cls in (SingleIter, MultiIter)),
    (BaseIter, "_next_index"),
)


@dataclass(frozen=True)
class Source:
    """Array data as the C core takes it."""

    table: Table
    structure: Structure  # of a batch
    maps: tuple[Vector, ...]
    dataset: Any  # below its Subsets
    held: tuple[Held, ...]

    def is_stale(self) -> bool:
        """Whether users have put others into the dataset."""
        return any(map(Held.is_stale, self.held))


@dataclass(frozen=True)
class Route:
    path: str
    why: str
    source: Source | None = None


def find_source(dataset: object, pin: bool, collate_fn: object = default_collate) -> Source:
    """The arrays behind a dataset. Raises NotCoveredError.

    Args:
        dataset: any.
        pin: threads will read ahead, so keep the storages of tensors from being resized.
        collate_fn: torch's default; a PadCollate or PackCollate; ``default_convert``: samples are
            taken one by one.
    """
    maps: list[Vector] = []
    while type(dataset) is Subset:
        maps.insert(0, find_rows(dataset.indices))
        dataset = dataset.dataset
    try:
        columns = None
        if is_sequence_collate(collate_fn) or (
            collate_fn is default_convert and is_array_dataset(dataset)
        ):
            from fastloop.loader.arrays.sequences import columns_of_sequences

            columns = columns_of_sequences(dataset, collate_fn)
        if columns is None and is_hugging_face(dataset):
            columns = columns_of_hugging_face(dataset)
            indices = indices_of_hugging_face(dataset)
            maps[:0] = [] if indices is None else [indices]
        columns = columns or columns_within(dataset)
        table = columns.table(pin)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    return Source(table, columns.structure, tuple(maps), dataset, tuple(columns.held))


def _has_sequence_collate(loader: DataLoader[Any]) -> bool:
    return loader._auto_collation and is_sequence_collate(loader.collate_fn)


def _has_default_collate(loader: DataLoader[Any]) -> bool:
    if not loader._auto_collation:
        return loader.collate_fn is default_convert
    # Theirs is used for fields that are no sequences.
    is_sequence = _has_sequence_collate(loader)
    return is_default_collate(default_collate if is_sequence else loader.collate_fn)


# What frameworks set as worker_init_fn: (module, function). They seed the random generators of a
# worker process and do nothing else; no Python runs in the array path's workers.
_SEEDERS = (
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("transformers.trainer_utils", "seed_worker"),
)


def _find_seeder(init: Any) -> str | None:
    """The name of a worker_init_fn that only seeds, or is a partial of one that does; or None."""
    function = init.func if type(init) is functools.partial else init
    for module, name in _SEEDERS:
        # Nothing is imported: whoever has the function has imported its module. A function that was
        # put into that module by others has another __module__.
        is_there = function is getattr(sys.modules.get(module), name, None)
        if is_there and getattr(function, "__module__", None) == module:
            return name
    return None


def _has_worker_init(loader: DataLoader[Any]) -> bool:
    """Whether a worker_init_fn is called: without workers torch never does."""
    return loader.num_workers > 0 and loader.worker_init_fn is not None


def _check_transforms(dataset: object, path: str, other: str) -> None:
    """What runs as it is needs a path that runs Python for every sample, which is to be asked for:
    it does not have the speed nor the random numbers of this dataset."""
    for found in datasets_within(dataset):
        if derives_from_array_dataset(found) and found._untranslated:
            raise ValueError(
                f"path={path!r} cannot load this: {found._untranslated}; use path={other!r}, which "
                "runs it as it is"
            )


def _below_subsets(dataset: object) -> object:
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def gives_views(loader: DataLoader[Any]) -> bool:
    """Whether torch's own code gives views of the data with batch_size=None."""
    dataset = _below_subsets(loader.dataset)
    is_fastloops = is_array_dataset(dataset) or is_token_dataset(dataset)
    return loader.num_workers == 0 and not is_fastloops


def _check_singles(loader: DataLoader[Any], path: str) -> None:
    """Single samples of C's are arrays; and a sampler of the user's may yield lists: of sequences
    there is no such sample."""
    dataset = _below_subsets(loader.dataset)
    if is_image_folder(dataset):
        raise NotCoveredError("a single sample of an ImageFolder has an int, as torchvision's")
    if is_hugging_face(dataset):
        raise NotCoveredError("a single sample of a datasets.Dataset has other types than a batch")
    if type(loader.sampler) in _INDEX_SAMPLERS:
        if path != "array" and gives_views(loader):
            raise NotCoveredError("single samples are views of the data, as torch's")
        return
    if is_array_dataset(dataset):
        from fastloop.data.sequences.ragged import RaggedField

        if any(isinstance(field, RaggedField) for field in dataset._fields):
            raise NotCoveredError("the sampler may yield what is no index of a RaggedArray")
    elif type(dataset) not in _TAKE_LISTS:
        name = type(dataset).__name__
        raise NotCoveredError(f"the sampler may yield what is no index of a {name}")


def _array_source(loader: DataLoader[Any], path: str, pin: bool) -> Source:
    if replaced := _SAMPLE_METHODS.find_replaced():
        raise NotCoveredError(f"torch's {replaced} was replaced by another")
    if not _has_default_collate(loader):
        raise NotCoveredError(
            difference("collate")
            or "collate_fn is not torch's default, or its registry was extended"
        )
    if _has_worker_init(loader) and _find_seeder(loader.worker_init_fn) is None:
        raise NotCoveredError("worker_init_fn runs in worker processes")
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise NotCoveredError("prefetch_factor is 0")
    if not loader._auto_collation:
        _check_singles(loader, path)
    return find_source(loader.dataset, pin and loader.num_workers > 0, loader.collate_fn)


def _check_threads(loader: DataLoader[Any]) -> None:
    """Raises ValueError for what worker threads cannot load."""
    what = ""
    if loader.num_workers == 0:
        what = "with num_workers=0; pass the number of threads, or use path='sync', which has none"
    elif loader.multiprocessing_context is not None:
        context = loader.multiprocessing_context
        what = f"with multiprocessing_context={context!r}, as no process is started; leave it out, "
        what += "or use path='process'"
    elif isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        what = f"a DataPipe ({type(loader.dataset).__name__}), which asks in which worker process "
        what += "it is; use path='process'"
    elif isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
        what = f"an IterableDataset with num_workers={loader.num_workers}: each thread would give "
        what += "all of it, as get_worker_info() is None in threads; pass num_workers=1, which "
        what += "reads ahead, or use path='process'"
    if what:
        raise ValueError(f"path='thread' cannot load {what}")


def find_replaced_iterator() -> str:
    """The name of a method of torch's iterators that a tool or a user has replaced, or ""."""
    return _ITER_METHODS.find_replaced()


def find_route(
    loader: DataLoader[Any], path: str = "auto", pin: bool = False, changed: str = ""
) -> Route:
    """The path for any torch ``DataLoader``, now.

    Args:
        loader: any torch DataLoader.
        path: as the argument of ``fastloop.DataLoader``.
        pin: an iterator will be made, so storages may be marked; else nothing is changed.
        changed: why threads that read the data as they are would not give torch's batches, or "".

    Raises:
        ValueError: ``path`` demands a path that does not take this loader.
    """
    for group in ("loader", "tensors"):
        if not is_known(group, "Loaders are left"):
            return Route("torch", difference(group))
    for name, default in new_arguments().items():
        if getattr(loader, name, default) is not default:
            return Route(
                "torch", f"{name} is an argument that this version of fastloop does not know"
            )
    if replaced := find_replaced_iterator():
        return Route("torch", f"torch's {replaced} was replaced by another")
    route = _choose(loader, path, pin, changed)
    if is_known(route.path, f"Loaders with path={route.path!r} are left"):
        return route
    return Route("torch", difference(route.path))


def _choose(loader: DataLoader[Any], path: str, pin: bool, changed: str) -> Route:
    if path == "torch":
        return Route("torch", "path='torch' was asked for")
    if path == "thread":
        _check_threads(loader)
        return Route("thread", "path='thread' was asked for")
    other = "process" if loader.num_workers > 0 else "sync"
    if isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return Route("torch", "the dataset is a data pipe")
    if path in ("process", "sync"):
        if path != other:
            raise ValueError(
                f"path={path!r} cannot load with num_workers={loader.num_workers}; "
                "'process' needs worker processes, 'sync' runs without; use "
                f"path={other!r}"
            )
        return Route(path, f"path={path!r} was asked for")
    if changed and path == "auto" and loader.num_workers > 0:
        return Route("process", changed)
    _check_transforms(loader.dataset, path, other)
    try:
        source = _array_source(loader, path, pin)
    except NotCoveredError as reason:
        if path == "array":
            raise ValueError(
                f"path='array' cannot load this: {reason}; use path='auto' for any dataset"
            ) from None
        return Route(other, str(reason))
    what = "plain arrays"
    if is_token_dataset(source.dataset):
        what = "windows of tokens"
    elif is_image_folder(source.dataset):
        what = "cached images"
    elif is_hugging_face(source.dataset):
        what = "Arrow columns"
    collate = "default collate"
    if _has_sequence_collate(loader):
        collate = type(loader.collate_fn).__name__
    why = f"{type(loader.dataset).__name__} of {what}, {collate}"
    if getattr(source.dataset, "_transforms", None):
        why += ", transforms in C"
    if _has_worker_init(loader):
        why += f"; {_find_seeder(loader.worker_init_fn)} has nothing to seed in threads of C"
    return Route("array", why, source)
