"""Checks of GPUs: driver, builds of torch and fastloop, who else is on them, and a probe."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from fastloop._core import build_info, check_cuda
from fastloop.base.requirements import kernels_are_disabled
from fastloop.device.availability import NEEDED_DRIVERS, explain_error
from fastloop.tools.doctor.finding import Finding, Level, System

_COPY = 256 << 20  # bytes of the pinned copy
_SLOW_COPY = 6e9  # bytes/s: less than PCIe 3 with 8 lanes
_OTHERS = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


def find_driver(system: System) -> int | None:
    """Return the major version of the NVIDIA driver that is loaded, None where none is visible."""
    found = re.search(r"\s(\d{3})\.\d+", system.read("proc/driver/nvidia/version"))
    return int(found[1]) if found else None


def needed_driver(cuda: str) -> int:
    """Return the oldest driver that runs a build for this CUDA ("12.9"), 0 if that is unknown."""
    return int(NEEDED_DRIVERS.get(int(cuda.partition(".")[0]), 0))


def check_gpus(system: System, torch: Any = None) -> Iterator[Finding]:
    """Whether the GPUs that the driver shows can be used. `torch` may be missing."""
    gpus = sorted((system.root / "proc/driver/nvidia/gpus").glob("*/information"))
    if not gpus:
        yield Finding("gpu", Level.OK, "no NVIDIA GPU is visible")
        return
    driver = find_driver(system)
    models = [system.field(str(at.relative_to(system.root)), "Model:") or "?" for at in gpus]
    yield Finding("gpu", Level.OK, f"{', '.join(models)}, driver {driver or 'unknown'}")
    if torch is not None:
        yield _check_torch_build(str(torch.__version__), torch.version.cuda, driver)
    yield _check_own_build(driver)
    yield _check_others(system)


def _check_torch_build(version: str, cuda: str | None, driver: int | None) -> Finding:
    if cuda is None:
        return Finding(
            "torch build",
            Level.WARN,
            f"torch {version} is built without CUDA, beside an NVIDIA GPU",
            "the GPU is not used",
            "install a build with CUDA: pytorch.org/get-started/locally says which",
        )
    needed = needed_driver(cuda)
    if driver is not None and driver < needed:
        return Finding(
            "torch build",
            Level.FAIL,
            f"torch {version} is built for CUDA {cuda}, which needs a driver {needed} or newer; "
            f"there is {driver}",
            "the GPU cannot be used",
            f"update the driver, or install a torch for a CUDA older than {cuda.partition('.')[0]}",
        )
    return Finding("torch build", Level.OK, f"torch {version} is built for CUDA {cuda}")


def _check_own_build(driver: int | None) -> Finding:
    info = build_info()
    cost = "torch's operations run in place of fastloop's kernels, with the same results"
    if kernels_are_disabled():
        fact = "FASTLOOP_DISABLE_CUDA is set"
        return Finding("fastloop build", Level.NOTE, fact, cost, "unset it")
    if not info["cuda"]:
        reason = str(info["cuda_reason"]).partition("\n")[0]
        fix = "build it where nvcc is (CUDA_HOME says where)"
        return Finding("fastloop build", Level.WARN, f"without CUDA: {reason}", cost, fix)
    cuda = str(info["cuda"])
    needed = needed_driver(cuda)
    if driver is not None and driver < needed:
        fact = f"CUDA {cuda} needs a driver {needed} or newer; there is {driver}"
        fix = "update the driver, or build fastloop with an nvcc of the driver's CUDA"
        return Finding("fastloop build", Level.WARN, fact, cost, fix)
    try:
        check_cuda(0)
    except RuntimeError as error:
        fact, _, fix = explain_error(error).rpartition(";")
        return Finding("fastloop build", Level.WARN, fact or fix.strip(), cost, fix.strip())
    return Finding("fastloop build", Level.OK, f"CUDA {cuda}; device 0 is ready")


def _check_others(system: System) -> Finding:
    try:
        rows = [row.split(",") for row in system.run(_OTHERS).splitlines() if "," in row]
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("gpu sharing", Level.OK, f"n/a: nvidia-smi says nothing ({error})")
    others = [
        f"{pid.strip()} ({memory.strip()} MiB)"
        for pid, memory in rows
        if pid.strip() != str(os.getpid())
    ]
    if not others:
        return Finding("gpu sharing", Level.OK, "no other process computes on a GPU")
    return Finding(
        "gpu sharing",
        Level.NOTE,
        f"other processes are on the GPUs: {', '.join(others)}",
        "they share memory and time, so measurements vary",
        "wait for them, or choose another GPU by CUDA_VISIBLE_DEVICES",
    )


def probe_gpu(torch: Any) -> Finding:
    """Runs one of fastloop's kernels and a pinned copy on the current GPU, and looks at the
    results. SYNC."""
    if not torch.cuda.is_available():
        return Finding("gpu probe", Level.NOTE, "n/a: torch finds no CUDA device")
    from fastloop.step.clip import clip_grad_norm_

    parameter = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    parameter.grad = torch.arange(1 << 20, dtype=torch.float32, device="cuda") / (1 << 20)
    expected = parameter.grad.double().norm().item()
    norm = clip_grad_norm_([parameter], 1.0).item()
    clipped = parameter.grad.double().norm().item()
    source = torch.arange(_COPY // 8, dtype=torch.int64).pin_memory()
    target = torch.empty_like(source, device="cuda")
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    target.copy_(source, non_blocking=True)  # the first copy also sets up
    events[0].record()
    target.copy_(source, non_blocking=True)
    events[1].record()
    torch.cuda.synchronize()
    speed = _COPY / (events[0].elapsed_time(events[1]) / 1e3)
    is_right = abs(norm / expected - 1) < 1e-5 and abs(clipped - 1) < 1e-4
    if not is_right or not torch.equal(target.cpu(), source):
        fact = f"wrong results: norm {norm} for {expected}, {clipped} after clipping to 1"
        fix = "FASTLOOP_DISABLE_CUDA=1, and report it with this output"
        return Finding("gpu probe", Level.FAIL, fact, "trainings would go wrong", fix)
    fact = f"kernel and pinned copy are right; {speed / 1e9:.1f} GB/s to the device"
    if speed < _SLOW_COPY:
        cost = f"a batch of 38 MB takes {38e6 / speed * 1e3:.0f} ms to the device"
        fix = "look at the link (nvidia-smi -q, PCI, Link Width) and the NUMA node of the process"
        return Finding("gpu probe", Level.WARN, fact, cost, fix)
    return Finding("gpu probe", Level.OK, fact)
