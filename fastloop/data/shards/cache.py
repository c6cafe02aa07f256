"""Files that are made once in a folder, for all processes of a machine: fetched shards, shards
without their compression, Parquet as Arrow.

A file is made under a temporary name and renamed, so it is whole or absent. Its name holds a digest
of what it is made of: a changed source has a new file. ``docs/internals/arrow.md`` says who waits
for whom.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fastloop._core import FileReader
from fastloop.base.once import make_once, write_whole

_TEMPORARY = (".lock", ".unfinished")
_READERS = 64  # files that are made and of which a process keeps descriptors
_TRIES = 9  # times that a file is made again because a different process removed it


def folder_of(cache_dir: Any) -> str:
    """Return the folder of an argument ``cache_dir``."""
    given = "~/.cache/fastloop" if cache_dir is None else os.fsdecode(cache_dir)
    return os.path.abspath(os.path.expanduser(given))


def digest_of(*facts: Any) -> str:
    return hashlib.blake2b(repr(facts).encode(errors="surrogateescape"), digest_size=8).hexdigest()


def name_of(source: str, *facts: Any) -> str:
    """Return the name of the file that is made of a source. The name has the source's end, for
    people, and is short enough for endings."""
    return f"{digest_of(source, *facts)}-{os.path.basename(source)[-50:]}"


def make_file(path: str, write: Callable[[str], object]) -> str:
    """Return `path`. If there is no such file, ``write(temporary)`` makes it; if a second process
    makes it at this moment, wait for that process.

    Raises what ``write`` raises, and OSError; then no file is left.
    """

    def make() -> str:
        write_whole(path, write)
        return path

    os.makedirs(os.path.dirname(path), exist_ok=True)
    return make_once(f"{path}.lock", lambda: path if os.path.exists(path) else None, make)


# ---- URLs


def is_url(path: Any) -> bool:
    return isinstance(path, str) and "://" in path


def open_url(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path there. Raises ImportError."""
    try:
        fsspec = import_module("fsspec.core")
    except ImportError as error:
        text = f"{url!r} needs fsspec, which cannot be imported: {error}"
        raise ImportError(f"{text}; run: pip install fastloop[corpora]") from error
    return fsspec.url_to_fs(url)  # type: ignore[no-any-return]


def expand_url(url: str) -> list[str]:
    """Return the URLs that a pattern with ``*`` matches, sorted. Raises FileNotFoundError."""
    if "*" not in url:
        return [url]
    files, path = open_url(url)
    found = sorted(files.glob(path))
    if not found:
        raise FileNotFoundError(errno.ENOENT, "No file matches this pattern", url)
    if url.endswith(path):  # What stands before the path may have more than the protocol.
        return [url.removesuffix(path) + each for each in found]
    return [files.unstrip_protocol(each) for each in found]


def fetch(url: str, cache_dir: Any) -> str:
    """Return the path of a copy of the file. The name of the copy tells size and time, or ETag."""
    files, path = open_url(url)
    size = files.size(path)
    # HTTP's key is the same for all contents.
    target = os.path.join(folder_of(cache_dir), name_of(url, files.ukey(path), size))
    return make_file(target, lambda temporary: copy_url(files, path, temporary, size))


def copy_url(files: Any, path: str, target: str, size: int | None) -> None:
    """Copy a whole file. Raises OSError for a copy of a different size."""
    files.get_file(path, target)
    check_size(path, target, size)


def check_size(name: str, path: str, size: int | None) -> None:
    found = os.path.getsize(path)
    if size is not None and found != size:
        raise OSError(errno.EIO, f"the file must have {size} bytes, got {found}; it is cut", name)


# ---- files that come and go


class LazyFiles:
    """Files by number, of which parts are read, as from a ``FileReader``. A file is found, or made,
    at its first read, and made again if a different process has removed it.

    Args:
        find: returns the path of a file; makes the file if there is none.
    """

    def __init__(self, find: Callable[[int], str]) -> None:
        self._find = find
        self._readers: OrderedDict[int, FileReader] = OrderedDict()

    def read(self, number: int, byte: int, count: int) -> bytes:
        for attempt in range(_TRIES):
            reader = self._readers.get(number)
            try:
                if reader is None:
                    reader = self._readers[number] = FileReader((self._find(number),))
                    while len(self._readers) > _READERS:
                        self._readers.popitem(last=False)
                return reader.read(0, byte, count)
            except OSError as error:
                is_gone = error.errno in (errno.ENOENT, errno.ESTALE)
                if not is_gone or attempt == _TRIES - 1:
                    raise
                self._readers.pop(number, None)
        raise AssertionError

    def announce(self, parts: Any) -> None:
        """Do nothing: files that were just made are in the system's cache."""


def make_room(folder: str, size: int, limit: int) -> None:
    """Remove files of a folder, chosen at random, until a new one of `size` bytes is within the
    limit. The oldest would be wrong: each epoch reads all shards, and would remove each before it
    is read again."""
    found = {}
    for entry in os.scandir(folder):
        if not entry.name.endswith(_TEMPORARY) and entry.is_file():
            found[entry.path] = entry.stat().st_size
    while found and sum(found.values()) + size > limit:
        path = secrets.choice(list(found))
        del found[path]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
