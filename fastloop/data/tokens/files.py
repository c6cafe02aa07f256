"""Files of tokens: names, headers, indices, documents, and the check that a file has not changed.

A file's content and the index beside the file decide the format, never the suffix alone. The core
reads headers and indices, NumPy reads .npy headers.
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
from fastloop.base import checks
from fastloop.compat.moves import are_noticed
from fastloop.data.field import Array, Field, MappedFile, open_regular, read_npy_header
from fastloop.data.sequences.ragged import RaggedArray

FORMATS = ("auto", "raw", "npy", "llmc", "megatron", "datatrove")
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_HEADER_BYTES = 1024
_NPY = b"\x93NUMPY"
# Tokens with an index are recognised by these: format, suffix of the tokens, begin of the index.
_INDEXED = (("datatrove", ".ds", b""), ("megatron", ".bin", b"MMIDIDX"))
_DATATROVE_BESIDE = (".ds.index", ".ds.metadata", ".ds.loss")  # written beside "x.ds"
_PART = 2**22  # the number of tokens that are searched at a time

Identity = tuple[int, int]  # size in bytes, time of the last change in ns


class TokenFile(NamedTuple):
    """A file of tokens, or a user's arrays instead of a file. ``Windows`` takes the parts up to
    ``mapped``."""

    path: str  # for arrays, the name in errors
    # A descriptor belongs to the function that gets this tuple. None: not open.
    source: int | Array | torch.Tensor | None
    first_byte: int
    tokens: int
    dtype: str
    ends: np.ndarray[Any, np.dtype[np.int64]] | None  # documents' ends, in tokens; None: unknown
    mapped: MappedFile | None  # the file that holds the array, and that may become shorter
    format: str
    identities: dict[str, Identity]  # the file's, and the index's, by path
    buffers: tuple[Any, Any] | None = None  # values and offsets as the user gave them


def read_dtype(name: str, dtype: Any, known: Sequence[str] = DTYPES) -> str:
    """Return the name of a dtype of NumPy or torch that must be one of ``known``."""
    is_torchs = isinstance(dtype, torch.dtype)
    try:
        found = np.dtype(str(dtype).removeprefix("torch.") if is_torchs else dtype)
    except TypeError:
        found = np.dtype(object)
    if found.name not in known or not found.isnative:
        raise ValueError(checks.make_message(name, f"one of {', '.join(known)}", dtype))
    return found.name


def expand_paths(paths: Any) -> list[str]:
    """Return the absolute paths for a path, a pattern, or a list. The files of a pattern are sorted
    by name."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    rule = "a path, a pattern such as 'data/*.bin', or a list of at least one path or pattern"
    checks.check_type("paths", paths, checks.is_sequence(paths), rule)
    checks.check_value("paths", paths, len(paths) > 0, rule)
    expanded: list[str] = []
    for given in paths:
        path = os.path.abspath(os.fsdecode(given))
        is_pattern = glob.has_magic(path) and not os.path.exists(path)
        found = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No file matches this pattern", path)
        expanded += found
    return expanded


def open_tokens(path: str, format: str, dtype: str) -> TokenFile:
    """Open a file and read its layout. Raise a ValueError or OSError with the file's name."""
    with open_regular(path, "paths", "write the tokens to a file, or use from_buffers") as opened:
        state = os.fstat(opened.fileno())
        head = os.pread(opened.fileno(), _HEADER_BYTES, 0)
        if format == "auto":
            format = _detect_format(path, head)
        ends, identities, read = None, {path: _identity(state)}, path
        try:
            if format == "npy":
                dtype, first, tokens = _read_npy(opened, state.st_size, dtype)
            elif format in ("megatron", "datatrove"):
                if format == "megatron" and not path.endswith(".bin"):
                    remedy = "pass the .bin file beside the .idx file"
                    ending = os.path.splitext(path)[1]
                    raise ValueError(f"must end with .bin, got {ending!r} ({remedy})")
                read = _index_of(path, format)
                with open_regular(read, "index", "write the index again") as file:
                    identities[read] = _identity(os.fstat(file.fileno()))
                    layout, ends = token_index(file.read(), state.st_size, format, dtype)
                dtype, first, tokens = layout
            else:
                dtype, first, tokens = token_header(head, state.st_size, format, dtype)
                if format == "auto":
                    format = "llmc" if first else "raw"
        except ValueError as error:
            raise ValueError(f"{read!r} {error}") from None
        source = os.dup(opened.fileno())
        return TokenFile(path, source, first, tokens, dtype, ends, None, format, identities)


def _detect_format(path: str, head: bytes) -> str:
    if head.startswith(_NPY):
        return "npy"
    if path.endswith(_DATATROVE_BESIDE):
        tokens = path[: path.rindex(".")]
        raise ValueError(f"{path!r} must be a file of tokens, got datatrove's notes on {tokens!r}")
    for format, suffix, begin in _INDEXED:
        if path.endswith(suffix) and os.path.isfile(index := _index_of(path, format)):
            with open(index, "rb") as file:
                if file.read(len(begin)) == begin:
                    return format
    return "auto"


def _index_of(path: str, format: str) -> str:
    return f"{path}.index" if format == "datatrove" else f"{path.removesuffix('.bin')}.idx"


def _read_npy(opened: BinaryIO, file_bytes: int, dtype: str) -> tuple[str, int, int]:
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
    if (got := file_bytes - first) != tokens * found.itemsize:
        rule = f"{tokens} tokens of {found.itemsize} bytes, as its header says"
        raise ValueError(f"must have {rule}, got {got} bytes")
    return found.name, first, tokens


def open_again(file: TokenFile) -> TokenFile:
    """Open a file that was open before, maybe in a parent process. Raise OSError if the file has
    changed."""
    if file.buffers is not None:
        return take_buffers(*file.buffers)
    for path, was in file.identities.items():
        now = _identity(os.stat(path))
        if now != was:
            before, after = (f"{size} bytes, written at {ns} ns" for size, ns in (was, now))
            text = f"The file has changed since the dataset was made: it had {before}, and has"
            raise OSError(errno.ESTALE, f"{text} {after}; make the dataset again", path)
    return open_tokens(file.path, file.format, file.dtype)


def _identity(state: os.stat_result) -> Identity:
    return state.st_size, state.st_mtime_ns


def take_buffers(values: Any, offsets: Any) -> TokenFile:
    """Return tokens in memory. Document i is ``values[offsets[i]:offsets[i + 1]]``."""
    ragged = RaggedArray(Field("values", _from_arrow(values)).source, _from_arrow(offsets))
    source, bounds = ragged.values, ragged.offsets.astype(np.int64)
    array = source.detach().numpy() if isinstance(source, torch.Tensor) else source
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise TypeError(f"values must have a dtype of {', '.join(DTYPES)}, got {dtype}")
    if not array.flags.c_contiguous:
        remedy = "pass numpy.ascontiguousarray(values)"
        raise ValueError(f"values must be contiguous, got strides {array.strides} ({remedy})")
    begin, end = int(bounds[0]), int(bounds[-1])
    checks.refuse_if(begin == end, "offsets must hold at least one token, got none")
    if isinstance(source, torch.Tensor):
        # torch may move a tensor's memory. If fastloop cannot notice that, take a copy.
        source = source.detach().as_subclass(torch.Tensor) if are_noticed() else array.copy()
    layout = "values", source, begin * array.itemsize, end - begin, dtype, bounds[1:] - begin
    return TokenFile(*layout, ragged.file, "buffers", {}, (values, offsets))


def _from_arrow(array: Any) -> Any:
    """View an Arrow array as a NumPy array; return any other value unchanged."""
    is_arrow = hasattr(array, "__array__") and not isinstance(array, (np.ndarray, torch.Tensor))
    return np.asarray(array) if is_arrow else array


# ---- documents


def documents_of(files: Sequence[TokenFile], eos_id: int | None) -> RaggedArray:
    """Return the documents in files, without a copy of the tokens. An index beside a file has the
    bounds of documents; else ``eos_id`` ends each document."""
    parts = []
    for each in files:
        if each.buffers is not None:
            parts.append(RaggedArray(*each.buffers))
            continue
        file: Any = open_again(each)
        os.close(file.source)
        remedy = "the file has no index of documents"
        rule = f"an int for the documents of {file.path!r}"
        checks.check_value("eos_id", eos_id, not (eos_id is file.ends is None), rule, remedy)
        mapped = np.memmap(file.path, file.dtype, "r", file.first_byte, (file.tokens,))
        field = Field("tokens", mapped)
        ends = _find_ends(field, eos_id or 0) if file.ends is None else file.ends
        parts.append(RaggedArray(field.source, np.append(0, ends)))
    return RaggedArray.from_parts(parts)


def _find_ends(field: Field, eos_id: int) -> Array:
    """Return where documents end that end with this token, and the end of all tokens."""
    ends = [np.array([len(field)])]
    for first in range(0, len(field), _PART):
        part = field.read_range(first, min(first + _PART, len(field))).numpy()
        ends.append(np.flatnonzero(part == eos_id) + first + 1)
    return np.unique(np.concatenate(ends))
