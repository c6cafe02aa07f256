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
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data._utils.collate import default_convert

from fastloop import _core
from fastloop.base.tensors import DTYPES
from fastloop.data.arrays import ArrayDataset
from fastloop.data.collate import is_default_collate
from fastloop.data.field import Array, Field, MappedFile
from fastloop.data.ragged import RaggedField
from fastloop.loader.dataset_epochs import datasets_within
from fastloop.loader.index_blocks import Vector, as_vector

PATHS = ("auto", "array", "process", "sync", "torch")


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


@dataclass(frozen=True)
class Source:
    """Array data as the C core takes it."""

    table: _core.Table
    columns: tuple[torch.Tensor | Array, ...]  # one for each field
    keys: tuple[str, ...] | None
    maps: tuple[Vector, ...]
    dataset: Any  # the innermost
    tensors: object  # of a TensorDataset; users may assign others to its attribute

    def is_stale(self) -> bool:
        """Whether they have."""
        return self.tensors is not None and self.tensors is not self.dataset.tensors


@dataclass(frozen=True)
class Route:
    path: str
    why: str
    source: Source | None = None


# Those that C gathers: DLPack's, of which this one is left to torch.
_DTYPES = {dtype for number, dtype in DTYPES.items() if number >= 0} - {torch.float8_e8m0fnu}


def _check_tensor(name: str, tensor: object) -> None:
    if type(tensor) is not torch.Tensor:
        raise NotCoveredError(f"{name} is a {type(tensor).__name__}, not a plain torch.Tensor")
    reasons = {
        f"is on {tensor.device}": tensor.device.type != "cpu",
        f"has layout {tensor.layout}": tensor.layout is not torch.strided,
        "is nested": tensor.is_nested,
        "is quantized": tensor.is_quantized,
        "requires grad": tensor.requires_grad,
        "is a conjugate view": tensor.is_conj(),
        "is a negative view": tensor.is_neg(),
        "has no dimension to index": tensor.ndim == 0,
        f"has dtype {tensor.dtype}": tensor.dtype not in _DTYPES,
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotCoveredError(f"{name} {reason}")


def _pin_storage(tensor: torch.Tensor) -> torch.Tensor:
    """An alias whose storage cannot be resized, so that threads may read it.

    torch marks a storage that it shares with NumPy as not resizable, for good.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return tensor.detach()


@dataclass(frozen=True)
class _Columns:
    sources: list[torch.Tensor | Array]
    names: list[str]
    files: list[MappedFile | None]
    keys: tuple[str, ...] | None
    plans: tuple[_core.ImagePlan | None, ...]


def _columns_of(dataset: object) -> _Columns:
    if type(dataset) is ArrayDataset:
        if dataset._untranslated:
            raise NotCoveredError(dataset._untranslated)
        fields = [field for field in dataset._fields if isinstance(field, Field)]
        for ragged in dataset._fields:
            if isinstance(ragged, RaggedField):
                raise NotCoveredError(f"{ragged.name} is a RaggedArray")
        return _Columns(
            [field.source for field in fields],
            [field.name for field in fields],
            [field.file for field in fields],
            dataset._keys,
            dataset._plans,
        )
    if type(dataset) is TensorDataset:
        tensors: list[torch.Tensor | Array] = list(dataset.tensors)
        count = len(tensors)
        names = [f"tensor {i}" for i in range(count)]
        return _Columns(tensors, names, [None] * count, None, (None,) * count)
    raise NotCoveredError(f"the dataset is a {type(dataset).__name__}, not plain array data")


def find_source(dataset: object, pin: bool) -> Source:
    """The arrays behind a dataset. Raises NotCoveredError.

    Args:
        dataset: any.
        pin: threads will read ahead, so keep the storages of tensors from being resized.
    """
    maps: list[Vector] = []
    while type(dataset) is Subset:
        indices = as_vector(dataset.indices)
        if indices is None:
            raise NotCoveredError("the indices of the Subset are not plain integers")
        maps.insert(0, indices)
        dataset = dataset.dataset
    columns = _columns_of(dataset)
    sources, names = columns.sources, columns.names
    for name, source in zip(names, sources, strict=True):
        if not isinstance(source, np.ndarray):
            _check_tensor(name, source)
    try:
        if pin:
            sources = [s if isinstance(s, np.ndarray) else _pin_storage(s) for s in sources]
        files, plans = tuple(columns.files), columns.plans
        table = _core.Table(tuple(sources), torch.Tensor, tuple(names), files, plans)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    tensors = dataset.tensors if isinstance(dataset, TensorDataset) else None
    return Source(table, tuple(sources), columns.keys, tuple(maps), dataset, tensors)


def _has_default_collate(loader: DataLoader[Any]) -> bool:
    if not loader._auto_collation:
        return loader.collate_fn is default_convert
    return is_default_collate(loader.collate_fn)


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
        if isinstance(found, ArrayDataset) and found._untranslated:
            raise ValueError(
                f"path={path!r} cannot load this: {found._untranslated}; use path={other!r}, which "
                "runs it as it is"
            )


def _array_source(loader: DataLoader[Any], pin: bool) -> Source:
    if not _has_default_collate(loader):
        raise NotCoveredError("collate_fn is not torch's default, or its registry was extended")
    if _has_worker_init(loader) and _find_seeder(loader.worker_init_fn) is None:
        raise NotCoveredError("worker_init_fn runs in worker processes")
    if loader.num_workers > 0 and loader.prefetch_factor == 0:
        raise NotCoveredError("prefetch_factor is 0")
    return find_source(loader.dataset, pin and loader.num_workers > 0)


def find_route(loader: DataLoader[Any], path: str = "auto", pin: bool = False) -> Route:
    """The path for any torch ``DataLoader``, now.

    Args:
        loader: any torch DataLoader.
        path: as the argument of ``fastloop.DataLoader``.
        pin: an iterator will be made, so storages may be marked; else nothing is changed.

    Raises:
        ValueError: ``path`` demands a path that does not take this loader.
    """
    if path == "torch":
        return Route("torch", "path='torch' was asked for")
    other = "process" if loader.num_workers > 0 else "sync"
    if path in ("process", "sync"):
        if path != other:
            raise ValueError(
                f"path={path!r} cannot load with num_workers={loader.num_workers}; "
                "'process' needs worker processes, 'sync' runs without; use "
                f"path={other!r}"
            )
        return Route(path, f"path={path!r} was asked for")
    _check_transforms(loader.dataset, path, other)
    try:
        source = _array_source(loader, pin)
    except NotCoveredError as reason:
        if path == "array":
            raise ValueError(
                f"path='array' cannot load this: {reason}; use path='auto' for any dataset"
            ) from None
        return Route(other, str(reason))
    why = f"{type(loader.dataset).__name__} of plain arrays, default collate"
    if getattr(source.dataset, "_epoch", None) is not None:
        why += ", transforms in C"
    if _has_worker_init(loader):
        why += f"; {_find_seeder(loader.worker_init_fn)} has nothing to seed in threads of C"
    return Route("array", why, source)
