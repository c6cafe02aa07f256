"""The Python around the native collate: the collate functions that it replaces, and the memory that
a batch lends to datasets.

A thread that fetches a batch *lends* its collate, and a dataset *borrows* slots in the batch and
writes its samples there. The collate then copies nothing. Only the collate may see these samples,
because a later batch overwrites them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from fastloop._core import Collate, ThreadPool, WorkerEnd
from fastloop.compat.torch_parts import collate_functions, default_collate
from fastloop.data.columns import below_subsets, default_functions, is_default_collate, own

# ---- the native collate


def _walk_container(fast: Collate, batch: Any) -> Any:
    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return fast.stack(batch)

    leaves: dict[Any, Callable[..., Any]] = dict.fromkeys(default_functions(), stack)
    return collate_functions().collate(batch, collate_fn_map=leaves)


def make_collate(
    worker_end: WorkerEnd | None = None, thread_pool: ThreadPool | None = None
) -> Collate:
    """Return a function that makes the batches of ``default_collate``.

    Args:
        worker_end: a worker process's memory for batches; None: batches are ordinary tensors.
        thread_pool: threads that share long copies; None: the calling thread copies alone.
    """
    return Collate(
        torch=torch,
        memmap_type=np.memmap,
        registry=collate_functions().default_collate_fn_map,
        others=_walk_container,
        fallback=default_collate,
        worker_end=worker_end,
        thread_pool=thread_pool,
    )


class Fallbacks:
    """Counts the leaves that torch's functions collate from now on for a native collate, or for
    None."""

    def __init__(self, core: Collate | None) -> None:
        self._core = core
        self._before = {} if core is None else core.fallbacks()

    def count(self) -> tuple[tuple[()], dict[str, int]]:
        """Return the counts of no workers, and the numbers of leaves by reason."""
        now = {} if self._core is None else self._core.fallbacks()
        counts = {reason: n - self._before.get(reason, 0) for reason, n in now.items()}
        return (), {reason: n for reason, n in counts.items() if n > 0}


class Collation:
    """The collate of one iterator or worker: native for torch's default and fastloop's own.

    Args:
        dataset, collate_fn: the loader's.
        is_batched: ``collate_fn`` gets lists of samples.
        open_core: returns the native collate, which owns the memory of batches.

    Attributes:
        function: does the work of ``collate_fn``.
        core: the native collate; None if ``collate_fn`` is a function that must be called.
        fallbacks: the counts of the native collate.
        lender: the native collate if the dataset may write samples into the batch's memory; else
            None.
    """

    def __init__(
        self, dataset: Any, collate_fn: Any, is_batched: bool, open_core: Callable[[], Collate]
    ) -> None:
        is_default = is_batched and is_default_collate(collate_fn)
        is_sequence = is_batched and own(collate_fn, "_uses_core")
        self.core = core = open_core() if is_default or is_sequence else None
        self.function: Callable[[Any], Any] = collate_fn if core is None else core
        if is_sequence:
            self.function = partial(collate_fn.collate, core)
        # Only the collate sees the samples of such datasets.
        is_lent = is_default or (is_sequence and own(collate_fn, "_takes_slots"))
        is_lent = is_lent and own(below_subsets(dataset)[0], "_borrows_slots")
        self.lender = core if is_lent else None
        self.fallbacks = Fallbacks(core)


# ---- memory of the batch that is being made


class Lender(Protocol):
    """An object that has the memory of a batch, for example a native collate."""

    def block(self, like: torch.Tensor, count: int, /) -> torch.Tensor:
        """Return memory for the stack of `count` tensors like `like`."""


class Fetch(threading.local):
    """The fetch of a thread. A worker process sets `is_served` in this class, for all its threads.

    Attributes:
        collate: the native collate that this thread fetches a batch for, or what lends in its
            place; None: nobody lends.
        is_served: this thread fetches for a loader that wants transforms of other packages served,
            whether ``patch()`` is on or not.
    """

    collate: Lender | None = None
    is_served = False


fetch = Fetch()


def lend(collate: Lender | None) -> Lender | None:
    """Lend this collate to the datasets of this thread, until the next call. Return the collate
    that was lent before."""
    before, fetch.collate = fetch.collate, collate
    return before


@contextmanager
def borrow_slots(like: torch.Tensor | None, count: int) -> Iterator[Sequence[torch.Tensor | None]]:
    """Borrow ``count`` tensors like this one in the batch that is being made. If no collate is lent
    or ``like`` is None, give ``count`` times None."""
    collate = lend(None)  # a dataset that a decoder reads meanwhile borrows nothing
    try:
        if collate is None or like is None or count == 0:
            yield [None] * count
        else:
            yield collate.block(like, count).unbind(0)
    finally:
        lend(collate)
