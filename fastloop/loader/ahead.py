"""The next epoch, foreseen: the indices that its first batches will have if the program does at the
next ``iter()`` what it did at the last one. docs/internals/ahead.md has the states.

Nothing here touches the program's generators or samplers: a copy of the sampler draws from copies
of the generators. ``iter()`` draws as ever and compares, so a wrong forecast costs time alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, RandomSampler

from fastloop.base.checks import is_read_ahead, look_up
from fastloop.loader.resume.epoch import SEEDED
from fastloop.loader.shared import Shared

_T = TypeVar("_T")
# The most numbers of 32 bits that a program may draw between two epochs: a loader for validation
# draws two or four.
_MOST_DRAWN = 64
_SEED = 2  # numbers of a base seed


def open_forecast(loader: DataLoader[Any], shared: Shared, fault: str) -> Forecast | None:
    """Return the forecast of an iterator that will live through several epochs; None if nobody asks
    for it or if nothing can be foreseen. ``shared.not_ahead`` then says why.

    Args: fault: why the iterator cannot read ahead, or "".
    """
    if not is_read_ahead(loader):
        return None
    from fastloop.loader.arrays.iterator import find_blocks

    sampler: Any = loader._index_sampler
    if loader._dataset_kind != 0:
        shared.not_ahead = "an IterableDataset has no indices"
    elif not loader.in_order:
        shared.not_ahead = "in_order is False"
    elif find_blocks(sampler) is None:
        shared.not_ahead = f"fastloop does not know the sampler of this {type(sampler).__name__}"
    else:
        shared.not_ahead = fault
        if not fault:
            has_seed = not loader.persistent_workers  # iter() draws a base seed
            seeded = loader.generator or torch.default_generator
            return Forecast(sampler, weakref.proxy(shared), seeded if has_seed else None)
    return None


class Forecast:
    """Indices of the next epoch, from what happened at the last boundary between epochs.

    Args:
        batches: the ``BatchSampler`` over a sampler that fastloop knows.
        shared: the loader's. A weak proxy, because what is read ahead may be the loader's own.
        seeded: the generator that each ``iter()`` draws a base seed from, or None.
    """

    def __init__(self, batches: Any, shared: Shared, seeded: torch.Generator | None) -> None:
        self._batches, self.shared = batches, shared
        self._sampler = batches.sampler
        self._at_end: torch.Tensor | None = None  # the generator when the forecast was made
        # How many numbers were drawn between forecast and iter() last time. None: unlike any small
        # number, so nothing is foreseen.
        self._drawn: int | None = 0 if seeded is None or seeded is not self._generator() else _SEED
        self._epoch: int | None = None  # the sampler's at the last iter()
        self._step = 1  # from the epoch of one iter() to the next

    def _generator(self) -> torch.Generator | None:
        """Return the generator that the sampler draws from, or None."""
        if type(self._sampler) not in SEEDED:
            return None
        return self._sampler.generator or torch.default_generator

    def note_iter(self) -> None:
        """Compare an ``iter()`` with the forecast. Call this before anything is drawn."""
        epoch, generator = look_up(self._sampler, "epoch", 0), self._generator()
        if self._at_end is not None and generator is not None:
            self._drawn = _count_drawn(self._at_end, generator.get_state())
        if self._epoch is not None:
            self._step = epoch - self._epoch
        self._epoch, self._at_end = epoch, None

    def foresee(self, read: Callable[[Any], _T]) -> _T | None:
        """Return what `read` makes of the sampler of the next epoch; None if that epoch cannot be
        foreseen."""
        generator = self._generator()
        self._at_end = None if generator is None else generator.get_state()
        self.shared.not_ahead = ""
        if self._drawn is None:
            self.shared.not_ahead = f"more than {_MOST_DRAWN} numbers were drawn between epochs"
            return None
        try:
            return read(self.copy_batches())
        except Exception as error:  # for example, weights may be negative, or the generator CUDA's
            self._at_end = None
            self.shared.not_ahead = f"the sampler has raised {type(error).__name__}"
            return None

    def copy_batches(self) -> Any:
        """Return a copy of the sampler that yields the batches of the next epoch."""
        batches, sampler = copy(self._batches), copy(self._sampler)
        batches.sampler = sampler
        if self._at_end is not None:
            drawing = torch.Generator()
            drawing.set_state(self._at_end)
            _draw(drawing, self._drawn or 0)
            if type(sampler) is RandomSampler and sampler.generator is None:
                seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=drawing)
                drawing = torch.Generator().manual_seed(int(seed))
            sampler.generator = drawing
        elif hasattr(sampler, "epoch"):
            sampler.epoch = (self._epoch or 0) + self._step
        return batches


def _draw(generator: torch.Generator, count: int) -> None:
    torch.empty(count, dtype=torch.int32, device="cpu").random_(generator=generator)


def _count_drawn(before: torch.Tensor, after: torch.Tensor) -> int | None:
    """Return how many numbers a generator has drawn between two of its states. None: more than
    `_MOST_DRAWN`, or the generator was seeded."""
    generator = torch.Generator()
    generator.set_state(before)
    for count in range(_MOST_DRAWN + 1):
        if torch.equal(generator.get_state(), after):
            return count
        _draw(generator, 1)
    return None
