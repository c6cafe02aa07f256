"""What a Stepper may be given, and what it says if it is given something else."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fastloop.base.torch_parts import TorchScaler

_ON_NONFINITE = ("window", "micro", "ignore")


def check_size(size: Any, name: str) -> int:
    """A number of micro-batches."""
    try:
        if isinstance(size, bool):
            raise TypeError
        number = operator.index(size)
    except TypeError:
        raise TypeError(
            f"{name} is {size!r}; pass the number of micro-batches in a window, an int"
        ) from None
    if number < 1:
        raise ValueError(f"{name} is {number}; a window has at least 1 micro-batch")
    return number


def check_weight(weight: Any) -> float:
    """SYNC for a tensor on a device."""
    if isinstance(weight, Tensor):
        if weight.numel() != 1 or weight.is_complex():
            raise TypeError(
                f"weight is a tensor of {tuple(weight.shape)}; pass a 0-d one or a number"
            )
        weight = weight.item()
    try:
        if isinstance(weight, str | bytes):
            raise TypeError
        number = float(weight)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"weight is {weight!r}; pass the number of samples or tokens in the micro-batch"
        ) from None
    if not 0 <= number < math.inf:
        raise ValueError(
            f"weight is {number}; pass a finite number that is not negative, 0 to leave the "
            "micro-batch out"
        )
    return number


def check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss is a {type(loss).__name__}; pass the tensor of the mean loss")
    if loss.is_complex():
        raise TypeError(f"loss is of {loss.dtype}; pass a real number, such as loss.abs()")
    if loss.numel() != 1:
        raise ValueError(
            f"loss has the shape {tuple(loss.shape)}; pass one number, such as loss.mean(): the "
            "weight of micro() says what it counts"
        )


def check_max_norm(max_norm: Any) -> float | None:
    if max_norm is None:
        return None
    try:
        number = float(max_norm)
    except (TypeError, ValueError):
        raise TypeError(f"max_norm is {max_norm!r}; pass a number, or None to not clip") from None
    if not number >= 0:
        raise ValueError(f"max_norm is {number}; pass 0 or more, or None to not clip")
    return number


def check_accum_dtype(dtype: Any) -> torch.dtype | None:
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(
            f"accum_dtype is {dtype!r}; pass torch.float32 or torch.float64, or None to accumulate "
            "in the gradients' own dtype"
        )
    return dtype  # type: ignore[no-any-return]


def check_on_nonfinite(choice: str | None, has_scaler: bool) -> str:
    """The choice, None replaced by its default."""
    if choice is None:
        return "window" if has_scaler else "ignore"
    if choice not in _ON_NONFINITE:
        raise ValueError(f"on_nonfinite is {choice!r}; pass one of {', '.join(_ON_NONFINITE)}")
    if choice == "ignore" and has_scaler:
        raise ValueError(
            "on_nonfinite='ignore' with an enabled scaler, which needs steps with infinite "
            "gradients skipped to find its scale; pass 'window' or 'micro'"
        )
    return choice


def enabled_scaler(scaler: Any) -> Any:
    """The scaler, None if it is disabled."""
    if scaler is None:
        return None
    if not isinstance(scaler, TorchScaler):
        raise TypeError(
            f"scaler is a {type(scaler).__name__}; pass a fastloop.GradScaler or a "
            "torch.amp.GradScaler"
        )
    return scaler if scaler.is_enabled() else None


def as_schedulers(scheduler: Any) -> list[LRScheduler]:
    if scheduler is None:
        return []
    several = list(scheduler) if isinstance(scheduler, Iterable) else [scheduler]
    for one in several:
        if isinstance(one, ReduceLROnPlateau):
            raise TypeError(
                "scheduler is a ReduceLROnPlateau, whose step() needs a metric; leave it out and "
                "call its step(metric) yourself"
            )
        if not callable(getattr(one, "step", None)):
            raise TypeError(
                f"scheduler is a {type(one).__name__} without step(); pass a scheduler of "
                "torch.optim.lr_scheduler, or a list of them"
            )
    return several
