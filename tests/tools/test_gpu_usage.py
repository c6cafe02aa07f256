"""How busy a GPU was, as a fake of torch.cuda tells: what is counted, and why it is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastloop.tools.report.gpu import GpuUsage


class FakeCuda:
    """Busy for 40 % of the time."""

    def __init__(self, is_used: bool = True, error: Exception | None = None) -> None:
        self.is_used, self.error = is_used, error

    def is_initialized(self) -> bool:
        return self.is_used

    def get_device_properties(self) -> Any:
        return SimpleNamespace(uuid="1")

    def utilization(self) -> int:
        if self.error is not None:
            raise self.error
        return 40


def test_the_busy_share_is_the_drivers() -> None:
    cuda = FakeCuda()
    usage = GpuUsage(cuda)
    for _ in range(3):
        usage.look()
    cuda.error = RuntimeError("for once")
    usage.look()
    assert (usage.busy, usage.samples, usage.uuid) == (0.4, 3, "GPU-1")
    assert usage.why_unknown is None


@pytest.mark.parametrize(
    ("cuda", "why"),
    [
        (FakeCuda(is_used=False), "no CUDA device is in use"),
        (FakeCuda(error=RuntimeError("Not Supported")), "RuntimeError: Not Supported"),
        (FakeCuda(error=ModuleNotFoundError("nvidia-ml-py")), "ModuleNotFoundError: nvidia-ml-py"),
    ],
)
def test_a_busy_share_that_is_not_known_is_none(cuda: FakeCuda, why: str) -> None:
    usage = GpuUsage(cuda)
    usage.look()
    assert usage.busy is None and usage.why_unknown == why
    assert (usage.uuid is None) == (not cuda.is_used)
