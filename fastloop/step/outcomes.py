"""Whether an optimizer's steps are taken or skipped: optimizers that skip by themselves, counts,
and schedulers, which follow the steps that were taken.

torch's fused optimizers unscale gradients and skip steps themselves: while they step, they look for
`grad_scale` and `found_inf` among their own attributes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fastloop.base.threads import NextLock

_NAMES = ("grad_scale", "found_inf")


def takes_grad_scale(optimizer: Optimizer) -> bool:
    """Tell whether the optimizer divides by a `grad_scale` set on it: all fused ones of torch do,
    unlike those that want the scaler itself."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    step: Any = optimizer.step
    while hasattr(step, "__wrapped__") and not hasattr(step, "__signature__"):
        step = step.__wrapped__
    code = None if hasattr(step, "__signature__") else getattr(step, "__code__", None)
    if code is None:
        return "grad_scaler" not in inspect.signature(step).parameters
    # As inspect.signature would answer, in a tenth of the time.
    return "grad_scaler" not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def times_of_user(optimizer: Optimizer, grad_scale: Tensor) -> Tensor:
    """Multiply in the grad_scale that the user has set on the optimizer, as torch does."""
    of_user = getattr(optimizer, "grad_scale", None)
    return grad_scale if of_user is None else grad_scale * of_user


@contextmanager
def fused_attributes(
    optimizer: Optimizer, *, gives_back: bool = False, **attributes: object
) -> Iterator[None]:
    """Set `grad_scale` and `found_inf` of an optimizer for the time of a step. They are gone after
    it, as in torch; if it raises, or with gives_back, the optimizer has its former ones again."""
    fields = vars(optimizer)
    had = {name: fields[name] for name in _NAMES if name in fields}
    fields.update(attributes)
    is_done = False
    try:
        yield
        is_done = True
    finally:
        for name in _NAMES:
            fields.pop(name, None)
        if gives_back or not is_done:
            fields.update(had)


@contextmanager
def watch_step(optimizer: Any) -> Iterator[list[Tensor | bool]]:
    """Watch an optimizer's step in a block: a list of one element says whether it was skipped, by
    the found_inf that it was given, or True if it was not called."""
    skipped: list[Tensor | bool] = [True]
    fields, before = vars(optimizer), optimizer.step
    had = {"step": fields["step"]} if "step" in fields else {}

    @functools.wraps(before)
    def step(*args: Any, **kwargs: Any) -> Any:
        found = getattr(optimizer, "found_inf", None)
        # A new tensor: torch adds others to the one that it has.
        skipped[0] = False if found is None else (found > 0).to(torch.float32).reshape(())
        return before(*args, **kwargs)

    fields["step"] = step
    try:
        yield skipped
    finally:
        del fields["step"]
        fields.update(had)


class FlagCounter:
    """Counts flags that are set. Those of a device are added up there until somebody asks."""

    def __init__(self, count: int = 0) -> None:
        self.count = count  # of those that the host has read
        self._lock = NextLock()  # one scaler counts the steps of optimizers in several threads
        self._unread: Tensor | None = None  # 0-d, on the device: the sum of the others

    def __reduce__(self) -> tuple[type[FlagCounter], tuple[int]]:
        return FlagCounter, (self.read(),)

    def prepare(self, device: torch.device) -> None:
        """Make the sum on a device, so that a graph that captures `add` goes on with it."""
        if device.type != "cpu":
            self._unread = torch.zeros((), dtype=torch.float32, device=device)

    def add(self, flag: Tensor | bool) -> None:
        """Count a flag that is False, True, 0.0 or 1.0. Does not wait for a device."""
        if isinstance(flag, bool):
            with self._lock.of_process():
                self.count += flag
            return
        if self._unread is None:
            self._unread = torch.zeros_like(flag)
        self._unread.add_(flag.to(self._unread.device, non_blocking=True))

    def read(self) -> int:
        """Return the count. SYNC on a device."""
        if self._unread is not None:
            self.count += int(self._unread.item())
            self._unread.zero_()  # in place, for graphs
        return self.count


class Outcomes:
    """Counts the boundaries of a Stepper and steps its schedulers after each step that was taken.

    Where only a device knows whether a step was skipped, schedulers follow at the next boundary:
    they lag by one step, and wait only if the device is further behind."""

    def __init__(self, schedulers: list[LRScheduler]) -> None:
        self.boundaries = 0
        self._schedulers = schedulers  # the user's
        self._skips = FlagCounter()
        self._arriving: tuple[Tensor, Any] | None = None  # a found_inf on its way to a scheduler

    def add(self, found_inf: Tensor | bool) -> None:
        """Count a boundary, whose step was skipped if found_inf. Does not wait for a device; the
        boundary before it is settled."""
        assert self._arriving is None
        self.boundaries += 1
        if isinstance(found_inf, Tensor) and self._schedulers:
            copy = torch.empty((), dtype=found_inf.dtype, device="cpu", pin_memory=True)
            copy.copy_(found_inf, non_blocking=True)
            stream = torch.accelerator.current_stream(found_inf.device)
            self._arriving = copy, stream.record_event()
        else:
            self._count(found_inf)

    def settle(self) -> None:
        """Let the schedulers follow the last boundary (SYNC if the device has not come to it)."""
        if self._arriving is not None:
            (found_inf, event), self._arriving = self._arriving, None
            event.synchronize()
            self._count(bool(found_inf))

    def _count(self, found_inf: Tensor | bool) -> None:
        self._skips.add(found_inf)
        if found_inf is False:
            for scheduler in self._schedulers:
                scheduler.step()

    def read(self) -> tuple[int, int]:
        """Return how many steps were taken, and how many skipped. SYNC on a device."""
        self.settle()
        skipped = self._skips.read()
        return self.boundaries - skipped, skipped

    def reset(self, boundaries: int, skipped: int) -> None:
        """Go on from these counts."""
        self.boundaries = boundaries
        self._arriving, self._skips = None, FlagCounter(skipped)
