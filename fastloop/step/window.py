"""A window of micro-batches: its weights, its arithmetic, which docs/internals/stepper.md derives,
and where its loader ends.

Nothing here knows the optimizer, the scaler or the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fastloop.base.checks import look_up

_ROUNDING = 1e-15  # a divisor this close to 1 counts as 1: sums of weights are rounded
_NOTHING: Any = object()


@dataclass
class Window:
    """Counts and weights of the micro-batches since the last boundary."""

    size: int  # planned number of micro-batches
    expected: float | None  # w_ref: the weight it is planned to have; None: not known yet
    count: int = 0  # micro-batches so far
    counted: int = 0  # those of a weight above 0, less dropped ones
    weight: float = 0.0  # their sum
    has_dropped: bool = False  # whether a micro-batch was left out for a gradient not finite

    def share(self, weight: float) -> float:
        """Return c = w / w_ref, by which a micro-batch's loss is multiplied."""
        if self.expected is None:
            self.expected = self.size * weight
        return weight / self.expected

    def divisor(self, weight: float, ranks: int) -> float:
        """Return the divisor of accumulated gradients beside the scale: ΣΣw / (R · w_ref)."""
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
    from a gradient of `share` instead of 1. Keeps that gradient for the next loss."""

    def __init__(self) -> None:
        self._gradient = torch.ones(())
        self._share = 1.0  # the value of that gradient

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
    """An iterator over a loader that can say whether another batch follows.

    Sized loaders are counted: reading ahead would change random numbers, the loader's state and the
    moment of its errors. Others are read one batch ahead."""

    def __init__(self, loader: Iterable[Any]) -> None:
        try:
            total = len(loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError, AttributeError):
            total = None
        self._iterator: Iterator[Any] = iter(loader)
        # A resumed loader begins in the middle of its epoch: torch's iterators count from there.
        begun: int = look_up(self._iterator, "_num_yielded", 0)
        self.left = None if total is None else total - begun  # batches to come; None: not known
        self._held: Any = _NOTHING  # read ahead
        self._error: BaseException | None = None  # met while reading ahead
        # For ranks of a parallel job:
        self.is_announced = False  # the others know that this loop has another window
        self.unequal = ""  # the error of every rank's loop: their numbers of windows differ

    def has_more(self) -> bool:
        """Tell whether `take` gives a batch, or an error of the loader."""
        if self.left is not None:
            return self.left > 0
        if self._held is _NOTHING and self._error is None:
            try:
                self._held = next(self._iterator)
            except BaseException as error:
                self._error = error
        return not isinstance(self._error, StopIteration)

    def take(self) -> Any:
        """Return the next batch; raises StopIteration at the end."""
        if self.left is not None:
            batch = next(self._iterator)
            # More than its length said: the length of an IterableDataset is a guess.
            self.left = self.left - 1 if self.left > 0 else None
            return batch
        if not self.has_more() or self._error is not None:
            error, self._error = self._error, StopIteration()
            assert error is not None
            raise error
        batch, self._held = self._held, _NOTHING
        return batch
