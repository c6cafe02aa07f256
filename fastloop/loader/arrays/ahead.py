"""The next epoch of an array loader, read ahead by its threads. docs/internals/ahead.md has the
states.

The native loader reads its indices from one iterator: the blocks of this epoch, the number of the
next epoch, and the blocks that are foreseen for that epoch.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import chain, filterfalse, islice
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastloop._core import ArrayLoader, BatchPool, Table
from fastloop.base.interrupts import interrupt_later, interrupts_held
from fastloop.base.threads import count_alone
from fastloop.compat.moves import tensors_in
from fastloop.data.columns import Columns
from fastloop.data.epochs import EPOCHS, IteratorEpochs
from fastloop.loader.ahead import Forecast, open_forecast
from fastloop.loader.arrays.iterator import (
    ArrayConfig,
    ArrayIter,
    Block,
    find_blocks,
    random_epoch,
    within,
)
from fastloop.loader.shared import Shared

# After two drops in a row eight epochs are not read ahead.
_MOST_RENEWALS = 10


class _Foreseen(NamedTuple):
    """An epoch that was foreseen.

    Attributes:
        facts: what must be equal at ``iter()``: the epochs of datasets, how blocks are cut into
            batches, and how often tensors were changed in place.
        taken: the blocks that the native loader has taken, and None at their end.
    """

    facts: tuple[Any, ...]
    taken: list[Block | None]

    def draw(self, source: Iterator[Any]) -> tuple[Iterable[Any], bool]:
        """Draw the blocks of the epoch that were taken, up to the first difference: torch would
        draw no later block at ``iter()``. Return them, and whether there was no difference. If the
        sampler raises, the error comes after the blocks, as without a forecast."""
        drawn: list[Any] = []
        for taken in self.taken:
            try:
                block = next(source, None)
            except Exception as error:
                return chain(drawn, map(_raise, (error,))), False
            if block is None:
                return drawn, taken is None
            drawn.append(block)
            if taken is None or not _are_equal(block, taken):
                return drawn, False
        return drawn, True


def _raise(error: Exception) -> NoReturn:
    raise error


def _are_equal(drawn: Block, taken: Block) -> bool:
    if isinstance(drawn, torch.Tensor) and isinstance(taken, torch.Tensor):
        return torch.equal(drawn, taken)
    return type(drawn) is type(taken) and drawn == taken


class _Ahead:
    """Begins the epochs of an array loader, with the batches that were read ahead if they are the
    epoch's own. Only the thread in ``next()`` or ``iter()`` uses it.

    The native loader refers to this object, which therefore does not know the iterator: it must die
    with the user's last reference.
    """

    def __init__(self, forecast: Forecast, columns: Columns, datasets: IteratorEpochs) -> None:
        self._forecast, self._columns = forecast, columns
        self._datasets = datasets
        self._numbers: list[int] = []  # the epochs of the datasets, at the last iter()
        self._steps = [1] * len(datasets.epochs)  # from one iter() to the next
        self._foreseen: _Foreseen | None = None

    def begin(
        self, loader: ArrayLoader, source: Iterator[Any], kind: int, sampler: Any, number: int
    ) -> None:
        """Begin an epoch of `loader`. ``ArrayLoader.restart`` explains the other arguments."""
        self._note_iter()
        foreseen, self._foreseen = self._foreseen, None
        drawn: Iterable[Any] = ()
        is_hit = foreseen is not None and self._read_facts(self._numbers, sampler) == foreseen.facts
        if foreseen is not None and is_hit:
            drawn, is_hit = foreseen.draw(source)
        rest = source if sampler is None else chain(source, self._go_ahead(sampler))
        is_hit = is_hit and loader.enter_next(rest)
        if not is_hit:
            loader.restart(chain(drawn, rest), kind, sampler, number)
        if foreseen is not None:
            self._forecast.shared.add(ahead_hits=is_hit, ahead_drops=not is_hit)

    def use(self, shared: Shared) -> None:
        """Count for the loader of `shared` from now on."""
        self._forecast.shared = weakref.proxy(shared)

    def _note_iter(self) -> None:
        self._forecast.note_iter()
        numbers = [self._datasets.number_of(epoch) or 0 for epoch in self._datasets.epochs]
        if self._numbers:
            self._steps = [now - then for now, then in zip(numbers, self._numbers, strict=True)]
        self._numbers = numbers

    def _read_facts(self, numbers: list[int], sampler: Any) -> tuple[Any, ...]:
        cut = None if sampler is None else (sampler.batch_size, sampler.drop_last)
        return numbers, cut, [tensor._version for tensor in tensors_in(self._columns.table)]

    def _go_ahead(self, sampler: Any) -> Iterator[Any]:
        """Return what follows the blocks of the epoch. Items pass through native iterators alone,
        so a signal's handler cannot come between the note of a block and its use."""
        return chain.from_iterable(self._foresee(sampler))

    def _foresee(self, sampler: Any) -> Iterator[Iterable[Any]]:
        epochs = IteratorEpochs(self._datasets.epochs)
        numbers = [(n + step) % EPOCHS for n, step in zip(self._numbers, self._steps, strict=True)]
        epochs.enter(numbers, 0)

        def begin(batches: Any) -> Iterator[Block]:
            blocks = within(epochs, find_blocks(batches) or iter(()))
            return chain(list(islice(blocks, 1)), blocks)

        # Indices of the last batch wait meanwhile, and an interrupt would lose them.
        with interrupts_held(interrupt_later):
            blocks = self._forecast.foresee(begin)
        if blocks is None:
            return
        taken: list[Block | None] = []
        self._foreseen = _Foreseen(self._read_facts(numbers, sampler), taken)
        yield (epochs.number_for(self._columns.dataset),)
        yield filterfalse(taken.append, blocks)
        taken.append(None)


class _Idle(NamedTuple):
    """A native loader between two iterators without persistent workers.

    Attributes:
        read: the fields of its table, and the rows of subsets.
        facts: what else makes its batches.
    """

    loader: ArrayLoader
    ahead: _Ahead
    read: tuple[Any, ...]
    facts: tuple[Any, ...]
    datasets: IteratorEpochs
    destination: Any


def _are_same(a: Any, b: Any) -> bool:
    """Tell whether parts of two tables read the same memory in the same way."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        pair = [(each.dtype, each.data_ptr(), each.shape, each.stride()) for each in (a, b)]
        return pair[0] == pair[1]
    if isinstance(a, np.ndarray):
        is_there = a.__array_interface__ == b.__array_interface__
        is_rows = a.dtype == np.int64 and a.ndim == 1  # perhaps of a Subset
        return bool(is_there or (is_rows and np.array_equal(a, b)))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_are_same, a, b))
    return bool(a == b)


class _Left:
    """Has no batches, in place of the native loader that an iterator has left. An empty generator
    would raise ValueError if a different thread, or a signal's handler, is in it already."""

    def __next__(self) -> NoReturn:
        raise StopIteration

    def close(self) -> None:
        pass


class AheadIter(ArrayIter):
    """An iterator whose threads begin the next epoch when this one has no more batches for them.
    Without persistent workers the iterator leaves its native loader to the loader's next one."""

    _ahead: _Ahead | None = None

    def __init__(
        self,
        loader: DataLoader[Any],
        columns: Columns,
        shared: Shared,
        accelerator: Any,
        is_live: bool = False,
    ) -> None:
        shared.renewals += shared.renewals > 1  # another epoch that is not read ahead
        if shared.renewals > _MOST_RENEWALS:
            shared.renewals = 1  # try once
        fault = "iter() makes the columns of this dataset anew" if shared.renewals > 1 else ""
        if any(map(torch.Tensor.is_inference, tensors_in(columns.table))):
            fault = "tensors of inference mode do not count changes in place"
        self._forecast = open_forecast(loader, shared, fault)
        self._hands_over = self._forecast is not None and not loader.persistent_workers
        if (before := shared.latest_ahead()) is not None:
            before._leave()  # the program may hold an iterator without asking for its end
        idle = vars(shared).pop("idle", None)  # in one call, for threads
        self._idle = idle if isinstance(idle, _Idle) else None
        self._facts: tuple[Any, ...] = accelerator and accelerator.device, loader.pin_memory
        super().__init__(loader, columns, shared, accelerator, is_live)
        shared.latest_ahead = weakref.ref(self)  # last: other threads may now ask it to leave

    def _make_loader(self, table: Table, pool: BatchPool, config: ArrayConfig) -> ArrayLoader:
        """Return the native loader that the last iterator has left, if it makes the batches of this
        iterator, else a new one."""
        idle, self._idle = self._idle, None
        if not self._hands_over:
            return ArrayLoader(table, pool, config)
        epochs, shared = self._datasets.epochs, self._shared
        # The program may write to its own indices of a Subset.
        self._read = table.fields, tuple(map(copy, config.maps))
        # A forked child has a pool of its own.
        how = repr(config.structure), config.wrap, config[4:9], config.budget, epochs
        self._facts += *how, self._index_sampler, self._collate_fn, pool, shared.transforms_run
        self._facts += (type(self._destination),)
        if idle is not None:
            if idle.facts == self._facts and _are_same(idle.read, self._read):
                # A finalizer may have left it, when weak references were gone.
                idle.ahead.use(shared)
                idle.datasets.enter([self._datasets.number_of(epoch) for epoch in epochs], 0)
                self._ahead, self._read, self._datasets = idle.ahead, idle.read, idle.datasets
                self._destination, shared.renewals = idle.destination, 0
                return idle.loader
            shared.renewals += 1
            shared.add(ahead_drops=idle.ahead._foreseen is not None)
        return ArrayLoader(table, pool, config._replace(persistent=True))

    def _restart(self) -> None:
        if self._forecast is None:
            return super()._restart()
        if self._destination is not None:
            self._destination.check()
        if self._ahead is None:
            self._ahead = _Ahead(self._forecast, self._columns, self._datasets)
        number = random_epoch(self._columns.dataset, self._datasets)
        self._ahead.begin(self._array_loader, *self._open_indices(), number)
        return None

    @count_alone
    def _leave(self) -> None:
        """Leave the native loader to the next iterator, if no batch of this epoch is left."""
        loader: Any = vars(self).get("_array_loader")  # missing if __init__ has raised
        is_there = isinstance(loader, ArrayLoader) and self._hands_over
        if not (is_there and loader.hand_over()):
            return
        # Several threads may leave at once. Only the thread that takes _ahead leaves the loader.
        if (ahead := vars(self).pop("_ahead", None)) is not None:
            self._array_loader = _Left()
            how = self._read, self._facts, self._datasets, self._destination
            self._shared.idle = _Idle(loader, ahead, *how)

    def _goes_on(self) -> bool:
        self._leave()
        return False

    def _finalize(self) -> None:
        self._keep_count()
        if not self._is_exiting():
            self._leave()

    _is_exiting = staticmethod(sys.is_finalizing)
