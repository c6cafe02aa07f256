"""Iterators: the array path's, and torch's own with a count.

``fast_iterator`` is the one seam: it works for any ``torch.utils.data.DataLoader``.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.autograd import profiler
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from fastloop import _core
from fastloop._indices import find_blocks
from fastloop._route import Source, find_route

_BLOCKS, _BATCHES, _SINGLES = 0, 1, 2


class Shared:
    """What the iterators of one loader share: batch memory and counts."""

    def __init__(self) -> None:
        self.slots: _core.Slots | None = None
        self.torch_batches = 0
        self.torch_wait_ns = 0

    def slots_for(self, fields: int) -> _core.Slots:
        """The pool, made when first needed and again in a forked child."""
        if self.slots is None or not self.slots.is_own():
            self.slots = _core.Slots(fields)
        return self.slots

    def time_torch(self, next_data: Callable[[], Any]) -> Any:
        begin_ns = perf_counter_ns()
        data = next_data()
        self.torch_wait_ns += perf_counter_ns() - begin_ns
        self.torch_batches += 1
        return data


class _ArrayIter(_BaseDataLoaderIter):
    """torch's base iterator over batches that C gathers.

    Random numbers are drawn when torch draws them: the base seed here, the permutation when the
    first index is needed.
    """

    def __init__(self, loader: DataLoader[Any], source: Source, shared: Shared) -> None:
        super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        fetcher = _MapDatasetFetcher(
            self._dataset, self._auto_collation, self._collate_fn, self._drop_last
        )
        blocks = find_blocks(self._index_sampler) if self._auto_collation else None
        sampler: Any = self._index_sampler
        self._feed = _core.Feed(
            table=source.table,
            slots=shared.slots_for(source.fields),
            fetch=fetcher.fetch,
            keys=source.keys,
            maps=source.maps,
            kind=_BLOCKS if blocks else _BATCHES if self._auto_collation else _SINGLES,
            batch_size=sampler.batch_size if blocks else 1,
            drop_last=sampler.drop_last if blocks else False,
            workers=self._num_workers,
            prefetch=loader.prefetch_factor or 1,
            in_order=loader.in_order,
            persistent=self._persistent_workers,
            timeout=self._timeout,
        )
        self._cuts_blocks = blocks is not None
        self._sampler_iter = blocks or self._sampler_iter
        self._feed.restart(self._sampler_iter)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        if self._cuts_blocks:
            self._sampler_iter = find_blocks(self._index_sampler)
        self._feed.restart(self._sampler_iter)

    def _next_data(self) -> Any:
        return next(self._feed)

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled:
            return super().__next__()
        data = next(self._feed)
        self._num_yielded += 1
        return data

    def close(self) -> None:
        self._feed.close()


class _CountedSingle(_SingleProcessDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._shared = shared
        super().__init__(loader)

    def _next_data(self) -> Any:
        return self._shared.time_torch(super()._next_data)


class _CountedMulti(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._shared = shared
        super().__init__(loader)

    def _next_data(self) -> Any:
        return self._shared.time_torch(super()._next_data)

    def close(self) -> None:
        self._shutdown_workers()


# Profiles name the range after the iterator's class.
_CountedSingle.__name__ = _SingleProcessDataLoaderIter.__name__
_CountedMulti.__name__ = _MultiProcessingDataLoaderIter.__name__


def fast_iterator(
    loader: DataLoader[Any], path: str = "auto", shared: Shared | None = None
) -> _BaseDataLoaderIter:
    """The fastest iterator that gives what ``iter(loader)`` of torch gives.

    Args:
        loader: any torch DataLoader.
        path: as the argument of ``fastloop.DataLoader``.
        shared: memory and counts to go on with; fresh ones by default.
    """
    shared = shared or Shared()
    route = find_route(loader, path)
    if loader.num_workers > 0:
        loader.check_worker_number_rationality()
    if route.source is not None:
        return _ArrayIter(loader, route.source, shared)
    if loader.num_workers > 0:
        return _CountedMulti(loader, shared)
    return _CountedSingle(loader, shared)
