"""A window of micro-batches: its weights and their arithmetic, derived in
docs/internals/stepper.md, and the question whether the loader has a further batch.

Nothing here knows the optimizer, the scaler or the network."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from fastloop.base.checks import look_up
from fastloop.base.shown import quote_indices

Batch = TypeVar("Batch")

_ROUNDING = 1e-15  # a divisor this close to 1 counts as 1, because sums of weights are rounded
_NOTHING: Any = object()


@dataclass
class Window:
    """Counts and weights of the micro-batches since the last boundary."""

    size: int  # planned number of micro-batches
    expected: float | None  # w_ref: the planned sum of weights; None: not known yet
    first: int = 0  # the number of its first batch in the loop of iterate()
    count: int = 0  # micro-batches so far
    counted: int = 0  # micro-batches with a weight above 0 that were not dropped
    weight: float = 0.0  # the sum of the counted micro-batches' weights
    has_dropped: bool = False  # a micro-batch was dropped, because a gradient was not finite

    def share(self, weight: float) -> float:
        """Return c = w / w_ref, the factor of a micro-batch's loss."""
        if self.expected is None:
            self.expected = self.size * weight
        return weight / self.expected

    def divisor(self, weight: float, ranks: int) -> float:
        """Return ΣΣw / (R · w_ref) over R ranks: accumulated gradients are divided by this number
        and by the scaler's scale."""
        assert self.expected is not None
        divisor = weight / (ranks * self.expected)
        return 1.0 if abs(divisor - 1.0) < _ROUNDING else divisor

    def add(self, weight: float) -> None:
        self.count += 1
        if weight > 0:
            self.counted += 1
            self.weight += weight


class WeightedBackward:
    """Runs (loss * share).backward() without a node in the graph for the product: backward() starts
    from a gradient of `share` instead of 1. The gradient is kept for the next loss."""

    def __init__(self) -> None:
        self._gradient = torch.ones(())
        self._share = 1.0  # the value of `_gradient`

    def __call__(self, loss: Tensor, share: float) -> None:
        if share == 1.0:
            loss.backward()  # type: ignore[no-untyped-call]
            return
        kept = self._gradient
        if share != self._share or kept.dtype != loss.dtype or kept.shape != loss.shape:
            self._gradient = torch.full_like(loss, share, requires_grad=False)
            self._share = share
        elif kept.device != loss.device:
            self._gradient = kept.to(loss.device)
        loss.backward(self._gradient)  # type: ignore[no-untyped-call]


class Lookahead:
    """An iterator over a loader that can say whether a further batch follows.

    If the loader has a len(), its batches are counted: reading ahead would change random numbers,
    the loader's state and the moment of its errors. Any other loader is read one batch ahead."""

    def __init__(self, loader: Iterable[Any], names_samples: bool = False) -> None:
        """Args: names_samples: the loader keeps indices for describe()."""
        try:
            total = len(loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError, AttributeError):
            total = None
        if names_samples and (ask := look_up(loader, "_keep_indices")) is not None:
            ask()
        self._iterator: Iterator[Any] = iter(loader)
        # A resumed loader begins in the middle of its epoch: torch's iterators count from there.
        begun: int = look_up(self._iterator, "_num_yielded", 0)
        self.remaining = None if total is None else total - begun  # batches; None: not known
        self.taken = begun  # the number of the batch that `take` gives next
        # Finds the indices of a batch by its number; None: nobody knows them.
        keep = look_up(self._iterator, "keep_indices") if names_samples else None
        self._find_indices: Any = None if keep is None else keep()
        self._held: Any = _NOTHING  # the batch that was read ahead
        self._error: BaseException | None = None  # met while reading ahead
        # For ranks of a parallel job:
        self.is_announced = False  # the other ranks know that this loop has a further window
        self.unequal = ""  # the error that every rank raises if the numbers of windows differ

    def has_more(self) -> bool:
        """Tell whether `take` gives a batch, or an error of the loader."""
        if self.remaining is not None:
            return self.remaining > 0
        if self._held is _NOTHING and self._error is None:
            try:
                self._held = next(self._iterator)
            except BaseException as error:
                self._error = error
        return not isinstance(self._error, StopIteration)

    def describe(self, batches: range) -> str:
        """Return the numbers of batches and, if the loader knows them, the indices of samples."""
        text = f"batches {batches[0]} to {batches[-1]} of this loop"
        for number in batches if self._find_indices is not None else ():
            indices = self._find_indices(number)
            if indices is not None:
                text = f"{text}; samples of {number}: {quote_indices(indices, 1000)}"
        return text

    def take(self) -> Any:
        """Return the next batch. Raises StopIteration at the end."""
        if self.remaining is not None:
            batch = next(self._iterator)
            self.taken += 1
            # The length of an IterableDataset is a guess: more batches may come.
            self.remaining = self.remaining - 1 if self.remaining > 0 else None
            return batch
        if not self.has_more() or self._error is not None:
            error, self._error = self._error, StopIteration()
            assert error is not None
            raise error
        batch, self._held = self._held, _NOTHING
        self.taken += 1
        return batch


class Batches(Iterator[Batch]):
    """The generator of iterate(), with the length of its loader."""

    def __init__(self, loader: Iterable[Batch], batches: Generator[Batch]) -> None:
        self._loader: Any = loader
        self._batches = batches
        self.close = batches.close  # a method here would hide the caller from warnings

    def __len__(self) -> int:
        try:
            return len(self._loader)
        except (AttributeError, NotImplementedError) as error:  # from a sampler or dataset
            raise TypeError(str(error)) from error

    def __iter__(self) -> Iterator[Batch]:
        return self._batches  # all that a loop needs

    def __next__(self) -> Batch:
        return next(self._batches)
