"""What the user is told where fastloop's CUDA half does not run: once, with the reason and what to
do about it, in a warning, in stats() and by the doctor."""

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from time_limits import limit

import fastloop
from fastloop.device import accelerator, availability
from fastloop.device.accelerator import HostAccelerator
from fastloop.device.availability import find_upload_fault, has_uploads
from fastloop.loader.route import fast_iterator
from fastloop.step.grad_list import GradList

CUDA = torch.device("cuda", 0)
OLD_DRIVER = (
    "cudaGetDeviceCount: CUDA driver version is insufficient for CUDA runtime version (CUDA error "
    "35, cudaErrorInsufficientDriver)"
)
OTHER_ARCH = "CUDA device 0 has compute capability 7.0; this fastloop was built for 75 80"
STUB = "this fastloop was built without CUDA; install nvcc and build it anew"
FAULTS = {
    "old driver": (OLD_DRIVER, "13.0", "CUDA 13.0 .* needs an NVIDIA driver 580 or newer"),
    "old driver of 12": (OLD_DRIVER, "12.8", "needs an NVIDIA driver 525 or newer"),
    "architecture": (OTHER_ARCH, "13.0", "capability 7.0; .*FASTLOOP_CUDA_ARCHS"),
    "stub": (STUB, "", "built without CUDA.*because there is no nvcc"),
    "something else": ("cudaGetDeviceCount: broken (CUDA error 999)", "13.0", "broken"),
}


class Accelerator(HostAccelerator):
    """To a device that torch can copy to, and we cannot."""

    def __init__(self) -> None:
        self.device = CUDA

    def allocate_pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)


class OnDevice(torch.Tensor):
    device = property(lambda self: CUDA)  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """What has been told and found so far is forgotten."""
    caches = (availability.warn_once, availability._check)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def break_cuda(monkeypatch: pytest.MonkeyPatch, text: str, version: str) -> None:
    def check_cuda(index: int) -> None:
        raise RuntimeError(text)

    info = {"cuda": version, "cuda_reason": "" if version else "there is no nvcc\nanywhere"}
    monkeypatch.setattr(availability, "check_cuda", check_cuda)
    monkeypatch.setattr(availability, "build_info", lambda: info)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_user_is_told_once_why_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    text, version, told = FAULTS[fault]
    break_cuda(monkeypatch, text, version)
    with pytest.warns(RuntimeWarning, match=f"(?s)torch uploads batches .* on cuda:0: .*{told}"):
        assert not has_uploads(Accelerator())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not has_uploads(Accelerator())


def test_stats_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    break_cuda(monkeypatch, OLD_DRIVER, "13.0")
    data = fastloop.ArrayDataset(torch.arange(8))
    for path in ("array", "process"):
        loader: Any = fastloop.DataLoader(data, 4, num_workers=1, path=path)
        assert "torch uploads" not in loader.stats().why
        availability.warn_once.cache_clear()
        with pytest.warns(RuntimeWarning, match="torch uploads batches"):
            iterator = fast_iterator(loader, path, loader._shared, Accelerator())
        del iterator
        assert "; torch uploads: cudaGetDeviceCount" in loader.stats().why
        assert "driver 580" in loader.stats().why
        loader.close()


def test_passes_tell_too(monkeypatch: pytest.MonkeyPatch) -> None:
    break_cuda(monkeypatch, OTHER_ARCH, "13.0")
    grad = torch.ones(3).as_subclass(OnDevice)
    with pytest.warns(RuntimeWarning, match="torch runs the passes over gradients in place of"):
        GradList().collect([grad])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GradList().collect([grad])
        GradList().collect([torch.ones(3).to_sparse()])  # the CPU's need no reason


def test_what_was_switched_off_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    break_cuda(monkeypatch, OLD_DRIVER, "13.0")
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not has_uploads(Accelerator())
        assert find_upload_fault(Accelerator()) == ""
        GradList().collect([torch.ones(3).as_subclass(OnDevice)])


def test_rocm_is_told_in_stats_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls its device "cuda" too, and no driver or build of fastloop would help."""
    from fastloop.tools import doctor as checks

    break_cuda(monkeypatch, OLD_DRIVER, "12.9")
    monkeypatch.setattr(torch.version, "hip", "7.1.2")
    loader: Any = fastloop.DataLoader(fastloop.ArrayDataset(torch.arange(8)), 4, num_workers=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast_iterator(loader, "array", loader._shared, Accelerator())
        GradList().collect([torch.ones(3).as_subclass(OnDevice)])
    assert "; torch uploads: torch is built for ROCm 7.1.2" in loader.stats().why
    loader.close()
    info = {"cuda": "12.9", "cuda_archs": "75 80", "cuda_reason": ""}
    monkeypatch.setattr(checks, "build_info", lambda: info)
    assert "torch is built for ROCm 7.1.2" in checks.describe_own_build(Path("/"))


def test_the_doctor_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fastloop.tools import doctor as checks

    def check_cuda(index: int) -> None:
        raise RuntimeError(OLD_DRIVER)

    info = {"cuda": "13.0", "cuda_archs": "75 80", "cuda_reason": ""}
    monkeypatch.setattr(checks, "build_info", lambda: info)
    monkeypatch.setattr(checks, "check_cuda", check_cuda)
    monkeypatch.setattr(availability, "build_info", lambda: info)
    (tmp_path / "dev/dxg").mkdir(parents=True)  # a GPU, as under WSL
    line = checks.describe_own_build(tmp_path)
    assert "for 75 80 and later, needs driver 580 or newer, has none; not used: " in line
    assert "needs an NVIDIA driver 580 or newer (update the driver, or build" in line
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon Feb 26")
    assert "needs driver 580 or newer, has 535;" in checks.describe_own_build(tmp_path)


def test_the_doctor_runs_without_torch() -> None:
    code = """import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError("no torch", name="torch")
sys.meta_path.insert(0, NoTorch())
import fastloop.__main__ as m
m.main(["doctor"])"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(300)
    )
    assert done.returncode == 0, done.stderr
    assert "needs PyTorch, which is not installed" in done.stdout


@pytest.mark.parametrize("is_right", [True, False])
def test_the_stream_for_copies_is_fastloops_own(
    monkeypatch: pytest.MonkeyPatch, is_right: bool
) -> None:
    opened: list[Any] = []

    def open_one(*given: Any) -> Any:
        opened.append(given)
        return SimpleNamespace(stream_id=given[0], device_index=given[1].index, device_type=1)

    cuda = torch.device("cuda", 3)
    monkeypatch.setattr(accelerator, "open_stream", lambda index: 4096 + index)
    monkeypatch.setattr(accelerator, "fault_of", lambda device: "" if is_right else "an old driver")
    monkeypatch.setattr(torch.cuda, "ExternalStream", open_one)
    monkeypatch.setattr(torch, "Stream", lambda device: open_one(7, device))
    stream = accelerator._open_stream.__wrapped__(cuda)
    assert stream == ((4099 if is_right else 7), 3, 1)
    assert opened == [(stream[0], cuda)]
