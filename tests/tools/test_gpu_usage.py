"""How busy a GPU was, by an NVML that is a fake: what it counts, and why something is not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastloop.tools.report.gpu import GpuUsage


class FakeNvml:
    """By UUID alone, 40 % busy."""

    fails = is_shut = False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_shut = True

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise RuntimeError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if self.fails:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(gpu=40)


def test_the_busy_share_is_the_drivers() -> None:
    nvml = FakeNvml()
    usage = GpuUsage(nvml, read=lambda: "GPU-1")
    for _ in range(3):
        usage.look()
    usage.end()
    assert (usage.busy, usage.samples, nvml.is_shut) == (0.4, 3, True)


@pytest.mark.parametrize(
    ("uuid", "fails", "why"),
    [
        (None, False, "no CUDA device is in use"),
        ("GPU-2", False, "does not count it for GPU-2: Not Found"),
        ("GPU-1", True, "does not count it for GPU-1: Not Supported"),
    ],
)
def test_a_busy_share_that_is_not_known_is_none(uuid: str | None, fails: bool, why: str) -> None:
    nvml = FakeNvml()
    nvml.fails = fails
    usage = GpuUsage(nvml, read=lambda: uuid)
    usage.look()
    usage.end()
    assert usage.busy is None and why in str(usage.why_unknown)
    assert nvml.is_shut == (uuid is not None)
