"""How busy a GPU was, by an NVML that is a fake: what it counts, and why something is not known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastloop.tools.report.gpu_units import METRICS, GpuUnits
from fastloop.tools.report.gpu_usage import GpuUsage
from fastloop.tools.report.summary import _describe_gpu
from fastloop.tools.report.table import describe_gpu

NOTHING = dict.fromkeys(METRICS)


class FakeNvml:
    """By UUID alone, 40 % busy."""

    fails = is_shut = False
    samples: tuple[Any, ...] = ()

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        assert not self.samples, "NVML is shut while it has samples"
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
    usage = GpuUsage(nvml, find=lambda: "GPU-1")
    for _ in range(3):
        usage.look()
    usage.end()
    assert (usage.busy, usage.samples, nvml.is_shut) == (0.4, 3, True)


@pytest.mark.parametrize(
    ("uuid", "fails", "why"),
    [
        (None, False, "no CUDA device is in use"),
        ("GPU-2", False, "does not know GPU-2: Not Found"),
        ("GPU-1", True, "does not count it for this device: Not Supported"),
    ],
)
def test_a_busy_share_that_is_not_known_is_none(uuid: str | None, fails: bool, why: str) -> None:
    nvml = FakeNvml()
    nvml.fails = fails
    usage = GpuUsage(nvml, find=lambda: uuid)
    usage.look()
    usage.end()
    assert usage.busy is None and why in usage.why
    assert nvml.is_shut == (uuid is not None)


# ---- parts of the GPU (GPM)


class Hopper(FakeNvml):
    """Samples hold the work that the multiprocessors have done so far, in percent of seconds; the
    tensor cores have done half of it, and of the memory nothing is known.

    Args:
        done: the work at each sample.
        times: of the samples.
        fails_at: the name of a function that raises.
    """

    NVML_SUCCESS = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10

    def __init__(
        self, done: list[float], times: list[float], supported: int = 1, fails_at: str = ""
    ) -> None:
        self.done = iter(done)
        self.times = times
        self.taken = 0
        self.supported = supported
        self.fails_at = fails_at
        self.samples: list[Any] = []  # type: ignore[assignment]

    def call(self, name: str) -> None:
        if name == self.fails_at:
            raise RuntimeError("Insufficient Permissions")

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:  # noqa: N802
        self.call("query")
        return SimpleNamespace(isSupportedDevice=self.supported)

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        self.call("alloc")
        self.samples.append(SimpleNamespace())
        return self.samples[-1]

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        self.samples.remove(sample)

    def nvmlGpmSampleGet(self, handle: str, sample: Any) -> None:  # noqa: N802
        self.call("get")
        sample.done, sample.at = next(self.done), self.times[self.taken]
        self.taken += 1

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(3)])

    def nvmlGpmMetricsGet(self, get: Any) -> None:  # noqa: N802
        assert get.version == 1 and get.numMetrics == len(get.metrics)
        a, b = get.sample1, get.sample2
        busy = (b.done - a.done) / (b.at - a.at)
        values = {2: (0, busy), 5: (0, busy / 2), 10: (3, 0.0)}
        for metric in get.metrics:
            metric.nvmlReturn, metric.value = values[metric.metricId]


def test_parts_of_a_gpu_are_weighted_by_time() -> None:
    """80 % of 1 s, and 20 % of 3 s."""
    nvml = Hopper([0, 80, 140], [10.0, 11.0, 14.0])
    units = GpuUnits(nvml, "GPU-1", clock=lambda: nvml.times[nvml.taken])
    for _ in range(3):
        units.look()
    units.close()
    wanted = {"multiprocessors": 0.35, "tensor_cores": 0.175}
    assert units.shares == pytest.approx({**wanted, "memory": None})
    assert not nvml.samples


def test_samples_that_are_too_close_are_not_compared() -> None:
    nvml = Hopper([0, 80], [10.0, 11.0])
    times = iter([10.0, 10.01, 11.0])
    units = GpuUnits(nvml, "GPU-1", clock=lambda: next(times))
    for _ in range(3):
        units.look()
    assert units.shares["multiprocessors"] == pytest.approx(0.8) and nvml.taken == 2


def test_a_value_that_is_no_number_is_not_known() -> None:
    nvml = Hopper([0, float("nan")], [0.0, 1.0])
    units = GpuUnits(nvml, "GPU-1", clock=lambda: nvml.times[nvml.taken])
    units.look()
    units.look()
    assert units.shares == NOTHING


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (FakeNvml(), "nvidia-ml-py is too old for GPM"),
        (Hopper([], [], supported=0), "this device has no GPM"),
        (Hopper([0], [0.0]), "no two samples"),
        *[
            (Hopper([0], [0.0], fails_at=name), "GPM: Insufficient Permissions")
            for name in ("query", "alloc", "get")
        ],
    ],
)
def test_parts_that_are_not_counted_are_none(nvml: Any, why: str) -> None:
    usage = GpuUsage(nvml, find=lambda: "GPU-1")
    usage.look()
    usage.end()
    assert usage.units == NOTHING and why in usage.why_units
    assert usage.busy == 0.4 and nvml.is_shut
    found = _describe_gpu(usage)
    assert found["units"] == NOTHING and why in found["why_units_unknown"]
    text = describe_gpu({"gpu": found})
    assert text.startswith("40%") and f"its parts: n/a ({found['why_units_unknown']})" in text


def test_parts_are_told_where_nvml_does_not_count_the_whole() -> None:
    nvml = Hopper([0, 80, 80], [0.0, 1.0, 2.0])
    nvml.fails = True
    usage = GpuUsage(nvml, find=lambda: "GPU-1")
    usage.look()
    assert usage._units is not None
    usage._units._clock = lambda: usage._units._taken_at + 1.0
    usage.look()
    found = _describe_gpu(usage)
    usage.end()
    assert found["busy"] is None and found["why_units_unknown"] is None
    assert describe_gpu({"gpu": found}) == (
        "n/a (NVML does not count it for this device: Not Supported); "
        "its parts: multiprocessors 80%, tensor cores 40%, memory n/a; GPU-1"
    )
