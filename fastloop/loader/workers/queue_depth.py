"""``prefetch_factor="auto"``: how many batches each worker is asked for ahead, as the loop needs
them. ``docs/tune.md`` has the rule."""

from __future__ import annotations

from typing import Any

AUTO = "auto"
_FIRST = 2  # torch's default
_DEEPEST = 16


class AutoDepth(int):
    """What a loader's ``prefetch_factor`` is then: torch's default to code that wants a number, and
    still ``"auto"`` to a loader that is made anew from it."""

    def __new__(cls, value: int = _FIRST) -> AutoDepth:
        return super().__new__(cls, value)


def read_depth(wanted: Any, workers: int) -> Any:
    """What torch's constructor is to get for a loader's argument."""
    if wanted != AUTO:
        return wanted
    return AutoDepth() if workers > 0 else None


class QueueDepth:
    """Grows by one where the loop had to wait although a whole queue of batches had come without a
    wait since the last change: workers are fast enough on average, and uneven. Where they are too
    slow, more depth would help nothing.

    Args:
        workers: how many there are.
        budget: bytes that batches under way may take.
        value: batches for each worker, to begin with.
    """

    def __init__(self, workers: int, budget: int, value: int = _FIRST) -> None:
        self.value = value
        self._workers = workers
        self._budget = budget
        self._batch_bytes = 0
        self.start_epoch()

    def start_epoch(self) -> None:
        """The first batch is waited for in any case."""
        self._unwaited = 0
        self._was_full = False

    def take(self) -> None:
        """The loop has taken a batch that was there."""
        self._unwaited += 1
        self._was_full |= self._unwaited >= self.value * self._workers

    def wait(self, batch_bytes: int) -> None:
        """The loop has waited for a batch."""
        self._unwaited = 0
        self._batch_bytes = max(self._batch_bytes, batch_bytes)
        if self._was_full and self.value < _DEEPEST and self._has_room(self.value + 1):
            self.value += 1
            self._was_full = False
        while self.value > _FIRST and not self._has_room(self.value):
            self.value -= 1

    def _has_room(self, value: int) -> bool:
        return value * self._workers * self._batch_bytes <= self._budget
