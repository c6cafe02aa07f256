"""How many steps were taken and skipped, and the schedulers, which follow those that were taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler


class Outcomes:
    """Counts boundaries. What a device alone knows is asked for at the next one, when it has long
    arrived: schedulers then lag by one step, and nothing waits."""

    def __init__(self, schedulers: list[LRScheduler]) -> None:
        self.boundaries = 0
        self.stepped = 0
        self.skipped = 0
        self._schedulers = schedulers  # the user's
        self._unread: tuple[Tensor, Any] | None = None  # a found_inf that is on its way

    def add(self, found_inf: Tensor | bool) -> None:
        """A boundary: its step was skipped if found_inf. Never waits; the last one is settled."""
        assert self._unread is None
        self.boundaries += 1
        if isinstance(found_inf, Tensor):
            copy = torch.empty((), dtype=found_inf.dtype, device="cpu", pin_memory=True)
            copy.copy_(found_inf, non_blocking=True)
            event = torch.Event(found_inf.device)
            event.record()
            self._unread = copy, event
        else:
            self._count(found_inf)

    def settle(self) -> None:
        """Count the last boundary too (SYNC if its step has not been run by the device)."""
        if self._unread is not None:
            (found_inf, event), self._unread = self._unread, None
            event.synchronize()
            self._count(bool(found_inf))

    def _count(self, is_skipped: bool) -> None:
        if is_skipped:
            self.skipped += 1
            return
        self.stepped += 1
        for scheduler in self._schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, int]:
        self.settle()
        return {"boundaries": self.boundaries, "stepped": self.stepped, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._unread = None
        self.boundaries = state["boundaries"]
        self.stepped = state["stepped"]
        self.skipped = state["skipped"]
