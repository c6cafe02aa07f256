"""Field: one array of a dataset, its checks, and how its rows are read."""

from __future__ import annotations

import mmap
import os
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import torch

from fastloop._core import Table
from fastloop.data.files import open_regular, read_npy_header

Array = np.ndarray[Any, np.dtype[Any]]

_DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128".split()
)
_REMEDIES = {
    "O": "rows of different length or Python objects cannot be stacked; pad them into a numeric "
    "array (resize images to one size), pass RaggedArray.from_list(rows), or write a Dataset with "
    "a collate_fn",
    "S": "encode the text as integers",
    "U": "encode the text as integers",
    "T": "encode the text as integers",
    "V": "pass its columns as separate fields",
    "M": "pass a.view('int64')",
    "m": "pass a.view('int64')",
}

# Its path, the address at which its first byte would be mapped, and a function that tells its size.
MappedFile = tuple[str, int, Callable[[], int] | None]


def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    if dtype.name in _DTYPES and dtype.isnative:
        return
    remedy = _REMEDIES.get(dtype.kind, "convert it with a.astype('float64')")
    if dtype.kind in "biufc" and dtype.newbyteorder("=").name in _DTYPES:
        remedy = "convert it with a.astype(a.dtype.newbyteorder('='))"
    raise TypeError(f"{name} has dtype {dtype}, which torch does not have; {remedy}")


def find_file(array: Array) -> MappedFile | None:
    """The mapped file an array lies in. None if neither the array nor its bases are a mapping."""
    path, root = "a mapped file", None
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        if isinstance(base, np.memmap) and base.filename is not None:
            path, root = os.fspath(base.filename), base
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    if base is None:
        return None
    if root is None:  # an mmap of the user's: its place in the file is not known
        return path, 0, None
    return path, root.__array_interface__["data"][0] - root.offset, base.size


def _map_npy(file: BinaryIO) -> Array:
    """As numpy.lib.format.open_memmap, which takes a path only, and opens it twice."""
    shape, is_fortran, dtype = read_npy_header(file)
    order: Any = "F" if is_fortran else "C"
    return np.memmap(file, dtype, "r", file.tell(), shape, order)


def _open_npy(name: str, path: str) -> Array:
    remedy = "save the data as a .npy file, or pass an array"
    try:
        with open_regular(path, name, remedy) as file:
            try:
                return _map_npy(file)
            except OSError:
                raise
            except Exception as error:  # whatever NumPy's reader trips over
                reason = f"cannot be opened as a .npy file: {error}"
                if zipfile.is_zipfile(file):
                    reason = "is an archive; pass a .npy file, or the arrays of np.load(...)"
                raise ValueError(f"{name}: {path!r} {reason}") from error
    except OSError as error:
        raise type(error)(error.errno, f"{name}: {error.strerror or error}", path) from error


def torch_dtype(source: torch.Tensor | Array) -> torch.dtype:
    if isinstance(source, torch.Tensor):
        return source.dtype
    return torch.from_numpy(np.empty(0, source.dtype)).dtype


class Field:
    """One column: its memory, its name in errors, and how a row is taken as torch would."""

    def __init__(self, name: str, value: object) -> None:
        self.name = name
        self.opened: str | None = None
        self._table: Table | None = None
        if isinstance(value, (str, os.PathLike)):
            self.opened = os.path.abspath(os.fspath(value))
            value = _open_npy(name, self.opened)
        if isinstance(value, torch.Tensor):
            self._check_tensor(value)
            self.source: torch.Tensor | Array = value
            self.file: MappedFile | None = None
            self.rows: torch.Tensor | None = value
            return
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
            ragged = ", or RaggedArray.from_list(rows) for rows of different length"
            raise TypeError(
                f"{name} is a {type(value).__name__}; pass a numpy.ndarray (numpy.asarray(...)), "
                "a torch CPU tensor or the path of a .npy file"
                f"{ragged if isinstance(value, list) else ''}"
            )
        _check_dtype(name, value.dtype)
        self._check_dimensions(value.ndim)
        # np.ulonglong is a uint64 that torch does not know by that name.
        self.source = np.asarray(value).view(np.dtype(value.dtype.name))
        self.file = find_file(value)
        self.rows = torch.from_numpy(self.source) if self._can_be_aliased() else None

    def _check_tensor(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            raise TypeError(
                f"{self.name} is a {tensor.layout} tensor on {tensor.device}; "
                "pass a dense CPU tensor (t.cpu(), t.to_dense())"
            )
        self._check_dimensions(tensor.ndim)

    def _check_dimensions(self, count: int) -> None:
        if count == 0:
            raise ValueError(
                f"{self.name} is 0-dimensional; its first dimension must count samples"
            )

    def _can_be_aliased(self) -> bool:
        array = self.source
        assert isinstance(array, np.ndarray)
        whole = all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)
        return array.flags.writeable and array.flags.aligned and whole and self.file is None

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

    def read_range(self, begin: int, end: int) -> torch.Tensor:
        """As ``self[begin:end]``, and of a mapped file in one piece."""
        array = self.source
        if self.rows is not None or self.file is None or isinstance(array, torch.Tensor):
            return self[begin:end]
        out = torch.empty((end - begin, *array.shape[1:]), dtype=torch_dtype(array))
        name = f"{self.name}[{begin}:{end}]"
        piece = Table((array[None, begin:end],), torch.Tensor, (name,), (self.file,))
        piece.read_row(0, (out,))
        return out

    def image(self, index: int) -> torch.Tensor | Array:
        """A row where it lies. Of a mapped file, a copy."""
        if self.rows is not None:
            return self.rows[index]
        return self.source[index] if self.file is None else self[index]

    def _read_mapped(self, array: Array, index: Any) -> torch.Tensor:
        """Rows of a mapped file. If the file has become shorter, this is an OSError, no crash."""
        if self._table is None:
            self._table = Table((array,), torch.Tensor, (self.name,), (self.file,))
        dtype = torch_dtype(array)
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            out = torch.empty(array.shape[1:], dtype=dtype)
            self._table.read_row(range(len(array))[index], (out,))
            return out
        rows = np.arange(len(array))[index]
        out = torch.empty((rows.size, *array.shape[1:]), dtype=dtype)
        for row, place in zip(rows.flat, out, strict=True):
            self._table.read_row(int(row), (place,))
        return out.view((*rows.shape, *array.shape[1:]))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        source: object = self.opened
        if source is None:  # a view pickles no more than it shows
            source = np.array(self.source) if isinstance(self.source, np.ndarray) else self.source
        return Field, (self.name, source)

    def __repr__(self) -> str:
        source = self.source
        return f"{str(source.dtype).removeprefix('torch.')} {tuple(source.shape)}"
