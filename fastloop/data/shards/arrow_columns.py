"""The columns of an Arrow table, as memory that is read without pyarrow: which types are taken, and
which files hold the memory."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from fastloop.base.checks import make_message
from fastloop.data.columns import Segment
from fastloop.data.field import Array, Field, MappedFile
from fastloop.data.sequences.ragged import RaggedArray

_TAKEN = "of numbers, strings, binary values, or lists or fixed-size lists of numbers"


def import_arrow(name: str = "pyarrow") -> Any:
    """Import a module of pyarrow. Raises ImportError, which says what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        text = f"Arrow and Parquet need pyarrow, which cannot be imported: {error}"
        raise ImportError(f"{text}; run: pip install fastloop[corpora]") from error


class Rows:
    """A column of numbers, or of arrays of one shape: a field for each chunk."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self._ends: list[int] = []
        for field in fields:
            self._ends.append(len(field) + (self._ends[-1] if self._ends else 0))

    def __getitem__(self, row: int) -> torch.Tensor:
        at = bisect_right(self._ends, row)
        return self.fields[at][row - self._ends[at]]  # a negative index, from the field's end

    def segments(self) -> tuple[Segment, ...]:
        return tuple(Segment(field.source, len(field), field.file) for field in self.fields)

    def __repr__(self) -> str:
        source = self.fields[0].source
        return f"{source.dtype} {(self._ends[-1], *source.shape[1:])}, {len(self.fields)} chunks"


class Texts:
    """A column of strings, or of bytes."""

    def __init__(self, values: RaggedArray, is_text: bool) -> None:
        self._values, self._is_text = values, is_text

    def __getitem__(self, row: int) -> str | bytes:
        value = self._values[row].numpy().tobytes()
        try:
            return value.decode() if self._is_text else value
        except UnicodeDecodeError as error:
            rule = f"row {row} of {self._values.name} must be UTF-8, got {error}"
            raise ValueError(f"{rule} (cast the column to binary)") from None

    def __repr__(self) -> str:
        return f"{len(self._values)} {'strings' if self._is_text else 'binary values'}"


class _MappedFiles:
    """The files that this process has mapped, by address; Arrow's buffers do not know theirs."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._files: list[tuple[int, str]] = []
        with contextlib.suppress(OSError), open("/proc/self/maps", errors="replace") as lines:
            for line in lines:
                addresses, _, _, _, _, *path = line.rstrip("\n").split(None, 5)
                begin, end = (int(address, 16) for address in addresses.split("-"))
                if path and path[0].startswith("/"):
                    self._begins.append(begin)
                    self._files.append((end, path[0]))

    def find(self, array: Array) -> MappedFile | None:
        """Return the file that holds an array, or None."""
        address: int = array.__array_interface__["data"][0]
        at = bisect_right(self._begins, address) - 1
        if at < 0 or address >= self._files[at][0]:
            return None
        return self._files[at][1], 0, None  # reads are safe; where the file ends is not known


def _find_cast(pa: Any, kind: Any) -> str:
    """Return the cast to a type that is taken."""
    t, target = pa.types, None
    if t.is_list_view(kind) or t.is_large_list_view(kind):  # pyarrow's cast makes wrong offsets
        return f"pass pyarrow.array(column.to_pylist()) of {pa.large_list(kind.value_type)}"
    if isinstance(kind, pa.BaseExtensionType):
        target = kind.storage_type
    elif t.is_dictionary(kind):
        target = kind.value_type
    elif t.is_string_view(kind):
        target = pa.large_string()
    elif t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        target = pa.large_binary()
    elif t.is_temporal(kind):
        target = pa.int32() if kind.bit_width == 32 else pa.int64()
    elif t.is_decimal(kind):
        target = pa.float64()
    return f"cast the column to {target}" if target else "leave the column out with columns=[...]"


def _holds_numbers(pa: Any, kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


class ColumnReader:
    """Reads the columns of a table."""

    def __init__(self, table: Any) -> None:
        self._pa, self._table, self._files = import_arrow(), table, _MappedFiles()

    def read(self, name: str) -> Rows | RaggedArray | Texts:
        """Return a column. Raises TypeError if the column has nulls or a type that is not taken."""
        pa, column = self._pa, self._table.column(name)
        t, kind = pa.types, column.type
        chunks = [chunk for chunk in column.chunks if len(chunk)] or [pa.array([], kind)]
        inner = kind
        while t.is_fixed_size_list(inner):
            inner = inner.value_type
        if _holds_numbers(pa, inner):
            return Rows([self._read_numbers(name, chunk) for chunk in chunks])
        if (t.is_list(kind) or t.is_large_list(kind)) and _holds_numbers(pa, kind.value_type):
            for chunk in chunks:
                _flatten(name, chunk)
            return self._read_lists(name, chunks)
        is_text = t.is_string(kind) or t.is_large_string(kind)
        if is_text or t.is_binary(kind) or t.is_large_binary(kind):
            lists = [self._as_lists(name, chunk) for chunk in chunks]
            return Texts(self._read_lists(name, lists), is_text)
        text = make_message(f"column {name!r}", _TAKEN, str(kind), _find_cast(pa, kind))
        raise TypeError(text)

    def _read_numbers(self, name: str, chunk: Any) -> Field:
        shape = [len(chunk)]
        while self._pa.types.is_fixed_size_list(chunk.type):
            shape.append(chunk.type.list_size)
            chunk = _flatten(name, chunk)
        _check_nulls(name, chunk)
        array = chunk.to_numpy(zero_copy_only=False).reshape(shape)
        field = Field(f"column {name!r}", array)
        field.file = self._files.find(array)
        return field

    def _as_lists(self, name: str, chunk: Any) -> Any:
        """Return strings or binary values as lists of bytes over the same memory."""
        _check_nulls(name, chunk)
        pa, (_, offsets, memory) = self._pa, chunk.buffers()
        memory = pa.py_buffer(b"") if memory is None else memory
        values = pa.Array.from_buffers(pa.uint8(), memory.size, [None, memory])
        is_large = str(chunk.type).startswith("large")
        kind = (pa.large_list if is_large else pa.list_)(pa.uint8())
        buffers, begin = [None, offsets], chunk.offset
        return pa.Array.from_buffers(kind, len(chunk), buffers, offset=begin, children=[values])

    def _read_lists(self, name: str, chunks: list[Any]) -> RaggedArray:
        array = RaggedArray.from_arrow(self._pa.chunked_array(chunks))
        parts = array.values if isinstance(array.values, tuple) else (array.values,)
        file = next(filter(None, map(self._files.find, parts)), None)
        array.file = array._field.file = file  # reads of all parts are safe if one is mapped
        return array._over(slice(0, len(array)), f"column {name!r}")


def _check_nulls(name: str, chunk: Any) -> None:
    if chunk.null_count:
        got = f"{chunk.null_count} in {chunk.type}"
        remedy = "fill them with fill_null(), or drop their rows"
        raise TypeError(f"column {name!r} must have no nulls, got {got} ({remedy})")


def _flatten(name: str, chunk: Any) -> Any:
    """Return the values in lists. Raises TypeError for nulls among either."""
    _check_nulls(name, chunk)
    values = chunk.flatten()
    _check_nulls(name, values)
    return values
