"""The doctor's checks of GPUs: driver, builds of torch and fastloop, other processes, a probe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastloop._core import build_info, check_cuda
from fastloop.base.machine import read_text
from fastloop.base.requirements import kernels_are_disabled
from fastloop.device.availability import NEEDED_DRIVERS, explain_error
from fastloop.tools.doctor.diagnosis import Finding, fail, note, ok, warn

_COPY = 256 << 20  # bytes of the pinned copy
_SLOW_COPY = 6e9  # bytes/s: less than PCIe 3 with 8 lanes
_SMI = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


def read_driver(root: Path) -> int:
    """Return the major version of the NVIDIA driver that is loaded, 0 if none is visible."""
    found = re.search(r"\s(\d{3})\.\d+", read_text(root / "proc/driver/nvidia/version"))
    return int(found[1]) if found else 0


def needed_driver(cuda: str) -> int:
    """Return the oldest driver that runs a build for this CUDA ("12.9"), 0 if that is unknown."""
    return int(NEEDED_DRIVERS.get(int(cuda.partition(".")[0]), 0))


def explain_own_build(root: Path) -> tuple[str, str]:
    """Return why fastloop's CUDA kernels do not run here and the remedy; two "" if they do."""
    info, driver = build_info(), read_driver(root)
    if not info["cuda"]:
        reason = str(info["cuda_reason"]).partition("\n")[0]
        return f"without CUDA: {reason}", "build it where nvcc is (CUDA_HOME says where)"
    if kernels_are_disabled():
        return "FASTLOOP_DISABLE_CUDA is set", "unset it"
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    if hip is not None:
        return f"torch is built for ROCm {hip}", "install a torch for CUDA"
    needed = needed_driver(str(info["cuda"]))
    if 0 < driver < needed:
        fact = f"CUDA {info['cuda']} needs a driver {needed} or newer; there is {driver}"
        return fact, "update the driver, or build fastloop with an nvcc of the driver's CUDA"
    try:
        check_cuda(0)
    except RuntimeError as error:
        if not any((root / at).exists() for at in ("proc/driver/nvidia", "dev/dxg")):
            return "no NVIDIA GPU is visible", ""
        fact, _, fix = explain_error(error).partition("; ")
        return fact, fix
    return "", ""


def describe_own_build(root: Path) -> str:
    """Return the CUDA that fastloop was built for, and whether its kernels run here."""
    info, driver, (fault, fix) = build_info(), read_driver(root), explain_own_build(root)
    if not info["cuda"]:
        return f"CPU only, built {fault}"
    use = "; ".join(filter(None, (f"not used: {fault}", fix))) if fault else "device 0 is ready"
    return (
        f"CUDA {info['cuda']} for {info['cuda_archs']} and later, needs driver "
        f"{needed_driver(str(info['cuda']))} or newer, {f'has {driver}' if driver else 'sees none'}"
        f"; {use}"
    )


def check_torch_build(root: Path, torch: Any) -> Finding:
    """Compare the CUDA of torch with the driver."""
    driver, cuda = read_driver(root), torch.version.cuda
    fact = f"torch {torch.__version__} is built for CUDA {cuda}"
    if cuda is None:
        fact = f"torch {torch.__version__} is built without CUDA, beside an NVIDIA GPU"
        return warn(fact, "the GPU is not used", "install a build with CUDA: see pytorch.org")
    if 0 < driver < needed_driver(cuda):
        fact += f", which needs a driver {needed_driver(cuda)} or newer; there is {driver}"
        fix = "update the driver, or install a torch for an older CUDA"
        return fail(fact, "the GPU cannot be used", fix)
    return ok(fact)


def check_own_build(root: Path) -> Finding:
    """Tell whether fastloop's kernels run on the GPU."""
    fact, fix = explain_own_build(root)
    if not fact:
        return ok(f"CUDA {build_info()['cuda']}; device 0 is ready")
    cost = "torch's operations run in place of fastloop's kernels, with the same results"
    return (note if kernels_are_disabled() else warn)(fact, cost, fix)


def check_others() -> Finding:
    """Name the processes of others that compute on the GPUs."""
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return ok(f"n/a: nvidia-smi says nothing ({error})")
    rows = [row.replace(" ", "").split(",") for row in done.stdout.splitlines() if "," in row]
    others = [f"{pid} ({memory} MiB)" for pid, memory in rows if pid != str(os.getpid())]
    if not others:
        return ok("no other process computes on a GPU")
    fact = f"other processes are on the GPUs: {', '.join(others)}"
    fix = "wait for them, or choose another GPU by CUDA_VISIBLE_DEVICES"
    return note(fact, "they share memory and time, so measurements vary", fix)


def probe_gpu(torch: Any) -> Finding:
    """Run one of fastloop's kernels and a pinned copy on the current GPU, and check the results.
    SYNC."""
    if not torch.cuda.is_available():
        return note("n/a: torch finds no CUDA device")
    from fastloop.step.grad_list import clip_grad_norm_

    parameter = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    parameter.grad = torch.arange(1 << 20, dtype=torch.float32, device="cuda") / (1 << 20)
    expected = parameter.grad.double().norm().item()
    norm = clip_grad_norm_([parameter], 1.0).item()
    clipped = parameter.grad.double().norm().item()
    source = torch.arange(_COPY // 8, dtype=torch.int64).pin_memory()
    target = source.to("cuda", non_blocking=True)  # the first copy also sets up
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    speed = _COPY / (begin.elapsed_time(end) / 1e3)
    is_right = abs(norm / expected - 1) < 1e-5 and abs(clipped - 1) < 1e-4
    if not is_right or not torch.equal(target.cpu(), source):
        fact = f"wrong results: norm {norm} for {expected}, {clipped} after clipping to 1"
        fix = "FASTLOOP_DISABLE_CUDA=1, and report it with this output"
        return fail(fact, "trainings would go wrong", fix)
    fact = f"kernel and pinned copy are right; {speed / 1e9:.1f} GB/s to the device"
    if speed < _SLOW_COPY:
        fix = "look at the link (nvidia-smi -q, PCI, Link Width) and the NUMA node of the process"
        return warn(fact, f"a batch of 38 MB takes {38e6 / speed * 1e3:.0f} ms to the device", fix)
    return ok(fact)
