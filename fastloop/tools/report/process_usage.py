"""What processes use: memory and CPU time, as the kernel counts it. None where that cannot be
read."""

from __future__ import annotations

import os
import resource
import time


def pss_bytes(pid: int) -> int | None:
    """Its proportional set size: pages that processes share are divided among them."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    return None


def cpu_seconds(pid: int) -> float | None:
    """CPU time of all its threads, user and system, without its children."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # what clock_getcpuclockid(3) makes of it
    except OSError:
        return None


def runnable_ns(task: str) -> int | None:
    """How long a thread was on a CPU or waited for one, so not for files, locks or sleep.

    Args:
        task: its folder below /proc; a process's is its first thread's.
    """
    try:
        with open(f"/proc/{task}/schedstat") as file:
            on_cpu, delayed, _ = map(int, file.read().split())
    except (OSError, ValueError):  # it has ended, or the kernel does not count
        return None
    return on_cpu + delayed


def find_descendants(pid: int) -> list[int]:
    """The processes that it has started, and theirs, that have not been waited for."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                # The program's name, in parentheses, may have spaces.
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
        children.setdefault(parent, []).append(int(name))
    found = children.get(pid, [])
    for child in found:
        found += children.get(child, [])
    return found


def cpu_seconds_of_all() -> float:
    """CPU time of this process and its descendants, those included that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = map(cpu_seconds, find_descendants(os.getpid()))
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(t or 0.0 for t in running)


def pss_bytes_of_all() -> int | None:
    """Memory of this process and its descendants."""
    own = pss_bytes(os.getpid())
    if own is None:
        return None
    return own + sum(pss_bytes(pid) or 0 for pid in find_descendants(os.getpid()))
