"""The cache of an ImageFolder: decoded images in one .npy file, with a note behind the images that
says of which files and options they are.

One process makes the file under another name, behind a lock, and renames it. So the file is whole
or not there, and a reader needs no lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from fastloop.base.checks import make_message
from fastloop.data.field import Array, read_npy_header

_KIND = "u8:"
_IMAGES, _LOCK = "fastloop-images.npy", "fastloop-lock"
_UNFINISHED = "fastloop-unfinished.npy"
_VERSION = 1
_BLOCK = 16  # images that a thread makes at once

# Returns the image of a row, and the row of the file that it comes from. Called by several threads.
Make = Callable[[int], tuple[Array, int]]


def _digest_files(root: str, paths: Sequence[str]) -> str:
    """Return a digest of name, size and mtime of each file.

    A file that `stat` cannot reach counts as one of size -1: the decoder reports it.
    """
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


class ImageCache:
    """The cache in one folder.

    Args:
        argument: ``"u8:<folder>"``.
        root: of the files. Names are relative to it, so that all may be moved.
    """

    def __init__(self, argument: Any, root: str) -> None:
        if not isinstance(argument, str) or not argument.startswith(_KIND) or argument == _KIND:
            raise ValueError(make_message("cache", "'u8:<folder>'", argument))
        self.argument = argument
        self._root = root
        self._folder = os.path.abspath(os.path.expanduser(argument.removeprefix(_KIND)))
        above, folder = os.path.realpath(root), os.path.realpath(self._folder)
        if folder != above and os.path.commonpath([above, folder]) == above:
            rule = f"outside of root={root!r}, where each folder is a class"
            raise ValueError(make_message("cache", rule, argument))

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def open(
        self, paths: Sequence[str], options: dict[str, Any], make: Make
    ) -> tuple[str, dict[int, int]]:
        """Return the path of the images, and for each row with the image of another file its row.

        Waits while another process makes the images.

        Args:
            paths: of the files.
            options: that images depend on. They go through JSON.
            make: called for each row if the images are not there.

        Raises:
            OSError: the folder cannot be read or written, or is full.
            ValueError: the folder has images of other options; or sizes of images differ.
        """
        note = {"version": _VERSION, "options": options, "files": _digest_files(self._root, paths)}
        with self._explained():
            os.makedirs(self._folder, exist_ok=True)
            replaced = self._read(note, len(paths))
        if replaced is None:
            replaced = self._build_once(note, paths, make)
        return self._path(_IMAGES), replaced

    def _build_once(self, note: dict[str, Any], paths: Sequence[str], make: Make) -> dict[int, int]:
        """Make the images, unless another process makes them before this one has the lock."""
        with self._explained():
            lock = open(self._path(_LOCK), "ab")  # noqa: SIM115 (closed below)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it if this process dies
            try:
                replaced = self._read(note, len(paths))
                return self._build(note, paths, make) if replaced is None else replaced
            finally:  # closing is not enough: a fork has it open, too
                fcntl.flock(lock, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the argument and a remedy to errors of the folder."""
        try:
            yield
        except OSError as error:
            text = f"cache={self.argument!r}: {error.strerror} (pass a folder that can be written)"
            raise type(error)(error.errno, text, error.filename or self._folder) from error

    def _read(self, note: dict[str, Any], count: int) -> dict[int, int] | None:
        """Return which rows were replaced, or None if the images are not there, damaged or old."""
        try:
            with open(self._path(_IMAGES), "rb") as file:
                shape, is_fortran, dtype = read_npy_header(file)
                file.seek(int(np.prod(shape)), os.SEEK_CUR)
                found = json.loads(file.read())
            replaced, options = dict(found.pop("replaced")), found["options"]
        except Exception:  # the file is not there; NumPy and json raise many types if it is damaged
            return None
        if options != note["options"]:
            name = f"options of cache={self.argument!r}"
            rule, remedy = f"those of its images, {options}", "pass another folder, or delete it"
            raise ValueError(make_message(name, rule, note["options"], remedy))
        is_array = shape[:1] + shape[3:] == (count, 3) and dtype == np.uint8 and not is_fortran
        return replaced if is_array and found == note else None

    def _build(self, note: dict[str, Any], paths: Sequence[str], make: Make) -> dict[int, int]:
        """Make the images, and return which rows were replaced."""
        path, count = self._path(_UNFINISHED), len(paths)
        first, source = make(0)
        replaced = {} if source == 0 else {0: source}
        try:
            with self._explained():
                images = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *first.shape))
                with open(path, "r+b") as file:  # a full disk is met here: later it is a SIGBUS
                    os.posix_fallocate(file.fileno(), 0, images.offset + images.nbytes)
            images[0] = first
            self._fill(images, paths, make, replaced)
            with self._explained():
                images.flush()
                with open(path, "ab") as file:
                    pairs = sorted(replaced.items())
                    file.write(json.dumps({**note, "replaced": pairs}).encode())
                os.rename(path, self._path(_IMAGES))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return replaced

    def _fill(
        self, images: Array, paths: Sequence[str], make: Make, replaced: dict[int, int]
    ) -> None:
        """Make all rows but the first, with a thread for each CPU."""

        def work(begin: int) -> None:
            for row in range(begin, min(begin + _BLOCK, len(images))):
                image, source = make(row)
                if image.shape != images.shape[1:]:
                    sizes = ["{} x {}".format(*shape) for shape in (image.shape, images.shape[1:])]
                    raise ValueError(
                        f"cache= needs images of one size, got {sizes[0]} in {paths[row]!r} and "
                        f"{sizes[1]} in {paths[0]!r} (begin the transform with "
                        "Resize((height, width)), or with Resize(size) and CenterCrop(size))"
                    )
                images[row] = image
                if source != row:
                    replaced[row] = source

        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "fastloop-cache") as pool:
            for _ in pool.map(work, range(1, len(images), _BLOCK)):
                pass  # an error, or Ctrl-C, ends the loop, which cancels the rest
