"""What rounds of a benchmark say: medians, their intervals, whether two differ, and how that is
shown."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_DRAWS = 2000
_LEVEL = 0.95
_ALIKE = 0.03  # what a ratio may be off 1 by, and be no difference


@dataclass(frozen=True)
class Figure:
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


def _middle(values: list[float]) -> tuple[float, float]:
    """The interval that has 95 % of them."""
    values.sort()
    cut = round(len(values) * (1 - _LEVEL) / 2)
    return values[cut], values[-1 - cut]


def median_of(rounds: Sequence[float]) -> Figure:
    """The median of rounds, and its bootstrap interval (Efron 1979, percentiles; a fixed seed)."""
    draw = random.Random(len(rounds))
    drawn = [statistics.median(draw.choices(rounds, k=len(rounds))) for _ in range(_DRAWS)]
    return Figure(statistics.median(rounds), *_middle(drawn))


def ratio_of(theirs: Sequence[float], ours: Sequence[float]) -> Figure:
    """How many times the median of ours goes into that of theirs. Rounds are drawn in pairs: what
    was measured side by side has met the same noise."""
    pairs = list(zip(theirs, ours, strict=True))
    draw = random.Random(len(pairs))
    drawn = []
    for _ in range(_DRAWS):
        some = draw.choices(pairs, k=len(pairs))
        drawn.append(
            statistics.median(pair[0] for pair in some)
            / statistics.median(pair[1] for pair in some)
        )
    return Figure(statistics.median(theirs) / statistics.median(ours), *_middle(drawn))


def judge(ratio: Figure) -> str:
    """A wide interval around 1 is no evidence of anything."""
    if ratio.low >= 1 - _ALIKE and ratio.high <= 1 + _ALIKE:
        return "no difference"
    return "cannot tell" if ratio.has(1.0) else f"{ratio.median:.3g}x"
