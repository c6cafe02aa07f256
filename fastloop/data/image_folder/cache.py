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
from collections.abc import Callable, Sequence
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
    files = []
    for path in paths:
        try:
            found = os.stat(path)
            state = found.st_size, found.st_mtime_ns
        except OSError:
            state = -1, -1
        files.append((os.path.relpath(path, root), *state))
    return hashlib.blake2b(repr(files).encode(), digest_size=32).hexdigest()


def open_cache(
    argument: Any, root: str, paths: Sequence[str], options: dict[str, Any], make: Make
) -> tuple[str, dict[int, int]]:
    """Return the path of the images, and for each row with the image of another file its row.

    Waits while another process makes the images.

    Args:
        argument: ``"u8:<folder>"``.
        root: of the files. Names are relative to it, so that all may be moved.
        paths: of the files.
        options: that images depend on. They go through JSON.
        make: called for each row if the images are not there.

    Raises:
        OSError: the folder cannot be read or written, or is full.
        ValueError: another argument; the folder has images of other options; or sizes of images
            differ.
    """
    if not isinstance(argument, str) or not argument.startswith(_KIND) or argument == _KIND:
        raise ValueError(make_message("cache", "'u8:<folder>'", argument))
    folder = os.path.abspath(os.path.expanduser(argument.removeprefix(_KIND)))
    above, within = os.path.realpath(root), os.path.realpath(folder)
    if within != above and os.path.commonpath([above, within]) == above:
        rule = f"outside of root={root!r}, where each folder is a class"
        raise ValueError(make_message("cache", rule, argument))
    note = {"version": _VERSION, "options": options, "files": _digest_files(root, paths)}
    path = os.path.join(folder, _IMAGES)
    os.makedirs(folder, exist_ok=True)
    replaced = _read(path, note)
    if replaced is None:
        with open(os.path.join(folder, _LOCK), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel frees it if this process dies
            try:
                replaced = _read(path, note)  # another process may have made the images
                if replaced is None:
                    replaced = _build(path, note, paths, make)
            finally:  # closing is not enough: a fork has it open, too
                fcntl.flock(lock, fcntl.LOCK_UN)
    return path, replaced


def _read(path: str, note: dict[str, Any]) -> dict[int, int] | None:
    """Return which rows were replaced, or None if the images are not there, damaged or old."""
    try:
        with open(path, "rb") as file:
            shape, _, dtype = read_npy_header(file)
            file.seek(int(np.prod(shape)), os.SEEK_CUR)
            found = json.loads(file.read())
        replaced, options = dict(found.pop("replaced")), found["options"]
    except Exception:  # the file is not there; NumPy and json raise many types if it is damaged
        return None
    if options != note["options"]:
        name = f"options of the cache {os.path.dirname(path)!r}"
        rule, remedy = f"those of its images, {options}", "pass another folder, or delete it"
        raise ValueError(make_message(name, rule, note["options"], remedy))
    return replaced if found == note and dtype == np.uint8 else None


def _build(path: str, note: dict[str, Any], paths: Sequence[str], make: Make) -> dict[int, int]:
    """Make the images, and return which rows were replaced."""
    unfinished = os.path.join(os.path.dirname(path), _UNFINISHED)
    first, source = make(0)
    replaced = {} if source == 0 else {0: source}

    def work(begin: int) -> None:
        for row in range(begin, min(begin + _BLOCK, len(images))):
            image, source = make(row)
            if image.shape != first.shape:
                rule = f"of one size, {first.shape[:2]} as of {paths[0]!r}"
                remedy = "begin the transform with Resize((height, width)), or with Resize(size) "
                remedy += "and CenterCrop(size)"
                got = f"{image.shape[:2]} of {paths[row]!r}"
                raise ValueError(f"images of a cache must be {rule}, got {got} ({remedy})")
            images[row] = image
            if source != row:
                replaced[row] = source

    try:
        try:
            images = np.lib.format.open_memmap(
                unfinished, "w+", np.uint8, (len(paths), *first.shape)
            )
            with open(unfinished, "r+b") as file:  # a full disk is met here: later it is a SIGBUS
                os.posix_fallocate(file.fileno(), 0, images.offset + images.nbytes)
        except OSError as error:
            raise OSError(error.errno, error.strerror, unfinished) from error
        images[0] = first
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "fastloop-cache") as pool:
            for _ in pool.map(work, range(1, len(images), _BLOCK)):
                pass  # an error, or Ctrl-C, ends the loop, which cancels the rest
        images.flush()
        with open(unfinished, "ab") as end:
            end.write(json.dumps({**note, "replaced": sorted(replaced.items())}).encode())
        os.rename(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    return replaced
