"""Files of tokens: their names, their headers and indices, and whether they are still the same.

A format is told by content and by the index beside a file, never by a suffix alone. C knows the
layouts of headers and indices, NumPy that of .npy.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch

from fastloop._core import token_header, token_index
from fastloop.base.checks import is_sequence, make_message
from fastloop.base.moves import are_noticed
from fastloop.data.field import Array, MappedFile, open_regular, read_npy_header
from fastloop.data.sequences.ragged import RaggedArray

FORMATS = ("auto", "raw", "npy", "llmc", "megatron", "datatrove")
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_HEADER_BYTES = 1024
_NPY = b"\x93NUMPY"
# How tokens with an index are recognised: format, suffix of the tokens, begin of the index.
_INDEXED = (("datatrove", ".ds", b""), ("megatron", ".bin", b"MMIDIDX"))
_DATATROVE_BESIDE = (".ds.index", ".ds.metadata", ".ds.loss")  # written beside "x.ds"

Identity = tuple[int, int]  # size in bytes, time of the last change in ns
Ends = np.ndarray[Any, np.dtype[np.int64]]  # of documents, in tokens
Layout = tuple[str, int, int]  # dtype, first byte, number of tokens


class TokenFile(NamedTuple):
    """A file from which windows are read, or arrays of the user in place of one."""

    path: str  # of arrays, their name in errors
    format: str
    dtype: str
    first_byte: int
    tokens: int
    identities: dict[str, Identity]  # of the file, and of an index that says where documents end
    buffers: tuple[Any, Any] | None = None  # values and offsets as the user gave them


class OpenTokens(NamedTuple):
    """An open file of tokens."""

    file: TokenFile
    source: int | Array | torch.Tensor  # a descriptor must be closed by the function that gets it
    ends: Ends | None  # of its documents, if it says them
    mapped: MappedFile | None = None  # in which the array lies; it may become shorter


def read_dtype(name: str, dtype: Any, known: Sequence[str] = DTYPES) -> str:
    """Return the name of a dtype of NumPy or torch that must be one of ``known``."""
    is_torchs = isinstance(dtype, torch.dtype)
    try:
        found = np.dtype(str(dtype).removeprefix("torch.") if is_torchs else dtype)
    except TypeError:
        found = np.dtype(object)
    if found.name not in known or not found.isnative:
        raise ValueError(make_message(name, f"one of {', '.join(known)}", dtype))
    return found.name


def expand_paths(paths: Any) -> list[str]:
    """Return the absolute paths of a path, a pattern or a list of these. Files of a pattern come in
    the order of their names."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not is_sequence(paths) or not paths:
        rule = "a path, a pattern such as 'data/*.bin', or a list of at least one of these"
        raise (ValueError if is_sequence(paths) else TypeError)(make_message("paths", rule, paths))
    expanded: list[str] = []
    for given in paths:
        path = os.path.abspath(os.fsdecode(given))
        is_pattern = glob.has_magic(path) and not os.path.exists(path)
        found = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No file has a name like this", path)
        expanded += found
    return expanded


def open_tokens(path: str, format: str, dtype: str) -> OpenTokens:
    """Open a file and read its layout. Raise ValueError or OSError, which name it."""
    with open_regular(path, "paths", "write the tokens to a file, or use from_buffers") as opened:
        state = os.fstat(opened.fileno())
        head = os.pread(opened.fileno(), _HEADER_BYTES, 0)
        if format == "auto":
            format = _detect_format(path, head)
        ends, identities, read = None, {path: _identity(state)}, path
        try:
            if format == "npy":
                layout = _read_npy(opened, state.st_size, dtype)
            elif format in ("megatron", "datatrove"):
                if format == "megatron" and not path.endswith(".bin"):
                    raise ValueError("must end with .bin (pass the .bin file of a Megatron index)")
                read = _index_of(path, format)
                with open_regular(read, "index", "write the index again") as file:
                    identities[read] = _identity(os.fstat(file.fileno()))
                    layout, ends = token_index(file.read(), state.st_size, format, dtype)
            else:
                layout = token_header(head, state.st_size, format, dtype)
                if format == "auto":
                    format = "llmc" if layout[1] else "raw"
        except ValueError as error:
            raise ValueError(f"{read!r} {error}") from None
        tokens = TokenFile(path, format, *layout, identities)
        return OpenTokens(tokens, os.dup(opened.fileno()), ends)


def _detect_format(path: str, head: bytes) -> str:
    if head.startswith(_NPY):
        return "npy"
    if path.endswith(_DATATROVE_BESIDE):
        tokens = path[: path.rindex(".")]
        raise ValueError(f"{path!r} is not tokens but what datatrove writes beside {tokens!r}")
    for format, suffix, begin in _INDEXED:
        if path.endswith(suffix) and os.path.isfile(index := _index_of(path, format)):
            with open(index, "rb") as file:
                if file.read(len(begin)) == begin:
                    return format
    return "auto"


def _index_of(path: str, format: str) -> str:
    return f"{path}.index" if format == "datatrove" else f"{path.removesuffix('.bin')}.idx"


def _read_npy(opened: BinaryIO, file_bytes: int, dtype: str) -> Layout:
    try:
        shape, _, found = read_npy_header(opened)
    except OSError:
        raise
    except Exception as error:  # NumPy's reader raises many types
        raise ValueError(f"cannot be opened as a .npy file: {error}") from None
    known = DTYPES if dtype == "auto" else (dtype,)
    if found.name not in known or not found.isnative:
        raise ValueError(f"must have a dtype of {', '.join(known)}, got {found}")
    if len(shape) != 1 or shape[0] == 0:
        raise ValueError(f"must be a vector of tokens, got shape {shape}")
    first, tokens = opened.tell(), shape[0]
    if file_bytes - first != tokens * found.itemsize:
        rule = f"{tokens} tokens of {found.itemsize} bytes, as its header says"
        raise ValueError(f"must have {rule}, got {file_bytes - first} bytes")
    return found.name, first, tokens


def open_again(file: TokenFile) -> OpenTokens:
    """Open a file that was open before, maybe in another process. Raise OSError if it changed."""
    if file.buffers is not None:
        return take_buffers(*file.buffers)
    for path, was in file.identities.items():
        now = _identity(os.stat(path))
        if now != was:
            text = (
                "The file has changed since the dataset was made: it had {} bytes, written at {} "
                "ns, and has {} bytes, written at {} ns; make the dataset again"
            )
            raise OSError(errno.ESTALE, text.format(*was, *now), path)
    return open_tokens(file.path, file.format, file.dtype)


def _identity(state: os.stat_result) -> Identity:
    return state.st_size, state.st_mtime_ns


def take_buffers(values: Any, offsets: Any) -> OpenTokens:
    """Return tokens in memory, of documents ``values[offsets[i]:offsets[i + 1]]``."""
    ragged = RaggedArray(_from_arrow(values), _from_arrow(offsets))
    source, bounds = ragged.values, ragged.offsets.astype(np.int64)
    array = source.detach().numpy() if isinstance(source, torch.Tensor) else source
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise TypeError(f"values must have a dtype of {', '.join(DTYPES)}, got {dtype}")
    if not array.flags.c_contiguous:
        raise ValueError("values must have no gaps (pass numpy.ascontiguousarray(values))")
    begin, end = int(bounds[0]), int(bounds[-1])
    if begin == end:
        raise ValueError("offsets must hold at least one token, got none")
    if isinstance(source, torch.Tensor):
        # torch may move the memory of a tensor, and must then tell; a copy is never moved.
        source = source.detach().as_subclass(torch.Tensor) if are_noticed() else array.copy()
    first, given = begin * array.itemsize, (values, offsets)
    file = TokenFile("values", "buffers", dtype, first, end - begin, {}, given)
    return OpenTokens(file, source, bounds[1:] - begin, ragged.file)


def _from_arrow(array: Any) -> Any:
    """View an array of Arrow as NumPy's; return any other value."""
    is_known = isinstance(array, (np.ndarray, torch.Tensor)) or not hasattr(array, "__array__")
    return array if is_known else np.asarray(array)
