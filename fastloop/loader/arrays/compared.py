"""Batches that C makes in place of another library's code: the first one is compared with that of
the original, and others as FASTLOOP_CHECK asks. The iterator draws the random numbers of a batch
when torch would draw them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastloop._core import ImageDraws
from fastloop.base.originals import Trial, is_alone
from fastloop.base.torch_parts import MapFetcher, pin_memory
from fastloop.loader.arrays.columns import Columns, NotCoveredError, leave_if
from fastloop.loader.arrays.iterator import _LISTS, ArrayIter, make_batch

_FIRST = 8  # samples of the first batch, which is compared once a process and plan


def _compare(trial: Trial, state: Tensor, *makers: Callable[..., Any]) -> Any:
    """Run a comparison while torch's generator has this state; then restore the generator."""
    with torch.random.fork_rng(devices=()):
        torch.set_rng_state(state)
        return trial.compare(*makers)


@dataclass(eq=False)
class Original:
    """The code that C stands in for when it makes batches.

    Attributes:
        collate_fn: of the loader.
        draws: the random parameters of samples; None: there are none.
        is_same: tells whether C still makes what the original would make.
    """

    trial: Trial
    collate_fn: Callable[[Any], Any]
    draws: ImageDraws | None = None
    is_same: Callable[[], bool] = lambda: True

    def needs_indices(self, workers: int) -> bool:
        """Tell whether batches are drawn or compared when their indices are known."""
        return self.draws is not None or (workers == 0 and self.trial.every > 0)

    def draw(self, rows: int, generator: torch.Generator) -> None:
        if self.draws is not None:
            self.draws.draw_from(rows, generator)

    def check(self, columns: Columns) -> None:
        """Compare the first batch. Raises NotCoveredError if it differs."""
        rows = list(range(min(_FIRST, len(columns.dataset))))
        fetcher = MapFetcher(columns.dataset, True, self.collate_fn, False)

        def by_c(generator: torch.Generator) -> Any:
            self.draw(len(rows), generator)
            return make_batch(columns, rows)

        try:
            if self.trial.unchecked:
                state = torch.default_generator.get_state()
                _compare(self.trial, state, partial(fetcher.fetch, rows), by_c)
        except Exception as error:
            raise NotCoveredError(f"the original raises {type(error).__name__}") from error
        is_other = self.trial.unchecked or self.trial.is_left
        leave_if(is_other, f"C's {self.trial.what} differed from {self.trial.whose}")


class ComparedIter(ArrayIter):
    """An iterator that draws for each batch when its indices are known, as torch does.

    Without workers it looks before each batch whether the program has changed what the original
    would use. The rest of the epoch is then the original's.
    """

    _is_seeded = _is_left = False
    _due: tuple[Any, Tensor, Tensor] | None = None  # indices, states before and after the draws

    def _open_indices(self) -> tuple[Iterator[Any], int, Any]:
        draws = self._source.original.draws
        if draws is not None and not self._is_seeded:
            self._is_seeded = True  # persistent workers go on with their streams
            draws.seed(int(self._base_seed), self._num_workers)
        return self._drawing(self._source.original), _LISTS, None

    def _drawing(self, original: Original) -> Iterator[Any]:
        """Yield the indices of batches: lists for C, tuples for the original."""
        generator = torch.default_generator
        for turn, batch in enumerate(self._sampler_iter):
            self._due = None
            if original.draws is not None and self._num_workers > 0:
                original.draws.draw(len(batch), turn % self._num_workers)
            elif self._is_left or not original.is_same():
                self._is_left, batch = True, tuple(batch)
            else:
                is_due = original.trial.is_due(len(batch)) and is_alone()  # nobody else draws
                before = generator.get_state() if is_due else None
                original.draw(len(batch), generator)
                if before is not None:
                    self._due = batch, before, generator.get_state()
            yield batch

    def _compare(self, data: Any) -> Any:
        """Return the batch as the original makes it, if that is not what C has made."""
        assert self._due is not None
        (indices, before, after), self._due = self._due, None

        def by_c(generator: torch.Generator) -> Any:
            generator.set_state(after)
            return data

        trial, fetch = self._source.original.trial, partial(self._dataset_fetcher.fetch, indices)
        expected = _compare(trial, before, fetch, by_c)
        self._is_left = trial.is_left
        if not self._is_left:
            return data
        return pin_memory(expected) if self._pin_memory else expected

    def __next__(self) -> Any:
        data = super().__next__()
        return data if self._due is None else self._compare(data)
