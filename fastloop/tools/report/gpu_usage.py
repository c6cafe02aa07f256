"""GpuUsage: how busy the GPU was, as the driver counts it; through nvidia-ml-py, if it is there.

Busy is the share of time in which any kernel ran: it says nothing about how well, which GpuUnits
does where the GPU counts it. A GPU is found by its UUID, because NVML numbers devices otherwise
than CUDA_VISIBLE_DEVICES does.
"""

from __future__ import annotations

import sys
from typing import Any

from fastloop.tools.report.gpu_units import METRICS, GpuUnits


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


class GpuUsage:
    """Samples.

    Args:
        nvml: the module ``pynvml``, or one like it; None: imported when it is needed.
        find: gives the UUID.
    """

    def __init__(self, nvml: Any = None, find: Any = find_uuid) -> None:
        self._nvml = nvml
        self._find = find
        self._is_open = False
        self._handle: Any = None  # None: NVML does not count
        self._units: GpuUnits | None = None
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
            self._is_open = True
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._units = GpuUnits(self._nvml, self._handle)
        except Exception as error:
            self.why = f"NVML does not know {uuid}: {error}"

    def look(self) -> None:
        """One sample, of the last second at most."""
        if self.uuid is None:
            self._open()
        if self._units is not None:
            self._units.look()
        if self._handle is None:
            return
        try:
            self._sum += int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            self.samples += 1
        except Exception as error:  # parts of a GPU (MIG) have no such count
            self._handle = None
            self.why = f"NVML does not count it for this device: {error}"

    @property
    def busy(self) -> float | None:
        """The share of time, 0 to 1; None where it is not known."""
        return self._sum / self.samples / 100 if self.samples > 0 else None

    @property
    def units(self) -> dict[str, float | None]:
        """The shares of time of the GPU's parts, 0 to 1; None where one is not known."""
        return dict.fromkeys(METRICS) if self._units is None else self._units.shares

    @property
    def why_units(self) -> str:
        """Why none of them is known."""
        return self.why if self._units is None else self._units.why

    def end(self) -> None:
        """What was counted stays."""
        if self._units is not None:
            self._units.look()
            self._units.close()
        if self._is_open:
            self._is_open, self._handle = False, None
            self._nvml.nvmlShutdown()
