"""Files that users name: opened only where they are regular files; the header of a .npy file."""

from __future__ import annotations

import os
import stat
from typing import Any, BinaryIO

import numpy as np

_SPECIAL_FILES = (
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
)


def _check_kind(name: str, path: str, remedy: str, mode: int) -> None:
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # open() has an error for the latter
        return
    kind = next((kind for is_kind, kind in _SPECIAL_FILES if is_kind(mode)), "special file")
    raise ValueError(f"{name}: {path!r} is a {kind}, not a regular file; {remedy}")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def open_regular(path: str, name: str, remedy: str) -> BinaryIO:
    """Opens a file to read it. ValueError, which begins with `name` and ends with `remedy`, for
    what is no regular file."""
    # Opening a FIFO or a device may have effects, so the kind is checked before. Something else
    # may lie there a moment later, so what was opened is checked again.
    _check_kind(name, path, remedy, os.stat(path).st_mode)
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 (the caller closes it)
    try:
        _check_kind(name, path, remedy, os.fstat(file.fileno()).st_mode)
    except ValueError:
        file.close()
        raise
    return file


def read_npy_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, dtype; the file is then at its first element. Errors are
    those of NumPy's reader, of many types."""
    npy = np.lib.format
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its format has the version {version}, which NumPy does not have")
    # Versions 2 and 3 differ in how names of columns are encoded, and columns are refused.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects cannot be mapped")
    return shape, is_fortran, dtype
