"""The GPU's side of a report: how busy it was (NVML), and how long it waited for batches (events).

Nothing here waits for the GPU, and nothing starts CUDA.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from fastloop.tools.report.recorder import Run, StepRing

EventPair = tuple[Any, Any]  # before and after

_MAX_PAIRS = 256


def read_uuid() -> str | None:
    """Return the UUID of the current CUDA device in NVML's form; None if CUDA is not in use.

    NVML numbers devices otherwise than CUDA_VISIBLE_DEVICES does, so it is asked by UUID."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = str(properties.uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class GpuUsage:
    """Samples the share of time in which any kernel ran, by nvidia-ml-py if it is installed.

    Args:
        nvml: the module ``pynvml``, or one like it; None: imported when it is needed.
        read: returns the UUID of the device.

    Attributes:
        why_unknown: why there are no samples.
    """

    def __init__(self, nvml: Any = None, read: Any = read_uuid) -> None:
        self._nvml = nvml
        self._read = read
        self._is_open = False
        self._handle: Any = None  # None: NVML does not count
        self.uuid: str | None = None
        self.samples = self._sum = 0
        self.why_unknown: str | None = "no CUDA device is in use"

    def look(self) -> None:
        """Take one sample, which is of the last second at most."""
        try:
            if self.uuid is None:
                self._open()
            if self._handle is not None:
                self._sum += int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
                self.samples += 1
                self.why_unknown = None
        except ImportError:
            self.why_unknown = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
        except Exception as error:  # parts of a GPU (MIG) have no such count
            self._handle = None
            if not self.samples:
                self.why_unknown = f"NVML does not count it for {self.uuid}: {error}"

    def _open(self) -> None:
        self.uuid = self._read()
        if self.uuid is None:
            return
        if self._nvml is None:
            import pynvml  # type: ignore[import-not-found, unused-ignore]

            self._nvml = pynvml
        self._nvml.nvmlInit()
        self._is_open = True
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.uuid)

    @property
    def busy(self) -> float | None:
        """The share of time, 0 to 1; None if unknown."""
        return self._sum / self.samples / 100 if self.samples > 0 else None

    def end(self) -> None:
        """Close NVML; the counts stay."""
        if self._is_open:
            self._is_open, self._handle = False, None
            self._nvml.nvmlShutdown()


class GpuWaits:
    """Times how long the GPU idles for each batch, by events that are polled, never waited for.

    An event before ``next()`` fires when the GPU has done all that was queued by then, one after
    ``next()`` when the GPU arrives there. The time between them is next to nothing while the GPU
    has work from before.

    Args:
        cuda: the module ``torch.cuda``, or one like it.

    Attributes:
        is_on: whether there is a GPU to ask.
    """

    def __init__(self, cuda: Any = torch.cuda) -> None:
        self._cuda = cuda
        self._free: list[EventPair] = []
        self._open: EventPair | None = None
        self._pending: deque[tuple[EventPair, Run]] = deque()  # oldest first
        self.is_on = False

    def look(self) -> None:
        """Ask once a second whether CUDA is in use by now."""
        self.is_on = self.is_on or self._cuda.is_initialized()

    def begin(self) -> None:
        """Record the event before ``next()``."""
        self._open = None
        if self._cuda.is_current_stream_capturing():
            return  # events would become part of the graph
        if self._free:
            self._open = self._free.pop()
        else:
            self._open = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        self._open[0].record()

    def end(self) -> EventPair | None:
        """Record the event after ``next()``, and return both."""
        pair, self._open = self._open, None
        if pair is None or self._cuda.is_current_stream_capturing():
            return None
        pair[1].record()
        return pair

    def follow(self, pair: EventPair, run: Run, steps: StepRing) -> None:
        """Wait for this pair, which is of a batch of that run, in later polls."""
        self._pending.append((pair, run))
        self.poll(steps)
        if len(self._pending) > _MAX_PAIRS:
            self._pending.popleft()  # of a long validation, or the GPU is far behind

    def poll(self, steps: StepRing) -> None:
        """Add to their steps the waits that are known by now; the latest batch has no step yet."""
        while self._pending:
            (begin, end), run = self._pending[0]
            if run.step is None or not end.query():
                return
            self._pending.popleft()
            steps.add_gpu_wait(run.step, round(begin.elapsed_time(end) * 1e6))
            self._free.append((begin, end))
