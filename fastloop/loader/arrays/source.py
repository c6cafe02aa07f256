"""The table behind a dataset. Each *taker* knows one kind of dataset: it returns the columns, or
None for datasets of other kinds. ``open_source`` asks one after the other.

Takers look at exact types, because a subclass may override anything. An attribute that is assigned
to a dataset during an epoch is seen by the next ``iter()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from fastloop._core import Table
from fastloop.base.torch_parts import default_convert
from fastloop.data.field import Array, Field, torch_dtype
from fastloop.data.index_blocks import Vector, as_vector
from fastloop.data.kinds import (
    is_array_dataset,
    is_image_folder,
    is_sequence_collate,
    is_token_dataset,
)
from fastloop.loader.arrays.columns import (
    Column,
    Columns,
    NotCoveredError,
    Segment,
    Structure,
    list_of,
)
from fastloop.loader.arrays.hugging_face import take_hugging_face


@dataclass(frozen=True)
class Source:
    """Array data as the C core takes it.

    Attributes:
        structure: of a batch.
        maps: the rows that Subsets and selections of Hugging Face leave, innermost first.
        dataset: below its Subsets.
        kind: the kind of data, for ``stats().why``.
    """

    table: Table
    structure: Structure
    maps: tuple[Vector, ...]
    dataset: Any
    kind: str


def open_source(dataset: Any, pin: bool, collate_fn: object = default_collate) -> Source:
    """Open the table of a dataset. Raises NotCoveredError.

    Args:
        dataset: any.
        pin: threads will read ahead, so keep the storages of tensors from being resized.
        collate_fn: torch's default; a PadCollate or PackCollate; ``default_convert``: samples are
            taken one by one.
    """
    maps: list[Vector] = []
    while type(dataset) is Subset:
        maps.insert(0, _rows_of(dataset))
        dataset = dataset.dataset
    sequences = functools.partial(_take_sequences, collate_fn=collate_fn)
    try:
        columns = _take(dataset, (sequences, take_hugging_face, *_TAKERS))
        table = columns.table(pin)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    if columns.rows is not None:
        maps.insert(0, columns.rows)
    return Source(table, columns.structure, tuple(maps), dataset, columns.kind)


def below_subsets(dataset: Any) -> Any:
    """Return the dataset that Subsets within each other take their samples from."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def gives_views(loader: DataLoader[Any]) -> bool:
    """Tell whether torch's own code gives views of the data with ``batch_size=None``."""
    dataset = below_subsets(loader.dataset)
    is_fastloops = is_array_dataset(dataset) or is_token_dataset(dataset)
    return loader.num_workers == 0 and not is_fastloops


def _take(dataset: object, takers: Sequence[Callable[[Any], Columns | None]]) -> Columns:
    for take in takers:
        columns = take(dataset)
        if columns is not None:
            return columns
    columns = Columns(None)
    _add_rows(columns, "the dataset", dataset)
    return columns


# ---- datasets that hold the arrays themselves


def _take_sequences(dataset: object, collate_fn: object) -> Columns | None:
    is_single = collate_fn is default_convert and is_array_dataset(dataset)
    if not (is_single or is_sequence_collate(collate_fn)):
        return None
    from fastloop.loader.arrays.sequences import columns_of_sequences

    return columns_of_sequences(dataset, collate_fn)


def _take_arrays(dataset: object) -> Columns | None:
    if not is_array_dataset(dataset):
        return None
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


def _take_images(dataset: object) -> Columns | None:
    if not is_image_folder(dataset):
        return None
    if dataset._arrays is None:
        raise NotCoveredError("the files of an ImageFolder without cache= are decoded in Python")
    columns = _take(dataset._arrays, (_take_arrays,))
    columns.kind = "cached images"
    return columns


def _take_tokens(dataset: object) -> Columns | None:
    if not is_token_dataset(dataset):
        return None
    is_alone = dataset._keys is None and dataset._arguments.targets is None
    names = dict.fromkeys(dataset._keys) if dataset._keys else list_of(2)
    columns = Columns(None if is_alone else names, kind="windows of tokens")
    columns.add("tokens", dataset._windows)
    return columns


def _take_tensors(dataset: object) -> Columns | None:
    if not isinstance(dataset, TensorDataset) or type(dataset) is not TensorDataset:
        return None
    columns = Columns(list_of(len(dataset.tensors)))
    for i, tensor in enumerate(dataset.tensors):
        columns.add(f"tensor {i}", tensor)
    return columns


@functools.cache
def _collated(dtype: np.dtype[Any], is_number: bool) -> torch.dtype | None:
    """Return the dtype that torch makes of rows or numbers of NumPy; None: it refuses them."""
    sample = np.zeros(() if is_number else 1, dtype)
    try:
        found: torch.dtype = default_collate([sample[()]]).dtype
    except (TypeError, ValueError, RuntimeError):
        return None
    return found


def _check_array(name: str, array: Array) -> None:
    """Leave rows to torch that it refuses or collates otherwise."""
    if _collated(array.dtype, array.ndim == 1) is not torch_dtype(array):
        raise NotCoveredError(f"{name} has rows of {array.dtype}, of which torch makes others")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides[1:]):
        raise NotCoveredError(f"{name} has rows of strides {array.strides[1:]}")


def _add_rows(columns: Columns, name: str, rows: object) -> None:
    """Add a tensor or an array that is a dataset itself."""
    if isinstance(rows, np.ndarray) and type(rows) in (np.ndarray, np.memmap):
        field = Field(name, rows)
        assert isinstance(field.source, np.ndarray)
        _check_array(name, field.source)
        columns.add(name, field.source, field.file, is_array=True)
    elif type(rows) is torch.Tensor:
        columns.add(name, rows)
    else:
        raise NotCoveredError(f"{name} is a {type(rows).__name__}, not plain array data")


# ---- datasets that are made of others


def _rows_of(dataset: Subset[Any]) -> Vector:
    rows = as_vector(dataset.indices)
    if rows is None:
        raise NotCoveredError("the indices of the Subset are not plain integers")
    return rows


def _pick(column: Column, rows: Vector) -> Column:
    segment, *others = column.segments()
    if others:
        raise NotCoveredError("a Subset of a ConcatDataset lies within another dataset")
    length = segment.length
    if len(rows) and not -length <= rows.min() <= rows.max() < length:
        raise NotCoveredError(f"an index of a Subset is out of range for {length} rows")
    rows = np.where(rows < 0, rows + length, rows)
    taken = rows if isinstance(segment.rows, int) else segment.rows[rows]
    return Column(column.name, (segment._replace(rows=taken),), is_array=column.is_array)


def _take_subset(dataset: Any) -> Columns | None:
    if type(dataset) is not Subset:
        return None
    rows = _rows_of(dataset)
    inner = _take(dataset.dataset, _TAKERS)
    return Columns(inner.structure, [_pick(column, rows) for column in inner.all])


def _take_stack(dataset: Any) -> Columns | None:
    if type(dataset) is not StackDataset:
        return None
    parts: Any = dataset.datasets
    is_dict = isinstance(parts, dict)
    pairs = parts.items() if is_dict else enumerate(parts)
    found = {key: _take(part, _TAKERS) for key, part in pairs}
    structures = {key: columns.structure for key, columns in found.items()}
    stack = Columns(structures if is_dict else tuple(structures.values()))
    for key, columns in found.items():
        for column in columns.all:
            name = f"datasets[{key!r}], {column.name}"
            source: Any = column.segments()
            file = None
            if len(source) == 1 and isinstance(source[0].rows, int):
                source, _, file = source[0]  # a whole array needs no segments
            stack.add(name, source, file, is_array=column.is_array)
    return stack


def _join(columns: Sequence[Column], lengths: Sequence[int]) -> Column:
    """Join the columns of the parts of a ConcatDataset, which has so many rows of each."""
    first = columns[0]
    if any(column.is_array is not first.is_array for column in columns):
        raise NotCoveredError("a ConcatDataset has tensors in one dataset, ndarrays in another")
    segments: list[Segment] = []
    for column, length in zip(columns, lengths, strict=True):
        found = column.segments()
        rows = sum(segment.length for segment in found)
        if rows != length:
            raise NotCoveredError(
                f"the ConcatDataset was made when {column.name} had {length} rows, "
                f"and it has {rows}"
            )
        segments += found
    return Column(first.name, tuple(segments), is_array=first.is_array)


def _is_same_structure(a: Structure, b: Structure) -> bool:
    """Tell whether types and keys are the same, in the same order."""
    if type(a) is not type(b) or a is None or len(a) != len(b):
        return a is b
    if isinstance(a, dict):
        return list(a) == list(b) and all(_is_same_structure(a[key], b[key]) for key in a)
    return all(map(_is_same_structure, a, b))


def _take_concat(dataset: Any) -> Columns | None:
    if type(dataset) is not ConcatDataset:
        return None
    lengths = np.diff(dataset.cumulative_sizes, prepend=0).tolist()
    # torch takes no sample of empty parts, so they may be of other kinds.
    pairs = list(zip(dataset.datasets, lengths, strict=True))
    pairs = [pair for pair in pairs if pair[1] > 0] or pairs[:1]
    parts = [_take(part, _TAKERS) for part, _ in pairs]
    structure = parts[0].structure
    if not all(_is_same_structure(part.structure, structure) for part in parts):
        raise NotCoveredError("a dataset of the ConcatDataset has samples of other structure")
    columns = zip(*(part.all for part in parts), strict=True)
    return Columns(structure, [_join(same, [length for _, length in pairs]) for same in columns])


_TAKERS = (
    _take_arrays,
    _take_tensors,
    _take_subset,
    _take_stack,
    _take_concat,
    _take_images,
    _take_tokens,
)
