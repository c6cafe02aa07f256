"""What the machine has in memory, and what this process may have of it."""

from __future__ import annotations

from pathlib import Path


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    lines = (line.split() for line in _read("/proc/meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}


def _cgroup_folder() -> Path | None:
    """The folder of this process's group, cgroup version 2."""
    for line in _read("/proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            return Path("/sys/fs/cgroup") / line[3:].strip().lstrip("/")
    return None


def _file_cache(folder: Path) -> int:
    """Bytes of files that the group's use counts and the kernel drops when memory is short."""
    words = (line.split() for line in _read(folder / "memory.stat").splitlines())
    found = dict(pair for pair in words if len(pair) == 2)
    names = ("inactive_file", "active_file")
    return sum(int(found.get(f"total_{name}", found.get(name, 0))) for name in names)


def _cgroup_limits() -> list[tuple[int, int]]:
    """(limit, used) in bytes, of the group and all above it that have a limit."""
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
    """Memory that can be had without swapping and within the limits of the cgroup."""
    available = _meminfo().get("MemAvailable", 1 << 30)
    return max(0, min([available, *(limit - used for limit, used in _cgroup_limits())]))


def describe_memory() -> str:
    """One sentence with figures, for errors."""
    info = _meminfo()
    available, total = (info.get(name, 0) / 2**30 for name in ("MemAvailable", "MemTotal"))
    text = f"{available:.1f} of {total:.1f} GiB of memory are available now"
    for limit, used in _cgroup_limits()[:1]:
        text += f", and its cgroup uses {used / 2**30:.1f} of {limit / 2**30:.1f} GiB"
    return text


def budget_of(loader: object) -> int:
    """Its memory_budget in bytes; by default a quarter of the available memory, at least 64 MiB."""
    wanted: int | None = getattr(loader, "memory_budget", None)  # a torch loader has none
    return wanted or max(64 << 20, available_bytes() // 4)
