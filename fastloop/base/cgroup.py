"""The control groups that this process is in, of version 1 and 2, and what they limit it to.

Nested groups limit together, so the one of the process and all above it count. In a container the
path that the kernel names may lie outside of what is mounted; the mounted top is the group then."""

from __future__ import annotations

from pathlib import Path

_TOP = "sys/fs/cgroup"
_V2_MARK = "cgroup.controllers"  # a file of version 2 alone


def read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def read_table(path: Path) -> dict[str, int]:
    """The number behind the first word of each line that has one."""
    lines = (line.split() for line in read_text(path).splitlines())
    return {
        words[0].rstrip(":"): int(words[1])
        for words in lines
        if len(words) > 1 and words[1].isdigit()
    }


def find_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders of a controller's groups, this process's first, then those above it.

    Args:
        controller: "cpu" or "memory".
        root: in whose /proc and /sys to look.
    """
    found: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        tops = (names, controller) if names else ("", "unified")
        for top in (root / _TOP / name for name in tops):
            parts = Path(path.strip().lstrip("/"))
            folders = [top / part for part in (parts, *parts.parents)]
            is_fitting = bool(names) or (top / _V2_MARK).exists()
            found += [f for f in folders if is_fitting and f.is_dir() and f not in found]
    return found


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time that the groups allow; None without a limit."""
    allowed = []
    for folder in find_groups("cpu", root):
        words = read_text(folder / "cpu.max").split() or [
            read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            allowed.append(int(words[0]) / int(words[1]))
    return min(allowed, default=None)


def throttled_share(root: Path = Path("/")) -> float | None:
    """The share of its periods in which the group ran out of CPU time; None without periods."""
    shares = []
    for folder in find_groups("cpu", root):
        table = read_table(folder / "cpu.stat")
        if periods := table.get("nr_periods", 0):
            shares.append(table.get("nr_throttled", 0) / periods)
    return max(shares, default=None)


def memory_limits(root: Path = Path("/")) -> list[tuple[int, int]]:
    """(limit, used) in bytes of each group that has a limit, without cached files, which the kernel
    drops if need be."""
    found = []
    for folder in find_groups("memory", root):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            texts = read_text(folder / limit).strip(), read_text(folder / used).strip()
            if texts[0].isdigit() and texts[1].isdigit() and int(texts[0]) < 1 << 60:
                found.append((int(texts[0]), max(0, int(texts[1]) - _file_cache(folder))))
    return found


def _file_cache(folder: Path) -> int:
    table = read_table(folder / "memory.stat")
    names = ("inactive_file", "active_file")
    return sum(table.get(f"total_{name}", table.get(name, 0)) for name in names)


def oom_kills(root: Path = Path("/")) -> int:
    """Processes of this process's group that were killed for want of memory."""
    names = ("memory.events", "memory.oom_control")
    files = (folder / name for folder in find_groups("memory", root)[:1] for name in names)
    return max((read_table(file).get("oom_kill", 0) for file in files), default=0)
