"""The columns of an Arrow table, as memory that is read without pyarrow: which types are taken, and
which files hold the memory."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from fastloop._core import FileReader
from fastloop.base.checks import make_message
from fastloop.data.columns import Segment
from fastloop.data.field import Array, Field, MappedFile, open_regular
from fastloop.data.sequences.ragged import RaggedArray, address_of

_TAKEN = "of numbers, strings, binary values, images, or lists or fixed-size lists of numbers"


def import_arrow(name: str = "pyarrow") -> Any:
    """Import a module of pyarrow. Raises ImportError, which says what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        text = f"the dataset needs pyarrow, which cannot be imported: {error}"
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
    """A column of strings."""

    def __init__(self, values: RaggedArray) -> None:
        self.values = values

    def __getitem__(self, row: int) -> str:
        try:
            return self.values[row].numpy().tobytes().decode()
        except UnicodeDecodeError as error:
            rule = f"row {row} of {self.values.name} must be UTF-8, got {error}"
            raise ValueError(f"{rule} (cast the column to binary)") from None

    def __repr__(self) -> str:
        return f"{len(self.values)} strings"


class _MappedFiles:
    """The files that this process has mapped, by address; Arrow's buffers do not know theirs."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._files: list[tuple[int, int, MappedFile]] = []  # end, inode, file
        with contextlib.suppress(OSError), open("/proc/self/maps", errors="replace") as lines:
            for line in lines:
                addresses, _, offset, _, inode, *path = line.rstrip("\n").split(None, 5)
                begin, end = (int(address, 16) for address in addresses.split("-"))
                if path and path[0].startswith("/"):
                    # Reads are safe; where the file ends is not known.
                    file = path[0], begin - int(offset, 16), None
                    self._begins.append(begin)
                    self._files.append((end, int(inode), file))

    def _find(self, array: Array) -> tuple[int, MappedFile] | None:
        address = address_of(array)
        at = bisect_right(self._begins, address) - 1
        return self._files[at][1:] if at >= 0 and address < self._files[at][0] else None

    def find(self, array: Array) -> MappedFile | None:
        """Return the file that holds an array, or None."""
        found = self._find(array)
        return None if found is None else found[1]

    def find_readable(self, array: Array) -> MappedFile | None:
        """Return the file that holds an array if its path still leads to that file."""
        found = self._find(array)
        try:
            is_same = found is not None and os.stat(found[1][0]).st_ino == found[0]
        except OSError:
            is_same = False
        return found[1] if found is not None and is_same else None


class Binaries:
    """A column of encoded images, or of other binary values. If a file that is mapped holds them,
    they are read from the file, and not from the map, which would keep its pages.

    Args:
        values: the values as lists of bytes.
        files: where values lie.
        paths: the files of rows without bytes; None: all rows have bytes.
    """

    def __init__(self, values: RaggedArray, files: _MappedFiles, paths: Texts | None) -> None:
        self._values, self._paths, self._bounds = values, paths, values._bounds
        parts = values.values if isinstance(values.values, tuple) else (values.values,)
        source: Any = values._field.source
        first, numbers = address_of(source), dict[str, int]()
        self._begins: list[int] = []  # of the parts, among all values
        self._places: list[tuple[int, int]] = []  # the file, or -1, and its byte for value 0
        for part in sorted(parts, key=address_of):
            self._begins.append(address_of(part) - first)
            file = files.find_readable(part)
            if file is None:
                self._places.append((-1, 0))
            else:
                number = numbers.setdefault(file[0], len(numbers))
                self._places.append((number, first - file[1]))
        self._reader = FileReader(tuple(numbers))

    def _place(self, row: int) -> tuple[int, int, int]:
        """Return the file of a row, or -1, the row's first byte there, and its bytes."""
        begin, end = self._bounds[row].tolist()
        number, shift = self._places[bisect_right(self._begins, begin) - 1]
        return number, begin + shift, end - begin

    def announce(self, rows: Sequence[int]) -> None:
        """Tell the system that rows will be read soon."""
        places = [place for place in map(self._place, rows) if place[0] >= 0]
        self._reader.announce(np.array(places, np.int64))

    def __getitem__(self, row: int) -> bytes:
        number, byte, count = self._place(row)
        if count == 0 and self._paths is not None:
            with open_regular(str(self._paths[row]), self._values.name, "remove the row") as file:
                return file.read()
        if number < 0:
            return self._values[row].numpy().tobytes()
        return self._reader.read(number, byte, count)

    def __repr__(self) -> str:
        return f"{len(self._values)} binary values"


Source = Rows | RaggedArray | Texts | Binaries


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
    elif t.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        target = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return f"cast the column to {target}" if target else "leave the column out with columns=[...]"


def _holds_files(pa: Any, kind: Any) -> bool:
    """Tell whether values are structs of bytes and path. A field may have the type null."""
    t = pa.types
    kinds = {field.name: field.type for field in kind} if t.is_struct(kind) else {}
    if kind.num_fields != 2 or kinds.keys() != {"bytes", "path"}:
        return False
    contents, path = kinds["bytes"], kinds["path"]
    is_binary = t.is_binary(contents) or t.is_large_binary(contents) or t.is_null(contents)
    return bool(is_binary and (t.is_string(path) or t.is_large_string(path) or t.is_null(path)))


def _field(chunk: Any, name: str, kind: Any) -> Any:
    """Return a field of structs. A field of the type null gets this type."""
    values = chunk.field(name)
    return values.cast(kind) if str(values.type) == "null" else values


def _holds_numbers(pa: Any, kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


class ColumnReader:
    """Reads the columns of a table."""

    def __init__(self, table: Any) -> None:
        self._pa, self._table, self._files = import_arrow(), table, _MappedFiles()

    def read(self, name: str) -> Source:
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
        if t.is_string(kind) or t.is_large_string(kind):
            return Texts(self._read_bytes(name, chunks))
        if t.is_binary(kind) or t.is_large_binary(kind):
            return Binaries(self._read_bytes(name, chunks), self._files, None)
        if _holds_files(pa, kind):
            return self._read_files(name, chunks)
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

    def _read_bytes(self, name: str, chunks: list[Any]) -> RaggedArray:
        """Return strings or binary values as lists of bytes over the same memory."""
        pa, lists = self._pa, []
        for chunk in chunks:
            _check_nulls(name, chunk)
            _, offsets, memory = chunk.buffers()
            memory = pa.py_buffer(b"") if memory is None else memory
            values = pa.Array.from_buffers(pa.uint8(), memory.size, [None, memory])
            kind = pa.large_list if str(chunk.type).startswith("large") else pa.list_
            made = kind(pa.uint8()), len(chunk), [None, offsets]
            lists.append(pa.Array.from_buffers(*made, offset=chunk.offset, children=[values]))
        return self._read_lists(name, lists)

    def _read_files(self, name: str, chunks: list[Any]) -> Binaries:
        """Return a column of files: their bytes, or if these are null, their paths."""
        for chunk in chunks:
            _check_nulls(name, chunk)
        contents = [_field(chunk, "bytes", self._pa.binary()) for chunk in chunks]
        paths = [_field(chunk, "path", self._pa.string()) for chunk in chunks]
        texts = None
        if any(content.null_count for content in contents):
            # A null may have bytes, which are not its value.
            contents = [content.fill_null(b"") for content in contents]
            texts = Texts(self._read_bytes(f"{name}.path", [path.fill_null("") for path in paths]))
        values = self._read_bytes(name, contents)
        if texts is not None and (lacks := (values.lengths + texts.values.lengths) == 0).any():
            row = int(np.argmax(lacks))
            rule = f"row {row} of column {name!r} must have bytes or a path, got neither"
            raise ValueError(f"{rule} (drop the row)")
        return Binaries(values, self._files, texts)

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
