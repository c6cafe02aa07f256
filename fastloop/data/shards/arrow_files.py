"""Arrow files: their paths, the table over their maps, and whether they have changed."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from fastloop._core import FileReader
from fastloop.base.checks import is_sequence, refuse_if
from fastloop.data.shards.arrow_columns import import_arrow
from fastloop.data.shards.cache import expand_url, fetch, is_url
from fastloop.data.tokens.files import expand_paths

_STATE = 24  # bytes of a file's state in FileReader.states


def read_paths(paths: Any) -> list[str]:
    """Return absolute paths, those of patterns, and URLs; `paths` is one of these or a list."""
    if is_sequence(paths) and len(paths) > 0:
        return [found for path in paths for found in read_paths(path)]
    return expand_url(paths) if is_url(paths) else expand_paths(paths)


def fetch_paths(paths: Any, cache_dir: Any) -> tuple[str, ...]:
    """Return the paths of files, of which those at URLs are copied to ``cache_dir``."""
    return tuple(fetch(path, cache_dir) if is_url(path) else path for path in read_paths(paths))


def _map_table(path: str) -> Any:
    pa = import_arrow()
    with open(path, "rb") as file:
        magic = file.read(6)
    remedy = "take ParquetDataset" if magic[:4] == b"PAR1" else "write it with pyarrow.ipc"
    try:
        refuse_if(not magic, "it is empty")
        opened = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
        table = opened(pa.memory_map(path)).read_all()
        table.validate()
        refuse_if(not table.column_names, "it has no columns")
    except (pa.ArrowException, ValueError, OSError) as error:
        raise ValueError(f"{path!r} cannot be read as an Arrow file: {error} ({remedy})") from error
    return table


def map_tables(paths: Sequence[str]) -> tuple[Any, list[int]]:
    """Return one table with the rows of all files, and the first row of each file. The files stay
    mapped as long as the table lives."""
    pa, tables = import_arrow(), [_map_table(path) for path in paths]
    try:
        joined = pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        text = f"paths must be files with the same columns, got {list(paths)}: {error}"
        raise ValueError(text) from error
    return joined, list(accumulate((table.num_rows for table in tables), initial=0))


def check_states(paths: tuple[str, ...], states: bytes) -> None:
    """Raise OSError if a file was written or replaced since its state was found."""
    found = FileReader(paths).states
    for number, path in enumerate(paths):
        part = slice(_STATE * number, _STATE * (number + 1))
        if found[part] != states[part]:
            text = "the file has changed since the dataset was made; make a new dataset"
            raise OSError(errno.ESTALE, text, path)
