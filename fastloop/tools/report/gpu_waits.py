"""GpuWaits: how long the GPU was idle for a batch, from CUDA events, without waiting for it.

An event before ``next()`` fires when the GPU has done what was queued until then, one after it when
it comes to what follows. The time between them is what the GPU waited: next to nothing where it
still had work while the host waited. Events are asked whether they have fired, never waited for.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from fastloop.tools.report.recorder import Run, StepRing

EventPair = tuple[Any, Any]  # before and after

_MAX_PAIRS = 256


class CudaEvents:
    """Pairs of events on torch's current stream."""

    def is_initialized(self) -> bool:
        """CUDA is in use, which asking does not change."""
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_initialized())

    def is_capturing(self) -> bool:
        """The stream records a graph, of which events would be a part."""
        return bool(sys.modules["torch"].cuda.is_current_stream_capturing())

    def make(self) -> EventPair:
        import torch

        event: Any = torch.cuda.Event
        return event(enable_timing=True), event(enable_timing=True)


class GpuWaits:
    """The waits whose end is not known yet, oldest first.

    Args:
        events: makes them; has ``is_initialized()``, ``is_capturing()`` and ``make()``.

    Attributes:
        is_on: whether there is a GPU to ask.
    """

    def __init__(self, events: Any = None) -> None:
        self._events = events or CudaEvents()
        self._free: list[EventPair] = []
        self._open: EventPair | None = None
        self._pending: deque[tuple[EventPair, Run]] = deque()
        self.is_on = False

    def look(self) -> None:
        """Once a second: CUDA may be in use by now."""
        self.is_on = self.is_on or self._events.is_initialized()

    def begin(self) -> None:
        """A batch is asked for."""
        self._open = None
        if not self._events.is_capturing():
            self._open = self._free.pop() if self._free else self._events.make()
            self._open[0].record()

    def end(self) -> EventPair | None:
        """The batch is there."""
        pair, self._open = self._open, None
        if pair is not None and not self._events.is_capturing():
            pair[1].record()
            return pair
        return None

    def follow(self, pair: EventPair, run: Run, steps: StepRing) -> None:
        """This pair is of a batch of that run."""
        self._pending.append((pair, run))
        self.poll(steps)
        if len(self._pending) > _MAX_PAIRS:
            self._pending.popleft()  # of a long validation, or the GPU is far behind

    def poll(self, steps: StepRing) -> None:
        """Notes with their steps what is known by now. The latest batch has no step yet."""
        while self._pending:
            (begin, end), run = self._pending[0]
            if not run.is_over or not end.query():
                return
            self._pending.popleft()
            if run.step is not None:
                steps.add_gpu_wait(run.step, round(begin.elapsed_time(end) * 1e6))
            self._free.append((begin, end))
