"""Which dead workers of an iterator get a successor (``on_worker_death="restart"``).

Knows neither processes nor memory: it counts what workers have died of. Used by the thread that
iterates.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

# Deaths in a row before a worker's first batch, of which the last is not followed by a successor:
# what exits there will do so again; what kills at random may well hit young processes.
_MOST_EXITS, _MOST_KILLS = 2, 10


def is_batch(task: Any) -> bool:
    """Whether a task is (number, indices), not an order to begin an epoch."""
    return isinstance(task, tuple)


class Restarts:
    """The deaths of one iterator's workers."""

    def __init__(self) -> None:
        self._deadly: set[int] = set()  # batches of this epoch that a worker has died at
        self._early: Counter[int] = Counter()  # by worker: deaths in a row before a batch

    def start_epoch(self) -> None:
        self._deadly.clear()

    def find_fault(self, worker: int, code: int | None, taken: int, task: Any) -> str:
        """Counts a death, once; why nobody is to take the dead worker's place, or "".

        Args:
            worker: its number.
            code: its exit code, negative for a signal; None: unknown.
            taken: requests that this process has taken.
            task: the one that it was at, or None.
        """
        if taken == 0 or (task is not None and not is_batch(task)):
            self._early[worker] += 1
            is_exit = code is not None and code >= 0
            if self._early[worker] < (_MOST_EXITS if is_exit else _MOST_KILLS):
                return ""
            times = self._early[worker]
            return f"worker {worker} has died {times} times in a row before it could begin a batch"
        self._early[worker] = 0
        if task is None:
            return ""
        if task[0] in self._deadly:
            return f"batch {task[0]} has been loaded twice, and both workers have died at it"
        self._deadly.add(task[0])
        return ""
