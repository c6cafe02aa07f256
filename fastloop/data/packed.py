"""PackedDataset: documents as rows of equal length, packed over the whole epoch.

The core packs documents by their lengths alone, a window at a time (``fl_epoch_packing.h``), and
writes the rows of a batch. Python reads the columns of documents and the arguments.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fastloop._core import Packing, Table, copy_row
from fastloop.base import checks
from fastloop.base.shown import repr_of
from fastloop.compat.moves import watch
from fastloop.data.columns import Columns, NotCoveredError, Request, check_single, leave_if
from fastloop.data.documents import LABELS, TOKENS, Documents, read_out_dtype
from fastloop.data.epochs import Epoch, EpochDataset
from fastloop.data.field import read_row, torch_dtype
from fastloop.data.sequences.column import offsets_of, sequence_column, values_of
from fastloop.data.sequences.fields import LABEL_PADDING, SampleField, element_of
from fastloop.data.tokens.dataset import TokenDataset

_OVERLONG = ("split", "truncate", "drop", "raise")
_LONGEST = 2**24  # the core's limit
_ROWS = 2**62  # counts as the core counts: a negative index from the end of any epoch
_POSITIONS = "position_ids"
_MADE = {_POSITIONS: "positions", "doc_ids": "documents"}  # with the core's names

Cost = tuple[float, float] | Callable[[Any], Any]


class PackedDataset(EpochDataset):
    """Documents packed into rows of ``length`` tokens, as a map-style dataset of rows.

    Documents come in a random order, which is cut into windows. The documents of a window are
    packed into rows by best fit, the longest first: with windows of 10 000 documents less than
    0.1 % of the tokens are padding. Packing looks at lengths alone, so tokens are read only for
    the rows of a batch. Any row is found by packing one window, and the order needs 8 bytes for a
    window: an epoch resumes at any row on any number of ranks.

    The dataset shuffles by itself, and other orders than its own are slow, because each row packs
    a window anew: give the loader ``shuffle=False``, or a ``ShuffleSampler(dataset,
    shuffle=False)`` for several ranks.

    For example, ``PackedDataset(RaggedArray(tokens, offsets), 2048)``.

    Args:
        data: a ``RaggedArray`` of documents; a dict of several with the same lengths, among them
            ``"input_ids"``, for example with ``"labels"`` and ``"loss_mask"``; a ``TokenDataset``
            whose files have documents; an ``ArrowDataset`` of columns of lists; or a
            ``MixtureDataset`` of RaggedArrays, or of ArrayDatasets or ArrowDatasets of named ones,
            whose order the documents then have.
        length: the number of tokens in a row.
        strategy: ``"best_fit"``, or ``"wrapped"``: the documents of a window are laid end to end
            and cut into rows.
        overlong: what becomes of documents longer than a row. ``"split"``: pieces of ``length``
            tokens, each a segment of its own. ``"truncate"``: the first piece alone. ``"drop"``,
            ``"raise"``.
        window: the number of documents in a window.
        shuffle: False: documents, unless a mixture orders them, and rows come in order.
        repack: False: all epochs have the rows of the first, in new orders, so that ``len()``
            stays. True: each epoch packs other documents together, and ``len()`` differs by some
            rows in 100 000. Datasets that note ``len()`` once, as a ``ConcatDataset`` does, need
            False.
        bos_id, eos_id: a token before and after each document; it counts as the document's.
        return_position_ids: whether samples have positions, which begin with 0 in each segment.
        return_doc_ids: whether samples have the numbers of segments, from 0 in each row.
        pad_id: the padding of ``input_ids``.
        out_dtype: of ``input_ids`` and ``labels``: ``torch.int64``, or the tokens' own dtype.
        seed: from 0 to 2**64 - 1.

    Sample ``i`` is a dict of tensors ``[length]``: ``input_ids`` and the other columns; ``labels``,
    made from ``input_ids`` unless they are a column; ``position_ids`` and ``doc_ids``. The first
    label of each segment, and labels of padding, are -100; all other padding is 0. The padding of
    a row is a segment. ``cu_seqlens()`` gives the bounds of segments, and a loader with
    ``PackCollate(layout="jagged")`` makes nested tensors of them. Empty documents are left out.

    fastloop's loaders count epochs; with torch's loader, call ``set_epoch()`` before each epoch.

    Raises:
        TypeError: an argument has a wrong type; documents are not on the CPU, or not integers.
        ValueError: an argument out of range; columns of different lengths; no document that fits;
            with ``overlong="raise"`` a document that is longer than a row, with its number.
    """

    _epoch: Epoch
    _core: Packing | None
    _as_source: PackedTurns | None = None
    _told: tuple[int, ...] = (0,) * 5  # an epoch, and what _place_of() has returned for it
    _table: tuple[Packing, Table] | None = None  # for single rows, of this packing
    _own_order = "rows of a PackedDataset are shuffled already; any other order is slow"

    def __init__(
        self,
        data: Any,
        length: int,
        *,
        strategy: str = "best_fit",
        overlong: str = "split",
        window: int = 10_000,
        shuffle: bool = True,
        repack: bool = True,
        bos_id: int | None = None,
        eos_id: int | None = None,
        return_position_ids: bool = True,
        return_doc_ids: bool = False,
        pad_id: int = 0,
        out_dtype: Any = torch.int64,
        seed: int = 0,
    ) -> None:
        self.seq_len = checks.read_int("length", length, 1, _LONGEST)
        self._strategy = checks.read_choice("strategy", strategy, ("best_fit", "wrapped"))
        self._overlong = checks.read_choice("overlong", overlong, _OVERLONG)
        self._window = checks.read_int("window", window, 1, _ROWS)
        self._seed = checks.read_int("seed", seed, 0, 2**64 - 1)
        self._shuffle, self._repack = bool(shuffle), bool(repack)
        self._edges = {
            "bos": checks.read_optional_int("bos_id", bos_id, 0),
            "eos": checks.read_optional_int("eos_id", eos_id, 0),
        }
        self._pad = checks.read_int("pad_id", pad_id)
        wanted = return_position_ids, return_doc_ids
        self._made = [name for name, is_wanted in zip(_MADE, wanted, strict=True) if is_wanted]
        self._dtype = read_out_dtype(out_dtype)
        self._data, self._epoch = data, Epoch()
        self._open()

    # ---- documents

    def _open(self) -> Packing:
        """Read the columns, and make the core's object."""
        extra = sum(edge is not None for edge in self._edges.values())
        documents = Documents(self._data, extra)
        columns = [*documents.columns]
        rule, remedy = "None with several columns", "put these tokens into the columns"
        is_one = len(columns) == 1 or not extra
        checks.check_value("bos_id and eos_id", columns, is_one, rule, remedy)
        known = [key for key in columns if key in _MADE]
        checks.check_value("data", columns, not known, f"without columns {[*_MADE]}")
        documents.check_dtypes(self._dtype)
        self._long = documents.count_tokens(self.seq_len, self._overlong)
        policy = _OVERLONG.index(self._overlong) % 3, self._strategy == "wrapped"
        how = (*policy, self._shuffle, self._repack, self._seed)
        self._config = config = documents.count, self.seq_len, self._window, extra, *how
        self._documents, self._is_mixed = documents, documents.order is not None
        self._facts = f"lengths {documents.checksum:08x}, rows of documents as {config}"
        core = self._core = self._make_core()
        for key in self._keys:
            self._elements_of(key)  # raises, if a dtype cannot hold them
        return core

    def _make_core(self) -> Packing:
        epoch, check, *place = self._told
        if check != self._check(epoch, place):  # without a place the rows are found anyway
            epoch, *place = (0,) * 4
        offsets, order = offsets_of(self._documents.main), self._documents.order
        return Packing(torch.Tensor, offsets, order, (*self._config, (epoch, *place)))

    def _check(self, epoch: int, place: list[int]) -> int:
        """Return a number that differs for other rows and for a place that was damaged."""
        orders = [mixture.state_dict() for mixture in self._combined]
        return zlib.crc32(repr([self._facts, orders, epoch, place]).encode())

    def _place_of(self, row: int) -> list[int]:
        """Return what lets another process find a row without packing the windows before it."""
        epoch = self._epoch_now()
        place = self._packing.place(epoch, row)
        return [self._check(epoch, place), *place]

    def _take_place(self, place: list[int]) -> None:
        """Take what _place_of() has returned in the present epoch, for the same rows."""
        self._packing  # noqa: B018 - opens the documents
        self._told = (self._epoch_now(), *place)
        self._core = self._make_core()

    @property
    def _packing(self) -> Packing:
        """The core's object. In a second process, and after weights of a mixture have changed, it
        is made anew."""
        order = self._data._core if self._is_mixed else None
        if self._core is None or self._documents.order is not order:
            return self._open()
        return self._core

    @property
    def _combined(self) -> Sequence[Any]:  # type: ignore[override]
        """The mixture that gives the order of documents."""
        return [self._data] if self._is_mixed else []

    # ---- rows

    def _outputs(self, ends: Mapping[str, str] = MappingProxyType({})) -> Columns:
        """Return the columns of a batch.

        Args: ends: outputs for attention, by name, each of which comes for queries and keys."""
        core, documents = self._packing, self._documents
        columns = Columns(None, kind="packed rows", gives_views=False)
        offsets = offsets_of(documents.main)

        def add(array: Any, output: str, **options: Any) -> None:
            options |= {"main": offsets, "leader": len(columns.all), "plan": core}
            columns.add(*sequence_column(array, output, **options))

        arrays = {LABELS: documents.main, **documents.columns}
        for key in self._keys:
            if key in _MADE:
                add(documents.main, _MADE[key])
                continue
            is_int64 = self._dtype_of(key) != torch_dtype(values_of(arrays[key]))
            options = {"is_label": key == LABELS, "is_int64": is_int64}
            add(arrays[key], "packed", **options, **self._elements_of(key))
        names = [*self._keys]
        for name, output in ends.items():
            for end in "qk":
                names.append(f"{name}_{end}")
                add(documents.main, output)
        columns.structure = dict.fromkeys(names)
        return columns

    @property
    def _keys(self) -> list[str]:
        return list(dict.fromkeys([*self._documents.columns, LABELS, *self._made]))

    def _elements_of(self, key: str) -> dict[str, bytes]:
        """Return the padding of a column, and the tokens around documents, as its elements."""
        padding = {TOKENS: self._pad, LABELS: LABEL_PADDING}.get(key, 0)
        ids = {"padding": padding, **{n: v for n, v in self._edges.items() if v is not None}}
        field, dtype = SampleField(key, key, [], True, True), self._dtype_of(key)
        if key == TOKENS:
            limits, remedy = torch.iinfo(dtype), "or pass a wider out_dtype"
            for name, value in {"pad": padding, **self._edges}.items():
                low, high = limits.min, limits.max
                checks.read_optional_int(f"{name}_id", value, low, high, remedy)
        return {name: element_of(field, ids[name], dtype) for name in ids}

    def _dtype_of(self, key: str) -> torch.dtype:
        own: torch.dtype = self._dtype
        if key in (TOKENS, LABELS):
            return own
        return torch.int64 if key in _MADE else self._documents.dtype_of(key)

    def _packed_columns(self, collate: Any) -> Columns:
        """Return the columns of the nested tensors that a PackCollate makes of rows."""
        is_jagged = collate.layout == "jagged" and collate.return_cu_seqlens
        leave_if(not is_jagged, "a PackCollate that is not jagged takes rows as samples")
        is_alike = self._dtype is torch.int64 and _POSITIONS in self._made
        is_alike = is_alike and collate.max_tokens in (None, self.seq_len)
        leave_if(not is_alike, "the collate changes rows, or rows have no positions")
        return self._outputs({"cu_seq_lens": "bounds", "max_length": "longest"})

    def _columns(self, request: Request) -> Columns:
        check_single(request, "PackedDataset", gives_views=False)
        return self._outputs()

    def __len__(self) -> int:
        """The number of rows in the epoch. The first call in an epoch packs all windows, about
        100 ns a document."""
        return self._packing.place(self._epoch_now(), -1)[2]

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        return self._read(read_row(index, _ROWS), self._epoch_now())

    def _read(self, row: int, epoch: int) -> dict[str, torch.Tensor]:
        core = self._packing
        if self._table is None or self._table[0] is not core:
            fields = tuple(column.for_table(True) for column in self._outputs().all)
            self._table = core, Table(torch.Tensor, fields)
            watch(self._table[1])
        keys = self._keys
        rows = tuple(torch.empty(self.seq_len, dtype=self._dtype_of(key)) for key in keys)
        try:
            copy_row(self._table[1], row, rows, epoch)
        except IndexError:
            read_row(row - _ROWS * (row > _ROWS // 2), len(self))  # raises
            raise
        return dict(zip(keys, rows, strict=True))

    def __getitems__(self, indices: Sequence[Any]) -> list[dict[str, torch.Tensor]]:
        return [self[index] for index in indices]

    def _turns(self) -> PackedTurns:
        """Return the dataset as the source of a mixture, always the same object."""
        if self._as_source is None:
            made = self._as_source = PackedTurns.__new__(PackedTurns)
            vars(made).update(vars(self), _repack=False, _epoch=None)
            made._open()
        return self._as_source

    def row(self, i: int) -> list[tuple[int, int, int]]:
        """Return the pieces of row ``i`` in this epoch: document, first token, number of tokens.
        Over a mixture, documents of all sources count as one list, source after source."""
        pieces, _ = self._packing.rows(self._epoch_now(), read_row(i, len(self)), 1)
        return [tuple(piece) for piece in pieces.reshape(-1, 3).tolist()]

    def row_costs(self, first: int, count: int, cost: Cost = (1.0, 1 / 24_576)) -> Any:
        """Return the costs of rows as a float64 vector; a row costs what its pieces cost together.

        Args:
            first: the first row.
            count: the number of rows.
            cost: ``(a, b)`` for ``a * n + b * n**2`` with n tokens, or a function that takes a
                vector of numbers of tokens and returns their costs.
        """
        first, count = checks.read_int("first", first, 0), checks.read_int("count", count, 0)
        rule = "(a, b) for a cost of a*n + b*n*n, or a function of lengths"
        is_pair = checks.are_numbers(cost, 2)
        checks.check_type("cost", cost, callable(cost) or is_pair, rule)
        pieces, bounds = self._packing.rows(self._epoch_now(), first, count)
        n = pieces.reshape(-1, 3)[:, 2]
        costs: Any = cost(n.copy()) if callable(cost) else n * (cost[0] + cost[1] * n)
        costs = np.asarray(costs, np.float64)
        rule = f"a function that returns shape {n.shape} for {len(n)} lengths"
        checks.check_value("cost", costs.shape, costs.shape == n.shape, rule)
        return np.add.reduceat(costs, bounds[:-1]) if count else costs

    cu_seqlens = staticmethod(TokenDataset.cu_seqlens)

    # ---- description

    @property
    def _source_lengths(self) -> str:
        """The facts that a loader's state must find again; ``len()`` differs between epochs."""
        mixed = [mixture._source_lengths for mixture in self._combined]
        return " of ".join([self._describe(), self._facts, *mixed])

    def _describe(self) -> str:
        self._packing  # noqa: B018 - reads the documents
        many = f"{len(self._documents.main):,} documents of {self._documents.tokens:,} tokens"
        how = f"{self._strategy} in windows of {self._window:,}"
        return f"{many} in rows of {self.seq_len:,}, {how}"

    def explain(self) -> str:
        """Return a text: documents, rows, and the documents that are left out or cut."""
        what = {"split": "split", "truncate": "truncated"}.get(self._overlong, "left out")
        return "\n".join(
            [
                self._describe(),
                f"{self._documents.empty:,} empty documents are left out",
                f"{self._long:,} documents are longer than a row and {what}",
                f"{len(self):,} rows in this epoch; seed {self._seed}, {self._epoch.explain()}",
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **dict.fromkeys(("_core", "_table", "_documents", "_as_source"))}

    def __repr__(self) -> str:
        return repr_of(self, self._describe(), f"overlong={self._overlong!r}")


class PackedTurns(PackedDataset):
    """The rows of all epochs of a PackedDataset, one epoch after another, as a mixture's source."""

    def _turns(self) -> PackedTurns:
        return self

    def _columns(self, request: Request) -> Columns:
        raise NotCoveredError("rows of a PackedDataset lie within a mixture")

    def __getitem__(self, index: Any) -> dict[str, torch.Tensor]:
        turn, row = divmod(read_row(index, _ROWS), len(self))
        return self._read(row, turn)
