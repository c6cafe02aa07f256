"""The cache of an ImageFolder: decoded images in one .npy file, and an index that says of what.

Made once by whoever holds the lock of the folder, however many processes want it; docs say in
which states a crash may leave the folder, and that the next opener recovers from each.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fastloop.data.field import Array, read_npy_header

_KIND = "u8:"
_IMAGES, _INDEX, _LOCK = "fastloop-images.npy", "fastloop-index.json", "fastloop-lock"
_UNFINISHED = "fastloop-unfinished-"
_VERSION = 1

# From a row, its image and the row of the file that it comes from. Called by several threads.
Make = Callable[[int], tuple[Array, int]]


def _digest_files(root: str, paths: Sequence[str]) -> str:
    """Of name, size and time of change of each. One that is not there, or behind links that go
    round, is left to the decoder."""
    digest = hashlib.blake2b(digest_size=32)
    for path in paths:
        try:
            found = os.stat(path)
            size, changed_ns = found.st_size, found.st_mtime_ns
        except OSError:
            size, changed_ns = -1, -1
        name = os.fsencode(os.path.relpath(path, root))
        digest.update(b"%d %d %d " % (len(name), size, changed_ns) + name)
    return digest.hexdigest()


def _is_same(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)


def _write_all(file: int, data: Any, at: int) -> None:
    rest = memoryview(data).cast("B")
    while len(rest) > 0:
        done = os.pwrite(file, rest, at)
        rest, at = rest[done:], at + done


class _Writer:
    """A .npy file of images that is being written, by several threads.

    Args:
        file: open for writing.
        count: of images.
        shape: of each.
        paths: of the files they come from, for errors.
    """

    def __init__(self, file: int, shape: tuple[int, ...], paths: Sequence[str]) -> None:
        self._file, self._shape, self._paths = file, shape, paths
        header = io.BytesIO()
        full = (len(paths), *shape)
        np.lib.format.write_array_header_2_0(
            header, {"descr": "|u1", "fortran_order": False, "shape": full}
        )
        self._head = header.tell()
        self._row_bytes = int(np.prod(shape))
        self.bytes = self._head + self._row_bytes * len(paths)
        os.posix_fallocate(file, 0, self.bytes)  # a full disk is met here, and not in an hour
        _write_all(file, header.getvalue(), 0)

    def write(self, row: int, image: Array) -> None:
        if image.shape != self._shape:
            (height, width), (first_height, first_width) = image.shape[:2], self._shape[:2]
            raise ValueError(
                f"cache= needs images of one size, and {self._paths[row]!r} has {height} x {width} "
                f"where {self._paths[0]!r} has {first_height} x {first_width}; begin the transform "
                "with Resize((height, width)), or with Resize(size) and CenterCrop(size)"
            )
        _write_all(self._file, np.ascontiguousarray(image), self._head + row * self._row_bytes)


def _has_header(path: str, count: int, size: int) -> bool:
    """Whether the header of the images is as it was written, for so many in so many bytes."""
    with open(path, "rb") as file:
        try:
            shape, is_fortran, dtype = read_npy_header(file)
        except Exception:  # whatever NumPy's reader trips over
            return False
        is_same = dtype == np.uint8 and not is_fortran and shape[:1] == (count,)
        return is_same and file.tell() + math.prod(shape) == size


class _Build:
    """Makes all rows but the first, with a thread for each CPU."""

    def __init__(self, make: Make, writer: _Writer, count: int) -> None:
        self._make, self._writer = make, writer
        self._rows = iter(range(1, count))
        self._lock = threading.Lock()
        self._is_over = False
        self.replaced: dict[int, int] = {}

    def run(self) -> None:
        threads = len(os.sched_getaffinity(0))
        with ThreadPoolExecutor(threads, "fastloop-cache") as pool:
            try:
                for done in [pool.submit(self._work) for _ in range(threads)]:
                    done.result()
            finally:  # after an error, or Ctrl-C
                self._is_over = True

    def _next(self) -> int | None:
        with self._lock:
            return None if self._is_over else next(self._rows, None)

    def _work(self) -> None:
        try:
            while (row := self._next()) is not None:
                image, found = self._make(row)
                self._writer.write(row, image)
                if found != row:
                    self.replaced[row] = found
        except BaseException:
            self._is_over = True
            raise


class ImageCache:
    """The cache in one folder.

    Args:
        argument: ``"u8:<folder>"``.
    """

    def __init__(self, argument: Any) -> None:
        if not isinstance(argument, str) or not argument.startswith(_KIND) or argument == _KIND:
            raise ValueError(f"cache={argument!r} is none; pass 'u8:<folder>'")
        self.argument = argument
        self._folder = os.path.abspath(os.path.expanduser(argument.removeprefix(_KIND)))

    def check_outside(self, root: str) -> None:
        """A folder in the root is a class, of no images, for whoever lists the root next."""
        above, folder = os.path.realpath(root), os.path.realpath(self._folder)
        if folder != above and os.path.commonpath([above, folder]) == above:
            raise ValueError(
                f"cache={self.argument!r} lies in root={root!r}, where each folder is a class; "
                "pass a folder elsewhere"
            )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def open(
        self, root: str, paths: Sequence[str], options: dict[str, Any], make: Make
    ) -> tuple[str, dict[int, int]]:
        """The path of the .npy file of the images, and which rows have the image of another row.
        Waits while another process makes it.

        Args:
            root: that names are told from, so that all may be moved.
            paths: of the files.
            options: that images depend on, as they are in JSON.
            make: called where the file is to be made.

        Raises:
            OSError: the folder cannot be read or written, or is full.
            ValueError: the folder has images of other options, or of another root that is still
                there; or sizes of images differ.
        """
        of_images: list[OSError] = []

        def make_noted(row: int) -> tuple[Array, int]:
            try:
                return make(row)
            except OSError as error:
                of_images.append(error)
                raise

        state = {"version": _VERSION, "options": options, "files": _digest_files(root, paths)}
        try:
            os.makedirs(self._folder, exist_ok=True)
            with self._locked():
                replaced = self._find(state, root, len(paths))
                if replaced is None:
                    replaced = self._build(state, root, paths, make_noted)
        except OSError as error:
            if any(error is other for other in of_images):
                raise
            raise self._explain(error) from error
        return self._path(_IMAGES), replaced

    def _explain(self, error: OSError) -> OSError:
        """The error with the argument."""
        text = f"cache={self.argument!r}: {error.strerror}; pass a folder that can be written to"
        return type(error)(error.errno, text, error.filename or self._folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock is the kernel's, which frees it when its holder dies."""
        try:
            file = os.open(self._path(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            yield  # who may not write here may read what is complete
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._remove_unfinished()
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too
            os.close(file)

    def _find(self, state: dict[str, Any], root: str, count: int) -> dict[int, int] | None:
        """Which rows were replaced, of images that are there and right; else None."""
        try:
            with open(self._path(_INDEX), encoding="utf-8") as file:
                found = json.load(file)
            size = os.stat(self._path(_IMAGES)).st_size
            there = {key: found[key] for key in state}
            replaced = {int(row): int(other) for row, other in found["replaced"]}
            is_whole = found["bytes"] == size and all(
                0 <= row < count for pair in replaced.items() for row in pair
            )
            is_whole = is_whole and _has_header(self._path(_IMAGES), count, size)
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if there["options"] != state["options"] and there["version"] == _VERSION:
            raise ValueError(
                f"cache={self.argument!r} has images of other options: {there['options']}, and "
                f"wanted are {state['options']}; pass another folder, or delete that one"
            )
        other = str(found.get("root", root))
        if there["files"] != state["files"] and not _is_same(root, other) and os.path.isdir(other):
            raise ValueError(
                f"cache={self.argument!r} has images of {other!r}, and wanted are those of "
                f"{root!r}; pass a folder for each, or delete that one"
            )
        return replaced if is_whole and there == state else None

    def _build(
        self, state: dict[str, Any], root: str, paths: Sequence[str], make: Make
    ) -> dict[int, int]:
        """Images first, the index last: an index is only ever beside the images it is of."""
        first, found = make(0)
        with self._finished(_IMAGES) as file:
            writer = _Writer(file, first.shape, paths)
            writer.write(0, first)
            build = _Build(make, writer, len(paths))
            build.run()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(_INDEX))
            self._sync_folder()
        if found != 0:
            build.replaced[0] = found
        pairs = sorted(build.replaced.items())
        root = os.path.realpath(root)
        index = {**state, "root": root, "bytes": writer.bytes, "replaced": pairs}
        with self._finished(_INDEX) as file:
            _write_all(file, json.dumps(index).encode(), 0)
        return build.replaced

    def _remove_unfinished(self) -> None:
        """What builders have left that were killed."""
        for name in os.listdir(self._folder):
            if name.startswith(_UNFINISHED):
                os.unlink(self._path(name))

    @contextlib.contextmanager
    def _finished(self, name: str) -> Iterator[int]:
        """A file that has its name only once it is on the disk."""
        path = self._path(f"{_UNFINISHED}{name}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                yield file
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(path, self._path(name))
        except BaseException:
            os.unlink(path)
            raise
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
