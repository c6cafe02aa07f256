"""Rows of a ``datasets.Dataset`` without a format, for collate functions of programs: the dicts,
lists and numbers that datasets itself makes of Arrow's memory.

docs/internals/zero-change.md tells the rules.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fastloop._core import arrow_lists, int_lists
from fastloop.adapters.hugging_face import Samples
from fastloop.adapters.hugging_face_battery import find_difference_of_rows
from fastloop.adapters.originals import Battery, judge, methods_of
from fastloop.compat.verdicts import Verdict
from fastloop.compat.verification import runs_original, verification_of
from fastloop.data.collate import fetch
from fastloop.data.columns import NotCoveredError, leave_if

_PLANS = "format.python", "collator"  # of originals.txt
_MODULE = "datasets.arrow_dataset"
_MOST = 4 << 20  # lists of a dataset: where a list begins and ends takes 16 bytes


def _list_held(dataset: Any) -> tuple[Any, ...]:
    """Return the objects that rows depend on."""
    how = dataset._format_type, dataset._format_kwargs, dataset._output_all_columns
    return *how, dataset._format_columns, dataset._data, dataset._indices, dataset._info.features


class Rows:
    """The present columns of one dataset.

    Attributes:
        why: datasets makes the rows; "" if fastloop does.
        verification: of the rows that a seam hands out.
    """

    def __init__(self, dataset: Any) -> None:
        self.held, self.why = _list_held(dataset), ""
        self.verification: Any = None
        try:
            self._open_all(dataset)
        except Exception as error:  # attributes may be anything that datasets does not look at
            self.why = str(error)

    def _open_all(self, dataset: Any) -> None:
        form, features = dataset._format_type, dataset._info.features
        leave_if(form is not None, f"rows have the format {form!r}")
        samples = Samples(dataset)
        needed = [n for n in samples.names if features and features._column_requires_decoding[n]]
        leave_if(needed, f"datasets decodes {needed}")
        leave_if(len(dataset._data) * len(samples.names) > _MOST, "the dataset has too many rows")
        leave_if(not samples.names, "the dataset has no columns")
        self.columns = [self._open(samples, name) for name in samples.names]
        self.names, self.count, self.chosen = samples.names, len(dataset), samples.chosen()

    def _open(self, samples: Samples, name: str) -> Callable[[Any], list[Any]]:
        """Return a function that makes the values of rows."""
        try:
            values, ends = samples.read(name, arrow_lists)
        except NotCoveredError:
            arrays = samples.read_rows(name)
            leave_if(arrays[0].ndim > 1, f"column {name!r} has other lists than of ints")
            numbers = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            return lambda rows: numbers[rows].tolist()
        ends = ends.reshape(-1, 2)
        return lambda rows: int_lists(values, ends[rows])

    def is_same(self, dataset: Any) -> bool:
        return all(map(operator.is_, _list_held(dataset), self.held))

    def fetch(self, keys: Any) -> list[dict[str, Any]]:
        """Return new samples. Raises NotCoveredError for keys that are unusual."""
        are_ints = type(keys) is list and set(map(type, keys)) == {int}
        leave_if(not are_ints, "the indices are not a list of ints")
        leave_if(min(keys) < 0 or max(keys) >= self.count, "an index is negative or out of range")
        rows = np.array(keys)
        rows = rows if self.chosen is None else self.chosen[rows]
        columns = [make(rows) for make in self.columns]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*columns, strict=True)]


@functools.cache
def find_unknown() -> Verdict:
    """Tell whether fastloop knows the code of datasets."""
    find = partial(find_difference_of_rows, Rows)
    return judge(_PLANS, Battery("rows", "rows", find))


prepare = find_unknown


def make_call(seam: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[int, Rows] = {}  # by id of the dataset

    def __getitems__(self: Any, keys: Any) -> Any:  # noqa: N807
        is_ours = (seam.is_on or fetch.is_served) and not runs_original()
        if not is_ours or type(self) is not sys.modules[_MODULE].Dataset:
            return before(self, keys)
        replaced = methods_of("collators", plans=frozenset(_PLANS)).find_replaced()
        if replaced or find_unknown().why:
            return before(self, keys)
        found = known.get(id(self))
        if found is None:
            weakref.finalize(self, known.pop, id(self), None)
        if found is None or not found.is_same(self):
            found = known[id(self)] = Rows(self)
            arguments = "rows", "datasets'", 1, not find_unknown().about
            found.verification = verification_of(f"rows {self._info.features}", *arguments)
        if found.why or found.verification.falls_back:
            return before(self, keys)
        try:
            made = found.fetch(keys)
        except Exception:  # datasets raises its own error, if there is one
            return before(self, keys)
        if found.verification.is_due(len(keys)):
            return found.verification.compare(partial(before, self, keys), lambda _: made)
        seam.native += 1
        return made

    return __getitems__
