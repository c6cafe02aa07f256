"""GpuUsage: how busy the GPU was, as the driver counts it; through nvidia-ml-py, if it is there.
Counters of Hopper and later (GPM) cover the whole run; of others samples of a second do.

Busy is the share of time in which any kernel ran: it says nothing about how well. A GPU is found by
its UUID, because NVML numbers devices otherwise than CUDA_VISIBLE_DEVICES does.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def find_uuid() -> str | None:
    """Of the current CUDA device, as NVML writes it; None where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = str(getattr(properties, "uuid", ""))
    if not uuid:
        return None
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class _Counters:
    """GPM: counters of Hopper and what came later, between now and a look. Raises as NVML does."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise NotImplementedError
        self._nvml, self._handle = nvml, handle
        self._first, self._latest = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._first)

    def read(self) -> tuple[float, float]:
        """Shares, 0 to 1: of the time in which something ran, and of the multiprocessors in it."""
        nvml = self._nvml
        nvml.nvmlGpmSampleGet(self._handle, self._latest)
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 2
        wanted.sample1, wanted.sample2 = self._first, self._latest
        wanted.metrics[0].metricId = nvml.NVML_GPM_METRIC_GRAPHICS_UTIL
        wanted.metrics[1].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(wanted)
        if any(metric.nvmlReturn for metric in wanted.metrics[:2]):
            raise NotImplementedError
        return wanted.metrics[0].value / 100, wanted.metrics[1].value / 100

    def close(self) -> None:
        self._nvml.nvmlGpmSampleFree(self._first)
        self._nvml.nvmlGpmSampleFree(self._latest)


class GpuUsage:
    """Samples.

    Args:
        nvml: the module ``pynvml``, or one like it; None: imported when it is needed.
        find: gives the UUID.
    """

    def __init__(self, nvml: Any = None, find: Any = find_uuid) -> None:
        self._nvml = nvml
        self._find = find
        self._handle: Any = None
        self._counters: _Counters | None = None
        self._counted: tuple[float, float] | None = None  # by them: busy, and multiprocessors
        self.uuid: str | None = None
        self.samples = 0
        self._sum = 0
        self.why = "no CUDA device is in use"  # there are no samples

    def _open(self) -> None:
        uuid = self._find()
        if uuid is None:
            return
        self.uuid = uuid
        try:
            if self._nvml is None:
                import pynvml  # type: ignore[import-not-found, unused-ignore]

                self._nvml = pynvml
        except ImportError:
            self.why = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
            return
        try:
            self._nvml.nvmlInit()
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:
            self.why = f"NVML does not know {uuid}: {error}"
            return
        with suppress(Exception):  # an older GPU, driver or nvidia-ml-py; MIG
            self._counters = _Counters(self._nvml, self._handle)

    def look(self) -> None:
        """One sample, of the last second at most."""
        if self.uuid is None:
            self._open()
        if self._handle is None:
            return
        self._count()
        try:
            self._sum += int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            self.samples += 1
        except Exception as error:  # parts of a GPU (MIG) have no such count
            self._handle = None
            self.why = f"NVML does not count it for this device: {error}"

    def _count(self) -> None:
        """The first look is when counting begins."""
        if self._counters is not None and self.samples > 0:
            with suppress(Exception):  # the latest count stays
                self._counted = self._counters.read()

    @property
    def source(self) -> str:
        """Whose count ``busy`` is."""
        return "GPM" if self._counted is not None else "NVML"

    @property
    def sm_busy(self) -> float | None:
        """The share of multiprocessors that had work, over the same time; by GPM alone."""
        return None if self._counted is None else self._counted[1]

    @property
    def busy(self) -> float | None:
        """The share of time, 0 to 1; None where it is not known."""
        if self._counted is not None:
            return self._counted[0]
        return self._sum / self.samples / 100 if self.samples > 0 else None

    def end(self) -> None:
        if self._handle is not None:
            if self._counters is not None:
                self._counters.close()
            self._handle = self._counters = None
            self._nvml.nvmlShutdown()
