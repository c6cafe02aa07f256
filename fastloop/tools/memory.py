"""``memory()``: what a device has and what this process holds of it. ``count_parameters()``: the
size of a model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fastloop.base.checks import make_message, read_number
from fastloop.base.machine import own_bytes, read_memory
from fastloop.tools.text import percent, size, table


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a device, in bytes. ``str()`` gives a table; None is unknown, and shown as n/a.

    Attributes:
        device: the device.
        limit_fraction: the share of it that torch's allocator may take in this process.
        total_bytes, free_bytes: of the device; free for any process. On the CPU within the limits
            of the cgroup.
        allocated_bytes, reserved_bytes: in tensors; taken from the device by torch's allocator. On
            the CPU `allocated_bytes` is the resident memory of the process.
        peak_allocated_bytes, peak_reserved_bytes: the largest values of both since the process
            began, or since ``torch.accelerator.reset_peak_memory_stats()``.
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
        held = "resident" if self.device.type == "cpu" else "in tensors"
        rows = [
            ("limit of this process", percent(self.limit_fraction), ""),
            ("free, total", size(self.free_bytes), size(self.total_bytes)),
            (f"{held}, peak", size(self.allocated_bytes), size(self.peak_allocated_bytes)),
            ("reserved by torch, peak", size(self.reserved_bytes), size(self.peak_reserved_bytes)),
        ]
        return "\n".join([f"memory of {self.device}", *table(rows)])


def memory(
    device: torch.device | str | int | None = None, *, limit_fraction: float | None = None
) -> MemoryUse:
    """Return the memory of a device; set how much of it this process may have.

    Beyond the limit torch raises ``torch.OutOfMemoryError``, as on a smaller device. Memory of
    other libraries (cuDNN, NCCL, the CUDA context) does not count. The host waits for nothing.

    Args:
        device: the current accelerator by default; the CPU where there is none.
        limit_fraction: a number in [0, 1]. None leaves the limit unchanged.

    Raises:
        TypeError, ValueError: limit_fraction is not such a number.
        RuntimeError: torch does not have the device, or limit_fraction for a device whose allocator
            has no limit, such as the CPU.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(True) or "cpu"
    found: Any = torch.device(device)
    module: Any = torch.get_device_module(found)
    if found.type != "cpu" and found.index is None:
        found = torch.device(found.type, torch.accelerator.current_device_index())
    if limit_fraction is not None:
        read_number("limit_fraction", limit_fraction, 0, 1)
        if not hasattr(module, "set_per_process_memory_fraction"):
            rule, remedy = f"None for {found}", "its allocator has no limit; use a cgroup"
            raise RuntimeError(make_message("limit_fraction", rule, limit_fraction, remedy))
        module.set_per_process_memory_fraction(limit_fraction, found)
    if found.type == "cpu":
        host, now, peak = read_memory(), own_bytes("VmRSS"), own_bytes("VmHWM")
        return MemoryUse(found, None, host.most, host.left, now, None, peak)
    free, total = torch.accelerator.get_memory_info(found)
    read_fraction = getattr(module, "get_per_process_memory_fraction", lambda device: None)
    names = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    counts = [getattr(torch.accelerator, name)(found) for name in names]
    return MemoryUse(found, read_fraction(found), total, free, *counts)


@dataclass(frozen=True)
class ParameterCount:
    """The size of a model. ``str()`` gives one line.

    Attributes:
        total: elements of all parameters, tied ones once.
        trainable: elements of parameters with ``requires_grad``.
        bytes: the memory of all of them in their dtypes.
        tied: names of parameters that share another one's memory and were not counted again.
        uninitialized: names of lazy parameters, which have no shape yet and were not counted.
    """

    total: int
    trainable: int
    bytes: int
    tied: tuple[str, ...] = ()
    uninitialized: tuple[str, ...] = ()

    @property
    def frozen(self) -> int:
        """Elements of parameters without ``requires_grad``."""
        return self.total - self.trainable

    def __str__(self) -> str:
        text = f"{self.total:,} parameters ({self.trainable:,} trainable, {self.frozen:,} frozen)"
        tied, lazy = ", ".join(self.tied), ", ".join(self.uninitialized)
        text += f", {size(self.bytes)}" + (f"; tied, counted once: {tied}" if tied else "")
        return text + (f"; not counted, run a batch first: {lazy}" if lazy else "")


def count_parameters(model: torch.nn.Module) -> ParameterCount:
    """Count the parameters of a model, tied ones once, trainable ones apart.

    Parameters are tied if they are one object, or views of the same elements of one storage; they
    are trainable if any of them is. Buffers do not count. Under FSDP the elements of all ranks are
    counted. Nothing is copied, and no device is waited for.

    Raises:
        TypeError: model is not a module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(make_message("model", "a torch.nn.Module", model))
    groups: dict[Hashable, list[torch.nn.Parameter]] = {}  # parameters of the same memory
    tied, lazy = [], []
    one: Any
    for name, one in model.named_parameters(remove_duplicate=False):
        if is_lazy(one):
            lazy.append(name)
            continue
        is_plain = type(one) is torch.nn.Parameter and one.layout is torch.strided
        address = one.data_ptr() if is_plain else 0  # 0 also on meta, and without elements
        key = (address, one.dtype, one.shape, one.stride()) if address else id(one)
        if key in groups:
            tied.append(name)
        groups.setdefault(key, []).append(one)
    total = sum(first.numel() for first, *_ in groups.values())
    trainable = sum(
        group[0].numel() for group in groups.values() if any(p.requires_grad for p in group)
    )
    count = sum(first.numel() * first.element_size() for first, *_ in groups.values())
    return ParameterCount(total, trainable, count, tuple(tied), tuple(lazy))
