"""Field: one array of a dataset, its checks, and the ways to read its rows. This module also opens
the files that users name."""

from __future__ import annotations

import mmap
import operator
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from fastloop._core import HostRange, Table, copy_row
from fastloop.base.checks import look_up, make_message, refuse_if

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128".split()
)
_REMEDIES = {  # by NumPy's dtype.kind
    "O": "pad rows of different length into a numeric array, resize images to one size, pass "
    "RaggedArray.from_list(rows), or write a Dataset with a collate_fn",
    **dict.fromkeys("SUT", "encode the text as integers"),
    "V": "pass its columns as separate fields",
    **dict.fromkeys("Mm", "pass a.view('int64')"),
}
_VIEWS = 256
_ITEMS = "an index, (index, view), or a slice, a list or a vector of these"
_SPECIAL_FILES = {"p": "FIFO", "s": "socket", "c": "character device", "b": "block device"}

# A path, the address that the file's first byte would have, and a function that returns the size of
# the file.
MappedFile = tuple[str, int, Callable[[], int] | None]


# ---- files


def open_regular(path: str, name: str, remedy: str) -> BinaryIO:
    """Open a file for reading; the caller closes it.

    Raises:
        ValueError: the file is a FIFO, a socket or a device; the text begins with ``name``.
    """
    # A FIFO without a writer would keep open() waiting, so the kind is checked before.
    kind = _SPECIAL_FILES.get(stat.filemode(os.stat(path).st_mode)[0])
    refuse_if(kind, f"{name}: {path!r} must be a regular file, got a {kind} ({remedy})")
    return open(path, "rb")


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether the order is Fortran's, and dtype; leave the file at its first element.

    Errors come from NumPy's reader and have many types.
    """
    npy = np.lib.format
    version = npy.read_magic(file)
    refuse_if(version > (3, 0), f"the format's version must be <= (3, 0), got {version}")
    # Versions 2 and 3 differ in the encoding of column names, and columns are refused.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    refuse_if(dtype.hasobject, "Python objects cannot be mapped")
    return shape, is_fortran, dtype


def _map_npy(name: str, path: str) -> Array:
    remedy = "save the data as a .npy file, or pass an array"
    try:
        with open_regular(path, name, remedy) as file:
            try:
                shape, is_fortran, dtype = read_npy_header(file)
                order: Any = "F" if is_fortran else "C"
                # numpy.lib.format.open_memmap would open the path once more.
                return np.memmap(file, dtype, "r", file.tell(), shape, order)
            except OSError:
                raise
            except Exception as error:  # NumPy's reader raises many types
                raise ValueError(
                    f"{name}: {path!r} cannot be opened as a .npy file: {error} "
                    "(for an .npz archive, pass the arrays of numpy.load())"
                ) from error
    except OSError as error:
        raise type(error)(error.errno, f"{name}: {error.strerror or error}", path) from error


def find_file(array: Array) -> MappedFile | None:
    """Return the mapped file that holds an array, or None if the array is not mapped."""
    path, root = "a mapped file", None
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        if isinstance(base, np.memmap) and base.filename is not None:
            path, root = os.fspath(base.filename), base
        base = base.obj if isinstance(base, memoryview) else look_up(base, "base")
    if base is None:
        return None
    if root is None:  # a bare mmap does not know its offset in the file
        return path, 0, None
    return path, root.__array_interface__["data"][0] - root.offset, base.size


# ---- fields


def read_row(index: Any, rows: int) -> int:
    """Return the row in [0, rows) for an index, which may be negative.

    Raises:
        TypeError: the index is not an int.
        IndexError: the index is out of range.
    """
    try:
        row = operator.index(index)
    except TypeError:
        raise TypeError(make_message("index", "an int", index)) from None
    if not -rows <= row < rows:
        raise IndexError(f"index {row} is out of bounds for a length of {rows}")
    return row % rows


def read_item(item: Any, rows: int) -> tuple[int, int]:
    """Return row and view for ``index`` or ``(index, view)``, in a dataset of `rows` rows."""
    index, view = item if isinstance(item, tuple) and len(item) == 2 else (item, 0)
    try:
        row, view = read_row(index, rows), operator.index(view)
    except TypeError:
        raise TypeError(make_message("a sample", _ITEMS, item)) from None
    if not 0 <= view < _VIEWS:
        raise ValueError(make_message("view", f"an int in [0, {_VIEWS - 1}]", view))
    return row, view


def read_views(transform: Mapping[Any, Any], fields: Sequence[Any]) -> list[str]:
    """Return the keys of a transform that name views of the first field. If at least two keys are
    not fields, these keys are views."""
    names = [key for key in transform if key not in fields and isinstance(key, str)]
    return names if len(names) > 1 else []


def torch_dtype(source: torch.Tensor | Array) -> torch.dtype:
    """Return the dtype of the rows as tensors."""
    if isinstance(source, torch.Tensor):
        return source.dtype
    return torch.from_numpy(np.empty(0, source.dtype)).dtype


def _check_array(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        remedy = "pass numpy.asarray(...)"
        if isinstance(array, list):
            remedy += ", or RaggedArray.from_list(rows) for rows of different length"
        rule = "a numpy.ndarray, a CPU tensor or the path of a .npy file"
        raise TypeError(f"{name} must be {rule}, got {type(array).__name__} ({remedy})")
    dtype = array.dtype
    if dtype.name in _DTYPES and dtype.isnative:
        return
    remedy = _REMEDIES.get(dtype.kind, "pass a.astype('float64')")
    if dtype.kind in "biufc" and dtype.newbyteorder("=").name in _DTYPES:
        remedy = "pass a.astype(a.dtype.newbyteorder('='))"
    raise TypeError(f"{name} must have a dtype that torch has, got {dtype} ({remedy})")


def check_room(device: torch.device, needed: int, what: str) -> None:
    """Raise MemoryError unless `needed` bytes are free on a CUDA device. Bytes in torch's cache
    count as free."""
    if device.type != "cuda":
        return
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + kept
    if needed > free:
        raise MemoryError(
            f"{what} must fit into the free memory of {device}, {free:,} bytes, got {needed:,} "
            f"bytes (leave {what} on the CPU, and pass device= to the loader)"
        )


class Field:
    """One column: its memory, its name in errors, and its rows as torch's tensors."""

    source: torch.Tensor | Array
    opened: str | None = None  # the path that was given, absolute
    file: MappedFile | None = None
    rows: torch.Tensor | None = None  # the source as a tensor, if torch can have such a tensor
    host_range: HostRange | None = None  # the registered memory that devices read the rows from
    _table: Table | None = None

    def __init__(self, name: str, value: Any, may_be_resident: bool = False) -> None:
        self.name = name
        if isinstance(value, (str, os.PathLike)):
            self.opened = os.path.abspath(os.fspath(value))
            value = _map_npy(name, self.opened)
        if isinstance(value, torch.Tensor):
            devices = ("cpu", "cuda") if may_be_resident else ("cpu",)
            if value.device.type not in devices or value.layout is not torch.strided:
                got = f"{value.layout} on {value.device} (pass t.cpu() or t.to_dense())"
                rule = "tensor on the CPU or CUDA" if may_be_resident else "CPU tensor"
                raise TypeError(f"{name} must be a dense {rule}, got {got}")
            self.source = self.rows = value
        else:
            _check_array(name, value)
            # np.ulonglong is a uint64 with a name that torch does not know.
            array = self.source = np.asarray(value).view(np.dtype(value.dtype.name))
            self.file = find_file(value)
            has_strides = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
            if array.flags.writeable and array.flags.aligned and has_strides and not self.file:
                self.rows = torch.from_numpy(array)
        if value.ndim == 0:
            raise ValueError(f"{name} must have a dimension that counts samples, got shape ()")

    @property
    def unfetched(self) -> str:
        """The reason why devices cannot read the rows in host memory, or ""."""
        if self.rows is None:
            return "is mapped from a file" if self.file else "is read-only or not aligned"
        if self.rows.device.type != "cpu":
            return f"is on {self.rows.device}"
        return "" if self.rows[:1].is_contiguous() else "has rows with gaps"

    def __len__(self) -> int:
        return int(self.source.shape[0])

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self.rows is not None:
            return self.rows[index]
        array = self.source
        assert isinstance(array, np.ndarray)
        if self.file is None:
            return torch.from_numpy(np.array(array[index], order="C", copy=True))
        return self._read_mapped(array, index)

    def bytes_for(self, device: torch.device) -> int:
        """Return the number of bytes that ``to()`` copies."""
        is_there = isinstance(self.source, torch.Tensor) and self.source.device == device
        return 0 if is_there else int(self.source.nbytes)

    def to(self, device: torch.device) -> torch.Tensor:
        """Return the source as a contiguous tensor on a device."""
        return self.read_range(0, len(self)).to(device).contiguous()

    def image(self, index: int) -> torch.Tensor | Array:
        """Return a row without a copy; if the field is a mapped file, return a copy."""
        if self.rows is not None:
            return self.rows[index]
        return self.source[index] if self.file is None else self[index]

    def read_range(self, begin: int, end: int) -> torch.Tensor:
        """Return ``self[begin:end]``; a mapped file is read in one piece, not row by row."""
        if self.file is None:
            return self[begin:end]
        part = np.asarray(self.source)[begin:end]
        out = torch.empty(part.shape, dtype=torch_dtype(part))
        name = f"{self.name}[{begin}:{end}]"
        copy_row(Table(torch.Tensor, ((part[None], name, self.file),)), 0, (out,))
        return out

    def _read_mapped(self, array: Array, index: Any) -> torch.Tensor:
        """Copy rows of a mapped file. If the file has become shorter, the table raises an OSError;
        NumPy would end the process."""
        if self._table is None:
            self._table = Table(torch.Tensor, ((array, self.name, self.file),))
        is_one = type(index) is int  # the numbers of all rows would take longer than the row
        rows = np.int64(read_row(index, len(array))) if is_one else np.arange(len(array))[index]
        out = torch.empty((rows.size, *array.shape[1:]), dtype=torch_dtype(array))
        for row, target in zip(rows.flat, out, strict=True):
            copy_row(self._table, int(row), (target,))
        return out.view((*rows.shape, *array.shape[1:]))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        source: object = self.opened
        if source is None:  # a view pickles only its own elements
            source = np.array(self.source) if isinstance(self.source, np.ndarray) else self.source
        return Field, (self.name, source, True)

    def __repr__(self) -> str:
        return f"{str(self.source.dtype).removeprefix('torch.')} {tuple(self.source.shape)}"


def register_fields(fields: Any, device: int) -> tuple[HostRange, ...]:
    """Register the fields' memory, so that kernels of a CUDA device can read it. Raises as
    ``moves.register``."""
    from fastloop.compat.moves import register

    host_ranges = register([field.rows for field in fields], device)
    for field, host_range in zip(fields, host_ranges, strict=True):
        field.host_range = host_range
    return host_ranges
