"""The cache of an ImageFolder: decoded images in one .npy file. A note after the images names their
files and options. One process holds a lock and makes the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from fastloop._core import usable_cpus
from fastloop.base.checks import make_message
from fastloop.base.once import make_once, write_whole
from fastloop.data.field import Array, open_regular, read_npy_header

ONE_SIZE = (
    "begin the transform with Resize((height, width)), or with Resize(size) and CenterCrop(size)"
)
_KIND = "u8:"
_IMAGES, _UNFINISHED, _LOCK = "fastloop-images.npy", "fastloop-unfinished.npy", "fastloop-lock"
_BLOCK = 16  # images that a thread makes at once

Made = tuple[Array, int]  # the image of a row, and the row of the image's file
Make = Callable[[int], Made]  # several threads call this function


def _digest_files(root: str, paths: Sequence[str]) -> str:
    """Return a digest of every file's name, size and mtime.

    A file that `stat` cannot reach counts with size -1: the decoder reports the file.
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
    """Return the path of the images, and the replaced rows: the row of the file that was read
    instead, by row.

    If a second process makes the images at this moment, wait for that process.

    Args:
        argument: ``"u8:<folder>"``.
        root: the root of the files. Names are relative to the root, so that you may move all files.
        paths: the files.
        options: the options that images depend on, as JSON has them.
        make: called for each row if the images are not there.

    Raises:
        OSError: the folder cannot be read or written, or is full.
        ValueError: a wrong argument; the folder has images with different options; or sizes of
            images differ.
    """
    if not isinstance(argument, str) or not argument.startswith(_KIND) or argument == _KIND:
        raise ValueError(make_message("cache", "'u8:<folder>' or 'planes'", argument))
    folder = os.path.abspath(os.path.expanduser(argument.removeprefix(_KIND)))
    above, within = os.path.realpath(root), os.path.realpath(folder)
    if within != above and os.path.commonpath([above, within]) == above:
        rule = f"outside of root={root!r}, where each folder is a class"
        raise ValueError(make_message("cache", rule, argument))
    note = {"version": 1, "options": options, "files": _digest_files(root, paths)}
    path = os.path.join(folder, _IMAGES)
    os.makedirs(folder, exist_ok=True)
    for name in (_IMAGES, _UNFINISHED, _LOCK):  # opening a FIFO would wait for a writer
        with contextlib.suppress(OSError):  # a missing or unreadable file is made anew
            open_regular(os.path.join(folder, name), "cache", "remove it").close()
    return path, make_once(
        os.path.join(folder, _LOCK),
        lambda: _read_cache(path, note),
        lambda: _build(path, note, paths, make),
    )


def _read_cache(path: str, note: dict[str, Any]) -> dict[int, int] | None:
    """Return the replaced rows, or None if the images are absent, damaged or old."""
    try:
        with open(path, "rb") as file:
            shape, _, dtype = read_npy_header(file)
            file.seek(int(np.prod(shape)), os.SEEK_CUR)
            found = json.loads(file.read())
        replaced, options = dict(found.pop("replaced")), found["options"]
    except Exception:  # absent, or damaged: NumPy and json raise many types
        return None
    if options != note["options"]:
        name, remedy = f"options of the cache {os.path.dirname(path)!r}", "or pass a new folder"
        raise ValueError(make_message(name, f"{options}", note["options"], remedy))
    return replaced if found == note and dtype == np.uint8 else None


def _build(path: str, note: dict[str, Any], paths: Sequence[str], make: Make) -> dict[int, int]:
    """Make the images, and return the replaced rows."""
    first, source = make(0)
    replaced = {} if source == 0 else {0: source}

    def work(images: Array, begin: int) -> None:
        for row in range(begin, min(begin + _BLOCK, len(images))):
            image, source = make(row)
            if image.shape != first.shape:
                rule = f"have one size, {first.shape[:2]} as {paths[0]!r} has"
                got = f"{image.shape[:2]} for {paths[row]!r}"
                raise ValueError(f"images of a cache must {rule}, got {got} ({ONE_SIZE})")
            images[row] = image
            if source != row:
                replaced[row] = source

    def write(unfinished: str) -> None:
        shape = len(paths), *first.shape
        images = np.lib.format.open_memmap(unfinished, "w+", np.uint8, shape)
        # A full disk is an error here. Later, a write to the mapping would be a SIGBUS.
        with open(unfinished, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, images.offset + images.nbytes)
        images[0] = first
        with ThreadPoolExecutor(usable_cpus(), "fastloop-cache") as pool:
            # An error, or Ctrl-C, ends the loop over results and so cancels the rest.
            list(pool.map(partial(work, images), range(1, len(images), _BLOCK)))
        images.flush()
        with open(unfinished, "ab") as end:
            end.write(json.dumps({**note, "replaced": sorted(replaced.items())}).encode())

    write_whole(path, write, os.path.join(os.path.dirname(path), _UNFINISHED))
    return replaced
