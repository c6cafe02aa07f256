"""Budget: a time for all cases of ``bench`` together, kept by division and not by luck."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TimeIsOverError(Exception):
    """Of this case."""


class Budget:
    """Each case may take an equal part of what the cases before it have left.

    Args:
        seconds: for all of them; ``math.inf`` is no limit.
        cases: how many there will be.
        clock: seconds.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        cases: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._cases = cases
        self._end = self._end_of_case = clock() + seconds

    def begin_case(self) -> None:
        now = self._clock()
        self._end_of_case = now + (self._end - now) / max(1, self._cases)
        self._cases -= 1

    def left(self) -> float:
        """Seconds of this case; below 0 where it has taken too long."""
        return self._end_of_case - self._clock()

    def demand(self, seconds: float = 0.0) -> None:
        """Raises TimeIsOverError where so much is not left."""
        if self.left() <= seconds:
            raise TimeIsOverError
