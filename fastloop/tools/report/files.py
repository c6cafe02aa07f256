"""The files of a report: the kind of file for each name, and writing that loses no report.

This module imports no torch, so a file that cannot be written is an error before the program runs.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

DEFAULT = "fastloop-report.html"
_KINDS = {".html": "html", ".trace.json": "trace", ".trace.json.gz": "trace", ".json": "json"}


def _ending(path: Path) -> str:
    return next((ending for ending in _KINDS if path.name.endswith(ending)), "")


def kind_of(path: Path) -> str:
    """Return "html", "json" or "trace"."""
    return _KINDS[_ending(path)]


def read_rank() -> int:
    """Return the environment variable RANK. RANK belongs to the program and may be anything, so the
    rank is 0 if RANK is unset or not a number."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def find_files(names: Iterable[str | os.PathLike[str]], of_rank: bool = True) -> list[Path]:
    """Return the absolute paths of a report's files. A page comes with its numbers: for example,
    ``run.html`` also gives ``run.json``, unless `names` has a JSON file.

    Args:
        names: the files that the user asks for.
        of_rank: whether to add this process's rank to the names.

    Raises:
        ValueError: a name has no known ending.
        OSError: a folder is missing, or a file cannot be written.
    """
    paths = [Path(name).absolute() for name in names]
    for path in paths:
        if not _ending(path):
            raise ValueError(f"a report's name must end in {', '.join(_KINDS)}, got {path.name!r}")
        check_writable(path)
    if not any(kind_of(path) == "json" for path in paths):
        paths += [path.with_suffix(".json") for path in paths if kind_of(path) == "html"][:1]
    rank = f".rank{read_rank()}" if of_rank and read_rank() else ""
    stems = [path.name.removesuffix(_ending(path)) for path in paths]
    return [p.with_name(f"{stem}{rank}{_ending(p)}") for p, stem in zip(paths, stems, strict=True)]


def check_writable(path: Path) -> None:
    """Raise OSError if the folder is missing, or the file cannot be written."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r}; make it first")
    _check_regular(path)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(f"{str(path)!r} may not be written; name a different file")


def _check_regular(path: Path) -> None:
    """Raise OSError for a folder, a device or a pipe: a new file would take its place."""
    if path.exists() and not path.is_file():
        text = f"metrics and reports go to regular files, got {str(path)!r}"
        raise PermissionError(f"{text}; name a different file")


def write(path: Path, text: str) -> None:
    """Write the whole file or nothing. If `path` is a link, the link stays."""
    _check_regular(path)
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_somewhere(path: Path, text: str) -> Path | None:
    """Write a file. If that fails, write the file into a temporary folder and say so on stderr.

    Returns:
        The file's path; None if both failed.
    """
    try:
        write(path, text)
        return path
    except OSError as error:
        say(f"fastloop: {str(path)!r} could not be written ({error})")
    with suppress(OSError):
        other = Path(tempfile.mkdtemp(prefix="fastloop-report-")) / path.name
        write(other, text)
        say(f"fastloop: the report was written to {str(other)!r}")
        return other
    return None


def say(text: str) -> None:
    """Print on stderr. If stderr is closed or a full disk, the text is lost."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
