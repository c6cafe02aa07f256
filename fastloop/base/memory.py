"""How much memory the machine has, and how much of it this process may use."""

from __future__ import annotations

from pathlib import Path


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _read_table(path: str | Path) -> dict[str, int]:
    """The first number of each line, by the line's first word."""
    lines = (line.split() for line in _read(path).splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1}


def _meminfo(name: str, default: int) -> int:
    """A line of /proc/meminfo, in bytes."""
    return _read_table("/proc/meminfo").get(name, default >> 10) << 10


def _cgroup_folder() -> Path | None:
    """The folder of this process's cgroup, version 2."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].strip().lstrip("/")
    return None


def _file_cache(folder: Path) -> int:
    """Bytes of cached files: the group's use counts them, and the kernel drops them if need be."""
    found = _read_table(folder / "memory.stat")
    names = ("inactive_file", "active_file")
    return sum(found.get(f"total_{name}", found.get(name, 0)) for name in names)


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) in bytes, of this process's group and of those above it that have a limit."""
    found = []
    folder = _cgroup_folder()
    folders = [folder, *folder.parents] if folder is not None else []
    files = [(at, "memory.max", "memory.current") for at in folders]
    old = Path("/sys/fs/cgroup/memory")
    files.append((old, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    for at, limit, used in files:
        texts = _read(at / limit).strip(), _read(at / used).strip()
        if texts[0].isdigit() and texts[1].isdigit() and int(texts[0]) < 1 << 60:
            found.append((int(texts[0]), max(0, int(texts[1]) - _file_cache(at))))
    return found


def available_bytes() -> int:
    """Memory that this process can have without swapping, within the limits of its cgroups."""
    available = _meminfo("MemAvailable", 1 << 30)
    return max(0, min([available, *(limit - used for limit, used in _cgroup_limits())]))


def describe_memory() -> str:
    """One sentence with figures, for errors."""
    available, total = (_meminfo(name, 0) / 2**30 for name in ("MemAvailable", "MemTotal"))
    text = f"{available:.1f} of {total:.1f} GiB of memory are available now"
    for limit, used in _cgroup_limits()[:1]:
        text += f", and its cgroup uses {used / 2**30:.1f} of {limit / 2**30:.1f} GiB"
    return text


def budget_of(loader: object) -> int:
    """Its memory_budget in bytes; by default a quarter of the available memory, at least 64 MiB."""
    wanted: int | None = getattr(loader, "memory_budget", None)  # a torch loader has none
    return wanted or max(64 << 20, available_bytes() // 4)
