"""ArrowDataset: columns of Arrow as a map-style dataset, without copies.

pyarrow gives addresses when the dataset is made (``arrow_columns.py``). Later, rows are read from
Arrow's memory without pyarrow.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from fastloop._core import FileReader
from fastloop.base.checks import check_type, is_sequence, make_message, read_choice
from fastloop.data.arrays import ArrayDataset
from fastloop.data.columns import Columns, NotCoveredError, Request, check_single, find_adapter
from fastloop.data.field import Array, read_item
from fastloop.data.sequences.column import whole_column
from fastloop.data.sequences.ragged import RaggedArray
from fastloop.data.shards.arrow_columns import Binaries, ColumnReader, Rows, Texts, import_arrow
from fastloop.data.shards.arrow_files import check_states, fetch_paths, map_tables
from fastloop.data.shards.records import Records, read_names

_DATA = "a pyarrow.Table, a path of an Arrow file, a list of paths, or a datasets.Dataset"


class ArrowDataset(Records):
    """Columns of Arrow as a map-style dataset. No column is copied, except bools.

    Args:
        data: a ``pyarrow.Table``; the path of an Arrow file (of the stream or the file format), a
            pattern, a URL that fsspec opens (also a pattern with ``*``), or a list of these, whose
            rows follow one another; or a ``datasets.Dataset`` of Hugging Face, with its
            ``select()`` and ``shuffle()``, without its format. Files are mapped.
        columns: the names of the columns, in the order of a sample. None: all.
        transform: as in ``ImageFolder``, for each column of images. Images of one sample have the
            same random parameters.
        decode: ``"auto"``: binary values, and structs of bytes and path, are images. A dict from
            such columns to functions adds to this: the result of a function of the bytes is the
            value, and ``transform`` does not get it. For example, ``{"raw": bytes}``.
        on_error: for an image that cannot be decoded, as in ``ImageFolder``.
        cache_dir: the folder for files of URLs, which are fetched whole; None:
            ``~/.cache/fastloop``.
        seed: the seed of the transforms' random parameters.

    Sample ``i`` is a dict with row ``i`` of each column:

    | column | value | batch |
    |---|---|---|
    | numbers, bools | a tensor without dimensions | a tensor |
    | fixed-size lists of numbers, also nested | a tensor with the sizes as its shape | a tensor |
    | lists and large lists of numbers | a 1-D tensor | as ``PadCollate`` or ``PackCollate`` makes |
    | strings | a str | a list |
    | binary values, structs of bytes and path: images | a tensor as in ``ImageFolder`` | a tensor |

    fastloop's threads gather batches of numbers and lists. ``torch.utils.data.DataLoader`` gives
    the same batches. If you pass paths, a worker process that is spawned maps the files itself; a
    table is sent to it.

    For example, ``ArrowDataset("train.arrow", ["input_ids"])``.

    Raises:
        ImportError: pyarrow, or for a URL fsspec, is not installed; for images, no decoder is.
        TypeError: ``data`` has a different type; a column has nulls, or a type that is not listed:
            the text says which cast helps.
        ValueError: no column; a name that no column has, or that two columns have; a file that is
            not an Arrow file; files of different columns; an image without bytes and path.
        OSError: a file that cannot be opened; later, an image that cannot be decoded, or a file
            that has changed: for images at each read, for numbers, lists and strings at the next
            ``iter()`` of a loader, so rows that are written in place within an epoch may be new.
    """

    _borrows_slots = True
    _decodes_files = True

    def __init__(
        self,
        data: Any,
        columns: Sequence[str] | None = None,
        transform: Any = None,
        *,
        decode: Any = "auto",
        on_error: Any = "raise",
        cache_dir: Any = None,
        seed: int = 0,
    ) -> None:
        self._data = data
        self._paths: tuple[str, ...] = ()
        if isinstance(data, (str, os.PathLike)) or is_sequence(data):
            self._data, self._paths = None, fetch_paths(data, cache_dir)
        self._states = FileReader(self._paths).states
        self._columns_given = columns
        self._open()
        sources = self._sources.items()
        encoded = [name for name, source in sources if isinstance(source, Binaries)]
        self._prepare_columns(encoded, encoded, transform, decode, on_error, seed)

    def _open(self) -> None:
        table, self._chosen = self._read_table()
        reader, names = ColumnReader(table), read_names(self._columns_given, table.column_names)
        self._sources = {name: reader.read(name) for name in names}
        self._length = table.num_rows if self._chosen is None else len(self._chosen)
        self._joined: dict[Any, Any] = {}  # the columns as PadCollate and PackCollate have them

    def _read_table(self) -> tuple[Any, Array | None]:
        """Return the table, and the rows of the dataset in the table; None: all rows in order."""
        pa, data = import_arrow(), self._data
        if isinstance(data, pa.Table):
            return data, None
        if self._paths:
            table, self._starts = map_tables(self._paths)
            return table, None
        arrow_of = getattr(find_adapter(type(data)), "arrow_of", None)
        found = None if arrow_of is None else arrow_of(data)
        check_type("data", type(data), found is not None, _DATA)
        return found  # type: ignore[return-value]

    # ---- samples

    def __len__(self) -> int:
        return self._length

    def _name(self, row: int) -> str:
        row = self._row(row)
        if not self._paths:
            return f"{type(self._data).__name__}: row {row}"
        number = bisect_right(self._starts, row) - 1
        return f"{self._paths[number]}: row {row - self._starts[number]}"

    def _row(self, index: int) -> int:
        """Return the row of the table."""
        return index if self._chosen is None else int(self._chosen[index])

    def _values(self, row: int) -> dict[str, Any]:
        row = self._row(row)
        return {name: source[row] for name, source in self._sources.items()}

    def _announce(self, indices: Sequence[Any]) -> None:
        rows = [self._row(read_item(index, len(self))[0]) for index in indices]
        for source in self._sources.values():
            if isinstance(source, Binaries):
                source.announce(rows)

    def column(self, name: str) -> RaggedArray:
        """Return a column of lists, for lengths or for ``PackedDataset``. The values are not
        copied, except if ``select()`` or ``shuffle()`` has chosen rows of a ``datasets.Dataset``.
        """
        source = self._sources[read_choice("name", name, tuple(self._sources))]
        if not isinstance(source, RaggedArray):
            raise TypeError(make_message(f"column {name!r}", "a column of lists", source))
        return source if self._chosen is None else source[self._chosen]

    @property
    def lengths(self) -> Array:
        """The lengths of the first column of lists, for samplers; else AttributeError."""
        for source in self._sources.values():
            if isinstance(source, RaggedArray):
                lengths = source.lengths
                return lengths if self._chosen is None else lengths[self._chosen]
        raise AttributeError("the dataset has no column of lists")

    # ---- batches

    def _gathered(self) -> Iterator[tuple[str, Rows | RaggedArray]]:
        """Yield the columns, which threads gather. Raises NotCoveredError."""
        check_states(self._paths, self._states)
        for name, source in self._sources.items():
            if isinstance(source, (Texts, Binaries)):
                raise NotCoveredError(f"column {name!r} holds {source!r}, made in Python")
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
                columns.add(*whole_column(source))
        columns.maps = self._maps
        return columns

    def _mixed(self) -> tuple[list[Any], tuple[Array, ...], dict[Any, Any]]:
        """Return what PadCollate and PackCollate ask, as a mixture of one dataset does."""
        return [self], self._maps, self._joined

    def _parts(self) -> tuple[ArrayDataset, list[list[Any]], tuple[Array, ...]]:
        """Return a dataset of no rows, which has the dtypes; the fields of each column; and the map
        of rows. Raises NotCoveredError."""
        found = [s.fields if isinstance(s, Rows) else [s] for _, s in self._gathered()]
        dataset = ArrayDataset(*(fields[0][:0] for fields in found))
        dataset._keys = tuple(self._sources)  # keywords could be the names of arguments
        return dataset, [[*fields] for fields in found], self._maps

    def _size_remedy(self) -> str:
        if not any(isinstance(source, RaggedArray) for source in self._sources.values()):
            return super()._size_remedy()
        remedy = "pass collate_fn=fastloop.PadCollate() or fastloop.PackCollate()."
        return f"Lists of Arrow have several lengths: {remedy}"

    # ---- state and description

    def __getstate__(self) -> dict[str, Any]:
        left = ("_sources", "_joined", "_chosen")
        return {name: value for name, value in vars(self).items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        check_states(self._paths, self._states)
        self._open()

    def explain(self) -> str:
        """Return a text with a line for each column, and who decodes images."""
        lines = [f"{name}: {source!r}" for name, source in self._sources.items()]
        chosen = "" if self._chosen is None else ", chosen by select() or shuffle()"
        images = self._explain_images() if self._images else []
        return "\n".join([f"{self._length:,} rows{chosen}", *lines, *images])

    def __repr__(self) -> str:
        names = ", ".join(self._sources)
        return f"{type(self).__name__}({self._length:,} rows, {names})"
