"""What a changed effective batch means for the learning rate, in words. Nothing is changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop


def learning_rate_rule(optimizers: Sequence[Optimizer], before: int, after: int) -> str:
    """The rules for optimizers whose effective batch goes from `before` to `after` samples."""
    ratio = after / before
    lines = [f"the effective batch goes from {before} to {after} (×{ratio:g}); nothing was changed"]
    lines += dict.fromkeys(_rule(optimizer, ratio) for optimizer in optimizers)
    return "\n".join(lines)


def _rule(optimizer: Optimizer, ratio: float) -> str:
    name = type(optimizer).__name__
    if isinstance(optimizer, SGD):
        return (
            f"{name}: linear rule, lr × {ratio:g}: {_changed_rates(optimizer, ratio)}; begin with "
            "a warm-up of a few epochs from the old value"
        )
    if isinstance(optimizer, Adam | AdamW | RMSprop):
        root = math.sqrt(ratio)
        return (
            f"{name}: square-root rule, lr × {root:.4g}: {_changed_rates(optimizer, root)}; the "
            "best rate falls again for very large batches, so compare the losses"
        )
    return f"{name}: no rule is known; search for the learning rate anew, or use keep='effective'"


def _changed_rates(optimizer: Optimizer, factor: float) -> str:
    rates = dict.fromkeys(float(group["lr"]) for group in optimizer.param_groups)
    return ", ".join(f"{rate:g} -> {rate * factor:.4g}" for rate in rates)
