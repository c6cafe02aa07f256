"""The index of tar shards: where each sample lies, in a file that is made once.

The file begins with a header: magic, a checksum of all that follows, and the numbers of shards, of
samples and of bytes of text. Then come the shards (size, time of the last change in ns, inode,
samples), the samples, as ``tar_index`` gives them, and the sets of extensions as text.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastloop._core import FileReader, checksum, tar_index, tar_members
from fastloop.base.once import make_once, write_whole
from fastloop.data.field import Array, open_regular

ENTRY = np.dtype([("place", "<u8"), ("bytes", "<u4"), ("check", "<u4")])
SHARD_BITS = 40  # a place is the number of the shard << 40 | the first byte
OTHER_SET = 255  # the number of samples whose extensions are in none of the sets
_HEADER = struct.Struct("<16sQQQQ")
_MAGIC, _SUMMED = b"fastloop tar 001", 24  # the checksum covers the bytes from _SUMMED on


class Index(NamedTuple):
    path: str
    entries: Array  # of ENTRY, in the order of the shards
    sets: tuple[str, ...]  # extensions with slashes between


def open_index(
    paths: tuple[str, ...], states: bytes, keeps_duplicates: bool, cache_dir: str | None
) -> Index:
    """Return the index of shards, whose states are ``FileReader.states``. If no folder has it, make
    it; if a second process makes it at this moment, wait for that process.

    Raises:
        ValueError: a shard is damaged, or no tar archive.
        OSError: a shard cannot be read, or no folder can be written.
    """
    beside, home = os.path.dirname(paths[0]), os.path.expanduser("~/.cache/fastloop")
    folders = [beside, home] if cache_dir is None else [cache_dir]
    files = [os.path.join(folder, _name(folder, paths, keeps_duplicates)) for folder in folders]
    for file in files:
        index = _read(file, states)
        if index is not None:
            return index
    file = files[0] if os.access(beside, os.W_OK) else files[-1]
    os.makedirs(os.path.dirname(file), exist_ok=True)
    make = partial(_make, file, paths, states, keeps_duplicates)
    return make_once(f"{file}.lock", partial(_read, file, states), make)


def _name(folder: str, paths: Sequence[str], keeps_duplicates: bool) -> str:
    """Name the index by its shards. Names are relative, so that you may move all files."""
    names = [keeps_duplicates, *(path.removeprefix(f"{folder}/") for path in paths)]
    digest = hashlib.blake2b(repr(names).encode(errors="surrogateescape"), digest_size=8)
    return f"fastloop-{digest.hexdigest()}.index"


def _read(path: str, states: bytes) -> Index | None:
    """Return the index in a file, or None if the file is absent, damaged, or of other shards."""
    try:
        with open_regular(path, "cache_dir", "remove it") as file:
            data = np.fromfile(file, np.uint8)
    except OSError:
        return None
    if data.size < _HEADER.size:
        return None
    magic, summed, shards, count, text_bytes = _HEADER.unpack(data[: _HEADER.size].tobytes())
    begin = _HEADER.size + 32 * shards
    end = begin + ENTRY.itemsize * count
    if magic != _MAGIC or data.size != end + text_bytes or summed != checksum(data[_SUMMED:]):
        return None
    found = data[_HEADER.size : begin].view(np.int64).reshape(shards, 4)
    if found[:, :3].tobytes() != states:
        return None
    text = data[end:].tobytes().decode(errors="surrogateescape")
    return Index(path, data[begin:end].view(ENTRY), tuple(text.split("\0") if count else ()))


def _make(path: str, paths: tuple[str, ...], states: bytes, keeps_duplicates: bool) -> Index:
    """Read the headers of all shards, and write the index."""
    if FileReader(paths).states != states:
        text = "A shard has changed since the dataset was made; make the dataset again"
        raise OSError(errno.ESTALE, text, os.path.dirname(paths[0]))
    known: dict[str, int] = {}
    shards = np.zeros((len(paths), 4), np.int64)
    shards[:, :3] = np.frombuffer(states, np.int64).reshape(-1, 3)
    scanned: list[Array] = []

    def scan(number: int) -> tuple[Array, tuple[str, ...]]:
        return _scan(paths[number], int(shards[number, 0]), keeps_duplicates)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "fastloop-index") as pool:
        for number, (entries, sets) in enumerate(pool.map(scan, range(len(paths)))):
            numbers = [min(known.setdefault(s, len(known)), OTHER_SET) for s in sets]
            table = np.array(numbers + [OTHER_SET] * (256 - len(sets)), np.uint32)
            entries["check"] = entries["check"] & ~np.uint32(255) | table[entries["check"] & 255]
            entries["place"] |= np.uint64(number << SHARD_BITS)
            shards[number, 3] = len(entries)
            scanned.append(entries)
    named = tuple(known)[:OTHER_SET]
    return _write(path, shards, np.concatenate(scanned), named)


def _scan(path: str, bytes: int, keeps_duplicates: bool) -> tuple[Array, tuple[str, ...]]:
    """Return the samples of a shard, and their sets of extensions."""
    with open_regular(path, "paths", "pass tar files") as file:
        try:
            found, hashes, sets = tar_index(path, file.fileno(), bytes)
        except ValueError as error:
            raise ValueError(f"{path!r} {error}") from None
        entries = np.frombuffer(found, ENTRY).copy()
        order = np.argsort(np.frombuffer(hashes, np.uint64), kind="stable")
        keys = np.frombuffer(hashes, np.uint64)[order]
        again = order[1:][keys[1:] == keys[:-1]]
        if len(again) and not keeps_duplicates:
            place, count, check = entries[again.min()].tolist()
            key, _ = tar_members(os.pread(file.fileno(), count, place), check >> 8)
            text = f"has the key {key!r} a second time at byte {place}"
            remedy = "sort the members by name, or pass duplicates='keep'"
            raise ValueError(f"{path!r} {text}; {remedy}")
    return entries, sets


def _write(path: str, shards: Array, entries: Array, sets: tuple[str, ...]) -> Index:
    text = "\0".join(sets).encode(errors="surrogateescape")
    header = _HEADER.pack(_MAGIC, 0, len(shards), len(entries), len(text))
    data = np.frombuffer(header + shards.tobytes() + entries.tobytes() + text, np.uint8).copy()
    data[16:_SUMMED].view(np.uint64)[0] = checksum(data[_SUMMED:])
    write_whole(path, lambda unfinished: Path(unfinished).write_bytes(data.data))
    return Index(path, entries, sets)
