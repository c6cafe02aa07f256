"""What torch's allocator holds of a device, and how much of the device this process may have; for
trials also what a step has taken at most, on the CPU too."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastloop.base.machine import available_bytes

# ---- what users see


@dataclass(frozen=True)
class MemoryUse:
    """What ``memory`` found, in bytes. What is not known is None, which ``str()`` shows as n/a.

    Attributes:
        device: the device.
        limit_fraction: what share of it torch's allocator may take in this process.
        total_bytes, free_bytes: of the device; free for any process.
        allocated_bytes, reserved_bytes: in tensors; taken from the device by torch's allocator.
        peak_allocated_bytes, peak_reserved_bytes: the most there has been of both since the
            process began, or since ``torch.accelerator.reset_peak_memory_stats()``.
    """

    device: torch.device
    limit_fraction: float | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None

    def __str__(self) -> str:
        limit = "n/a" if self.limit_fraction is None else f"{self.limit_fraction:.1%}"
        rows = [
            ("limit of this process", f"{limit} of {_gib(self.total_bytes)}"),
            ("free on the device", _gib(self.free_bytes)),
            ("in tensors", _now_and_peak(self.allocated_bytes, self.peak_allocated_bytes)),
            ("reserved by torch", _now_and_peak(self.reserved_bytes, self.peak_reserved_bytes)),
        ]
        lines = [f"memory of {self.device}", *(f"  {name:<22} {text}" for name, text in rows)]
        if self.total_bytes is None:
            lines[0] += ": n/a, torch keeps no account of it"
        return "\n".join(lines)


def _gib(size: int | None) -> str:
    return "n/a" if size is None else f"{size / 2**30:.2f} GiB"


def _now_and_peak(now: int | None, peak: int | None) -> str:
    return f"{_gib(now)} now, {_gib(peak)} at most"


def memory(
    device: torch.device | str | int | None = None, *, limit_fraction: float | None = None
) -> MemoryUse:
    """What torch's allocator holds of a device; sets how much of it this process may have.

    Beyond the limit torch raises ``torch.OutOfMemoryError``, as on a smaller device. What other
    libraries take (cuDNN, NCCL, the CUDA context) does not count. The host waits for nothing.

    Args:
        device: the current accelerator by default; the CPU where there is none. Of the CPU torch
            keeps no account: every number is None.
        limit_fraction: above 0, at most 1. None leaves the limit as it is.

    Raises:
        TypeError, ValueError: limit_fraction is no such number, or there is no such device.
        RuntimeError: limit_fraction for a device whose allocator has no limit, as on the CPU.
    """
    found = _find_device(device)
    module: Any = torch.get_device_module(found)
    if limit_fraction is not None:
        fraction = _check_fraction(limit_fraction)
        if not hasattr(module, "set_per_process_memory_fraction"):
            raise RuntimeError(
                f"limit_fraction={limit_fraction} needs a device whose allocator has a limit, such "
                f"as CUDA's; {found} has none. Leave it out, or limit the process by its cgroup"
            )
        module.set_per_process_memory_fraction(fraction, found)
    if found.type == "cpu":
        return MemoryUse(found)
    free, total = torch.accelerator.get_memory_info(found)
    read_fraction = getattr(module, "get_per_process_memory_fraction", None)
    return MemoryUse(
        device=found,
        limit_fraction=None if read_fraction is None else read_fraction(found),
        total_bytes=total,
        free_bytes=free,
        allocated_bytes=torch.accelerator.memory_allocated(found),
        reserved_bytes=torch.accelerator.memory_reserved(found),
        peak_allocated_bytes=torch.accelerator.max_memory_allocated(found),
        peak_reserved_bytes=torch.accelerator.max_memory_reserved(found),
    )


def _find_device(device: torch.device | str | int | None) -> torch.device:
    accelerator: torch.device | None = torch.accelerator.current_accelerator(True)
    found = (accelerator or torch.device("cpu")) if device is None else torch.device(device)
    if found.type == "cpu":
        return found
    if accelerator is None or found.type != accelerator.type:
        raise ValueError(
            f"device is {device!r}; torch finds {accelerator or 'no accelerator'} here: pass that, "
            "or leave device out"
        )
    index: int | None = found.index
    return torch.device(
        found.type, torch.accelerator.current_device_index() if index is None else index
    )


def _check_fraction(fraction: Any) -> float:
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not is_number:
        raise TypeError(f"limit_fraction is {fraction!r}; pass a number above 0, at most 1")
    if not 0 < fraction <= 1:
        raise ValueError(
            f"limit_fraction is {fraction}; pass what share of the device this process may have, "
            "above 0 and at most 1"
        )
    return float(fraction)


# ---- for trials


class TrialMemory:
    """The memory that steps on some devices take: of the accelerators among them, else the host's.

    Args:
        devices: where the steps run.
        margin: the share of what is left there that trials must not touch.
    """

    def __init__(self, devices: Iterable[torch.device], margin: float) -> None:
        self._devices = sorted({d for d in devices if d.type != "cpu"}, key=str)
        self._margin = margin

    @contextmanager
    def limited(self) -> Iterator[None]:
        """A context in which torch's allocators stop short of the margin."""
        with ExitStack() as stack:
            for device in self._devices:
                module: Any = torch.get_device_module(device)
                if hasattr(module, "set_per_process_memory_fraction"):
                    use = memory(device)
                    stack.callback(memory, device, limit_fraction=use.limit_fraction)
                    memory(device, limit_fraction=_trial_fraction(use, self._margin))
            yield

    def release(self) -> None:
        """Free what is garbage, give back what is cached, and measure from here. SYNC."""
        gc.collect()
        for device in self._devices:
            with torch.accelerator.device_index(device.index):
                torch.accelerator.empty_cache()
                torch.accelerator.reset_peak_memory_stats(device)
        if not self._devices:
            self._before = _reset_host_peak()

    def synchronize(self) -> None:
        """SYNC: all that is queued on the devices is over."""
        for device in self._devices:
            torch.accelerator.synchronize(device)

    def peak_bytes(self) -> int | None:
        """The most that was reserved on a device since release(), or by what the host's memory has
        grown; None where the system does not say."""
        if self._devices:
            return max(map(torch.accelerator.max_memory_reserved, self._devices))
        peak = _host_status("VmHWM")
        return None if peak is None or self._before is None else max(0, peak - self._before)

    def retries(self) -> int:
        """How often an allocator has found room only after giving back its cache."""
        stats = map(torch.accelerator.memory_stats, self._devices)
        return sum(s.get("num_alloc_retries", 0) for s in stats)

    def has_room(self, size: int) -> bool:
        """Whether the host has so many bytes; a process that takes more is killed. Devices say so
        themselves."""
        return bool(self._devices) or size <= available_bytes() * (1 - self._margin)


def _trial_fraction(use: MemoryUse, margin: float) -> float:
    assert use.total_bytes and use.free_bytes is not None and use.reserved_bytes is not None
    reachable = use.reserved_bytes + use.free_bytes
    limit = use.total_bytes * (1.0 if use.limit_fraction is None else use.limit_fraction)
    return min(1.0, max(math.ulp(1.0), min(reachable, limit) * (1 - margin) / use.total_bytes))


def _reset_host_peak() -> int | None:
    """The process's memory now, from which its peak is counted anew; None where it cannot be."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _host_status("VmRSS")


def _host_status(name: str) -> int | None:
    """A line of /proc/self/status, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found[0]) << 10 if found else None
