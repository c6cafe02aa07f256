"""The reason why fastloop's CUDA half does not run on a device, with one warning for each cause.
torch does the work then, with the same results.

FASTLOOP_DISABLE_CUDA is the user's choice and brings no warning.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from fastloop._core import build_info, check_cuda
from fastloop.compat.requirements import kernels_are_disabled


def needed_driver(cuda: str) -> int:
    """Return the oldest driver that runs a build for a CUDA version ("12.9"); 0 if unknown."""
    return {12: 525, 13: 580}.get(int(cuda.partition(".")[0] or 0), 0)


def explain_error(error: RuntimeError) -> str:
    """Return the text of an error of check_cuda; after "; " a remedy."""
    text, info = str(error), build_info()
    version = str(info["cuda"])
    if "CUDA error 35," in text and (driver := needed_driver(version)):
        text += f"; the CUDA {version} that fastloop was built with needs an NVIDIA driver "
        return f"{text}{driver} or newer (update the driver, or build with the driver's CUDA)"
    if "compute capability" in text:
        return f"{text}; build with FASTLOOP_CUDA_ARCHS set to this capability, without the dot"
    if not info["cuda"]:
        reason = str(info["cuda_reason"]).partition("\n")[0]
        return f"{text} (this build has no CUDA because {reason})"
    return text


@cache
def _check(index: int) -> None:
    """Raise if fastloop cannot use a device. Only success is cached: a failure may pass."""
    check_cuda(index)


@cache
def warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def fault_of(device: Any) -> str:
    """Return why fastloop's CUDA half does not run on a device; "" if it runs, or need not run."""
    import torch

    if device.type != "cuda" or kernels_are_disabled():
        return ""
    if torch.version.hip is not None:
        return f"torch is built for ROCm {torch.version.hip}, and fastloop has code for CUDA only"
    try:
        _check(device.index or 0)
    except RuntimeError as error:
        return explain_error(error)
    return ""


def find_fault(device: Any, what: str) -> str:
    """Return `fault_of`. If there is a fault, warn once that torch does `what` instead. On ROCm
    there is no warning, because the user can do nothing."""
    import torch

    fault = fault_of(device)
    if fault and torch.version.hip is None:
        warn_once(f"torch {what} in place of fastloop on {device}: {fault}")
    return fault


def find_upload_fault(accelerator: Any) -> str:
    """Return why fastloop cannot copy batches to a device; warn once of the reason."""
    return find_fault(accelerator.device, "uploads batches")


def has_uploads(accelerator: Any) -> bool:
    """Tell whether fastloop copies batches to the device: its CUDA half runs there."""
    is_meant = accelerator.device.type == "cuda" and not kernels_are_disabled()
    return is_meant and not find_upload_fault(accelerator)
