"""The statistics of compare: medians, ratios of pairs, their intervals and the words for them."""

from __future__ import annotations

import random

import pytest

from fastloop.tools.compare.runs import judge, median_of, ratio_of


def noisy(around: float, seed: int, spread: float = 0.05) -> list[float]:
    draw = random.Random(seed)
    return [around * (1 + spread * draw.uniform(-1, 1)) for _ in range(9)]


def test_the_interval_holds_the_median_of_what_was_drawn() -> None:
    figures = [median_of(noisy(7.0, seed)) for seed in range(100)]
    assert sum(figure.low <= 7 <= figure.high for figure in figures) >= 90
    figure = median_of([3.0] * 9)
    assert (figure.median, figure.low, figure.high) == (3.0, 3.0, 3.0)


def test_a_ratio_is_of_pairs() -> None:
    """A machine that slows down slows both."""
    ours = [1.0, 2.0, 4.0, 8.0, 16.0, 1.5, 3.0, 6.0, 12.0]
    figure = ratio_of([3 * of for of in ours], ours)
    assert (figure.median, figure.low, figure.high) == pytest.approx((3, 3, 3))


def test_what_is_alike_is_no_difference() -> None:
    for spread, verdict in ((0.01, "no difference"), (0.05, "cannot tell")):
        pairs = ((noisy(1, seed, spread), noisy(1, seed + 999, spread)) for seed in range(40))
        assert [judge(ratio_of(*pair)) for pair in pairs].count(verdict) >= 34
    assert judge(ratio_of(noisy(2, 1), noisy(1, 2))).endswith("x")
    assert judge(ratio_of(noisy(1, 1), noisy(2, 2))).startswith("0.")
