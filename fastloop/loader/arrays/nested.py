"""The columns of datasets that are made of others: Subset, StackDataset, ConcatDataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, StackDataset, Subset

from fastloop.data.index_blocks import Vector, as_vector
from fastloop.loader.arrays.columns import (
    Column,
    Columns,
    Held,
    NotCoveredError,
    Segment,
    columns_of,
    is_same_structure,
)
from fastloop.loader.arrays.packages import columns_of_skorch, is_skorch


def find_rows(indices: object) -> Vector:
    """Those of a Subset, as they are. Raises NotCoveredError."""
    rows = as_vector(indices)
    if rows is None:
        raise NotCoveredError("the indices of the Subset are not plain integers")
    return rows


def _length(segments: Sequence[Segment]) -> int:
    return sum(s.rows if isinstance(s.rows, int) else len(s.rows) for s in segments)


def _take(column: Column, rows: Vector) -> Column:
    segments = column.segments()
    if len(segments) > 1:
        raise NotCoveredError("a Subset of a ConcatDataset lies within another dataset")
    array, inner, file = segments[0]
    length = _length(segments)
    if len(rows) and not -length <= rows.min() <= rows.max() < length:
        raise NotCoveredError(f"an index of a Subset is out of range for {length} rows")
    rows = np.where(rows < 0, rows + length, rows)
    taken = rows if isinstance(inner, int) else inner[rows]
    return Column(column.name, (Segment(array, taken, file),), is_array=column.is_array)


def _columns_of_subset(dataset: Subset[Any]) -> Columns:
    rows = find_rows(dataset.indices)
    inner = columns_within(dataset.dataset)
    columns = [_take(column, rows) for column in inner.all]
    return Columns(inner.structure, columns, inner.held)


def _columns_of_stack(dataset: StackDataset[Any]) -> Columns:
    held = [Held.of(dataset, "datasets")]
    parts = dataset.datasets
    named = parts if isinstance(parts, dict) else dict(enumerate(parts))
    found = {key: columns_within(part) for key, part in named.items()}
    structures = {key: columns.structure for key, columns in found.items()}
    is_dict = isinstance(parts, dict)
    stack = Columns(structures if is_dict else tuple(structures.values()), held=held)
    for key, columns in found.items():
        stack.held += columns.held
        for column in columns.all:
            name = f"datasets[{key!r}], {column.name}"
            segments = column.segments()
            if len(segments) == 1 and isinstance(segments[0].rows, int):
                stack.add(name, segments[0].array, segments[0].file, is_array=column.is_array)
            else:
                stack.add(name, segments, is_array=column.is_array)
    return stack


def _join(columns: Sequence[Column], lengths: Sequence[int]) -> Column:
    """One column of several, each of so many rows."""
    first = columns[0]
    if any(column.is_array is not first.is_array for column in columns):
        raise NotCoveredError("a ConcatDataset has tensors in one dataset, ndarrays in another")
    segments: list[Segment] = []
    for column, length in zip(columns, lengths, strict=True):
        found = column.segments()
        if _length(found) != length:
            raise NotCoveredError(
                f"the ConcatDataset was made when {column.name} had {length} rows, "
                f"and it has {_length(found)}"
            )
        segments += found
    return Column(first.name, tuple(segments), is_array=first.is_array)


def _columns_of_concat(dataset: ConcatDataset[Any]) -> Columns:
    held = [Held.of(dataset, name) for name in ("datasets", "cumulative_sizes")]
    lengths = np.diff(dataset.cumulative_sizes, prepend=0).tolist()
    # Of empty ones torch takes no sample, so they may be of other kinds.
    pairs = list(zip(dataset.datasets, lengths, strict=True))
    pairs = [pair for pair in pairs if pair[1] > 0] or pairs[:1]
    parts = [columns_within(part) for part, _ in pairs]
    lengths = [length for _, length in pairs]
    first = parts[0]
    if not all(is_same_structure(part.structure, first.structure) for part in parts):
        raise NotCoveredError("a dataset of the ConcatDataset has samples of other structure")
    columns = zip(*(part.all for part in parts), strict=True)
    joined = [_join(same, lengths) for same in columns]
    return Columns(first.structure, joined, held + [h for part in parts for h in part.held])


def columns_within(dataset: object) -> Columns:
    """Those of any dataset. Raises NotCoveredError."""
    if "__getitems__" in getattr(dataset, "__dict__", ()):
        raise NotCoveredError(f"a {type(dataset).__name__} has a __getitems__ of its own")
    if type(dataset) is Subset:
        return _columns_of_subset(dataset)
    if type(dataset) is StackDataset:
        return _columns_of_stack(dataset)
    if type(dataset) is ConcatDataset:
        return _columns_of_concat(dataset)
    if is_skorch(dataset):
        return columns_of_skorch(dataset)
    return columns_of(dataset)
