"""Checks of the machine and the container: CPUs, memory, /dev/shm, limits, data on disks."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from fastloop.base.cgroup import cpu_quota, memory_limits, oom_kills, read_table, throttled_share
from fastloop.tools.doctor.finding import Finding, Level, System

_MUCH_LOAD = 1.5  # runnable tasks a CPU
_MUCH_WAITING = 25  # percent
_OWN_FILES = 64  # of a program that loads data
_FILES_A_WORKER = 4  # torch's own take as many, fastloop's two; batches that are held take more
_LITTLE_SHM = 1 << 30
_LITTLE_MEMORY = 2 << 30
_FEW_FILES = 4096
_COLD_READ = 64 << 20  # bytes read by the probe, at most
_LEAST_READ = 1 << 20  # bytes; of fewer it is the time of a seek, and not the speed
_SLOW_READ = 200e6  # bytes/s
_NETWORK = ("nfs", "cifs", "smb", "lustre", "ceph", "gpfs", "beegfs", "9p", "virtiofs", "fuse")


def gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def check_cpus(system: System, workers: int | None = None) -> Finding:
    """CPUs that are there, allowed by affinity, and paid for by the container."""
    visible, allowed, quota = _cpus(system)
    usable = usable_cpus(system)
    fact = f"{visible} CPUs visible, {allowed} allowed by the affinity"
    if quota is not None:
        fact += f", {quota:g} by the container's quota"
    share = throttled_share(system.root)
    if share is not None and share >= 0.01:
        fact += f"; it was throttled in {share:.0%} of its periods"
    fix = (
        f"num_workers={max(1, int(usable))} at most for work on the CPU; or allow more (docker run "
        "--cpus, --cpuset-cpus)"
    )
    if workers is not None and workers > usable:
        cost = f"num_workers={workers} asks for {workers / usable:.1f} times what there is"
        return Finding("cpus", Level.WARN, fact, cost, fix)
    if share is not None and share >= 0.05:
        cost = "the process stands still until the next period, workers and training alike"
        return Finding("cpus", Level.WARN, fact, cost, fix)
    if usable < visible:
        cost = f"programs that count CPUs start workers and threads for {visible}"
        return Finding("cpus", Level.NOTE, fact, cost, fix)
    return Finding("cpus", Level.OK, fact)


def check_load(system: System) -> Finding:
    """Whether others want the CPUs as well."""
    visible, _, _ = _cpus(system)
    load = float((system.read("proc/loadavg").split() or ["0"])[0])
    found = re.search(r"some avg10=([\d.]+)", system.read("proc/pressure/cpu"))
    waits = float(found[1]) if found else 0.0
    fact = f"load {load:.1f} on {visible} CPUs"
    if found:
        fact += f"; something waited for a CPU {waits:.0f}% of the last 10 s"
    if load <= _MUCH_LOAD * visible and waits < _MUCH_WAITING:
        return Finding("load", Level.OK, fact)
    cost = "workers and training share the CPUs with others; what is measured now is noise"
    return Finding("load", Level.WARN, fact, cost, "end what is not needed (top shows it)")


def usable_cpus(system: System) -> float:
    """CPUs' worth of time that this process can have."""
    _, allowed, quota = _cpus(system)
    return allowed if quota is None else min(float(allowed), quota)


def _cpus(system: System) -> tuple[int, int, float | None]:
    """(visible, allowed by the affinity, quota)"""
    visible = _count(system.read("sys/devices/system/cpu/online")) or os.cpu_count() or 1
    allowed = _count(system.field("proc/self/status", "Cpus_allowed_list:")) or visible
    return visible, allowed, cpu_quota(system.root)


def _count(text: str) -> int:
    """Of a list as the kernel writes it: 0-3,8."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return sum(int(last) - int(first) + 1 for first, *_, last in ([*e, e[-1]] for e in ends))


def check_memory(system: System) -> Finding:
    """What the host and the container have, and whether processes were killed for want of it."""
    table = read_table(system.root / "proc/meminfo")
    total, left = (table.get(name, 0) << 10 for name in ("MemTotal", "MemAvailable"))
    fact = f"{gib(left)} of {gib(total)} available"
    limits = memory_limits(system.root)
    if limits:
        limit, used = min(limits, key=lambda pair: pair[0] - pair[1])
        left = min(left, limit - used)
        fact += f"; the container uses {gib(used)} of {gib(limit)}"
    kills = oom_kills(system.root)
    fix = "fewer workers, a smaller prefetch_factor or memory_budget; or allow more (docker run -m)"
    if kills:
        fact += f"; {kills} of its processes were killed for want of memory"
        cost = "a killed worker ends the epoch"
        return Finding("memory", Level.WARN, fact, cost, f"{fix}; on_worker_death='restart'")
    if total and left < _LITTLE_MEMORY:
        return Finding("memory", Level.WARN, fact, "workers may be killed", fix)
    if limits and limits[0][0] < total:
        cost = "programs that look at the host's memory plan with too much"
        return Finding("memory", Level.NOTE, fact, cost, "plan with the container's")
    return Finding("memory", Level.OK, fact)


def check_shared_memory(system: System, workers: int | None = None) -> Finding:
    """/dev/shm, through which torch's own worker processes send tensors."""
    try:
        total, free = system.space(system.root / "dev/shm")
    except OSError as error:
        fact = f"/dev/shm cannot be used: {error.strerror}"
        cost = "torch's own worker processes cannot send tensors"
        return Finding("shared memory", Level.WARN, fact, cost, "docker run --shm-size=8g")
    fact = f"/dev/shm has {gib(free)} of {gib(total)} free"
    if free < _LITTLE_SHM:
        among = "" if not workers else f", which {workers} workers share"
        return Finding(
            "shared memory",
            Level.WARN,
            fact + among,
            "torch's own workers end with 'Bus error' once it is full; fastloop's do not use it",
            "docker run --shm-size=8g, or --ipc=host; or a fastloop.DataLoader",
        )
    return Finding("shared memory", Level.OK, fact)


def check_limits(system: System, workers: int | None = None) -> Iterator[Finding]:
    """Locked memory, where ranks may talk over RDMA, and open files."""
    locked = _soft_limit(system, "Max locked memory")
    has_ranks = system.environ.get("WORLD_SIZE", "1") != "1"
    if locked is None:
        yield Finding("locked memory", Level.OK, "no limit is known")
    elif not has_ranks:
        yield Finding("locked memory", Level.OK, f"at most {gib(locked)} may be locked")
    else:
        yield Finding(
            "locked memory",
            Level.NOTE,
            f"at most {gib(locked)} may be locked",
            "RDMA (UCX, NCCL over InfiniBand) cannot register more",
            "docker run --ulimit memlock=-1, if ranks talk over RDMA",
        )
    files = _soft_limit(system, "Max open files")
    needed = _OWN_FILES + _FILES_A_WORKER * (workers or 0)
    if files is not None and files < needed:
        yield Finding(
            "open files",
            Level.WARN,
            f"{files} files may be open at a time, and {workers} workers take about {needed}",
            "workers cannot be started: Too many open files",
            f"ulimit -n {max(65536, 2 * needed)}, or fewer workers",
        )
    elif files is not None and files < _FEW_FILES:
        yield Finding(
            "open files",
            Level.NOTE,
            f"{files} files may be open at a time",
            "torch's own workers keep a descriptor open for each tensor of a batch that is held",
            "ulimit -n 65536",
        )
    else:
        yield Finding("open files", Level.OK, f"{files or 'any number of'} files may be open")


def _soft_limit(system: System, name: str) -> int | None:
    words = system.field("proc/self/limits", name).split()
    return int(words[0]) if words and words[0].isdigit() else None


# ---- data


def check_data(system: System, path: str) -> Finding:
    """The file system of a file or folder, and how fast a file there is read that is not cached."""
    where = Path(path).resolve()
    kind, device = _find_mount(system, where)
    fact = f"{_without_home(system, path)} is on {kind or 'an unknown file system'} ({device})"
    try:
        size, seconds = _read_cold(system, where)
    except OSError as error:
        fact = f"{_without_home(system, path)} cannot be read: {error.strerror}"
        return Finding("data", Level.FAIL, fact, "nothing can be loaded", "pass a path with data")
    if not size:
        fact += ", without a file to read"
        return Finding("data", Level.NOTE, fact, "", "pass a file, or a folder with files")
    if size < _LEAST_READ and not kind.startswith(_NETWORK):
        fact += f"; its files are too small to tell its speed ({seconds * 1e3:.1f} ms for one)"
        return Finding("data", Level.OK, fact)
    speed = size / max(seconds, 1e-9)
    fact += f"; {gib(size)} read cold at {speed / 1e6:,.0f} MB/s"
    if speed < _SLOW_READ:
        cost = f"a batch of 38 MB takes {38e6 / speed:.1f} s the first time, whatever loads it"
        fix = "copy the data to a local disk, or keep it in memory"
        return Finding("data", Level.WARN, fact, cost, fix)
    if kind.startswith(_NETWORK):
        cost = "many small files are slow over a network, even if a large one is not"
        return Finding("data", Level.NOTE, fact, cost, "few large files, or a copy on a local disk")
    return Finding("data", Level.OK, fact)


def _find_mount(system: System, where: Path) -> tuple[str, str]:
    """(type, device) of the mount that a path lies in."""
    best, found = -1, ("", "no mount is known")
    for line in system.read("proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        words, kinds = before.split(), after.split()
        if len(words) < 5 or len(kinds) < 2:
            continue
        mount = Path(words[4].replace("\\040", " "))
        if (where == mount or mount in where.parents) and len(mount.parts) >= best:
            best, found = len(mount.parts), (kinds[0], kinds[1])
    return found


def _read_cold(system: System, where: Path) -> tuple[int, float]:
    """(bytes, seconds) of reading the first part of a file whose pages were dropped before."""
    file = _find_file(where)
    if file is None:
        return 0, 0.0
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, _COLD_READ, os.POSIX_FADV_DONTNEED)
        begin, size = system.clock(), 0
        while size < _COLD_READ and (part := os.read(descriptor, 1 << 20)):
            size += len(part)
        return size, system.clock() - begin
    finally:
        os.close(descriptor)


def _find_file(where: Path) -> Path | None:
    """The largest of the first regular files below a folder; the path itself if it is a file."""
    if not stat.S_ISDIR(where.stat().st_mode):
        return where
    first: list[Path] = []
    for folder, _, names in os.walk(where):
        first += [at for name in sorted(names)[:100] if (at := Path(folder, name)).is_file()]
        if len(first) >= 100:
            break
    return max(first, key=lambda at: at.stat().st_size, default=None)


def _without_home(system: System, path: str) -> str:
    home = system.environ.get("HOME", "")
    return f"~{path[len(home) :]}" if len(home) > 1 and path.startswith(home) else path
