"""The GPU's side of a report: how busy the GPU was, and how long the GPU waited for batches.

This module neither waits for the GPU nor starts CUDA.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from fastloop.tools.report.recorder import Run, StepRing

EventPair = tuple[Any, Any]  # the events before and after next()

_MAX_PAIRS = 256


class GpuUsage:
    """Asks the driver (NVML) for the share of time in which any kernel ran.

    Args:
        cuda: the module ``torch.cuda``, or a test's substitute.

    Attributes:
        uuid: the id of the current device; None if CUDA is not in use.
        samples: the number of answers.
        busy: the mean share of time, 0 to 1; None if unknown.
        why_unknown: why there are no samples; None if there are some.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self.uuid: str | None = None
        self.samples = self._sum = 0
        self.busy: float | None = None
        self.why_unknown: str | None = "no CUDA device is in use"

    def look(self) -> None:
        """Take one sample, which describes the last second or less."""
        if not self._cuda.is_initialized():
            return
        try:
            self.uuid = self.uuid or f"GPU-{self._cuda.get_device_properties().uuid}"
            self._sum += self._cuda.utilization()
            self.samples, self.why_unknown = self.samples + 1, None
            self.busy = self._sum / self.samples / 100
        except Exception as error:  # for example, nvidia-ml-py is missing, or a MIG slice has none
            self.why_unknown = f"{type(error).__name__}: {error}" if not self.samples else None


class GpuWaits:
    """Times how long the GPU idles for each batch, by events that are polled and never waited for.

    The event before ``next()`` fires when the GPU has finished all work queued before ``next()``.
    The event after ``next()`` fires when the GPU reaches this point of the stream. If the GPU still
    has earlier work when the batch arrives, the time between both events is close to 0. No event is
    recorded while the stream captures a graph, because the event would become a part of the graph.

    Args:
        cuda: the module ``torch.cuda``, or a test's substitute.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._open: EventPair | None = None
        self._pending: deque[tuple[EventPair, Run]] = deque()  # the oldest pair first
        # The event from which the device computes, and the device; None if unknown.
        self._begin: tuple[Any, int] | None = None
        self._gradients: deque[EventPair] = deque()
        self.computed = 0  # ns from each batch to the last gradient of its backward()

    def is_used(self) -> bool:
        """Tell whether CUDA is in use by now."""
        return bool(self._cuda.is_initialized())

    def is_capturing(self) -> bool:
        """Tell whether the current stream captures a graph."""
        return self.is_used() and bool(self._cuda.is_current_stream_capturing())

    def begin(self) -> None:
        """Record the event before ``next()``, if CUDA is in use."""
        self._open = None
        if self._cuda.is_initialized() and not self._cuda.is_current_stream_capturing():
            before, after = (self._cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            self._open = before, after

    def end(self) -> EventPair | None:
        """Record the event after ``next()``, and return both events; None without CUDA or
        during a capture."""
        pair, self._open = self._open, None
        if pair is None or self._cuda.is_current_stream_capturing():
            return None
        pair[1].record()
        self._begin = pair[1], self._cuda.current_device()
        return pair

    def note_gradient(self) -> None:
        """Record an event after the last gradient of a backward(). Call this on the thread that
        computed the gradient: the event goes to this thread's current stream."""
        begin, self._begin = self._begin, None
        if begin is None or begin[1] != self._cuda.current_device():
            return  # the time between events of two devices is an error
        if not self._cuda.is_current_stream_capturing():
            end = self._cuda.Event(enable_timing=True)
            end.record()
            self._gradients.append((begin[0], end))
            if len(self._gradients) > _MAX_PAIRS:
                self._gradients.popleft()

    def follow(self, pair: EventPair, run: Run, steps: StepRing) -> None:
        """Poll a pair of events from now on. The pair belongs to a batch of `run`."""
        self._pending.append((pair, run))
        self.poll(steps)
        if len(self._pending) > _MAX_PAIRS:
            self._pending.popleft()  # for example, a long validation has no steps

    def poll(self, steps: StepRing) -> None:
        """Add the waits that are known by now to the steps. The latest batch has no step yet."""
        while self._gradients and self._gradients[0][1].query():
            begin, end = self._gradients.popleft()
            self.computed += round(begin.elapsed_time(end) * 1e6)
        while self._pending:
            (begin, end), run = self._pending[0]
            if run.step is None or not end.query():
                return
            self._pending.popleft()
            steps.add_gpu_wait(run.step, round(begin.elapsed_time(end) * 1e6))
