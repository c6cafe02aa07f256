"""The documents that a PackedDataset packs: columns of sequences with the same lengths, as users
give them, and what counting their tokens says."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fastloop._core import Mixture
from fastloop.base import checks
from fastloop.data.arrays import ArrayDataset
from fastloop.data.field import Array, torch_dtype
from fastloop.data.mixture import MixtureDataset
from fastloop.data.sequences.column import values_of
from fastloop.data.sequences.ragged import RaggedArray
from fastloop.data.shards.arrow import ArrowDataset
from fastloop.data.tokens.dataset import TokenDataset
from fastloop.data.tokens.files import read_dtype

TOKENS, LABELS = "input_ids", "labels"
_BLOCK = 2**18  # documents whose lengths are looked at together

Columns = dict[str, RaggedArray]


def _read_columns(name: str, data: Any) -> Columns:
    """Return the columns of one source."""
    columns = data.documents() if isinstance(data, TokenDataset) else data
    if isinstance(data, ArrayDataset) and data._keys:
        columns = dict(zip(data._keys, data._fields, strict=True))
    if isinstance(data, ArrowDataset):
        columns = {key: data.column(key) for key in data._sources}
    if isinstance(columns, RaggedArray):
        columns = {TOKENS: columns}
    rule = f"a RaggedArray, or a dict of RaggedArrays with {TOKENS!r}"
    checks.check_type(name, data, isinstance(columns, Mapping) and TOKENS in columns, rule)
    for key, array in columns.items():
        called = f"{name}[{key!r}]"
        checks.check_type(called, type(array), type(array) is RaggedArray, "a RaggedArray")
        values = values_of(array)
        is_here = not isinstance(values, torch.Tensor) or values.device.type == "cpu"
        remedy = "pass a.to('cpu'), and device= to the loader"
        checks.check_type(f"the values of {called}", values, is_here, "on the CPU", remedy)
    return dict(columns)


def read_out_dtype(dtype: Any) -> torch.dtype:
    found: torch.dtype = getattr(torch, read_dtype("out_dtype", dtype))
    return found


class Documents:
    """Columns of documents, and how long the documents are.

    Args:
        data: the argument of PackedDataset.
        extra: how many tokens each document has besides, unless the document is empty.

    Attributes:
        columns: by name; those of a mixture's sources as one, source after source.
        order: the core's mixture that gives the order of documents, or None.
        count: the number of documents in an epoch.
        empty, tokens: the number of empty documents, and of tokens.
        checksum: of the lengths of documents, in their order.
    """

    def __init__(self, data: Any, extra: int) -> None:
        self.order: Mixture | None = None
        if isinstance(data, MixtureDataset):
            self.order = data._core
            parts = []
            for name, source in data._sources.items():
                rule, remedy = "of documents, not of windows of tokens", "pass its documents()"
                is_windows = isinstance(source, TokenDataset)
                checks.check_type(f"sources[{name!r}]", source, not is_windows, rule, remedy)
                remedy = "pass the dataset"
                checks.check_value("sources", None, source is not None, f"with {name!r}", remedy)
                parts.append(_read_columns(f"sources[{name!r}]", source))
            for part in parts:
                rule = f"columns {[*parts[0]]} in all sources"
                checks.check_value("data", [*part], part.keys() == parts[0].keys(), rule)
            columns = {key: RaggedArray.from_parts([p[key] for p in parts]) for key in parts[0]}
        else:
            columns = _read_columns("data", data)
        named = {key: f"data[{key!r}]" for key in columns}
        self.columns = {key: a._over(slice(0, len(a)), named[key]) for key, a in columns.items()}
        self.main, self.extra = self.columns[TOKENS], extra
        self.count = len(self.main if self.order is None else data)
        for key, array in self.columns.items():
            rule = f"{len(self.main)} documents, as {named[TOKENS]} has"
            checks.check_value(named[key], len(array), len(array) == len(self.main), rule)

    def check_dtypes(self, out: torch.dtype) -> None:
        """Refuse tokens and labels that cannot come out with this dtype."""
        for key in (TOKENS, LABELS):
            if key not in self.columns:
                continue
            dtype, name = self.dtype_of(key), f"data[{key!r}]"
            is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
            checks.check_type(f"the dtype of {name}", dtype, is_integer, "of integers")
            rule = f"torch.int64 or {dtype}, the dtype of {name}"
            checks.check_value("out_dtype", out, out in (torch.int64, dtype), rule)

    def dtype_of(self, key: str) -> torch.dtype:
        return torch_dtype(values_of(self.columns[key]))

    def count_tokens(self, most: int, overlong: str) -> int:
        """Count documents and tokens, compare the lengths of all columns, and return how many
        documents have more than `most` tokens."""
        self.empty = self.tokens = self.checksum = count = 0
        for first in range(0, len(self.main), _BLOCK):
            lengths = self._lengths(self.main, first)
            for key, array in self.columns.items():
                for at in np.flatnonzero(self._lengths(array, first) != lengths)[:1]:
                    name = f"data[{key!r}]: document {first + at}"
                    rule = f"of {lengths[at]} tokens, as in data[{TOKENS!r}]"
                    got = int(self._lengths(array, first)[at])
                    raise ValueError(checks.make_message(name, rule, got))
            self.checksum = zlib.crc32(lengths.astype(np.int64).data, self.checksum)
            lengths = lengths + self.extra * (lengths > 0)
            long = np.flatnonzero(lengths > most)
            for at in long[:1] if overlong == "raise" else ():
                name, rule = f"document {first + at}", f"at most length={most} tokens long"
                remedy = "pass overlong='split', 'truncate' or 'drop'"
                raise ValueError(checks.make_message(name, rule, int(lengths[at]), remedy))
            self.empty += int((lengths == 0).sum())
            self.tokens += int(lengths.sum())
            count += long.size
        is_dropped = overlong == "drop"
        rule = f"a document of 1 to {most} tokens" if is_dropped else "a token"
        is_empty = len(self.main) == self.empty + count * is_dropped
        checks.refuse_if(is_empty, f"data must have {rule}, got none")
        return count

    def _lengths(self, array: RaggedArray, first: int) -> Array:
        return array._over(slice(first, first + _BLOCK)).lengths
