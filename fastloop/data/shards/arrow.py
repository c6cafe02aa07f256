"""ArrowDataset: columns of Arrow as a map-style dataset, without copies.

pyarrow gives addresses when the dataset is made (``arrow_columns.py``). Later, rows are read from
Arrow's memory without pyarrow.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any

from fastloop.base.checks import (
    check_type,
    check_value,
    is_sequence,
    make_message,
    read_choice,
    refuse_if,
)
from fastloop.base.shown import repr_of
from fastloop.data.arrays import ArrayDataset
from fastloop.data.columns import Columns, NotCoveredError, Request, check_single, find_adapter
from fastloop.data.epochs import EpochDataset
from fastloop.data.field import Array, open_regular, read_row, torch_dtype
from fastloop.data.sequences.column import sequence_column, values_of
from fastloop.data.sequences.outputs import join_fields
from fastloop.data.sequences.ragged import RaggedArray
from fastloop.data.shards.arrow_columns import ColumnReader, Rows, Texts, import_arrow

_DATA = "a pyarrow.Table, a path of an Arrow file, a list of paths, or a datasets.Dataset"


def read_paths(paths: Any) -> list[str]:
    """Return absolute paths; `paths` is a path or a sequence of paths."""
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    check_value("paths", paths, len(listed) > 0, "at least one path")
    for path in listed:
        check_type("each of paths", path, isinstance(path, (str, os.PathLike)), "a path")
    return [os.path.abspath(os.path.expanduser(os.fsdecode(path))) for path in listed]


def state_of(path: str) -> tuple[int, ...]:
    """Return what tells a file from its later contents, and from a file that replaces it."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


def _map_table(path: str) -> Any:
    """Return the table in an Arrow file, which stays mapped as long as the table lives."""
    pa = import_arrow()
    with open_regular(path, "paths", "pass files of Arrow's IPC format") as file:
        magic = file.read(6)
    remedy = "take ParquetDataset" if magic[:4] == b"PAR1" else "write it with pyarrow.ipc"
    try:
        refuse_if(not magic, "it is empty")
        opened = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
        table = opened(pa.memory_map(path)).read_all()
        table.validate()
    except (ValueError, OSError) as error:  # the classes of pyarrow's errors
        raise ValueError(f"{path!r} cannot be read as an Arrow file: {error} ({remedy})") from error
    return table


class ArrowDataset(EpochDataset):
    """Columns of Arrow as a map-style dataset. No column is copied, except bools.

    Args:
        data: a ``pyarrow.Table``; the path of an Arrow file (of the stream or the file format), or
            a list of paths, whose rows follow one another; or a ``datasets.Dataset`` of Hugging
            Face, with its ``select()`` and ``shuffle()``, without its format. Files are mapped.
        columns: the names of the columns, in the order of a sample. None: all.

    Sample ``i`` is a dict with row ``i`` of each column:

    | column | value | batch |
    |---|---|---|
    | numbers, bools | a tensor without dimensions | a tensor |
    | fixed-size lists of numbers, also nested | a tensor with the sizes as its shape | a tensor |
    | lists and large lists of numbers | a 1-D tensor | as ``PadCollate`` or ``PackCollate`` makes |
    | strings, binary values | a str, bytes | a list |

    fastloop's threads gather batches of numbers and lists. ``torch.utils.data.DataLoader`` gives
    the same batches. If you pass paths, a worker process that is spawned maps the files itself; a
    table is sent to it.

    For example, ``ArrowDataset("train.arrow", ["input_ids"])``.

    Raises:
        ImportError: pyarrow is not installed.
        TypeError: ``data`` has a different type; a column has nulls, or a type that is not listed:
            the text says which cast helps.
        ValueError: no column; a name that no column has, or that two columns have; a file that is
            not an Arrow file; files of different columns.
        OSError: a file that cannot be opened; later, a file that has changed.
    """

    def __init__(self, data: Any, columns: Sequence[str] | None = None) -> None:
        is_paths = isinstance(data, (str, os.PathLike)) or is_sequence(data)
        self._data = read_paths(data) if is_paths else data
        self._states = [state_of(path) for path in self._data] if is_paths else []
        check_type("columns", columns, columns is None or is_sequence(columns), "a list of names")
        self._names = columns if columns is None else list(columns)
        self._open()

    def _open(self) -> None:
        table, self._chosen = self._read_table()
        every = table.column_names
        names = every if self._names is None else self._names
        check_value("columns", names, names, "at least one name")
        for name in names:
            read_choice("each of columns", name, every)
            refuse_if(every.count(name) > 1, f"data must have one column {name!r}, got several")
        reader = ColumnReader(table)
        self._sources = {name: reader.read(name) for name in names}
        self._length = table.num_rows if self._chosen is None else len(self._chosen)
        self._joined: dict[Any, Any] = {}  # the columns as PadCollate and PackCollate have them

    def _read_table(self) -> tuple[Any, Array | None]:
        """Return the table, and the rows of the dataset in the table; None: all rows in order."""
        pa, data = import_arrow(), self._data
        if isinstance(data, pa.Table):
            return data, None
        if isinstance(data, list):
            try:
                return pa.concat_tables([_map_table(path) for path in data]), None
            except pa.ArrowInvalid as error:
                text = f"paths must be files with the same columns, got {data}: {error}"
                raise ValueError(text) from error
        arrow_of = getattr(find_adapter(type(data)), "arrow_of", None)
        found = None if arrow_of is None else arrow_of(data)
        check_type("data", type(data), found is not None, _DATA)
        return found  # type: ignore[return-value]

    # ---- samples

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> dict[str, Any]:
        row = read_row(index, self._length)
        row = row if self._chosen is None else int(self._chosen[row])
        return {name: source[row] for name, source in self._sources.items()}

    def __getitems__(self, indices: Sequence[Any]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]

    def column(self, name: str) -> RaggedArray:
        """Return a column of lists, for lengths or for ``PackedDataset``. The values are not
        copied, except if ``select()`` or ``shuffle()`` has chosen rows of a ``datasets.Dataset``.
        """
        source = self._sources[read_choice("name", name, tuple(self._sources))]
        if not isinstance(source, RaggedArray):
            raise TypeError(make_message(f"column {name!r}", "a column of lists", source))
        return source if self._chosen is None else source[self._chosen]

    # ---- batches

    def _gathered(self) -> Iterator[tuple[str, Rows | RaggedArray]]:
        """Yield the columns, which threads gather. Raises NotCoveredError."""
        self._check_files()
        for name, source in self._sources.items():
            if isinstance(source, Texts):
                raise NotCoveredError(f"column {name!r} holds strings or binary values")
            yield name, source

    @property
    def _maps(self) -> tuple[Array, ...]:
        return () if self._chosen is None else (self._chosen,)

    def _columns(self, request: Request) -> Columns:
        check_single(request, "ArrowDataset", gives_views=False)
        columns = Columns(dict.fromkeys(self._sources), kind="Arrow columns", gives_views=False)
        for name, source in self._gathered():
            if isinstance(source, Rows):
                columns.add(name, source.segments())
            elif request.is_batched:
                raise NotCoveredError(f"{source.name} has lists; pass PadCollate or PackCollate")
            else:
                padding = bytes(torch_dtype(values_of(source)).itemsize)
                columns.add(*sequence_column(source, "padded", padding=padding))
        columns.maps = self._maps
        return columns

    def _mixed(self) -> tuple[list[Any], tuple[Array, ...], dict[Any, Any]]:
        """Return a dataset of no rows, which has the dtypes; the map of rows; and the columns, for
        PadCollate and PackCollate. Raises NotCoveredError."""
        like: list[Any] = []
        for name, source in self._gathered():
            if isinstance(source, Rows):
                like.append(source.fields[0].source[:0])
                if name not in self._joined:
                    self._joined[name] = join_fields(source.fields)
            else:
                like.append(source[:0])
                self._joined[name] = source
        dataset = ArrayDataset(*like)
        dataset._keys = tuple(self._sources)  # keywords could be the names of arguments
        return [dataset], self._maps, self._joined

    def _size_remedy(self) -> str:
        has_lists = any(isinstance(source, RaggedArray) for source in self._sources.values())
        remedy = "pass collate_fn=fastloop.PadCollate() or fastloop.PackCollate()."
        return f"Lists of Arrow have several lengths: {remedy}" if has_lists else ""

    # ---- state and description

    def _check_files(self) -> None:
        """Raise OSError if a file was written or replaced after the dataset was made."""
        for path, state in zip(self._data, self._states, strict=True) if self._states else ():
            if state_of(path) != state:
                text = "the file has changed since the dataset was made; make a new dataset"
                raise OSError(errno.ESTALE, text, path)

    def __getstate__(self) -> dict[str, Any]:
        left = ("_sources", "_joined", "_chosen")
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._check_files()
        self._open()

    def explain(self) -> str:
        """Return a text with a line for each column: the type, and where its rows lie."""
        lines = [f"{name}: {source!r}" for name, source in self._sources.items()]
        chosen = "" if self._chosen is None else ", chosen by select() or shuffle()"
        return "\n".join([f"{self._length:,} rows{chosen}", *lines])

    def __repr__(self) -> str:
        return repr_of(self, f"{self._length:,} rows", ", ".join(self._sources))
