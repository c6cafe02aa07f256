"""ParquetDataset: columns of Parquet files, which are converted to Arrow files once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from fastloop._core import usable_cpus
from fastloop.base.checks import read_choice
from fastloop.data.shards.arrow import ArrowDataset
from fastloop.data.shards.arrow_columns import import_arrow
from fastloop.data.shards.arrow_files import read_paths
from fastloop.data.shards.cache import folder_of, is_url, make_file, name_of, open_url
from fastloop.data.shards.records import check_names

_ROWS = 2_048  # of a chunk of the Arrow file: larger ones take new memory each time


class ParquetDataset(ArrowDataset):
    """Columns of Parquet files as a map-style dataset.

    Parquet has no rows to read: one row at random takes a whole group of thousands. So the columns
    are converted to Arrow files once, and read from there without a copy, as by ``ArrowDataset``.
    Arrow files take more room than Parquet, about as much as the values in memory.

    Args:
        paths: a path, a pattern, or a list of these; or URLs that fsspec opens.
        columns: the names of the columns, in the order of a sample. None: all.
        cache_dir: the folder of the Arrow files; None: ``~/.cache/fastloop``. Each Parquet file has
            its own, which is made anew if size or time of the Parquet file changes; remove old ones
            yourself. All processes of a machine share the folder: one converts, the others wait.
        transform, decode, on_error, seed: as for ``ArrowDataset``.

    Samples and batches are those of ``ArrowDataset``. Words of a dictionary become plain values.

    For example, ``ParquetDataset("fineweb/*.parquet", ["input_ids"], "/scratch/arrow")``.

    Raises:
        ImportError, TypeError: as for ``ArrowDataset``.
        ValueError: as for ``ArrowDataset``; a file that is damaged, cut, or not Parquet.
        OSError: a file cannot be read; the folder cannot be written, or the disk is full.
    """

    def __init__(
        self,
        paths: Any,
        columns: Sequence[str] | None = None,
        cache_dir: Any = None,
        transform: Any = None,
        *,
        decode: Any = "auto",
        on_error: Any = "raise",
        seed: int = 0,
    ) -> None:
        check_names(columns)
        convert = partial(_convert, columns=columns, folder=folder_of(cache_dir))
        with ThreadPoolExecutor(usable_cpus(), "fastloop-parquet") as pool:
            converted = list(pool.map(convert, read_paths(paths)))
        super().__init__(converted, columns, transform, decode=decode, on_error=on_error, seed=seed)

    # Loaders ask the exact class.
    _borrows_slots = True
    _decodes_files = True
    _columns, _mixed, _parts = ArrowDataset._columns, ArrowDataset._mixed, ArrowDataset._parts


def _convert(path: str, columns: Sequence[str] | None, folder: str) -> str:
    """Return the path of the Arrow file for a Parquet file."""
    if is_url(path):
        files, name = open_url(path)
        facts, source = files.ukey(name), files.open(name)
    else:
        found = os.stat(path)
        facts, source = (found.st_size, found.st_mtime_ns), path
    name = name_of(path, facts, None if columns is None else list(columns))
    return make_file(os.path.join(folder, f"{name}.arrow"), partial(_write, path, source, columns))


def _write(path: str, source: Any, columns: Sequence[str] | None, target: str) -> None:
    pa = import_arrow()
    try:
        file = import_arrow("pyarrow.parquet").ParquetFile(source)
        schema = file.schema_arrow
        names = schema.names if columns is None else list(columns)
        for name in names:
            read_choice(f"each of columns, for {path!r},", name, schema.names)
        schema = pa.schema([_decode_words(pa, schema.field(name)) for name in names])
        with pa.OSFile(target, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_ROWS, [group], names):
                    writer.write_batch(batch.select(names).cast(schema))
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # the system's: a full disk, for example
            raise
        raise ValueError(f"{path!r} cannot be read as Parquet: {error}") from error


def _decode_words(pa: Any, field: Any) -> Any:
    is_words = pa.types.is_dictionary(field.type)
    return field.with_type(field.type.value_type) if is_words else field
