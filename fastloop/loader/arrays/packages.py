"""The columns of datasets of other packages: skorch's, and those of Hugging Face's ``datasets``.

Nothing is imported: whoever has such a dataset has imported its package.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fastloop.data.field import Array, MappedFile
from fastloop.data.index_blocks import Vector
from fastloop.loader.arrays.columns import Columns, Held, NotCoveredError, Segment, add_rows


def _is_exactly(dataset: object, module: str, name: str) -> bool:
    return type(dataset) is getattr(sys.modules.get(module), name, None)


# ---- skorch


def is_skorch(dataset: object) -> bool:
    return _is_exactly(dataset, "skorch.dataset", "Dataset")


def _add_structure(columns: Columns, name: str, data: object) -> Any:
    """Adds the columns of X or y; returns the structure of its samples."""
    if isinstance(data, dict) and type(data) is dict:
        for key, rows in data.items():
            add_rows(columns, f"{name}[{key!r}]", rows)
        return dict.fromkeys(data)
    if isinstance(data, list | tuple) and type(data) in (list, tuple):
        pairs = enumerate(data)
        return tuple(_add_structure(columns, f"{name}[{i}]", inner) for i, inner in pairs)
    add_rows(columns, name, data)
    return None


def _is_indexed_so(data: object, indexing: Any) -> bool:
    """Whether skorch would choose this function for the data; it does so once."""
    now = sys.modules["skorch.utils"].check_indexing(data)
    return getattr(now, "func", now) is getattr(indexing, "func", indexing)


def columns_of_skorch(dataset: Any) -> Columns:
    """Samples are (X, y); without y it is a tensor of one zero. Raises NotCoveredError."""
    if "transform" in vars(dataset):
        raise NotCoveredError("transform of the skorch dataset was replaced")
    for name in ("X", "y"):
        if not _is_indexed_so(getattr(dataset, name), getattr(dataset, f"{name}_indexing")):
            raise NotCoveredError(
                f"{name} of the skorch dataset is of another kind than when it was made"
            )
    columns = Columns(None, held=[Held.of(dataset, name) for name in ("X", "y")])
    x, y = _add_structure(columns, "X", dataset.X), None
    if dataset.y is None:
        columns.add("y", np.broadcast_to(np.zeros(1, np.float32), (len(dataset), 1)))
    else:
        y = _add_structure(columns, "y", dataset.y)
    for column in columns.all:
        if len(column.segments()[0].array) != len(dataset):
            raise NotCoveredError(f"{column.name} has not the length of the skorch dataset")
    columns.structure = (x, y)
    return columns


# ---- Hugging Face


def is_hugging_face(dataset: object) -> bool:
    return _is_exactly(dataset, "datasets.arrow_dataset", "Dataset")


def indices_of_hugging_face(dataset: Any) -> Vector | None:
    """The rows that shuffle() and select() have left, as they are; None: all."""
    if dataset._indices is None:
        return None
    chunks = [chunk.to_numpy().view(np.int64) for chunk in dataset._indices.table.column(0).chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int64), *chunks])


# What both formats make of values; those that are None stay as they are. Others are not covered.
_CASTS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int64"),
    "float64": "float32",
    **dict.fromkeys(("int64", "float32", "bool"), None),
}


def _take_apart(chunk: Any) -> tuple[Any, list[int]]:
    """The values of lists within each other, and how many are in each."""
    pa, widths = sys.modules["pyarrow"], []
    while True:
        if chunk.null_count:
            raise NotCoveredError("null values")
        if isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        elif isinstance(chunk, pa.FixedSizeListArray):
            widths.append(chunk.type.list_size)
            chunk = chunk.flatten()
        elif isinstance(chunk, pa.ListArray | pa.LargeListArray):
            offsets = chunk.offsets.to_numpy()
            lengths = offsets[1:] - offsets[:-1]
            if len(lengths) == 0 or (lengths != lengths[0]).any():
                raise NotCoveredError("lists of different length")
            widths.append(int(lengths[0]))
            chunk = chunk.flatten()
        else:
            return chunk, widths


def _array_of(chunk: Any) -> Array:
    """A view of Arrow's memory; of bits a copy."""
    types = sys.modules["pyarrow"].types
    values, widths = _take_apart(chunk)
    is_bits, kind = types.is_boolean(values.type), values.type
    if not (is_bits or types.is_integer(kind) or types.is_floating(kind)):
        raise NotCoveredError(f"values of {kind}")
    array: Array = values.to_numpy(zero_copy_only=not is_bits)
    if str(array.dtype) not in _CASTS:
        raise NotCoveredError(f"values of {kind}")
    return array.reshape(len(chunk), *widths)


def _segments_of(name: str, column: Any, file: MappedFile | None) -> tuple[Segment, ...]:
    try:
        arrays = [_array_of(chunk) for chunk in column.chunks if len(chunk) > 0]
    except NotCoveredError as reason:
        raise NotCoveredError(f"column {name!r} has {reason}") from None
    if not arrays:
        raise NotCoveredError("the dataset has no rows")
    return tuple(Segment(array, len(array), file) for array in arrays)


# Of each dataset the table that was looked at, which does not change, and what was found.
_Seen = tuple[Any, dict[str, tuple[Segment, ...]]]
_seen: WeakKeyDictionary[Any, _Seen] = WeakKeyDictionary()


def _segments_by_name(dataset: Any, names: list[str]) -> dict[str, tuple[Segment, ...]]:
    seen = _seen.get(dataset)
    if seen is None or seen[0] is not dataset._data:
        seen = _seen[dataset] = dataset._data, {}
    files = dataset.cache_files
    file: MappedFile | None = (files[0]["filename"], 0, None) if files else None
    for name in names:
        if name not in seen[1]:
            seen[1][name] = _segments_of(name, dataset._data.table.column(name), file)
    return seen[1]


def columns_of_hugging_face(dataset: Any) -> Columns:
    """Of its table, whose rows the indices number. Raises NotCoveredError."""
    if dataset._format_type not in ("torch", "numpy"):
        raise NotCoveredError(
            f"the format of the datasets.Dataset is {dataset._format_type}; C gathers those of "
            "with_format('torch') and with_format('numpy')"
        )
    if dataset._format_kwargs:
        raise NotCoveredError("with_format() of the datasets.Dataset was given arguments")
    every, picked = dataset._data.column_names, dataset._format_columns
    names = [name for name in every if picked is None or name in picked]
    if dataset._output_all_columns and len(names) < len(every):
        raise NotCoveredError("output_all_columns=True adds columns without the format")
    held = [Held.of(dataset, name) for name in ("_data", "_format_type", "_format_columns")]
    columns = Columns(dict.fromkeys(names), held=held)
    segments = _segments_by_name(dataset, names)
    for name in names:
        first, *others = {str(segment.array.dtype) for segment in segments[name]}
        if others:
            raise NotCoveredError(f"column {name!r} has parts of different dtype")
        columns.add(f"column {name!r}", segments[name], cast=_CASTS[first])
    return columns
