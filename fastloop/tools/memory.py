"""``memory()``: the memory of a device and the part that this process holds.
``count_parameters()``: the size of a model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fastloop.base.checks import check_type, read_number
from fastloop.base.machine import own_bytes, read_memory
from fastloop.tools.text import percent, size, table


class MemoryUse(NamedTuple):
    """The memory of a device, in bytes. ``str()`` gives a table. Unknown values are None, "n/a" in
    the table.

    Attributes:
        device: the device.
        limit_fraction: the share, 0 to 1, of the device's memory that torch's allocator may take
            in this process.
        total_bytes: the memory of the device; on the CPU the limit of the cgroup, if smaller.
        free_bytes: the memory that is free for any process; on the CPU within the cgroup's limit.
        allocated_bytes: the memory of tensors; on the CPU the resident memory of the process.
        reserved_bytes: the memory that torch's allocator has taken from the device.
        peak_allocated_bytes, peak_reserved_bytes: the largest values since the process began, or
            since ``torch.accelerator.reset_peak_memory_stats()``.
    """

    device: torch.device
    limit_fraction: float | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None

    def __str__(self) -> str:
        names = (name.removesuffix("_bytes").replace("_", " ") for name in self._fields[1:])
        shown = [percent(self.limit_fraction), *map(size, self[2:])]
        return "\n".join([f"memory of {self.device}", *table(list(zip(names, shown, strict=True)))])


def memory(
    device: torch.device | str | int | None = None, *, limit_fraction: float | None = None
) -> MemoryUse:
    """Return the memory of a device. If ``limit_fraction`` is given, limit this process first.

    Beyond the limit torch raises ``torch.OutOfMemoryError``, as on a smaller device. The memory of
    other libraries (cuDNN, NCCL, the CUDA context) does not count. The host waits for nothing.

    Args:
        device: the device; by default the current accelerator, or the CPU without an accelerator.
        limit_fraction: the share of the device's memory that torch's allocator may take, a number
            in [0, 1]. None leaves the limit unchanged.

    Raises:
        TypeError, ValueError: limit_fraction is not a number in [0, 1].
        RuntimeError: torch does not have the device, or limit_fraction is given for a device whose
            allocator has no limit, for example the CPU.
    """
    current = torch.accelerator.current_accelerator(True) or "cpu"
    found: Any = torch.device(current if device is None else device)
    module: Any = torch.get_device_module(found)
    if found.type != "cpu" and found.index is None:
        found = torch.device(found.type, torch.accelerator.current_device_index())
    if limit_fraction is not None:
        read_number("limit_fraction", limit_fraction, 0, 1)
        if not hasattr(module, "set_per_process_memory_fraction"):
            text = f"limit_fraction must be None on {found}, got {limit_fraction}"
            raise RuntimeError(f"{text} (torch cannot limit the memory of this device)")
        module.set_per_process_memory_fraction(limit_fraction, found)
    if found.type == "cpu":
        host, now, peak = read_memory(), own_bytes("VmRSS"), own_bytes("VmHWM")
        return MemoryUse(found, None, host.most, host.left, now, None, peak, None)
    free, total = torch.accelerator.get_memory_info(found)
    read_fraction = getattr(module, "get_per_process_memory_fraction", lambda device: None)
    names = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")
    counts = [getattr(torch.accelerator, name)(found) for name in names]
    return MemoryUse(found, read_fraction(found), total, free, *counts)


class ParameterCount(NamedTuple):
    """The size of a model. ``str()`` gives one line.

    Attributes:
        total: the number of elements in all parameters; tied parameters count once.
        trainable: the number of elements in parameters with ``requires_grad``.
        bytes: the memory of all parameters in their dtypes.
        tied: the further names of parameters that have several names.
    """

    total: int
    trainable: int
    bytes: int
    tied: tuple[str, ...] = ()

    @property
    def frozen(self) -> int:
        """The number of elements in parameters without ``requires_grad``."""
        return self.total - self.trainable

    def __str__(self) -> str:
        text = f"{self.total:,} parameters ({self.trainable:,} trainable, {self.frozen:,} frozen)"
        tied = f"; tied, counted once: {', '.join(self.tied)}" if self.tied else ""
        return f"{text}, {size(self.bytes)}{tied}"


def count_parameters(model: torch.nn.Module) -> ParameterCount:
    """Count the elements of a model's parameters.

    A tied parameter, which is one object with several names, counts once. Buffers do not count.
    Under FSDP2 the elements of all ranks count. Nothing is copied, and the host waits for nothing.

    Raises:
        TypeError: model is not a module.
        ValueError: a parameter is lazy and has no shape yet. Run a batch first.
    """
    check_type("model", model, isinstance(model, torch.nn.Module), "a torch.nn.Module")
    named = dict(model.named_parameters())
    every = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    total, count = sum(p.numel() for p in named.values()), sum(p.nbytes for p in named.values())
    trainable = sum(p.numel() for p in named.values() if p.requires_grad)
    return ParameterCount(total, trainable, count, tuple(n for n in every if n not in named))
