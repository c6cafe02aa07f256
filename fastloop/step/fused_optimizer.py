"""Optimizers that unscale gradients and skip steps by themselves, as torch's fused ones do: they
look for `grad_scale` and `found_inf` among their own attributes while they step."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_NAMES = ("grad_scale", "found_inf")


def takes_grad_scale(optimizer: Optimizer) -> bool:
    """Whether the optimizer divides by a `grad_scale` set on it: as all fused ones of torch, unlike
    those that want the scaler itself."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    step: Any = optimizer.step
    while hasattr(step, "__wrapped__") and not hasattr(step, "__signature__"):
        step = step.__wrapped__
    code = None if hasattr(step, "__signature__") else getattr(step, "__code__", None)
    if code is None:
        return "grad_scaler" not in inspect.signature(step).parameters
    # What inspect.signature would find, in a tenth of the time.
    return "grad_scaler" not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def times_of_user(optimizer: Optimizer, grad_scale: Tensor) -> Tensor:
    """With the grad_scale that the user has set on the optimizer multiplied in, as torch does."""
    of_user = getattr(optimizer, "grad_scale", None)
    return grad_scale if of_user is None else grad_scale * of_user


class StepWatch:
    """Sees whether an optimizer's step is called in a block, and the found_inf that it is given."""

    found_inf: Tensor | bool = True  # whether the step was skipped

    def __init__(self, optimizer: Any) -> None:
        self._fields = vars(optimizer)
        self._had = self._fields.get("step")
        before = optimizer.step

        @functools.wraps(before)
        def step(*args: Any, **kwargs: Any) -> Any:
            found = getattr(optimizer, "found_inf", None)
            # A tensor of its own: torch adds others to what it has.
            self.found_inf = False if found is None else (found > 0).to(torch.float32).reshape(())
            return before(*args, **kwargs)

        self._fields["step"] = step

    def __enter__(self) -> StepWatch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._had is None:
            del self._fields["step"]
        else:
            self._fields["step"] = self._had


class FusedAttributes:
    """Sets `grad_scale` and `found_inf` of an optimizer for the time of a step. They are gone after
    it, as in torch; if it raises, or with gives_back, the optimizer has what it had before."""

    def __init__(
        self, optimizer: Optimizer, *, gives_back: bool = False, **attributes: object
    ) -> None:
        self._fields = vars(optimizer)
        self._had = {name: self._fields[name] for name in _NAMES if name in self._fields}
        self._gives_back = gives_back
        self._fields.update(attributes)

    def __enter__(self) -> None:
        pass

    def __exit__(self, error: object, *_: object) -> None:
        for name in _NAMES:
            self._fields.pop(name, None)
        if error is not None or self._gives_back:
            self._fields.update(self._had)
