"""Batches that fastloop makes instead of another library's code. The first batch is compared with
the original's, and later batches as often as FASTLOOP_CHECK asks. The iterator draws the random
numbers of a batch when torch would draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from fastloop._core import ImageDraws
from fastloop.compat.torch_parts import MapFetcher
from fastloop.compat.verification import Verification, is_alone
from fastloop.data.columns import Columns, NotCoveredError
from fastloop.loader.arrays.iterator import _LISTS, ArrayIter, make_batch

_FIRST = 8  # samples of the first batch, which is compared once for each process and plan


@dataclass(eq=False)
class Original:
    """A library's own code, in whose place fastloop makes batches.

    Attributes:
        collate_fn: the loader's collate function.
        draws: the random parameters of samples; None: samples have no random parameters.
        is_same: tells whether fastloop still makes the same batches as the original.
    """

    verification: Verification
    collate_fn: Callable[[Any], Any]
    draws: ImageDraws | None = None
    is_same: Callable[[], bool] = lambda: True

    def iterator_class(self, workers: int) -> type[ArrayIter]:
        """Return the class of iterators. Random draws and comparisons need the indices of each
        batch, which only ComparedIter sees."""
        needs_indices = self.draws is not None or (workers == 0 and self.verification.every > 0)
        return ComparedIter if needs_indices else ArrayIter

    def draw(self, rows: int, generator: torch.Generator) -> None:
        if self.draws is not None:
            self.draws.draw_from(rows, generator)

    def compare(self, columns: Columns, rows: list[int], fetcher: Any) -> None:
        """Make a batch twice: by the original, through the fetcher, and natively. Then restore
        torch's generator."""

        def by_c(generator: torch.Generator) -> Any:
            self.draw(len(rows), generator)
            return make_batch(columns, rows)

        with torch.random.fork_rng(devices=()):
            self.verification.compare(partial(fetcher.fetch, rows), by_c)

    def check(self, columns: Columns) -> None:
        """Compare the first batch. If the batches differ, raise NotCoveredError."""
        rows = list(range(min(_FIRST, len(columns.dataset))))
        try:
            if self.verification.unchecked:
                fetcher = MapFetcher(columns.dataset, True, self.collate_fn, False)
                self.compare(columns, rows, fetcher)
        except Exception as error:
            raise NotCoveredError(f"the original raises {type(error).__name__}") from error
        if self.verification.unchecked or self.verification.falls_back:
            what, whose = self.verification.what, self.verification.whose
            raise NotCoveredError(f"fastloop's {what} differed from {whose}")


class ComparedIter(ArrayIter):
    """An iterator that draws for each batch when its indices are known, as torch does.

    Without workers the iterator asks before each batch whether the program has changed what the
    original would use, and compares the batches that are due. If a batch differs, the original
    makes that batch and the rest of the epoch.
    """

    _falls_back = False

    def _open_indices(self) -> tuple[Iterator[Any], int, Any]:
        draws = self._columns.original.draws
        if draws is not None:
            draws.seed(int(self._base_seed), self._num_workers)
        return self._drawing(self._columns.original), _LISTS, None

    def _drawing(self, original: Original) -> Iterator[Any]:
        """Yield the indices of batches: lists for fastloop, tuples for the original."""
        for turn, batch in enumerate(self._sampler_iter):
            if original.draws is not None and self._num_workers > 0:
                original.draws.draw(len(batch), turn % self._num_workers)
                yield batch
                continue
            self._falls_back = self._falls_back or not original.is_same()
            if not self._falls_back and original.verification.is_due(len(batch)) and is_alone():
                with suppress(Exception):  # the native batch raises the same error
                    original.compare(self._columns, batch, self._dataset_fetcher)
                self._falls_back = original.verification.falls_back
            if not self._falls_back:
                original.draw(len(batch), torch.default_generator)
            yield tuple(batch) if self._falls_back else batch
