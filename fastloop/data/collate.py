"""The Python around the collate in C: for which collate functions it stands in, and how datasets
write samples straight into the memory of the batch that is being made.

A thread that fetches a batch *lends* its collate, and a dataset *borrows* places in the batch. The
collate then finds the samples in place. Nobody else may see these samples before the collate,
because a later batch overwrites them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from fastloop._core import Collate, ThreadPool, WorkerEnd
from fastloop.compat.torch_parts import collate_functions, default_collate
from fastloop.data.columns import below_subsets, default_functions, is_default_collate, own

_T = TypeVar("_T")


# ---- the collate in C


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
        worker_end: in a worker process, where batches are built.
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


class Collation:
    """The collate of one iterator or worker: in C for torch's default and fastloop's own.

    Args:
        dataset, collate_fn: those of the loader.
        is_batched: ``collate_fn`` gets lists of samples.
        open_core: returns the collate in C, in whose memory batches are made.

    Attributes:
        function: does the work of ``collate_fn``.
        core: the collate in C; None if ``collate_fn`` is unknown here and must be called.
        lender: the same, where samples may lie in the batch's memory.
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
        # Only the collate sees samples of these.
        is_lent = is_default and own(below_subsets(dataset)[0], "_borrows_places")
        self.lender = core if is_lent else None
        self._before = {} if core is None else core.fallbacks()

    def fallbacks(self) -> dict[str, int]:
        """Return how many leaves torch's functions have collated since the beginning, by reason."""
        # Without global names: a finalizer calls it while the interpreter clears modules.
        now = {} if self.core is None else self.core.fallbacks()
        counts = {reason: n - self._before.get(reason, 0) for reason, n in now.items()}
        return {reason: n for reason, n in counts.items() if n > 0}


# ---- memory of the batch that is being made

_lent = threading.local()  # .collate: for which this thread fetches a batch


def lend(collate: Collate | None) -> Collate | None:
    """Lend this collate to the datasets of this thread, until the next call. Return the one that
    was lent before."""
    before: Collate | None = getattr(_lent, "collate", None)
    _lent.collate = collate
    return before


def call_lent(collate: Collate | None, function: Callable[[], _T]) -> _T:
    """Return ``function()``, during which this thread lends the collate."""
    before = lend(collate)
    try:
        return function()
    finally:
        lend(before)


@contextmanager
def borrow_places(like: torch.Tensor | None, count: int) -> Iterator[Sequence[torch.Tensor | None]]:
    """Borrow a tensor for each of ``count`` samples that are like this one: in the batch that is
    being made, or None each if nothing is lent or ``like`` is None."""
    collate = lend(None)  # a dataset that is read meanwhile, by a decoder, makes no samples
    try:
        if collate is None or like is None or count == 0:
            yield [None] * count
        else:
            yield collate.block(like, count).unbind(0)
    finally:
        lend(collate)
