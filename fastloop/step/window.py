"""A window of micro-batches: its weights and its arithmetic, which docs/stepper.md derives.

Nothing here knows the optimizer, the scaler or the network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDING = 1e-15  # a divisor as near to 1 as this is 1: sums of weights are rounded


@dataclass
class Window:
    """Counts and weights of the micro-batches since the last boundary."""

    size: int  # planned number of micro-batches
    expected: float | None  # w_ref: the weight it is planned to have; None: not known yet
    count: int = 0  # micro-batches so far
    counted: int = 0  # those of a weight above 0, less dropped ones
    weight: float = 0.0  # their sum
    has_dropped: bool = False  # whether a micro-batch was left out for a gradient not finite

    def expect(self, mean_weight: float) -> None:
        self.expected = self.size * mean_weight

    def share(self, weight: float) -> float:
        """c = w / w_ref, what a micro-batch's loss is multiplied by."""
        if self.expected is None:
            self.expect(weight)
        assert self.expected is not None
        return weight / self.expected

    def divisor(self, weight: float, ranks: int) -> float:
        """What accumulated gradients are divided by, besides the scale: ΣΣw / (R · w_ref)."""
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
        self._share = 1.0  # what it holds

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
