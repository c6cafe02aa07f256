"""The memory of Arrow behind a ``datasets.Dataset`` of Hugging Face, as columns.

Nothing is imported: a program that has such a dataset has imported its package.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fastloop.data.field import Array, MappedFile
from fastloop.data.index_blocks import Vector
from fastloop.loader.arrays.columns import Columns, NotCoveredError, Segment

# The dtype that both formats make of values; None: they keep theirs. Others are not covered.
_CASTS = {
    **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int64"),
    "float64": "float32",
    **dict.fromkeys(("int64", "float32", "bool"), None),
}


def is_hugging_face(dataset: object) -> bool:
    """Tell whether `dataset` is a ``datasets.Dataset``, by its exact type."""
    module = sys.modules.get("datasets.arrow_dataset")
    return type(dataset) is getattr(module, "Dataset", None)


def _selected_rows(dataset: Any) -> Vector | None:
    """Return the rows that shuffle() and select() have left; None: all."""
    if dataset._indices is None:
        return None
    chunks = [chunk.to_numpy().view(np.int64) for chunk in dataset._indices.table.column(0).chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int64), *chunks])


def _flatten(chunk: Any) -> tuple[Any, list[int]]:
    """Return the values of lists within each other, and how many are in each."""
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
            lengths = np.diff(chunk.offsets.to_numpy())
            if len(lengths) == 0 or (lengths != lengths[0]).any():
                raise NotCoveredError("lists of different length")
            widths.append(int(lengths[0]))
            chunk = chunk.flatten()
        else:
            return chunk, widths


def _array_of(chunk: Any) -> Array:
    """Return a view of Arrow's memory; of bits a copy."""
    types = sys.modules["pyarrow"].types
    values, widths = _flatten(chunk)
    is_bits, kind = types.is_boolean(values.type), values.type
    if is_bits or types.is_integer(kind) or types.is_floating(kind):
        array: Array = values.to_numpy(zero_copy_only=not is_bits)
        if str(array.dtype) in _CASTS:
            return array.reshape(len(chunk), *widths)
    raise NotCoveredError(f"values of {kind}")


# By dataset: its table, which does not change, and the segments of each column that was used. Bits
# are so unpacked once a dataset.
_segments: WeakKeyDictionary[Any, tuple[Any, dict[str, tuple[Segment, ...]]]] = WeakKeyDictionary()


def _segments_of(dataset: Any, name: str) -> tuple[Segment, ...]:
    table, known = _segments.get(dataset, (None, {}))
    if table is not dataset._data:
        known = {}
        _segments[dataset] = dataset._data, known
    if name not in known:
        files = dataset.cache_files
        file: MappedFile | None = (files[0]["filename"], 0, None) if files else None
        chunks = dataset._data.table.column(name).chunks
        try:
            arrays = [_array_of(chunk) for chunk in chunks if len(chunk) > 0]
        except NotCoveredError as reason:
            raise NotCoveredError(f"column {name!r} has {reason}") from None
        known[name] = tuple(Segment(array, len(array), file) for array in arrays)
    if not known[name]:
        raise NotCoveredError("the dataset has no rows")
    return known[name]


def take_hugging_face(dataset: Any) -> Columns | None:
    """Return the columns of a ``datasets.Dataset``; None for others. Raises NotCoveredError."""
    if not is_hugging_face(dataset):
        return None
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
    rows = _selected_rows(dataset)
    columns = Columns(dict.fromkeys(names), rows=rows, kind="Arrow columns")
    for name in names:
        segments = _segments_of(dataset, name)
        first, *others = {str(segment.array.dtype) for segment in segments}
        if others:
            raise NotCoveredError(f"column {name!r} has parts of different dtype")
        columns.add(f"column {name!r}", segments, cast=_CASTS[first])
    return columns
