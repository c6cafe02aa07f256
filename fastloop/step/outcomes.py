"""How many steps were taken and skipped, and the schedulers, which follow those that were taken."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler


class Outcomes:
    """Counts boundaries. What a device alone knows is asked for when it is wanted; schedulers
    follow at the next boundary, lag by one step, and wait only if the device is further behind."""

    def __init__(self, schedulers: list[LRScheduler]) -> None:
        self.boundaries = 0
        self._stepped = 0
        self._skipped = 0
        self._schedulers = schedulers  # the user's
        self._arriving: tuple[Tensor, Any] | None = None  # a found_inf on its way to a scheduler
        self._unread: Tensor | None = None  # the sum of those that nobody waits for
        self._unread_count = 0

    def add(self, found_inf: Tensor | bool) -> None:
        """A boundary: its step was skipped if found_inf. Never waits; the last one is settled."""
        assert self._arriving is None
        self.boundaries += 1
        if not isinstance(found_inf, Tensor):
            self._count(found_inf)
        elif self._schedulers:
            copy = torch.empty((), dtype=found_inf.dtype, device="cpu", pin_memory=True)
            copy.copy_(found_inf, non_blocking=True)
            stream = torch.accelerator.current_stream(found_inf.device)
            self._arriving = copy, stream.record_event()
        else:
            if self._unread is None:
                self._unread = torch.zeros_like(found_inf)
            self._unread.add_(found_inf)
            self._unread_count += 1

    def settle(self) -> None:
        """Let the schedulers follow the last boundary (SYNC if the device has not come to it)."""
        if self._arriving is not None:
            (found_inf, event), self._arriving = self._arriving, None
            event.synchronize()
            self._count(bool(found_inf))

    def read(self) -> tuple[int, int]:
        """How many steps were taken, and how many skipped. SYNC on a device."""
        self.settle()
        if self._unread is not None and self._unread_count > 0:
            skipped = int(self._unread)
            self._skipped += skipped
            self._stepped += self._unread_count - skipped
            self._unread.zero_()
            self._unread_count = 0
        return self._stepped, self._skipped

    def _count(self, is_skipped: bool) -> None:
        if is_skipped:
            self._skipped += 1
            return
        self._stepped += 1
        for scheduler in self._schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, int]:
        stepped, skipped = self.read()
        return {"boundaries": self.boundaries, "stepped": stepped, "skipped": skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._arriving, self._unread, self._unread_count = None, None, 0
        self.boundaries = state["boundaries"]
        self._stepped = state["stepped"]
        self._skipped = state["skipped"]
