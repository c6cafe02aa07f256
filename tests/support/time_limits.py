"""How long a test waits at most. Limits are given in seconds of an idle machine, and grow with what
other programs take of the CPUs. Tests, their programs and the runner of the C tests import this."""

import os
from pathlib import Path

MOST = 30  # times as long: a test that hangs must end on a busy machine, too


def limit(seconds: float, root: Path = Path("/proc")) -> float:
    """Return how many seconds now are worth `seconds` on an idle machine, at least as many. A loop
    that waits asks in each of its turns, because the load may come later."""
    return seconds * max(1.0, min(MOST, max(count_tasks(root), share_of_waiting(root))))


def count_tasks(root: Path) -> float:
    """Return how many tasks want each CPU: the mean of the last minute, or now, if that is more."""
    load, _, _, tasks, _ = (root / "loadavg").read_text().split()
    return max(float(load), float(tasks.partition("/")[0])) / len(os.sched_getaffinity(0))


def share_of_waiting(root: Path) -> float:
    """Return how long this process has wanted a CPU for each second that it had one. Its priority
    counts here, which the load does not show."""
    had, waited, _ = map(int, (root / "self/schedstat").read_text().split())
    return (had + waited) / max(had, 10_000_000)  # a new process has no history
