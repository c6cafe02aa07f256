"""How many steps were taken and skipped, and the schedulers, which follow those that were taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from fastloop.base.next_lock import NextLock


class FlagCounter:
    """Counts flags that are set. Those of a device are added up there until somebody asks."""

    def __init__(self, count: int = 0) -> None:
        self.count = count  # of those that the host has read
        self._lock = NextLock()  # one scaler counts the steps of optimizers in several threads
        self._unread: Tensor | None = None  # 0-d, on the device: the sum of the others

    def prepare(self, device: torch.device) -> None:
        """Make what `add` adds to on a device: a graph that captures `add` goes on with it."""
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
        """SYNC on a device."""
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
        """How many steps were taken, and how many skipped. SYNC on a device."""
        self.settle()
        skipped = self._skips.read()
        return self.boundaries - skipped, skipped

    def state_dict(self) -> dict[str, int]:
        stepped, skipped = self.read()
        return {"boundaries": self.boundaries, "stepped": stepped, "skipped": skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.boundaries = state["boundaries"]
        self._arriving, self._skips = None, FlagCounter(state["skipped"])
