"""Batches that fastloop makes instead of another library's code. The first batch is compared with
the original's, and later ones as often as FASTLOOP_CHECK asks, or if fastloop does not know the
code. The iterator draws the random numbers of a batch when torch would draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils.data import BatchSampler

from fastloop._core import ImageDraws
from fastloop.compat.torch_parts import MapFetcher
from fastloop.compat.verification import EVERY, Verification, is_alone
from fastloop.data.columns import Columns, NotCoveredError, below_subsets
from fastloop.loader.arrays.iterator import _BLOCKS, _LISTS, ArrayIter, Block, make_batch

FIRST = 8  # samples of the first batch, which is compared once for each process and plan
_FEW = 4  # samples of later comparisons


@dataclass(eq=False)
class Original:
    """A library's own code, in whose place fastloop makes batches.

    Attributes:
        collate_fn: the loader's collate function.
        draws: the random parameters of samples; None: samples have no random parameters.
        is_same: tells whether fastloop still makes the same batches as the original, and prepares
            the columns for the batch of the given indices. None: there is nothing to look at.
    """

    verification: Verification
    collate_fn: Callable[[Any], Any]
    draws: ImageDraws | None = None
    is_same: Callable[[Any, Columns], bool] | None = None

    def iterator_class(self, workers: int) -> type[ArrayIter]:
        """Return the class of iterators. Only ComparedIter draws, and compares later batches."""
        compares = self.verification.every > 0 or not self.verification.is_known
        needs_indices = self.draws is not None or (workers == 0 and compares)
        return ComparedIter if needs_indices else ArrayIter

    def draw(self, rows: int, generator: torch.Generator) -> None:
        if self.draws is not None:
            self.draws.draw_from(rows, generator)

    def compare(self, columns: Columns, rows: list[int], fetcher: Any) -> None:
        """Make a batch of these rows twice: by the original, through the fetcher, and natively.
        Then restore torch's generator."""

        def by_c(generator: torch.Generator) -> Any:
            self.draw(len(rows), generator)
            return make_batch(columns, rows)

        with torch.random.fork_rng(devices=()):
            self.verification.compare(partial(fetcher.fetch, rows), by_c)

    def check(self, columns: Columns) -> None:
        """Compare the first batch. If the batches differ, raise NotCoveredError."""
        rows = list(range(min(FIRST, len(columns.dataset))))
        try:
            if self.verification.unchecked:
                fetcher = MapFetcher(columns.dataset, True, self.collate_fn, False)
                self.compare(columns, rows, fetcher)
        except Exception as error:
            raise NotCoveredError(f"the original raises {type(error).__name__}") from error
        if self.verification.unchecked or self.verification.falls_back:
            what, whose = self.verification.what, self.verification.whose
            raise NotCoveredError(f"fastloop's {what} differed from {whose}")


def _some_of(rows: Any) -> list[int]:
    """Return a few rows from everywhere in a vector or range of rows."""
    return [int(row) for row in rows[:: -(-len(rows) // _FEW)]]


def _cut(blocks: Iterator[Block], most: int) -> Iterator[Any]:
    """Yield vectors and ranges of at most so many rows."""
    for block in blocks:
        rows = range(block[0], sum(block)) if isinstance(block, tuple) else block
        for at in range(0, len(rows), most):
            yield rows[at : at + most]


def _lists_of(blocks: Iterator[Block], sampler: Any) -> Iterator[list[int]]:
    """Yield the batches of a BatchSampler over a sampler that is read in blocks."""
    rows: list[int] = []
    for block in blocks:
        left: Any = range(block[0], sum(block)) if isinstance(block, tuple) else block
        while len(left) > 0:
            taken = max(sampler.batch_size - len(rows), 0)
            rows += left[:taken] if isinstance(left, range) else left[:taken].tolist()
            left = left[taken:]
            if len(rows) >= sampler.batch_size:
                yield rows
                rows = []
    if rows and not sampler.drop_last:
        yield rows


class ComparedIter(ArrayIter):
    """An iterator that draws for each batch when its indices are known, as torch does.

    Without workers the iterator asks before each batch whether the program has changed what the
    original would use, and compares the batches that are due. If a batch differs, the original
    makes that batch and the rest of the epoch.

    Batches without random numbers are taken from blocks of indices, as ArrayIter takes them. Of
    unknown code a few rows are compared before each 64 batches.
    """

    _falls_back = False
    _left: Iterator[Any] | None = None  # rows of the epoch that the original makes
    _noted: Sequence[Any] = ()  # what _subsets() was when the columns were opened

    def _subsets(self) -> list[Any]:
        """Return the dataset below the Subsets, and the Subsets with their indices."""
        inner, subsets = below_subsets(self._dataset)
        return [inner, *subsets, *(subset.indices for subset in subsets)]

    def _has_same_subsets(self) -> bool:
        # torch's workers would have copies.
        return self._num_workers > 0 or [*map(id, self._subsets())] == [*map(id, self._noted)]

    def _open_indices(self) -> tuple[Iterator[Any], int, Any]:
        self._noted = self._noted or self._subsets()
        original = self._columns.original
        if original.draws is not None:
            original.draws.seed(int(self._base_seed), self._num_workers)
        elif not original.verification.every and original.is_same is None:
            source, kind, sampler = super()._open_indices()
            if kind == _BLOCKS:
                return self._watching(original, source, sampler), kind, sampler
        batches, kind, sampler = super()._open_indices()
        if kind == _BLOCKS:
            batches = _lists_of(batches, sampler)
        return self._drawing(original, batches), _LISTS, None

    def _compare(self, original: Original, rows: Any) -> None:
        with suppress(Exception):  # the native batch raises the same error
            rows = rows if original.verification.every else _some_of(rows)
            original.compare(self._columns, rows, self._dataset_fetcher)

    def _watching(self, original: Original, blocks: Iterator[Block], sampler: Any) -> Iterator[Any]:
        """Yield the blocks in parts. End before a part that the original has to make."""
        verification, size, done = original.verification, sampler.batch_size, 0
        parts = _cut(blocks, EVERY * size)
        for rows in parts:
            is_due = verification.is_due(len(rows), -(-len(rows) // size))
            if done % size == 0:  # no batch has rows before and behind this place
                if is_due and is_alone():
                    self._compare(original, rows)
                if verification.falls_back:
                    rest = chain.from_iterable(chain((rows,), parts))
                    self._left = iter(BatchSampler(map(int, rest), size, sampler.drop_last))
                    return
            done += len(rows)
            yield (rows.start, len(rows)) if isinstance(rows, range) else rows

    def _goes_on(self) -> bool:
        left, self._left = self._left, None
        if left is not None:
            self._array_loader.restart(map(tuple, left), _LISTS, None, 0)
        return left is not None

    def _drawing(self, original: Original, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the indices of batches: lists for fastloop, tuples for the original."""
        for turn, batch in enumerate(batches):
            if original.draws is not None and self._num_workers > 0:
                original.draws.draw(len(batch), turn % self._num_workers)
                yield batch
                continue
            is_same = original.is_same is None or original.is_same(batch, self._columns)
            self._falls_back = self._falls_back or not (is_same and self._has_same_subsets())
            if not self._falls_back and original.verification.is_due(len(batch)) and is_alone():
                self._compare(original, batch)
                self._falls_back = original.verification.falls_back
            if not self._falls_back:
                original.draw(len(batch), torch.default_generator)
            yield tuple(batch) if self._falls_back else batch
