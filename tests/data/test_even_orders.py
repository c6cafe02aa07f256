"""Orders of ShuffleSampler and LengthBucketBatchSampler are as even as torch.randperm's, which the
same tests take as a control. Seeds are fixed, so each figure is the same in every run."""

from collections.abc import Callable, Iterator
from math import factorial

import numpy as np
import pytest
import torch

from fastloop import LengthBucketBatchSampler, ShuffleSampler

Orders = Callable[[int, int], Iterator[np.ndarray]]
LIMIT = 4.5  # standard deviations: 1 in 300 000 of either side


def torchs(n: int, count: int) -> Iterator[np.ndarray]:
    generator = torch.Generator().manual_seed(n)
    for _ in range(count):
        yield torch.randperm(n, generator=generator).numpy()


def over_epochs(n: int, count: int) -> Iterator[np.ndarray]:
    sampler = ShuffleSampler(n, seed=1)
    for epoch in range(count):
        sampler.set_epoch(epoch)
        yield torch.cat(list(sampler.blocks())).numpy()


def over_seeds(n: int, count: int) -> Iterator[np.ndarray]:
    for seed in range(count):
        yield torch.cat(list(ShuffleSampler(n, seed=seed).blocks())).numpy()


def of_buckets(n: int, count: int) -> Iterator[np.ndarray]:
    """Samples of one length, which stay as they were shuffled."""
    sampler = LengthBucketBatchSampler([3] * n, batch_size=n)
    for epoch in range(count):
        sampler.set_epoch(epoch)
        (batch,) = sampler
        yield np.array(batch)


def deviations(counts: np.ndarray) -> float:
    """By how many standard deviations chi-square is off what even counts would give."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    freedom = counts.size - 1
    return (chi_square - freedom) / (2 * freedom) ** 0.5


def is_even(order: np.ndarray) -> bool:
    """Whether an even number of exchanges makes it."""
    left, cycles = order.tolist(), 0
    for begin in range(len(left)):
        cycles += left[begin] >= 0
        at = begin
        while left[at] >= 0:
            left[at], at = -1, left[at]
    return (len(left) - cycles) % 2 == 0


each_source = pytest.mark.parametrize("orders", [torchs, over_epochs, over_seeds, of_buckets])


@each_source
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_each_permutation_comes_as_often(n: int, orders: Orders) -> None:
    weights = n ** np.arange(n)
    seen = np.array([int(order @ weights) for order in orders(n, 28 * factorial(n))])
    kinds, counts = np.unique(seen, return_counts=True)
    assert len(kinds) == factorial(n)
    assert abs(deviations(counts)) < LIMIT


@each_source
@pytest.mark.parametrize("n", [7, 32, 128, 512])
def test_each_index_comes_first_as_often(n: int, orders: Orders) -> None:
    first = [order[0] for order in orders(n, 12 * n)]
    assert abs(deviations(np.bincount(first, minlength=n))) < LIMIT


@each_source
@pytest.mark.parametrize(("n", "count"), [(6, 6000), (32, 4000), (128, 4000), (512, 1500)])
def test_each_index_follows_each_other_as_often(n: int, count: int, orders: Orders) -> None:
    pairs = np.zeros(n * n, int)
    for order in orders(n, count):
        pairs[order[:-1] * n + order[1:]] += 1
    counts = pairs.reshape(n, n)[~np.eye(n, dtype=bool)]
    assert abs(deviations(counts)) < LIMIT


@each_source
@pytest.mark.parametrize("n", [4, 8, 12, 64, 512])
def test_half_of_the_orders_are_even(n: int, orders: Orders) -> None:
    even = sum(is_even(order) for order in orders(n, 600))
    assert abs(even - 300) < LIMIT * (600 / 4) ** 0.5


# ---- orders that are not listed


@pytest.mark.parametrize("orders", [torchs, over_epochs])
@pytest.mark.parametrize("n", [4096, 4097, 8192, 20_000])
def test_neighbours_of_a_large_order_are_any(n: int, orders: Orders) -> None:
    apart = np.zeros(n, int)
    for order in orders(n, 200):
        apart += np.bincount((order[1::2] - order[: len(order) // 2 * 2 : 2]) % n, minlength=n)
    assert apart[0] == 0
    assert abs(deviations(apart[1:])) < LIMIT


def test_half_of_the_orders_of_a_large_power_of_two_are_even() -> None:
    assert 15 < sum(is_even(order) for order in over_epochs(8192, 60)) < 45
