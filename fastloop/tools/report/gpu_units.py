"""GpuUnits: how busy the parts of a GPU were, by counters that Hopper and later have (GPM).

Unlike NVML's utilisation this tells how much of the GPU worked: a kernel on one of 132
multiprocessors is 100 % busy there, and 0.8 % here. The driver compares two samples of the
counters, so nothing runs between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

# What a report calls them, and NVML: percentages, averages over the time between two samples.
METRICS = {
    "multiprocessors": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_cores": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "memory": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_LEAST_S = 0.1  # between samples


class GpuUnits:
    """Shares of time, weighted by the time between samples.

    Args:
        nvml: the module ``pynvml``, or one like it, after ``nvmlInit()``.
        handle: of the device.
        clock: seconds.
    """

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float] = perf_counter) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._samples: list[Any] = []  # owned: the one of last time, and the next
        self._taken_at: float | None = None
        self._sums = dict.fromkeys(METRICS, 0.0)
        self._seconds = dict.fromkeys(METRICS, 0.0)  # in which each was known
        self.why = "no two samples were taken"  # what is None in shares is not known
        try:
            self._open()
        except Exception as error:
            self._fail(error)

    def _open(self) -> None:
        if not hasattr(self._nvml, "nvmlGpmQueryDeviceSupport"):
            self.why = "nvidia-ml-py is too old for GPM"
        elif not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            self.why = "this device has no GPM (Hopper and later have)"
        else:
            for _ in range(2):
                self._samples.append(self._nvml.nvmlGpmSampleAlloc())

    def _fail(self, error: Exception) -> None:
        self.close()
        self.why = f"GPM: {error}"

    def look(self) -> None:
        """One sample, and what it says of the time since the last one."""
        now = self._clock()
        if not self._samples or (self._taken_at is not None and now - self._taken_at < _LEAST_S):
            return
        try:
            before, after = self._samples
            self._nvml.nvmlGpmSampleGet(self._handle, after)
            if self._taken_at is not None:
                self._compare(before, after, now - self._taken_at)
            self._samples, self._taken_at = [after, before], now
        except Exception as error:
            self._fail(error)

    def _compare(self, before: Any, after: Any, seconds: float) -> None:
        nvml = self._nvml
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(METRICS)
        wanted.sample1, wanted.sample2 = before, after
        for i, metric in enumerate(METRICS.values()):
            wanted.metrics[i].metricId = getattr(nvml, metric)
        nvml.nvmlGpmMetricsGet(wanted)
        for i, name in enumerate(METRICS):
            found = wanted.metrics[i]
            if found.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(found.value):
                self._sums[name] += found.value / 100 * seconds
                self._seconds[name] += seconds

    @property
    def shares(self) -> dict[str, float | None]:
        """By the names in METRICS, 0 to 1; None where it is not known."""
        return {
            name: self._sums[name] / known if known > 0 else None
            for name, known in self._seconds.items()
        }

    def close(self) -> None:
        """Gives the samples back; what they have said stays."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())
