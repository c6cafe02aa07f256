"""CostBatchSampler: each window is planned by its rule, each sample comes once, ranks have equal
costs, and any number of ranks goes on where others have stopped."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch

from fastloop import CostBatchSampler, RaggedArray, _core

Batches = list[list[int]]


def lengths_of(count: int, longest: int = 300, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).lognormal(4, 1.0, count)
    return np.clip(drawn, 1, longest).astype(np.int64)


def ranks_of(world: int, lengths: Any, most: int, **given: Any) -> list[CostBatchSampler]:
    given["num_replicas"] = world
    return [CostBatchSampler(lengths, most, rank=rank, **given) for rank in range(world)]


def batches_of(samplers: list[CostBatchSampler], epoch: int = 0) -> list[Batches]:
    """What each rank yields."""
    for sampler in samplers:
        sampler.set_epoch(epoch)
    found = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(batches) for batches in found]
    assert len({len(batches) for batches in found}) == 1
    return found


def count_of(ranks: list[Batches]) -> Counter[int]:
    return Counter(i for batches in ranks for batch in batches for i in batch)


# ---- the plan of a window


def cost_of(step: Batches, costs: Any) -> list[float]:
    return [sum(costs[i] for i in batch) for batch in step]


def plan(lengths: Any, costs: Any, world: int, most: int) -> list[Batches]:
    """The rule, word by word: long steps, then LPT. A window with samples for whole steps."""
    left = sorted(range(len(lengths)), key=lambda i: (-costs[i], -lengths[i], i))
    steps = []
    while len(left) >= 2 * world:
        tokens, cost = sum(lengths[i] for i in left), sum(costs[i] for i in left)
        mean = cost / (world * max(1, -(-int(tokens * 1.02) // (most * world))))
        if costs[left[0]] <= mean / 2:
            break
        wanted, step = max(costs[left[0]], mean), [[left.pop(0)] for _ in range(world)]
        for batch in step:
            while (had := sum(costs[i] for i in batch)) < wanted * (1 - 0.002):
                room = most - sum(lengths[i] for i in batch)
                fits = (i for i in left if costs[i] <= wanted - had and lengths[i] <= room)
                if (found := next(fits, None)) is None:
                    break
                left.remove(found)
                batch.append(found)
        steps.append(step)
    count = max(1, -(-sum(lengths[i] for i in left) // (most * world))) * world
    while (bins := spread(left, lengths, costs, count, most)) is None:
        count += world
    bins.sort(key=lambda batch: -sum(costs[i] for i in batch))
    return steps + [bins[i : i + world] for i in range(0, count, world)]


def spread(left: list[int], lengths: Any, costs: Any, count: int, most: int) -> Batches | None:
    bins: Batches = [[] for _ in range(count)]
    for i in left:
        fits = [b for b in bins if sum(lengths[j] for j in b) + lengths[i] <= most]
        if not fits:
            return None
        min(fits, key=lambda b: sum(costs[j] for j in b)).append(i)
    return bins


def planned(lengths: Any, costs: Any, world: int, *limits: Any) -> list[Batches]:
    order, ends = np.empty((2, len(lengths) + world), np.int64)
    count = _core.balance_window(lengths, costs, order, ends, world, *limits)
    batches = [order[i:j].tolist() for i, j in pairwise([0, *ends[:count]])]
    return [batches[i : i + world] for i in range(0, count, world)]


@pytest.mark.parametrize("case", range(40))
def test_a_window_is_planned_by_the_rule(case: int) -> None:
    rng = np.random.default_rng(case)
    world, longest = 1 + case % 5, int(rng.choice([30, 300]))
    lengths = lengths_of(int(rng.integers(60, 200)), longest, case)
    costs = (16 * lengths + lengths**2).astype(float)  # whole numbers, so all sums are exact
    most = int(longest * rng.choice([1, 1.5, 4]))
    expected = plan(lengths.tolist(), costs.tolist(), world, most)
    steps = planned(lengths, costs, world, 1, most, False)
    if all(batch for step in expected for batch in step):
        assert steps == expected
    taken = [i for step in steps for batch in step for i in batch]
    assert sorted(set(taken)) == list(range(len(lengths)))


@pytest.mark.parametrize("case", range(60))
def test_windows_of_any_costs(case: int) -> None:
    """Costs that do not grow with the length, that are equal or 0."""
    rng = np.random.default_rng(case)
    world, size, drop_last = 1 + case % 4, int(rng.integers(1, 4)), case % 2 == 1
    lengths = rng.integers(0, 50, rng.integers(0, 80))
    kinds: list[Any] = [rng.random, np.ones, np.zeros, lambda n: rng.integers(0, 2, n)]
    kinds.append(lambda n: 1 / (1 + lengths))
    costs = kinds[case % 5](len(lengths)).astype(float)
    most = int(rng.integers(50, 150))
    steps = planned(lengths, costs, world, size, most, drop_last)
    batches = [batch for step in steps for batch in step]
    assert len(batches) % (world * size if drop_last else world) == 0
    for batch in batches:
        assert batch and lengths[batch].sum() <= most
        assert (np.diff(costs[batch]) <= 0).all()
    count = Counter(i for batch in batches for i in batch)
    if drop_last:
        assert set(count.values()) <= {1} and len(lengths) - count.total() < world * size
    else:
        assert sorted(count) == list(range(len(lengths)))
        assert count.total() - len(lengths) < world
        assert count.total() == len(lengths) or len(batches) == count.total()


def test_vectors_that_are_too_short() -> None:
    room, short = np.zeros(3, np.int64), np.zeros(2, np.int64)
    for order, ends, costs in ((short, room, 2), (room, short, 2), (room, room, 1)):
        with pytest.raises(ValueError, match="balance_window: a vector is too short"):
            _core.balance_window(short, np.ones(costs), order, ends, 1, 1, 9, False)


# ---- epochs


@pytest.mark.parametrize("case", range(80))
def test_each_sample_comes_once_and_ranks_are_alike(case: int) -> None:
    rng = random.Random(case)
    world, longest = rng.choice([1, 2, 3, 8, 17, 64]), rng.choice([1, 60, 300])
    count = rng.choice([world, world + 1, 90, 700])
    lengths = lengths_of(max(count, world), longest, case)
    most = rng.choice([longest, longest + 1, 3 * longest, 10**9])
    given = {
        "window": rng.choice([1, 50, 200, 16_384]),
        "accumulate": rng.choice([1, 2, 5]),
        "drop_last": rng.random() < 0.3,
        "shuffle": rng.random() < 0.7,
        "seed": case,
        "cost": rng.choice([(1.0, 0.01), (0, 1), lengths % 7 + 0.5, np.sqrt]),
    }
    samplers = ranks_of(world, lengths, most, **given)
    ranks = batches_of(samplers, case)
    for batch in (batch for batches in ranks for batch in batches):
        assert batch and lengths[batch].sum() <= most and all(type(i) is int for i in batch)
    taken = count_of(ranks)
    if given["drop_last"]:
        assert set(taken.values()) <= {1}
        assert len(lengths) - taken.total() < world * given["accumulate"]
        assert len(ranks[0]) % given["accumulate"] == 0
    else:
        assert sorted(taken) == list(range(len(lengths)))
        assert taken.total() - len(lengths) < world
    for first in {0, 1, len(ranks[0]) // 2, len(ranks[0])}:
        if first <= len(ranks[0]):
            assert list(samplers[-1].iter_from(first)) == ranks[-1][first:]


def test_epochs_and_seeds_differ_and_repeat() -> None:
    lengths = lengths_of(500)

    def order(epoch: int, **given: Any) -> Batches:
        sampler = CostBatchSampler(lengths, 900, window=100, **given)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0) == order(0) != order(1) != order(1, seed=1)
    assert order(0, shuffle=False) == order(1, shuffle=False) != order(0)
    in_order = [i for batch in order(0, shuffle=False) for i in batch]
    assert set(in_order[:100]) == set(range(100))
    sampler = CostBatchSampler(lengths, 900, window=100)
    assert list(sampler) == order(0)
    sampler.max_tokens = 1000  # settings may change between epochs
    assert list(sampler) == list(CostBatchSampler(lengths, 1000, window=100)) != order(0)
    sampler.max_tokens = 299
    with pytest.raises(ValueError, match=r"max_tokens must be an int in \[300, .*, got 299"):
        list(sampler)
    sampler.max_tokens = 1000
    copied = pickle.loads(pickle.dumps(sampler))
    assert list(copied) == list(sampler) and copied.fingerprint == sampler.fingerprint


def test_a_short_last_window_belongs_to_the_one_before() -> None:
    """Alone, its sample would come on both ranks."""
    ranks = batches_of(ranks_of(2, np.full(101, 5), 50, window=100, shuffle=False))
    assert sorted(count_of(ranks).elements()) == list(range(101))


def test_the_most_expensive_step_of_a_window_is_its_first() -> None:
    lengths = lengths_of(2000, 2000)
    costs = lengths + lengths**2 / 500
    ranks = batches_of(ranks_of(4, lengths, 4000, cost=costs, window=10**6))
    steps = [max(cost_of(list(step), costs)) for step in zip(*ranks, strict=True)]
    assert steps[0] == max(steps) and steps != sorted(steps, reverse=True)


def test_ranks_take_turns() -> None:
    """Batches of a step are sorted by cost, so a rank that kept its place would have more."""
    costs = np.random.default_rng(0).random(6400)
    ranks = batches_of(ranks_of(4, np.full(6400, 5), 5, cost=costs))
    sums = [sum(cost_of(batches, costs)) for batches in ranks]
    assert max(sums) / min(sums) < 1.01
    dearest = Counter(np.argmax(cost_of(list(step), costs)) for step in zip(*ranks, strict=True))
    assert len(dearest) == 4 and min(dearest.values()) > 300


def test_other_processes_have_the_same_order() -> None:
    code = (
        "import numpy as np, zlib; from fastloop import CostBatchSampler\n"
        "lengths = np.arange(3000) * 7919 % 911 + 1\n"
        "sampler = CostBatchSampler(lengths, 5000, window=500, num_replicas=3, rank=1, seed=4)\n"
        "print(zlib.crc32(repr(list(sampler)).encode()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert run.stdout == b"3534595533\n"  # so it was when this test was written


# ---- equal costs

LAWS = {
    "tuning": lambda rng, n: np.clip(rng.lognormal(6, 0.9, n), 8, 8192),
    "long tail": lambda rng, n: np.clip(rng.lognormal(6, 1.3, n), 8, 32_768),
    "rollouts": lambda rng, n: np.clip(rng.gamma(1.5, 2000, n), 16, 16_384),
}


def time_of_ideal(ranks: list[Batches], costs: Any, size: int = 1) -> float:
    """The sum over the steps of the slowest rank's cost, divided by the mean rank's."""
    table = np.array([cost_of(batches, costs) for batches in ranks])
    steps = np.add.reduceat(table, np.arange(0, table.shape[1], size), axis=1)
    return float(steps.max(0).sum() / steps.mean(0).sum())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("world", "size", "most"), [(8, 1, 1.001), (64, 1, 1.02), (8, 4, 1.001)])
def test_ranks_have_equal_costs(law: str, world: int, size: int, most: float) -> None:
    lengths = LAWS[law](np.random.default_rng(0), 32_768).astype(np.int64)
    costs = (lengths + lengths**2 / 24_576).tolist()
    ranks = batches_of(ranks_of(world, lengths, 65_536, accumulate=size))
    assert time_of_ideal(ranks, costs, size) <= most


def test_explain_tells_how_equal_the_costs_are() -> None:
    lengths = lengths_of(4000, 2000)
    text = CostBatchSampler(lengths, 8000, accumulate=2, num_replicas=4, rank=1).explain()
    found = re.fullmatch(
        r"the first window: 4,000 samples in (\d+) steps of 4 ranks with 2 batches each\n"
        r"the slowest rank costs (1\.\d{4}) times the mean rank\n"
        r"batches have (\d+\.\d)% of 8,000 tokens",
        text,
    )
    assert found, text
    ranks = batches_of(ranks_of(4, lengths, 8000, accumulate=2))
    costs = (lengths + lengths**2 / 24_576).tolist()
    assert int(found[1]) * 2 == len(ranks[0])
    assert float(found[2]) == pytest.approx(time_of_ideal(ranks, costs, 2), abs=1e-4)
    full = lengths.sum() / (4 * len(ranks[0]) * 8000)
    assert float(found[3]) == pytest.approx(full * 100, abs=0.1)
    few = CostBatchSampler([9], 9, accumulate=2, drop_last=True)
    assert (few.explain(), list(few)) == ("the first window has no whole step", [])


# ---- packed rows


class PackedRows:
    """Rows of 2048 tokens as a PackedDataset has them: other ones in each epoch."""

    seq_len = 2048

    def __init__(self, rows: int) -> None:
        self.rows, self.epoch, self.asked = rows, 0, list[int]()

    def _epoch_now(self) -> int:
        return self.epoch

    def __len__(self) -> int:
        return self.rows - self.epoch

    def row_costs(self, first: int, count: int, cost: Any = (1.0, 1 / 24_576)) -> Any:
        assert 0 <= first < first + count <= len(self)
        self.asked.append(count)
        pieces = np.random.default_rng(self.epoch).integers(1, 2048, len(self))
        lengths = np.stack([pieces, 2048 - pieces])[:, first : first + count].astype(float)
        each = cost(lengths) if callable(cost) else cost[0] * lengths + cost[1] * lengths**2
        return each.sum(0)


def test_packed_rows_cost_the_same_and_come_by_the_window() -> None:
    rows = PackedRows(3000)
    ranks = ranks_of(4, rows, 5000, cost=lambda n: n + n**2 / 500, accumulate=2)
    for epoch in (0, 1):
        rows.epoch, rows.asked = epoch, []
        found = batches_of(ranks, epoch)
        taken = count_of(found)
        assert sorted(taken) == list(range(3000 - epoch)) and taken.total() - len(taken) < 4
        assert max(rows.asked) < 2 * 64 * 16
        costs = rows.row_costs(0, len(rows), lambda n: n + n**2 / 500).tolist()
        assert time_of_ideal(found, costs, 2) < 1.01
        first = [i for batches in found for batch in batches[:128] for i in batch]
        assert sorted(first) == list(range(64 * 16))  # rows that are packed together are near


def test_packed_rows_go_on_on_other_ranks() -> None:
    rows = PackedRows(1000)
    first = [list(islice(s, 40)) for s in ranks_of(4, rows, 4096)]
    second = [list(islice(s.iter_from(0, [[4, 1, 40]]), 70)) for s in ranks_of(3, rows, 4096)]
    dealt = [[4, 1, 40], [3, 1, 70]]
    third = [list(s.iter_from(0, dealt)) for s in ranks_of(5, rows, 4096)]
    had = count_of(first) + count_of(second) + count_of(third)
    assert sorted(had) == list(range(1000)) and had.total() - 1000 < 5


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ValueError, "max_tokens must be an int >= 2048, got 2000 .rows have so many", (2000,)),
        (TypeError, r"cost must be \(a, b\) for .*, got \[1.0, 2.0\]", (2048, [1.0, 2.0])),
        (ValueError, r"cost\[0\] must be finite and >= 0, got nan", (2048, lambda n: n * np.nan)),
        (ValueError, "lengths must have a sample for each of 20 ranks, got 9 samples", (2048,)),
    ],
)
def test_packed_rows_that_are_refused(error: Any, text: str, arguments: Any) -> None:
    most, cost = (*arguments, (1, 1))[:2]
    with pytest.raises(error, match=text):
        world = 20 if "ranks" in text else 2
        list(CostBatchSampler(PackedRows(9), most, cost=cost, num_replicas=world, rank=0))


# ---- what is refused


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ValueError, r"lengths\[1\] must be an int in \[0, 4\], got 5 .raise max_", ([1, 5], 4)),
        (ValueError, r"lengths\[0\] must be an int in \[0, 4\], got -1", ([-1, 5], 4)),
        (TypeError, "lengths must be integers, got dtype float64", ([1.0], 4)),
        (ValueError, "max_tokens must be an int in .*, got 0", ([1], 0)),
        (TypeError, "max_tokens must be an int in .*, got None", ([1], None)),
        (ValueError, "lengths must have a sample for each of 1 ranks, got 0 samples", ([], 4)),
    ],
)
def test_arguments_that_are_wrong(error: type[Exception], text: str, arguments: Any) -> None:
    with pytest.raises(error, match=text):
        CostBatchSampler(*arguments)


@pytest.mark.parametrize(
    ("error", "text", "given"),
    [
        (ValueError, "lengths must have a sample for each of 4 ranks, got 3 samples",
         {"num_replicas": 4, "rank": 0}),
        (ValueError, "window must be an int in .*, got 0", {"window": 0}),
        (TypeError, "accumulate must be an int in .*, got 1.5", {"accumulate": 1.5}),
        (ValueError, "accumulate must be an int in .*, got 0", {"accumulate": 0}),
        (ValueError, r"cost\[1\] must be finite and >= 0, got nan", {"cost": [1, np.nan, -1]}),
        (ValueError, r"cost\[2\] must be finite and >= 0, got -1.0", {"cost": [1, 2, -1]}),
        (ValueError, r"cost\[0\] must be finite and >= 0, got inf",
         {"cost": lambda n: np.full(len(n), np.inf)}),
        (ValueError, "cost must be above 0 for a sample, got 0 for all", {"cost": [0, 0, 0]}),
        (ValueError, "cost must be above 0 for a sample, got 0 for all", {"cost": (0, 0.0)}),
        (ValueError, r"cost\[0\] must be a number >= 0, got -1", {"cost": (-1, 1)}),
        (ValueError, r"cost\[1\] must be a number >= 0, got nan", {"cost": (1, float("nan"))}),
        (ValueError, r"cost\[0\] must be finite .* got inf", {"cost": (1e308, 1e308)}),
        (ValueError, r"cost must be \(a, b\) for .* got \(1,\)", {"cost": (1,)}),
        (ValueError, r"cost must be \(a, b\) for .* got \('1', 2\)", {"cost": ("1", 2)}),
        (TypeError, "cost must be a vector with a number for each of the 3 samples, got shape "
         r"\(2,\) of float64 .or \(a, b\)", {"cost": [1.0, 2.0]}),
        (TypeError, r"got shape \(3, 1\) of int64", {"cost": np.ones((3, 1), int)}),
        (TypeError, r"got shape \(3,\) of <U1", {"cost": ["a", "b", "c"]}),
        (TypeError, r"got shape \(\) of object", {"cost": None}),
        (TypeError, r"got shape \(\) of object", {"cost": lambda n: None}),
        (TypeError, r"got shape \(3,\) of bool", {"cost": np.ones(3, bool)}),
    ],
)  # fmt: skip
def test_options_that_are_wrong(error: type[Exception], text: str, given: Any) -> None:
    with pytest.raises(error, match=text):
        CostBatchSampler([9, 9, 9], 10, **given)
    for first in (-1, 10):
        with pytest.raises(ValueError, match=r"has [03] items and cannot begin after"):
            CostBatchSampler([9, 9, 9], 10).iter_from(first)


@pytest.mark.parametrize("kind", [list, torch.tensor, np.array, np.float32])
def test_costs_of_any_kind(kind: Any) -> None:
    lengths = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = list(CostBatchSampler(lengths, 10, cost=[n + n * n / 2 for n in lengths]))
    assert list(CostBatchSampler(lengths, 10, cost=(1, 0.5))) == expected
    given = kind([n + n * n / 2 for n in lengths])
    ragged = RaggedArray.from_list([[0] * n for n in lengths])
    assert list(CostBatchSampler(ragged, 10, cost=given)) == expected

    def cost(n: Any) -> Any:
        n *= 2  # of its own copy
        return n / 2 + n * n / 8

    assert list(CostBatchSampler(torch.tensor(lengths), 10, cost=cost)) == expected


# ---- other ranks


def test_any_ranks_go_on_at_any_batch() -> None:
    """Ranks die at random, and others take what is left: no sample is read twice."""
    draw = random.Random(0)
    for case in range(30):
        count = draw.randrange(70, 600)
        lengths = lengths_of(count, 300, case)
        given: Any = {"window": draw.choice([1, 40, 150, 10**5]), "seed": case}
        given["shuffle"] = draw.random() < 0.8
        dealt: list[list[int]] = []
        deaths = 0
        had: Counter[int] = Counter()
        while True:
            world, size = draw.randrange(1, 9), draw.randrange(1, 4)
            samplers = ranks_of(world, lengths, 900, accumulate=size, **given)
            for sampler in samplers:
                sampler.set_epoch(case)
            total = samplers[0].length_of(case, dealt)
            batches = draw.randrange(1, total + 1) if total and deaths < 5 else total
            deaths += 1
            found = []
            for sampler in samplers:
                assert sampler.length_of(case, dealt) == total
                restart = draw.randrange(batches + 1)  # this rank dies once more on the way
                first = list(islice(sampler.iter_from(0, dealt), restart))
                again = pickle.loads(pickle.dumps(sampler)).iter_from(restart, dealt)
                found.append(first + list(islice(again, batches - restart)))
            assert {len(each) for each in found} == {batches}
            now = count_of(found)
            assert not had & now
            had += now
            if batches == total:
                break
            dealt, before = [*samplers[0].shorten(dealt, case, batches)], 0
            if dealt and len(dealt[0]) == 2:
                before, dealt[0] = dealt[0][1], [dealt[0][0], 0]
            dealt.append([world, size, batches - before])
        assert sorted(had) == list(range(count)) and had.total() - count < world


@pytest.mark.parametrize("seed", range(4))
def test_samples_come_twice_in_the_last_step_alone(seed: int) -> None:
    for batches in range(1, 9):
        first = ranks_of(3, [5] * 25, 5, accumulate=3, seed=seed)
        rest = ranks_of(3, [5] * 25, 5, seed=seed)
        had = count_of([list(islice(sampler, batches)) for sampler in first])
        assert had.total() == len(had)
        had += count_of([list(s.iter_from(0, [[3, 3, batches]])) for s in rest])
        assert sorted(had) == list(range(25)) and had.total() == 27


def test_the_rest_of_a_window_is_balanced_with_the_next_samples() -> None:
    lengths = lengths_of(4000, 2000)
    costs = (lengths + lengths**2 / 24_576).tolist()
    for batches in (3, 7):
        samplers = ranks_of(3, lengths, 8000, window=800)
        rest = [list(sampler.iter_from(0, [[8, 1, batches]])) for sampler in samplers]
        assert time_of_ideal(rest, costs) < 1.01
