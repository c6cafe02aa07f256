"""Files of tokens: which there are, what their headers say, and whether they are still the same.

Formats are told by content and by the index beside a file, never by a suffix alone. The layouts of
headers and indices are known to C; that of .npy to NumPy.
"""

from __future__ import annotations

import errno
import glob
import operator
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from fastloop._core import token_header, token_index
from fastloop.base.moves import are_noticed
from fastloop.data.field import Array, MappedFile, find_file
from fastloop.data.files import open_regular, read_npy_header

FORMATS = ("auto", "raw", "npy", "llmc", "megatron", "datatrove")
_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_HEADER_BYTES = 1024
_NPY = b"\x93NUMPY"
_MEGATRON = b"MMIDIDX"
# What datatrove writes beside "x.ds".
_DATATROVE_BESIDE = (".ds.index", ".ds.metadata", ".ds.loss")


Identity = tuple[int, int]  # size in bytes, time of the last change in ns


class TokenFile(NamedTuple):
    """What is known of a file that windows are read from, or of arrays of the user's."""

    path: str  # for arrays, what errors call them
    format: str
    dtype: str
    first_byte: int
    tokens: int
    identity: Identity
    beside: tuple[str, Identity] | None = None  # the index, which says where documents end
    buffers: tuple[Any, Any] | None = None  # values and offsets as the user gave them


class OpenTokens(NamedTuple):
    """Where its tokens are read, and the ends of its documents where it says them."""

    file: TokenFile
    source: int | Array | torch.Tensor  # a descriptor is closed by whoever takes it
    ends: np.ndarray[Any, np.dtype[np.int64]] | None

    @property
    def mapped(self) -> MappedFile | None:
        """The mapped file in which an array lies, which may become shorter."""
        return find_file(self.source) if isinstance(self.source, np.ndarray) else None


def read_dtype(dtype: Any, argument: str = "dtype", known: Sequence[str] = _DTYPES) -> str:
    """The name of one of the known types, from what NumPy or torch call it."""
    name: str | None = None
    if isinstance(dtype, torch.dtype):
        name = str(dtype).removeprefix("torch.")
    elif dtype is not None:
        try:
            found = np.dtype(dtype)
        except TypeError:
            pass
        else:
            name = found.name if found.isnative else None
    if name is None or name not in known:
        raise ValueError(
            f"{argument}={dtype!r} is no type of tokens; pass one of {', '.join(known)}"
        )
    return name


def find_paths(paths: Any) -> list[str]:
    """The absolute paths of one path, one pattern, or a list of them, each pattern's in order."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Sequence) or isinstance(paths, bytes):
        raise TypeError(
            f"paths is a {type(paths).__name__}; pass a path, a pattern as 'data/*.bin', or a "
            "list of them"
        )
    found = [path for given in paths for path in _expand(given)]
    if not found:
        raise ValueError("paths is empty; pass at least one file")
    return found


def _expand(given: Any) -> list[str]:
    if not isinstance(given, (str, os.PathLike)) or isinstance(os.fspath(given), bytes):
        raise TypeError(f"paths has a {type(given).__name__}; pass each path as str or PathLike")
    if given == "" or "\0" in os.fspath(given):
        raise ValueError(f"paths has {given!r}, which is no name of a file; pass one")
    path = os.path.abspath(os.fspath(given))
    if not glob.has_magic(path) or os.path.exists(path):
        return [path]
    found = sorted(glob.glob(path, recursive=True))
    if not found:
        raise FileNotFoundError(errno.ENOENT, "No file has a name like this", path)
    return found


def open_tokens(path: str, format: str, dtype: str) -> OpenTokens:
    """Opens a file and finds its tokens. ValueError or OSError, which names it."""
    if os.path.isdir(path):
        remedy = f"Is a directory; pass its files, as {os.path.join(path, '*.bin')!r}"
        raise IsADirectoryError(errno.EISDIR, remedy, path)
    try:
        with open_regular(path, "paths", "write the tokens to a file, or use from_buffers") as file:
            return _read_layout(path, file, format, dtype)
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        remedy = "All files stay open, and these are too many; raise `ulimit -n`, or join files"
        raise OSError(errno.EMFILE, remedy, path) from None


def _read_layout(path: str, opened: BinaryIO, format: str, dtype: str) -> OpenTokens:
    state = os.fstat(opened.fileno())
    identity = _identity(state)
    head = os.pread(opened.fileno(), _HEADER_BYTES, 0)
    if format == "auto":
        format = _find_format(path, head)
    beside = ends = None
    if format == "npy":
        layout = _read_npy(path, opened, state.st_size, dtype)
    elif format in _INDEX_OF:
        index = _INDEX_OF[format](path)
        layout, ends, changed = _read_index(index, state.st_size, format, dtype)
        beside = index, changed
    else:
        try:
            layout = token_header(head, state.st_size, format, dtype)
        except ValueError as error:
            raise ValueError(f"{path!r} {error}") from None
        if format == "auto":
            format = "llmc" if layout[1] else "raw"
    return OpenTokens(
        TokenFile(path, format, *layout, identity, beside), os.dup(opened.fileno()), ends
    )


def _find_format(path: str, head: bytes) -> str:
    if head.startswith(_NPY):
        return "npy"
    if path.endswith(_DATATROVE_BESIDE):
        tokens = path[: path.rindex(".")]
        raise ValueError(f"{path!r} is not tokens but what datatrove writes beside {tokens!r}")
    if path.endswith(".ds") and os.path.exists(_datatrove_index(path)):
        return "datatrove"
    if path.endswith(".bin") and _begins_with(_megatron_index(path), _MEGATRON):
        return "megatron"
    return "auto"


def _begins_with(path: str, magic: bytes) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _datatrove_index(path: str) -> str:
    return f"{path}.index"


def _megatron_index(path: str) -> str:
    if not path.endswith(".bin"):
        raise ValueError(f"{path!r} does not end with .bin; pass the .bin file of a Megatron index")
    return f"{path.removesuffix('.bin')}.idx"


_INDEX_OF = {"megatron": _megatron_index, "datatrove": _datatrove_index}


def _read_index(
    path: str, file_bytes: int, format: str, dtype: str
) -> tuple[tuple[str, int, int], np.ndarray[Any, np.dtype[np.int64]], Identity]:
    with open_regular(path, "index", "write the index again") as file:
        identity = _identity(os.fstat(file.fileno()))
        index = file.read()
    try:
        return *token_index(index, file_bytes, format, dtype), identity
    except ValueError as error:
        raise ValueError(f"{path!r} {error}") from None


def _read_npy(path: str, opened: BinaryIO, file_bytes: int, dtype: str) -> tuple[str, int, int]:
    try:
        shape, _, found = read_npy_header(opened)
    except OSError:
        raise
    except Exception as error:  # whatever NumPy's reader trips over
        raise ValueError(f"{path!r} cannot be opened as a .npy file: {error}") from error
    if found.name not in _DTYPES or not found.isnative:
        raise ValueError(
            f"{path!r} has dtype {found}, which is no type of tokens; save it as one of "
            f"{', '.join(_DTYPES)}"
        )
    if dtype not in ("auto", found.name):
        raise ValueError(f"{path!r} has dtype {found}, and dtype={dtype!r}; leave dtype out")
    if len(shape) != 1:
        raise ValueError(f"{path!r} has shape {shape}; save the tokens as one row, a.reshape(-1)")
    first, tokens = opened.tell(), shape[0]
    if file_bytes - first != tokens * found.itemsize:
        raise ValueError(
            f"{path!r} has {file_bytes - first} bytes behind its header, which says {tokens} "
            f"tokens of {found.itemsize} bytes; it is cut, or its writer was stopped"
        )
    if tokens == 0:
        raise ValueError(f"{path!r} is empty; leave it out")
    return found.name, first, tokens


def open_again(file: TokenFile) -> OpenTokens:
    """Opens what was open before, maybe in another process. OSError for a file that has changed."""
    if file.buffers is not None:
        return take_buffers(*file.buffers)
    # What has changed may be of no layout any more, so this is seen first.
    for path, was in ((file.path, file.identity), *([file.beside] if file.beside else [])):
        now = _identity(os.stat(path))
        if now != was:
            raise _changed(path, was, now)
    again = open_tokens(file.path, file.format, file.dtype)
    if again.file != file:
        assert isinstance(again.source, int)
        os.close(again.source)
        raise _changed(file.path, file.identity, again.file.identity)
    return again


def _changed(path: str, was: Identity, now: Identity) -> OSError:
    return OSError(
        errno.ESTALE,
        f"The file is no longer what the dataset was made of: it had {_describe(was)} and has "
        f"{_describe(now)}; make the dataset again",
        path,
    )


def _identity(state: os.stat_result) -> Identity:
    return state.st_size, state.st_mtime_ns


def _describe(identity: Identity) -> str:
    size, changed = identity
    return f"{size} bytes from {datetime.fromtimestamp(changed / 1e9)}"


def take_buffers(values: Any, offsets: Any) -> OpenTokens:
    """Tokens in memory, and the documents in them: values[offsets[i]:offsets[i + 1]]."""
    array = _as_array("values", values)
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise TypeError(
            f"values has dtype {array.dtype}, which is no type of tokens; pass one of "
            f"{', '.join(_DTYPES)}"
        )
    bounds = _as_array("offsets", offsets)
    if bounds.dtype.name not in ("int32", "int64") or not bounds.dtype.isnative:
        raise TypeError(f"offsets has dtype {bounds.dtype}; pass int32 or int64")
    first, last = _check_offsets(array, bounds)
    begin, tokens, dtype = first * array.itemsize, last - first, array.dtype.name
    identity = array.nbytes, 0
    given = values, offsets
    file = TokenFile("values", "buffers", dtype, begin, tokens, identity, buffers=given)
    ends = bounds[1:].astype(np.int64) - first
    if not isinstance(values, torch.Tensor):
        return OpenTokens(file, array, ends)
    if not are_noticed():
        return OpenTokens(file, array.copy(), ends)
    return OpenTokens(file, values.detach().as_subclass(torch.Tensor), ends)


def _check_offsets(array: Array, bounds: Array) -> tuple[int, int]:
    if len(bounds) < 2:
        raise ValueError(
            f"offsets has {len(bounds)} elements; pass one for the begin of each document and one "
            "for the end of the last"
        )
    first, last = operator.index(bounds[0]), operator.index(bounds[-1])
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falls.size:
        i = int(falls[0])
        raise ValueError(
            f"offsets falls from {bounds[i]} to {bounds[i + 1]} at element {i + 1}; each document "
            "must end where it begins or behind"
        )
    if first < 0 or last > len(array):
        raise ValueError(
            f"offsets goes from {first} to {last}, and values has {len(array)} tokens; pass those "
            "that belong together"
        )
    if first == last:
        raise ValueError("offsets holds no token; pass documents that have some")
    return first, last


def _as_array(name: str, value: Any) -> Array:
    """One row, without a copy: of an ndarray, a tensor, or an array of Arrow's."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise TypeError(f"{name} is on {value.device}; pass {name}.cpu()")
        value = value.detach().numpy()
    if not hasattr(value, "__array__") or isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a {type(value).__name__}; pass an ndarray, a tensor, or an Arrow array"
        )
    array = np.asarray(value)
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(
            f"{name} has shape {array.shape} and strides {array.strides}; pass one row without "
            "gaps, numpy.ascontiguousarray(a).reshape(-1)"
        )
    return array
