"""Columns: array data as the C core takes it, and what of torch's tensors it does not take."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from fastloop._core import ImagePlan, SequenceColumn, Table, Windows
from fastloop.base.moves import watch
from fastloop.base.tensors import DTYPES
from fastloop.data.field import Array, Field, MappedFile, torch_dtype
from fastloop.data.index_blocks import Vector
from fastloop.data.kinds import is_array_dataset, is_image_folder, is_token_dataset

if TYPE_CHECKING:
    from fastloop.data.arrays import ArrayDataset


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


# Those that C gathers: DLPack's, of which this one is left to torch.
_DTYPES = {dtype for number, dtype in DTYPES.items() if number >= 0} - {torch.float8_e8m0fnu}


def check_tensor(name: str, tensor: object) -> None:
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


def pin_storage(tensor: torch.Tensor) -> torch.Tensor:
    """An alias whose storage cannot be resized, so that threads may read it.

    torch marks a storage that it shares with NumPy as not resizable, for good.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return tensor.detach()


Rows = torch.Tensor | Array
# What lies around the outputs of a batch, as C has it: None for the next output, a tuple of
# structures for a list, a dict of structures for a dict.
Structure = Any


class Segment(NamedTuple):
    """Rows of one array: all of them, or those in a vector."""

    array: Rows
    rows: Vector | int
    file: MappedFile | None


Origin = Rows | SequenceColumn | Windows | tuple[Segment, ...]


@dataclass(frozen=True)
class Column:
    """What C makes one or more outputs of."""

    name: str
    source: Origin
    file: MappedFile | None = None
    plan: ImagePlan | None = None
    is_array: bool = False  # samples have NumPy's rows, which collate otherwise than tensors
    cast: str | None = None  # the dtype of batches, where it is another: int64 or float32

    def segments(self) -> tuple[Segment, ...]:
        """Raises NotCoveredError where it is more than rows that are copied."""
        source = self.source
        if isinstance(source, tuple):
            return source
        if self.plan is not None or not isinstance(source, (torch.Tensor, np.ndarray)):
            raise NotCoveredError(f"{self.name} is not of plain arrays, within another dataset")
        return (Segment(source, len(source), self.file),)

    def for_core(self, pin: bool) -> tuple[Any, Any]:
        """Source and file as ``Table`` takes them; `pin` as ``find_source`` has it."""
        if not isinstance(self.source, tuple):
            return _pinned(self.source) if pin else self.source, self.file
        source: list[Any] = []
        for array, rows, _ in self.source:
            source += (_pinned(array) if pin else array, rows)
        return tuple(source), tuple(segment.file for segment in self.source)


def _pinned(source: Any) -> Any:
    return pin_storage(source) if isinstance(source, torch.Tensor) else source


class Held(NamedTuple):
    """What a dataset holds in an attribute, to which users may assign something else."""

    owner: Any
    name: str
    value: Any
    items: tuple[Any, ...] | None  # of a list or dict, which users may change

    @classmethod
    def of(cls, owner: Any, name: str) -> Held:
        value = getattr(owner, name)
        return cls(
            owner, name, value, tuple(_items(value)) if type(value) in (list, dict) else None
        )

    def is_stale(self) -> bool:
        """Whether they have."""
        value, items = getattr(self.owner, self.name), self.items
        if value is not self.value:
            return True
        if items is None:
            return False
        return len(value) != len(items) or any(map(operator.is_not, _items(value), items))


def _items(value: Any) -> Iterator[Any]:
    return iter(value.values() if type(value) is dict else value)


@dataclass
class Columns:
    """What a table is made of, and the structure of a batch."""

    structure: Structure
    all: list[Column] = dataclass_field(default_factory=list)
    held: list[Held] = dataclass_field(default_factory=list)

    def table(self, pin: bool) -> Table:
        """Args: pin: as ``find_source`` has it."""
        pairs = [column.for_core(pin) for column in self.all]
        sources, files = tuple(zip(*pairs, strict=True)) or ((), ())
        names, plans, casts = (
            tuple(getattr(column, name) for column in self.all) for name in ("name", "plan", "cast")
        )
        table = Table(sources, torch.Tensor, names, files, plans, casts)
        watch(table)
        return table

    def add(
        self,
        name: str,
        source: Origin,
        file: MappedFile | None = None,
        plan: ImagePlan | None = None,
        is_array: bool = False,
        cast: str | None = None,
    ) -> None:
        """Raises NotCoveredError for a tensor that C does not gather from."""
        if isinstance(source, torch.Tensor):
            check_tensor(name, source)
        self.all.append(Column(name, source, file, plan, is_array, cast))


def is_same_structure(a: Structure, b: Structure) -> bool:
    """Of the same types, and with the same keys in the same order."""
    if type(a) is not type(b) or a is None or len(a) != len(b):
        return a is b
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_same_structure(a[key], b[key]) for key in a)
    return all(map(is_same_structure, a, b))


def list_of(count: int) -> Structure:
    """A list of so many outputs."""
    return (None,) * count


def _columns_of_arrays(dataset: ArrayDataset) -> Columns:
    from fastloop.data.sequences.ragged import RaggedField

    if dataset._untranslated:
        raise NotCoveredError(dataset._untranslated)
    keys = dataset._keys
    columns = Columns(dict.fromkeys(keys) if keys else list_of(len(dataset._fields)))
    for field, plan in zip(dataset._fields, dataset._plans, strict=True):
        if isinstance(field, RaggedField):
            raise NotCoveredError(
                f"{field.name} is a RaggedArray; pass PadCollate or PackCollate as collate_fn"
            )
        columns.add(field.name, field.source, field.file, plan)
    return columns


@functools.cache
def _collated(dtype: np.dtype[Any], is_number: bool) -> torch.dtype | None:
    """What torch makes of NumPy's rows or numbers; None: it refuses them."""
    sample = np.zeros(() if is_number else 1, dtype)
    try:
        found: torch.dtype = default_collate([sample[()]]).dtype
    except (TypeError, ValueError, RuntimeError):
        return None
    return found


def _check_array(name: str, array: Array) -> None:
    """Rows that torch refuses are left to it."""
    if _collated(array.dtype, array.ndim == 1) is not torch_dtype(array):
        raise NotCoveredError(f"{name} has rows of {array.dtype}, of which torch makes others")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides[1:]):
        raise NotCoveredError(f"{name} has rows of strides {array.strides[1:]}")


def add_rows(columns: Columns, name: str, rows: object) -> None:
    """Those of a tensor or an array that is indexed itself."""
    if isinstance(rows, np.ndarray) and type(rows) in (np.ndarray, np.memmap):
        field = Field(name, rows)
        assert isinstance(field.source, np.ndarray)
        _check_array(name, field.source)
        columns.add(name, field.source, field.file, is_array=True)
        return
    if type(rows) is not torch.Tensor:
        raise NotCoveredError(f"{name} is a {type(rows).__name__}, not plain array data")
    columns.add(name, rows)


def columns_of(dataset: object) -> Columns:
    """Those of a dataset that is not made of others. Raises NotCoveredError."""
    if is_image_folder(dataset):
        if dataset._arrays is None:
            raise NotCoveredError(
                "the files of an ImageFolder without cache= are decoded in Python"
            )
        dataset = dataset._arrays
    if is_array_dataset(dataset):
        return _columns_of_arrays(dataset)
    if type(dataset) is TensorDataset:
        columns = Columns(list_of(len(dataset.tensors)), held=[Held.of(dataset, "tensors")])
        for i, tensor in enumerate(dataset.tensors):
            columns.add(f"tensor {i}", tensor)
        return columns
    if is_token_dataset(dataset):
        is_alone = dataset._keys is None and dataset._arguments.targets is None
        names = dict.fromkeys(dataset._keys) if dataset._keys else list_of(2)
        columns = Columns(None if is_alone else names)
        columns.add("tokens", dataset._windows)
        return columns
    columns = Columns(None)
    add_rows(columns, "the dataset", dataset)
    return columns
