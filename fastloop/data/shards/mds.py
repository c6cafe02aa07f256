"""MDSDataset: folders of shards in the format MDS of mosaicml-streaming, as a map-style dataset.

A shard has the number of its samples n as a uint32, n + 1 offsets of samples as uint32, its
description as JSON, and the samples. A sample has the sizes of its values of variable size as
uint32, and the values. ``index.json`` names shards and columns.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop._core import FileReader
from fastloop.base.checks import check_type, read_optional_int, refuse_if
from fastloop.base.shown import repr_of
from fastloop.data.field import Array, open_regular, read_item
from fastloop.data.shards.arrow_columns import import_arrow
from fastloop.data.shards.cache import (
    LazyFiles,
    check_size,
    copy_url,
    digest_of,
    folder_of,
    is_url,
    make_file,
    make_room,
    open_url,
)
from fastloop.data.shards.records import Records, read_names

_IMAGES = ("jpeg", "png")
_TAKEN = "bytes, str, int, numbers, ndarray, json, jpeg or png"
_CODECS = {"zstd": "zstd", "gz": "gzip", "br": "brotli", "bz2": "bz2"}  # pyarrow's names
# By the number of a dtype in the format: the bits, plus 1 if signed, plus 2 if floating.
_DTYPES = {bits: f"uint{bits}" for bits in (8, 16, 32, 64)}
_DTYPES |= {bits + 1: f"int{bits}" for bits in (8, 16, 32, 64)}
_DTYPES |= {bits + 2: f"float{bits}" for bits in (16, 32, 64)}
_TEXTS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": bytes.decode,
    "str_int": int,
    "str_float": float,
    "json": json.loads,
}


def _as_tensor(dtype: str, shape: Sequence[int], data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype).reshape(shape))


def _read_array(dtype: str, data: bytes) -> torch.Tensor:
    """Return an array that begins with its dtype, unless that is given, and its shape."""
    at = 0
    if not dtype:
        dtype, at = _DTYPES[data[0]], 1
    ndim, width = data[at] >> 2, 1 << (data[at] & 3)
    end = at + 1 + ndim * width
    shape = np.frombuffer(data[at + 1 : end], f"u{width}").tolist()
    return _as_tensor(dtype, shape, data[end:])


@cache
def _find_decoder(encoding: str) -> Callable[[bytes], Any] | None:
    """Return the function that decodes values of an encoding; None: it is not taken."""
    kind, *how = encoding.split(":")
    if kind == "ndarray" and len(how) == 2:
        return partial(_as_tensor, how[0], [int(size) for size in how[1].split(",")])
    if kind == "ndarray":
        return partial(_read_array, "".join(how))
    if kind == "int" or kind in _DTYPES.values():
        return partial(_as_tensor, "int64" if kind == "int" else kind, ())
    return _TEXTS.get(kind)


class _Shard(NamedTuple):
    name: str
    bytes: int
    samples: int
    columns: tuple[tuple[str, str, int | None], ...]  # name, encoding, size
    packed: tuple[str, int, str] | None  # name, bytes and codec of the compressed shard


def _read_shard(given: Any) -> _Shard:
    is_mds = given["format"] == "mds" and given["version"] == 2
    refuse_if(not is_mds, f"a shard is of {given['format']} {given['version']}, not of mds 2")
    raw, zipped, samples, packed = given["raw_data"], given["zip_data"], given["samples"], None
    if zipped:
        codec = given["compression"].split(":")[0]
        refuse_if(codec not in _CODECS, f"a shard is compressed with {codec}")
        packed = zipped["basename"], zipped["bytes"], _CODECS[codec]
    for name in (raw["basename"], packed[0] if packed else ""):
        refuse_if(os.path.basename(name) != name, f"a shard has the name {name!r}")
    refuse_if(not 0 <= 4 * (samples + 2) <= raw["bytes"], f"a shard has {samples} samples")
    lists = (given[f"column_{key}"] for key in ("names", "encodings", "sizes"))
    return _Shard(raw["basename"], raw["bytes"], samples, tuple(zip(*lists, strict=True)), packed)


def _unpack(source: str, codec: str, target: str) -> None:
    pa = import_arrow()
    try:
        with pa.CompressedInputStream(pa.OSFile(source), codec) as data, open(target, "wb") as out:
            shutil.copyfileobj(data, out, 1 << 20)
    except (pa.ArrowInvalid, pa.ArrowIOError) as error:
        if getattr(error, "errno", None) is not None:  # a full disk
            raise
        text = f"the shard cannot be decompressed with {codec}: {error}"
        raise OSError(errno.EIO, text, source) from error


class MDSDataset(Records):
    """Shards in the format MDS of mosaicml-streaming, as a map-style dataset.

    Args:
        folder: the folder with ``index.json``, or a URL that fsspec opens. For a split, pass the
            split's folder.
        columns: the names of the columns, in the order of a sample. None: all.
        cache_dir: the folder for shards that are fetched or decompressed; None:
            ``~/.cache/fastloop``. A shard is made there, whole, when its first sample is read, by
            one process of the machine while the others wait. Shards on a disk without compression
            are read where they are.
        transform: as in ``ImageFolder``, for columns with the encodings jpeg and png.
        decode: ``"auto"``, or a dict from columns to functions of a value's bytes. The result is
            the value, and ``transform`` does not get it.
        on_error: for a row that cannot be decoded, as in ``ImageFolder``.
        cache_limit: the most bytes of this dataset's shards in ``cache_dir``. If a new shard would
            exceed it, others are removed, chosen at random. None: no limit.
        seed: the seed of the transforms' random parameters.

    Sample ``i`` is a dict: numbers and arrays are tensors, images tensors as from ``ImageFolder``,
    json is what it holds, and str, bytes, str_int and str_float are Python's. If ``cache_limit``
    is below the size of all shards, take ``BlockShuffleSampler``, which reads few shards at a time.

    For example, ``MDSDataset("/data/c4/train", ["tokens"])``.

    Raises:
        TypeError: wrong arguments; a column with an encoding that is not taken (pkl, pil, lists).
        ValueError: a name that no column has; an index that is not of MDS.
        OSError: no index; a shard that is absent or cut; from samples: a shard that is damaged or
            has changed, a full disk.
    """

    _borrows_slots = True
    _decodes_files = True
    _digest = ""
    _states: bytes | None = None

    def __init__(
        self,
        folder: Any,
        columns: Sequence[str] | None = None,
        cache_dir: Any = None,
        transform: Any = None,
        *,
        decode: Any = "auto",
        on_error: Any = "raise",
        cache_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        self._folder = folder if is_url(folder) else os.path.abspath(os.fsdecode(folder))
        self._limit = read_optional_int("cache_limit", cache_limit, 1)
        self._cache_dir = folder_of(cache_dir)
        self._open()
        known = [{name for name, *_ in shard.columns} for shard in self._shards]
        every = [name for name, *_ in self._shards[0].columns if all(name in k for k in known)]
        self._names = read_names(columns, every)
        images = [name for name in self._names if self._encodings[name] in _IMAGES]
        self._prepare_columns(self._names, images, transform, decode, on_error, seed)
        for name in self._names:
            encoding = self._encodings[name]
            is_taken = name in (*images, *self._functions) or _find_decoder(encoding)
            remedy = "leave the column out with columns=[...], or pass a function with decode="
            rule = f"an encoding of {_TAKEN}"
            check_type(f"column {name!r}", encoding, is_taken, rule, remedy)

    # ---- shards

    def _open(self) -> None:
        """Read the index, also in a second process, which knows the states of all shards."""
        text = self._read_index()
        digest = digest_of(self._folder, text)
        if self._digest not in ("", digest):
            fault = "the index has changed since the dataset was made; make a new dataset"
            raise OSError(errno.ESTALE, fault, self._folder)
        self._digest, self._shards = digest, self._read_shards(text)
        self._starts = list(accumulate((shard.samples for shard in self._shards), initial=0))
        self._encodings = {name: e for shard in self._shards for name, e, _ in shard.columns}
        self._tables: dict[int, Array] = {}
        self._files: FileReader | LazyFiles = LazyFiles(self._find)
        if not is_url(self._folder) and not any(shard.packed for shard in self._shards):
            paths = tuple(os.path.join(self._folder, shard.name) for shard in self._shards)
            for path, shard in zip(paths, self._shards, strict=True):
                check_size(path, path, shard.bytes)
            reader = self._files = FileReader(paths, self._states)
            self._states = reader.states

    def _read_index(self) -> bytes:
        if is_url(self._folder):
            files, root = open_url(self._folder)
            text: bytes = files.cat_file(f"{root}/index.json")
            return text
        with open_regular(os.path.join(self._folder, "index.json"), "folder", "write it") as file:
            return file.read()

    def _read_shards(self, index: bytes) -> list[_Shard]:
        try:
            shards = list(map(_read_shard, json.loads(index)["shards"]))
            refuse_if(not shards, "it has no shards")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"index.json of {self._folder!r} cannot be read as an index of MDS: {error}"
            raise ValueError(text) from error
        return shards

    def _find(self, number: int) -> str:
        """Return the path of a shard, which is made in the cache unless it lies in the folder."""
        shard = self._shards[number]
        path = os.path.join(self._folder, shard.name)
        if is_url(self._folder) or (shard.packed and not os.path.exists(path)):
            folder = os.path.join(self._cache_dir, f"mds-{self._digest}")
            path = make_file(os.path.join(folder, shard.name), partial(self._make, shard))
        check_size(path, path, shard.bytes)
        return path

    def _make(self, shard: _Shard, target: str) -> None:
        if self._limit is not None:
            make_room(os.path.dirname(target), shard.bytes, self._limit)
        name, size, codec = shard.packed or (shard.name, shard.bytes, "")
        source = os.path.join(self._folder, name)
        if not is_url(self._folder):
            check_size(source, source, size)
            _unpack(source, codec, target)
            return
        files, root = open_url(self._folder)
        if not codec:
            copy_url(files, f"{root}/{name}", target, size)
            return
        source = f"{target}.packed.unfinished"  # make_room() of other processes leaves this ending
        try:
            copy_url(files, f"{root}/{name}", source, size)
            _unpack(source, codec, target)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(source)

    def __getstate__(self) -> dict[str, Any]:
        left = ("_shards", "_starts", "_encodings", "_tables", "_files")
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    # ---- samples

    def __len__(self) -> int:
        return self._starts[-1]

    def _name(self, row: int) -> str:
        number = bisect_right(self._starts, row) - 1
        return f"{self._folder}/{self._shards[number].name}: row {row - self._starts[number]}"

    def _place(self, row: int) -> tuple[int, int, int]:
        """Return the shard of a row, its first byte there, and its bytes."""
        number = bisect_right(self._starts, row) - 1
        table = self._tables.get(number)
        if table is None:
            shard = self._shards[number]
            head = self._files.read(number, 0, 4 * (shard.samples + 2))
            table = np.frombuffer(head, "<u4").astype(np.int64)
            begin, end = table[1], table[-1]
            is_whole = table[0] == shard.samples and len(head) <= begin and end <= shard.bytes
            if not is_whole or (np.diff(table[1:]) < 0).any():
                path = f"{self._folder}/{shard.name}"
                raise OSError(errno.EIO, "the offsets of the shard's samples are damaged", path)
            self._tables[number] = table
        at = row - self._starts[number] + 1
        return number, int(table[at]), int(table[at + 1] - table[at])

    def _announce(self, indices: Sequence[Any]) -> None:
        rows = [read_item(index, len(self))[0] for index in indices]
        self._files.announce(np.array([self._place(row) for row in rows], np.int64))

    def _values(self, row: int) -> dict[str, Any]:
        number, byte, count = self._place(row)
        data, columns = self._files.read(number, byte, count), self._shards[number].columns
        open_sizes = sum(size is None for _, _, size in columns)
        at, values = 4 * open_sizes, dict.fromkeys(self._names)
        try:
            sizes = iter(struct.unpack_from(f"<{open_sizes}I", data))
            for name, encoding, size in columns:
                end = at + (next(sizes) if size is None else size)
                if name in values:
                    values[name] = self._decode_value(name, encoding, data[at:end])
                at = end
            refuse_if(at != count, f"its values have {at} bytes of {count}")
        except Exception as error:  # numpy, json and struct raise many types
            raise OSError(f"{self._name(row)!r} cannot be decoded: {error}") from error
        return values

    def _decode_value(self, name: str, encoding: str, data: bytes) -> Any:
        is_left = name in self._images or name in self._functions
        decode = None if is_left else _find_decoder(encoding)
        return data if decode is None else decode(data)

    def explain(self) -> str:
        """Return a text: shards and where they are read, the columns, and who decodes images."""
        where = "where they are" if isinstance(self._files, FileReader) else self._cache_dir
        lines = [f"{len(self):,} rows in {len(self._shards)} shards, read in {where}"]
        lines += [f"{name}: {self._encodings[name]}" for name in self._names]
        return "\n".join(lines + (self._explain_images() if self._images else []))

    def __repr__(self) -> str:
        return repr_of(self, repr(self._folder), f"{len(self):,} rows", ", ".join(self._names))
