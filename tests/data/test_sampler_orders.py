"""ShuffleSampler(shuffle=False), BlockShuffleSampler, and indices that are dealt in runs."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch.utils.data.distributed import DistributedSampler

from fastloop import BlockShuffleSampler, DataLoader, ShuffleSampler


def taken(sampler: ShuffleSampler, count: int) -> list[int]:
    rows = iter(sampler)
    return [next(rows) for _ in range(count)]


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_ranks_in_order_are_as_with_torchs_distributed_sampler(count: int, world: int) -> None:
    for rank in range(world):
        sampler = ShuffleSampler(count, shuffle=False, num_replicas=world, rank=rank)
        theirs = DistributedSampler(range(count), world, rank, shuffle=False) if count else []
        assert list(sampler) == list(theirs) and len(sampler) == len(theirs)


def test_an_order_needs_no_list() -> None:
    sampler = ShuffleSampler(10**15, shuffle=False, num_replicas=10, rank=3)
    rows = sampler.iter_from(10**13)
    assert [next(rows) for _ in range(5000)] == list(range(10**14 + 3, 10**14 + 50_003, 10))


def test_runs_are_neighbours_of_each_global_batch() -> None:
    draw = random.Random(1)
    for _ in range(60):
        count, world, size = draw.randrange(1, 90), draw.randrange(1, 6), draw.randrange(1, 7)
        given: dict[str, Any] = {"shuffle": draw.random() < 0.5, "num_replicas": world, "seed": 4}
        order = list(ShuffleSampler(count, shuffle=given["shuffle"], seed=4))
        ranks = []
        for rank in range(world):
            sampler = ShuffleSampler(count, rank=rank, deal="runs", batch_size=size, **given)
            ranks.append(list(sampler))
            assert len(ranks[-1]) == len(sampler) == -(-count // world)
            assert torch.cat([*sampler.blocks()]).tolist() == ranks[-1]
            first = draw.randrange(len(sampler) + 1)
            assert list(sampler.iter_from(first)) == ranks[-1][first:]
        had = 0
        for step in range(0, len(ranks[0]), size):
            together = [i for rank in ranks for i in rank[step : step + size]]
            assert together == (order * 6)[had : had + len(together)]
            had += len(together)
        assert count <= had < count + world


@pytest.mark.parametrize("path", ["array", "torch"])
def test_a_loader_tells_its_batch_size(path: str) -> None:
    data = torch.arange(20)
    sampler = ShuffleSampler(data, shuffle=False, deal="runs", num_replicas=2, rank=1)
    for size in (2, 5):
        batches = [batch.tolist() for batch in DataLoader(data, size, sampler=sampler, path=path)]
        assert batches == [list(range(at + size, at + 2 * size)) for at in range(0, 20, 2 * size)]


def test_a_batch_size_that_is_absent_or_different() -> None:
    sampler = ShuffleSampler(20, deal="runs")
    with pytest.raises(ValueError, match="batch_size must be given with deal='runs', got None"):
        list(sampler)
    sampler = ShuffleSampler(20, deal="runs", batch_size=3)
    assert len(list(sampler)) == 20
    with pytest.raises(ValueError, match="batch_size must be the sampler's, 3, got 4"):
        iter(DataLoader(torch.arange(20), 4, sampler=sampler))
    with pytest.raises(ValueError, match="deal must be one of 'stride', 'runs', got 'rows'"):
        ShuffleSampler(20, deal="rows")


# ---- BlockShuffleSampler


def test_blocks_are_a_permutation_that_can_begin_anywhere() -> None:
    draw = random.Random(2)
    for _ in range(150):
        count, block, opened = draw.randrange(0, 200), draw.randrange(1, 20), draw.randrange(1, 9)
        sampler = BlockShuffleSampler(count, block, opened, seed=draw.randrange(99))
        sampler.set_epoch(draw.randrange(99))
        order = list(sampler)
        assert sorted(order) == list(range(count)), (count, block, opened)
        first = draw.randrange(count + 1)
        assert list(sampler.iter_from(first)) == order[first:]
        if count:
            other = copy.copy(sampler)
            other.num_replicas, other.rank = 3, 1
            assert list(other) == (order * 3)[1::3][: -(-count // 3)]


def test_open_blocks_are_read_together() -> None:
    count, block, opened = 1003, 10, 4
    sampler = BlockShuffleSampler(count, block, opened)
    orders = []
    for epoch in range(40):
        sampler.set_epoch(epoch)
        orders.append(order := list(sampler))
        groups, at = [], 0
        while at < count:  # a group has 40 indices, one has the short block too, the last one 20
            rows = order[at : at + 43]
            size = 43 if len({i // block for i in rows}) <= 5 and 1002 in rows else 40
            size = min(size, count - at)
            groups.append({i // block for i in order[at : at + size]})
            at += size
        assert sum(map(len, groups)) == 101, "each block belongs to one group"
    assert len({tuple(order) for order in orders}) == 40
    assert len({order.index(1002) // 40 for order in orders}) > 10, "the short block moves"
    assert len({order[0] for order in orders}) > 20


def test_blocks_of_a_large_corpus_take_no_list() -> None:
    sampler = BlockShuffleSampler(10**15, num_replicas=4, rank=3)
    rows = taken(sampler, 4096)
    assert len(set(rows)) == 4096 and len({i // 16 for i in rows}) <= 1024
    assert max(rows) - min(rows) > 10**14


def test_bad_blocks() -> None:
    for given in ({"block": 0}, {"open_blocks": 0}):
        name = next(iter(given))
        with pytest.raises(ValueError, match=f"{name} must be an int in \\[1, .*, got 0"):
            BlockShuffleSampler(9, **given)
