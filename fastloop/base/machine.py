"""Facts about the machine and its processes: all that is read from /proc, /sys and control groups.

Nested groups limit together, so the group of this process and all groups above count. In a
container the kernel may name a path outside the mounted part; the mounted top is the group then.
`root` is the folder that holds proc and sys: tests pass a copy. A file that cannot be read counts
as empty. Any thread may call these functions.
"""

from __future__ import annotations

import functools
import os
import resource
import time
from multiprocessing import active_children
from pathlib import Path
from threading import get_native_id
from typing import Any, NamedTuple

from fastloop._core import cpu_quota
from fastloop.base.checks import look_up

_ROOT = Path("/")
_SCARCE = 10  # memory is scarce if less than this part is available
_MOST_NODES = 64  # the bits of a set of nodes


def read_text(path: Path) -> str:
    """Return the text of a file, "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_table(path: Path) -> dict[str, int]:
    """Return the number that follows the first word of each line, for lines that have one."""
    lines = [line.split() for line in read_text(path).splitlines()]
    pairs = [words[:2] for words in lines if len(words) > 1 and words[1].isdigit()]
    return {name.rstrip(":"): int(number) for name, number in pairs}


def list_groups(controller: str, root: Path = _ROOT) -> list[Path]:
    """Return the folders of a controller's groups, of version 1 or 2, innermost first.

    Args:
        controller: "cpu" or "memory".
        root: the folder that holds proc and sys.
    """
    found: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        for name in (names, controller) if names else ("", "unified"):
            top = root / "sys/fs/cgroup" / name
            if not names and not (top / "cgroup.controllers").exists():
                continue  # not the top of version 2
            parts = Path(path.strip().lstrip("/"))
            folders = [top / part for part in (parts, *parts.parents)]
            found += [folder for folder in folders if folder.is_dir() and folder not in found]
    return found


# ---- CPUs


class Cpus(NamedTuple):
    """The CPUs that the machine has, that affinity allows, and that the cgroups pay for."""

    visible: int
    allowed: int
    quota: float  # infinity: no limit

    @property
    def usable(self) -> float:
        """CPU time that this process can have, in CPUs."""
        return min(float(self.allowed), self.quota)


def read_cpus(root: Path = _ROOT) -> Cpus:
    """Return how many CPUs there are and how many this process may use. ``_core.usable_cpus()``
    is the number of threads that can work at a time."""
    allowed = len(os.sched_getaffinity(0))
    return Cpus(os.cpu_count() or allowed, allowed, cpu_quota(str(root)))


def throttled_share(root: Path = _ROOT) -> float:
    """Return the share of scheduling periods in which a group had no CPU time left."""
    shares = [0.0]
    for folder in list_groups("cpu", root):
        table = read_table(folder / "cpu.stat")
        if periods := table.get("nr_periods"):
            shares.append(table.get("nr_throttled", 0) / periods)
    return max(shares)


# ---- nodes: parts of the machine with CPUs and memory of their own, for example two sockets


def _read_numbers(text: str) -> set[int]:
    """Return the numbers of a list such as "0-3,8", as Linux writes the CPUs of a node."""
    ends = [part.partition("-") for part in text.split(",") if part.strip()]
    return {n for first, _, last in ends for n in range(int(first), int(last or first) + 1)}


@functools.cache
def _read_all_nodes(root: Path) -> dict[int, set[int]]:
    """Return the CPUs of each node; nothing if the machine does not tell. Read once: new memory of
    batches should cost no look at files."""
    folder = root / "sys/devices/system/node"
    try:
        names = [name for name in os.listdir(folder) if name[:4] == "node" and name[4:].isdigit()]
        return {int(n[4:]): _read_numbers(read_text(folder / n / "cpulist")) for n in names}
    except (OSError, ValueError):
        return {}


def read_nodes(root: Path = _ROOT) -> dict[int, set[int]]:
    """Return the nodes on which this process may run, and its CPUs there. Empty: the whole machine
    is one node, or does not tell."""
    nodes = _read_all_nodes(root)
    if len(nodes) < 2:
        return {}
    allowed = os.sched_getaffinity(0)
    return {node: cpus & allowed for node, cpus in sorted(nodes.items()) if cpus & allowed}


def read_device_node(address: str, root: Path = _ROOT) -> int:
    """Return the node of a PCI device; -1: the machine does not tell.

    Args:
        address: domain, bus, device and function, for example "0000:3b:00.0".
    """
    text = read_text(root / "sys/bus/pci/devices" / address / "numa_node").strip()
    return int(text) if text.isdigit() else -1


def _find_near_node(device: int, root: Path) -> int:
    """Return the node that a CUDA device is attached to; -1: unknown."""
    import torch

    try:
        about: Any = torch.cuda.get_device_properties(device)
        address = f"{about.pci_domain_id:04x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0"
    except (AssertionError, AttributeError, RuntimeError):
        return -1
    return read_device_node(address, root)


def choose_nodes(device: int, root: Path = _ROOT) -> int:
    """Return the nodes for memory of batches, one bit each: the node of the CUDA device with this
    index, else all nodes on which this process may run. 0: Linux chooses.

    Args: device: -1: there is no device.
    """
    nodes = read_nodes(root)
    if len(nodes) < 2:
        return 0
    near = _find_near_node(device, root) if device >= 0 else -1
    chosen = {near} if near >= 0 else set(nodes)
    return sum(1 << node for node in chosen) if max(chosen) < _MOST_NODES else 0


# ---- memory


class Memory(NamedTuple):
    """The memory of the machine and of the cgroup with the least left, in bytes."""

    total: int
    available: int
    limit: int | None = None  # None: no group has a limit
    used: int = 0  # of the limit, without cached files, which the kernel drops if need be

    @property
    def left(self) -> int:
        """Bytes that this process can have without swapping."""
        room = self.available if self.limit is None else self.limit - self.used
        return max(0, min(self.available, room))

    @property
    def most(self) -> int:
        """Bytes that this process could have if nothing else ran."""
        return self.total if self.limit is None else min(self.total, self.limit)

    @property
    def lockable(self) -> int:
        """Bytes that may be locked: the rest can still be swapped or dropped."""
        return self.most - self.most // _SCARCE


def read_memory(root: Path = _ROOT) -> Memory:
    """Return the memory of the machine and of this process's cgroups."""
    table = read_table(root / "proc/meminfo")
    total, available = table.get("MemTotal", 0) << 10, table.get("MemAvailable", 1 << 20) << 10
    limits = []
    for folder in list_groups("memory", root):
        for name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = read_text(folder / name).strip(), read_text(folder / used_name).strip()
            if limit.isdigit() and used.isdigit() and int(limit) < 1 << 60:
                stat = read_table(folder / "memory.stat")
                names = ("inactive_file", "active_file")  # cached; "total_" before version 2
                cached = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in names)
                limits.append((int(limit), max(0, int(used) - cached)))
    if not limits:
        return Memory(total, available)
    return Memory(total, available, *min(limits, key=lambda pair: pair[0] - pair[1]))


def available_bytes() -> int:
    """Return the memory that this process can have without swapping, within its cgroups."""
    return read_memory().left


def oom_kills(root: Path = _ROOT) -> int:
    """Return how many processes of this process's cgroup were killed for lack of memory."""
    names = ("memory.events", "memory.oom_control")
    files = (folder / name for folder in list_groups("memory", root)[:1] for name in names)
    return max((read_table(file).get("oom_kill", 0) for file in files), default=0)


def describe_memory() -> str:
    """Return one sentence with the memory's figures, for errors."""
    memory, gib = read_memory(), 2**30
    text = f"{memory.available / gib:.1f} of {memory.total / gib:.1f} GiB of memory are available"
    if memory.limit is not None:
        text += f", and its cgroup uses {memory.used / gib:.1f} of {memory.limit / gib:.1f} GiB"
    return text


def explain_kill() -> str:
    """Return one sentence on the likely sender of SIGKILL, judged by the memory left now."""
    memory = read_memory()
    if memory.left < memory.most // _SCARCE:
        return f"Most likely the system was out of memory: {describe_memory()}"
    text = "A program or a user has killed it, or the system for lack of memory (see `dmesg`)"
    return f"{text}: {describe_memory()}"


def budget_of(loader: object, before: int = 0) -> int:
    """Return the loader's memory_budget in bytes; its default is `before`, or a quarter of the
    available memory, at least 64 MiB."""
    wanted: int | None = look_up(loader, "memory_budget")  # torch's loaders have none
    return wanted or before or max(64 << 20, available_bytes() // 4)


# ---- processes


def _read_size(file: str, name: str) -> int | None:
    """Return a size from a file below /proc, in bytes; None if it cannot be read."""
    found = read_table(Path("/proc", file)).get(name)
    return None if found is None else found << 10


def own_bytes(name: str) -> int | None:
    """Return a size from /proc/self/status: VmRSS, or VmHWM, its peak."""
    return _read_size("self/status", name)


def reset_own_peak() -> int | None:
    """Begin to count VmHWM anew and return the memory of now; None if the kernel refuses."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return own_bytes("VmRSS")


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process's threads, without its children; None if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock that clock_getcpuclockid(3) returns
    except OSError:
        return None


@functools.cache
def _open_own_schedule(thread: int) -> int:
    """Open a file of the calling thread once: opening takes ten times as long as reading."""
    return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def scheduled_ns(task: str = "") -> tuple[int, int] | None:
    """Return how long a thread ran, and how long the thread was ready without a CPU; waits for
    files, locks and sleep are in neither. None if the kernel does not say.

    Args:
        task: the thread's folder below /proc. A process's folder stands for its first thread;
            "" is the calling thread.
    """
    try:
        if task:
            data = Path("/proc", task, "schedstat").read_bytes()
        else:
            data = os.pread(_open_own_schedule(get_native_id()), 64, 0)
        ran, delayed, _ = map(int, data.split())
    except (OSError, ValueError):  # it has ended, or the kernel does not count
        return None
    return ran, delayed


def cpu_seconds_of_all() -> float:
    """Return the CPU time of this process and its children, also of those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(cpu_seconds(child.pid or 0) or 0.0 for child in active_children())
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def anonymous_bytes(pid: int) -> int | None:
    """Return the memory of a process without files and shared memory. Pages that a fork has not
    copied yet are divided among the processes. None if the process has ended, or the kernel does
    not say. The kernel looks at every page, which takes some 13 ms for each GiB."""
    return _read_size(f"{pid}/smaps_rollup", "Pss_Anon")


def pss_bytes_of_all() -> int:
    """Return the memory of this process and its children, as far as the kernel tells. Proportional
    set sizes are added: pages that processes share are divided among them."""
    pids = [os.getpid(), *(child.pid for child in active_children())]
    return sum(_read_size(f"{pid}/smaps_rollup", "Pss") or 0 for pid in pids)
