"""How much memory the machine has, and how much of it this process may use."""

from __future__ import annotations

from pathlib import Path

from fastloop.base.cgroup import memory_limits, read_table

_SCARCE = 10  # memory is, where less than this part of it is available


def _meminfo(name: str, default: int) -> int:
    """A line of /proc/meminfo, in bytes."""
    return read_table(Path("/proc/meminfo")).get(name, default >> 10) << 10


def available_bytes() -> int:
    """Memory that this process can have without swapping, within the limits of its cgroups."""
    available = _meminfo("MemAvailable", 1 << 30)
    return max(0, min([available, *(limit - used for limit, used in memory_limits())]))


def describe_memory() -> str:
    """One sentence with figures, for errors."""
    available, total = (_meminfo(name, 0) / 2**30 for name in ("MemAvailable", "MemTotal"))
    text = f"{available:.1f} of {total:.1f} GiB of memory are available now"
    for limit, used in memory_limits()[:1]:
        text += f", and its cgroup uses {used / 2**30:.1f} of {limit / 2**30:.1f} GiB"
    return text


def explain_kill() -> str:
    """One sentence on who may have sent SIGKILL, by the memory there is now."""
    total = min([_meminfo("MemTotal", 0), *(limit for limit, _ in memory_limits())])
    if available_bytes() < total // _SCARCE:
        return f"Most likely the system was out of memory: {describe_memory()}"
    return (
        "A program or a user has killed it, or the system for lack of memory, which `dmesg` then "
        f"tells: {describe_memory()}"
    )


def budget_of(loader: object) -> int:
    """Its memory_budget in bytes; by default a quarter of the available memory, at least 64 MiB."""
    wanted: int | None = getattr(loader, "memory_budget", None)  # a torch loader has none
    return wanted or max(64 << 20, available_bytes() // 4)
