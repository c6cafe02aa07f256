"""``python -m fastloop doctor``: what was built, what this machine offers, what runs where."""

from __future__ import annotations

import os
import platform
import sys

from fastloop._core import build_info, check_cuda
from fastloop.base.requirements import kernels_are_disabled, require_torch
from fastloop.device.availability import explain_error


def _torch_line() -> str:
    try:
        require_torch("fastloop.DataLoader")
    except ImportError as error:
        return f"missing: {error}"
    import torch

    return str(torch.__version__)


def _threads() -> str:
    if "torch" not in sys.modules:
        return "threads of its own (torch is missing)"
    from fastloop.base.openmp import openmp

    return "threads of its own" if openmp() is None else "the threads of torch's OpenMP"


def _limit() -> str:
    named = os.environ.get("FASTLOOP_CPU")
    return f" (at most, FASTLOOP_CPU is {named})" if named else ""


def _device() -> str:
    info = build_info()
    if not info["cuda"]:
        return f"CPU only, built without CUDA: {str(info['cuda_reason']).splitlines()[0]}"
    built = f"CUDA {info['cuda']} for {info['cuda_archs']} and later"
    if kernels_are_disabled():
        return f"{built}; torch's operations instead, FASTLOOP_DISABLE_CUDA is set"
    try:
        check_cuda(0)
    except RuntimeError as error:
        return f"{built}; not usable here, {explain_error(error)}"
    return f"{built}; device 0 is ready"


def main() -> None:
    info = build_info()
    guarded = {
        "process_vm": "process_vm_readv/writev",
        "memfd": "through a memfd (process_vm_readv is not permitted here), slower",
    }[str(info["guarded_reads"])]
    lines = {
        "fastloop": f"{info['version']}, built with {info['compiler']}, DLPack {info['dlpack']}",
        "python": f"{platform.python_version()} on {platform.release()}",
        "torch": _torch_line(),
        "cpus": str(info["cpus"]),
        "mapped files": guarded,
        "page population": "MADV_POPULATE_WRITE"
        if info["populates_pages"]
        else "first touch (MADV_POPULATE_WRITE needs Linux 5.14)",
        "worker processes": "a memfd shared with them; the parent's death is seen by "
        + ("pidfd" if info["watches_processes"] else "looking twice a second (no pidfd here)"),
        "code on the CPU": f"{info['instructions']}{_limit()}",
        "passes over gradients": _threads(),
        "device": _device(),
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")
