"""Where a dataset of ours may write its samples: into the memory of the batch that is being made.

The loader's collate then finds them in place. Only where no code of the user's sees the samples:
they are overwritten with a later batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from fastloop._core import Collate

_T = TypeVar("_T")


class _Lent(threading.local):
    collate: Collate | None = None


_lent = _Lent()


def lend(collate: Collate | None) -> Collate | None:
    """From now on this thread fetches batches for this collate; returns the one before."""
    before, _lent.collate = _lent.collate, collate
    return before


def call_lent(collate: Collate | None, function: Callable[[], _T]) -> _T:
    """``function()``, in which this thread fetches a batch for this collate."""
    before = lend(collate)
    try:
        return function()
    finally:
        lend(before)


@contextmanager
def find_places(like: torch.Tensor | None, count: int) -> Iterator[Sequence[torch.Tensor | None]]:
    """For so many samples like this one, a tensor each in the batch being made; None each where
    nobody lends, or ``like`` is None. Within, nobody lends: what a decoder loads is no sample."""
    collate = lend(None)
    try:
        if collate is None or like is None or count == 0:
            yield [None] * count
        else:
            yield collate.block(like, count).unbind(0)
    finally:
        lend(collate)
