"""NormGuard: finds a gradient norm that is far above the recent norms.

The norms of the last windows lie in a ring on the gradients' device. Median and comparison run
there too, so the host waits for a device only where a step waits anyway, and learns of a spike when
its number has arrived: usually at the next boundary."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastloop.base.checks import check_state
from fastloop.step.grad_list import Arrival

_NORMS = 128  # in the ring
_FEWEST = 16  # norms that a median needs


class NormGuard:
    """The recent norms of a Stepper, and the spikes among them.

    A spike is a finite norm above `factor` times the median of the ring. Spikes enter the ring like
    any norm, so a level that stays becomes the new median. A norm that is inf or NaN does not
    count: `on_nonfinite` deals with it."""

    def __init__(self, factor: float, clips: bool) -> None:
        self.factor, self.clips = factor, clips
        self.spikes = 0  # that the host knows
        # Names the window of the next norm, and its batches. Called at a spike alone.
        self.name: Callable[[], str] = str
        self._norms = torch.full((_NORMS,), math.nan, dtype=torch.float64, device="cpu")  # ring
        self._place = 0  # where the next norm goes
        # Flag, norm and limit of recent windows, and the windows' names.
        self._arriving: list[tuple[Arrival, Callable[[], str]]] = []

    def watch(self, norm: Tensor) -> tuple[Tensor, Tensor]:
        """Note a window's norm. Returns a flag, 1.0 for a spike, and the limit (inf while the ring
        has too few norms): both 0-d, on the norm's device."""
        ring = self._norms = self._norms.to(norm.device)
        is_warm = ring.isfinite().sum() >= _FEWEST
        limit = torch.where(is_warm, ring.nanmedian() * self.factor, math.inf)
        flag = ((norm > limit) & norm.isfinite()).float()
        ring[self._place] = torch.where(norm.isfinite(), norm, math.nan)
        self._place = (self._place + 1) % _NORMS
        arrival = Arrival(torch.stack([flag.double(), norm.double(), limit]))
        self._arriving.append((arrival, self.name))
        return flag, limit

    def settle(self, *, waits: bool = False) -> None:
        """Count and name the spikes that the host can know. SYNC on a device if `waits`."""
        while self._arriving and (waits or self._arriving[0][0].is_here()):
            arrival, name = self._arriving.pop(0)
            flag, norm, limit = arrival.read().tolist()
            if flag:
                self.spikes += 1
                did = "clipped" if self.clips else "skipped"
                warnings.warn(
                    f"the norm {norm:.4g} of {name()} is above {limit:.4g}, {self.factor:g} times "
                    f"the median of recent norms: the step was {did}",
                    stacklevel=2,
                )

    def state(self) -> dict[str, Any]:
        """Return norms, oldest first, and the count of spikes (SYNC on a device)."""
        self.settle(waits=True)
        norms = self._norms.roll(-self._place)
        return {"norms": norms[norms.isfinite()].tolist(), "spikes": self.spikes}

    def load(self, state: dict[str, Any] | None) -> None:
        """Take over a state, of a Stepper without a guard None.

        Raises TypeError, ValueError: it is not such a state."""
        state = {"norms": [], "spikes": 0} if state is None else state
        check_state("state['norms']", state, {"norms": [], "spikes": 0}, "unchanged")
        norms = torch.tensor(state["norms"][-_NORMS:], dtype=torch.float64, device="cpu")
        self._norms = torch.full((_NORMS,), math.nan, dtype=torch.float64, device="cpu")
        self._norms[: len(norms)] = norms
        self._place, self.spikes = len(norms) % _NORMS, state["spikes"]
        self._arriving.clear()
