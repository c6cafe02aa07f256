"""LengthBucketBatchSampler and ShuffleSampler: the order, the shares of ranks, and every loader."""

import copy
import itertools
import pickle
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import bits
from torch.utils.data.distributed import DistributedSampler

from fastloop import CostBatchSampler, LengthBucketBatchSampler, ShuffleSampler, _core

Batches = list[list[int]]
ROUTES = ["array", "sync", "torch"]


def lengths_of(count: int, longest: int = 200, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, longest + 1, count)


def of_ranks(world: int, lengths: Any, epoch: int = 0, **kwargs: Any) -> list[Batches]:
    """What each rank yields."""
    made = []
    for rank in range(world):
        sampler = LengthBucketBatchSampler(lengths, num_replicas=world, rank=rank, **kwargs)
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(sampler) == len(batches)
        assert all(type(i) is int for batch in batches for i in batch)
        made.append(batches)
    return made


def steps_of(ranks: list[Batches]) -> Batches:
    """The samples of each step: rank r has every world-th of them."""
    assert len({len(batches) for batches in ranks}) == 1
    steps = []
    for batches in zip(*ranks, strict=True):
        assert len({len(batch) for batch in batches}) == 1
        steps.append([i for each in zip(*batches, strict=True) for i in each])
    return steps


def permutation(count: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return _core.Permutation(count, seed, epoch).block(0, count).tolist()


def grouped_by_hugging_face(lengths: Any, shuffled: list[int], batch_size: int, mult: int) -> Any:
    """transformers' get_length_grouped_indices up to where it puts the longest first."""
    size = mult * batch_size
    cut = [shuffled[i : i + size] for i in range(0, len(shuffled), size)]
    sort = [sorted(mega, key=lambda i: lengths[i], reverse=True) for mega in cut]
    flat = [i for mega in sort for i in mega]
    return [flat[i : i + batch_size] for i in range(0, len(flat), batch_size)]


# ---- the order of LengthBucketBatchSampler


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("count", "mult", "used"), [(1000, 5, 5), (100, 50, 4), (30, 50, 1)])
def test_it_groups_as_hugging_faces_sampler(world: int, count: int, mult: int, used: int) -> None:
    lengths = lengths_of(count, 30)
    size = 6 * world
    expected = grouped_by_hugging_face(
        lengths, permutation(count, 7, 3), size, max(min(used, count // (4 * size)), 1)
    )
    whole = [step for step in expected if len(step) == size]
    longest = max(range(len(whole)), key=lambda step: lengths[whole[step][0]])
    whole[0], whole[longest] = whole[longest], whole[0]
    given = {"batch_size": 6, "mega_batch_mult": mult, "seed": 7, "drop_last": True}
    assert steps_of(of_ranks(world, lengths, 3, **given)) == whole


@pytest.mark.parametrize("case", range(60))
def test_steps_of_any_shape(case: int) -> None:
    rng = random.Random(case)
    count, longest, world = rng.choice([0, 1, 2, 7, 50, 333]), rng.choice([0, 1, 40]), 1 + case % 4
    lengths = lengths_of(count, longest, case)
    size = rng.choice([None, 1, 5])
    most = rng.choice([max(longest, 1), 100, 257]) if size is None or rng.random() < 0.5 else None
    drop_last = rng.random() < 0.5
    kwargs = {"mega_batch_mult": rng.choice([1, 3, 50]), "shuffle": rng.random() < 0.7}
    ranks = of_ranks(world, lengths, case, batch_size=size, max_tokens=most, drop_last=drop_last,
                     **kwargs)  # fmt: skip
    steps = steps_of(ranks)

    def fits(longest: int) -> int:
        """Samples of a batch."""
        sizes = [] if size is None else [size]
        return min(sizes if most is None else [*sizes, most // max(longest, 1)])

    incomplete = []
    for number, step in enumerate(steps):
        in_step = lengths[step]
        assert (np.diff(in_step) <= 0).all() or len(set(step)) < len(step)
        whole = world * fits(in_step.max())
        assert len(step) <= whole
        if len(step) < whole or len(set(step)) < len(step):
            incomplete.append(number)
    for batch in (batch for batches in ranks for batch in batches):
        assert len(batch) > 0
        assert most is None or max(lengths[batch]) * len(batch) <= most
    if steps:
        assert max(lengths[step].max() for step in steps) == lengths[steps[0]].max()
    taken = Counter(i for step in steps for i in step)
    if drop_last:
        assert incomplete == [] and set(taken.values()) <= {1}
        left = sorted(set(range(count)) - set(taken), key=lambda i: -lengths[i])
        assert not left or len(left) < world * fits(lengths[left[0]])
    else:
        assert len(incomplete) <= 1 and sorted(taken) == list(range(count))
        assert taken.total() - count < world
        repeated = {i for i, times in taken.items() if times > 1}
        assert not repeated or repeated <= set(steps[incomplete[0]])


def test_what_is_repeated_is_of_the_last_step() -> None:
    """Not the longest of all: beside short ones that could be more than max_tokens."""
    lengths = [9, 1, 1, 1, 1]
    steps = steps_of(of_ranks(3, lengths, max_tokens=9, mega_batch_mult=1))
    assert [len(step) for step in steps] == [3, 3] and steps[0].count(0) == 1
    assert sorted(Counter(steps[1]).values()) == [1, 2]


def test_the_ranks_have_neighbours_in_length_in_each_step() -> None:
    lengths = np.random.default_rng(5).permutation(5000)
    ranks = of_ranks(4, lengths, batch_size=8)
    longest = np.array([[lengths[batch].max() for batch in batches] for batches in ranks])
    # Neighbours in a mega-batch of 32 * 39 samples are 4 apart, and there are 3 pairs of them.
    # With batches of consecutive samples it would be 8 times that. The last step is of 8 samples.
    assert np.ptp(longest[:, :-1], axis=0).mean() < 20


def test_a_step_of_few_tokens_is_filled_from_the_next_mega_batch() -> None:
    lengths = lengths_of(4000)
    for epoch in range(3):
        (batches,) = of_ranks(1, lengths, epoch, max_tokens=2000, mega_batch_mult=2)
        used = [lengths[batch].max() * len(batch) for batch in batches]
        assert sum(n < 1700 for n in used) <= 1 + sum(lengths[b].max() > 150 for b in batches)


def test_without_shuffle_the_order_is_by_length() -> None:
    lengths = lengths_of(100)
    (batches,) = of_ranks(1, lengths, 0, batch_size=7, shuffle=False)
    assert [i for batch in batches for i in batch] == np.argsort(-lengths, kind="stable").tolist()
    assert of_ranks(1, lengths, 5, batch_size=7, shuffle=False) == [batches]


def test_the_order_depends_on_seed_and_epoch_each() -> None:
    lengths = lengths_of(200)
    cases = list(itertools.product((0, 1), (0, 1)))
    seen = [of_ranks(1, lengths, epoch, batch_size=8, seed=seed)[0] for seed, epoch in cases]
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])
    assert of_ranks(1, lengths, 1, batch_size=8, seed=1)[0] == seen[-1]
    sampler = LengthBucketBatchSampler(lengths, 8, seed=1)
    torchs = bits(torch.get_rng_state())
    sampler.set_epoch(1)
    assert list(sampler) == list(sampler) == seen[-1]
    sampler.set_epoch(0)
    assert list(sampler) == seen[-2]
    assert bits(torch.get_rng_state()) == torchs


def test_an_iterator_keeps_its_epoch() -> None:
    sampler = LengthBucketBatchSampler(lengths_of(200), max_tokens=500)
    whole = list(sampler)
    begun = iter(sampler)
    sampler.set_epoch(1)
    assert list(begun) == whole != list(sampler)


def test_settings_that_change_change_the_order() -> None:
    sampler = LengthBucketBatchSampler(lengths_of(100), batch_size=8)
    before = len(sampler)
    sampler.batch_size = 4
    assert len(sampler) == len(list(sampler)) == 25 != before


def test_the_length_is_that_of_the_epoch() -> None:
    lengths = lengths_of(3000)
    sampler = LengthBucketBatchSampler(lengths, max_tokens=1000, mega_batch_mult=3)
    counts = []
    for epoch in range(12):
        sampler.set_epoch(epoch)
        counts.append(len(sampler))
        assert counts[-1] == len(list(sampler))
    assert len(set(counts)) > 1
    assert [sampler.length_of(epoch) for epoch in range(12)] == counts


class _Ragged:
    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths


@pytest.mark.parametrize(
    "convert",
    [list, tuple, np.ndarray.tolist, torch.from_numpy, _Ragged, lambda a: a.astype(np.uint16)],
)
def test_lengths_of_any_kind(convert: Any) -> None:
    lengths = lengths_of(100)
    expected = list(LengthBucketBatchSampler(lengths, 8))
    assert list(LengthBucketBatchSampler(convert(lengths), 8)) == expected


def test_lengths_are_a_copy() -> None:
    lengths = lengths_of(100)
    sampler = LengthBucketBatchSampler(lengths, 8)
    before = list(sampler)
    lengths[:] = 0
    sampler.set_epoch(1)
    list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == before


@pytest.mark.parametrize(
    "change", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_copies_are_equal(change: Any) -> None:
    for sampler in (
        LengthBucketBatchSampler(lengths_of(100), max_tokens=300, num_replicas=2, rank=1),
        ShuffleSampler(100, seed=3, num_replicas=2, rank=1),
    ):
        sampler.set_epoch(4)
        expected = list(sampler)
        made = change(sampler)
        assert list(made) == expected and made.epoch == 4


def test_frameworks_find_set_epoch() -> None:
    sampler = LengthBucketBatchSampler([1, 2, 3], 2)
    assert sampler.sampler is sampler and type(sampler.epoch) is int


# ---- ShuffleSampler


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 4096, 9001])
def test_ranks_share_a_permutation_as_with_torchs_distributed_sampler(
    count: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = permutation(count, 5, 2)
    assert sorted(order) == list(range(count))
    monkeypatch.setattr(torch, "randperm", lambda n, generator: torch.tensor(order))
    for rank in range(world):
        sampler = ShuffleSampler(count, seed=5, num_replicas=world, rank=rank)
        sampler.set_epoch(2)
        theirs = list(DistributedSampler(range(count), world, rank)) if count else []
        assert list(sampler) == theirs and len(sampler) == len(theirs)
        assert torch.cat([torch.tensor([]).long(), *sampler.blocks()]).tolist() == theirs


def test_a_shuffle_depends_on_seed_and_epoch_each() -> None:
    seen = []
    for seed in (0, 1):
        for epoch in (0, 1):
            sampler = ShuffleSampler(range(50), seed=seed)
            sampler.set_epoch(epoch)
            seen.append(list(sampler))
    assert all(a != b for i, a in enumerate(seen) for b in seen[:i])


@pytest.mark.parametrize("world", [1, 3, 1000])
def test_memory_does_not_grow_with_the_length(world: int) -> None:
    count = 10**15
    sampler = ShuffleSampler(count, num_replicas=world, rank=world - 1)
    assert len(sampler) == -(-count // world)
    rows = sampler.iter_from(len(sampler) // 2)
    taken = [next(rows) for _ in range(5000)]
    assert len(set(taken)) == 5000 and min(taken) >= 0 and max(taken) < count
    assert max(taken) > count * 0.9


# ---- anywhere in an epoch


def make_bucket(kind: str, **kwargs: Any) -> LengthBucketBatchSampler:
    limit: dict[str, Any] = {"batch_size": 7} if kind == "size" else {"max_tokens": 700}
    return LengthBucketBatchSampler(lengths_of(150), mega_batch_mult=2, **limit, **kwargs)


@pytest.mark.parametrize("kind", ["size", "tokens"])
@pytest.mark.parametrize("world", [1, 2])
def test_batches_can_begin_anywhere(kind: str, world: int) -> None:
    sampler = make_bucket(kind, num_replicas=world, rank=world - 1)
    sampler.set_epoch(3)
    whole = list(sampler)
    for first in range(len(whole) + 1):
        assert list(sampler.iter_from(first)) == whole[first:]


@pytest.mark.parametrize(("count", "world"), [(10, 1), (10, 4), (9000, 2)])
def test_shuffles_can_begin_anywhere(count: int, world: int) -> None:
    sampler = ShuffleSampler(count, num_replicas=world, rank=world - 1)
    whole = list(sampler)
    for first in {0, 1, 2, len(whole) - 1, len(whole), min(4096, len(whole))}:
        assert list(sampler.iter_from(first)) == whole[first:]
        rest = [i for block in sampler.blocks(first) for i in block.tolist()]
        assert rest == whole[first:]


@pytest.mark.parametrize("sampler", [LengthBucketBatchSampler([3, 1], 2), ShuffleSampler(1)])
@pytest.mark.parametrize("first", [-1, 2])
def test_places_that_are_not_there(sampler: Any, first: int) -> None:
    with pytest.raises(ValueError, match="has 1 items and cannot begin after"):
        sampler.iter_from(first)


# ---- ranks


@pytest.fixture
def third_of_four() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "make",
    [
        lambda **given: ShuffleSampler(9, **given),
        lambda **given: LengthBucketBatchSampler([3] * 9, 2, **given),
        lambda **given: CostBatchSampler([3] * 9, 9, **given),
    ],
)
class TestRanks:
    def test_one_without_a_process_group(self, make: Any) -> None:
        assert (make().num_replicas, make().rank) == (1, 0)
        assert (make(num_replicas=1).num_replicas, make(rank=0).rank) == (1, 0)

    @pytest.mark.usefixtures("third_of_four")
    def test_those_of_the_process_group(self, make: Any) -> None:
        assert (make().num_replicas, make().rank) == (4, 2)
        assert (make(num_replicas=8).num_replicas, make(num_replicas=8).rank) == (8, 2)
        assert (make(rank=1).num_replicas, make(rank=1).rank) == (4, 1)

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            ({"num_replicas": 2}, "rank must be given with num_replicas=2, got None"),
            ({"num_replicas": 2, "rank": 2}, r"rank must be an int in \[0, 1\], got 2"),
            ({"rank": 1}, r"rank must be an int in \[0, 0\], got 1 .pass num_replicas"),
            ({"rank": -1}, r"rank must be .* got -1"),
            ({"num_replicas": 0}, "num_replicas must be an int >= 1, got 0"),
            ({"seed": -1}, r"seed must be an int in \[0, .* got -1"),
            ({"seed": 2**64}, "seed must be .* got 18446744073709551616"),
        ],
    )
    def test_wrong_ones(self, make: Any, given: dict[str, int], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            make(**given)

    def test_what_is_no_number(self, make: Any) -> None:
        for name in ("num_replicas", "rank", "seed"):
            for value in ("1", 1.0, True):
                with pytest.raises(TypeError, match=f"{name} must be an int.*, got {value!r}"):
                    make(**{name: value})

    def test_epochs_that_are_none(self, make: Any) -> None:
        for epoch in (-1, 2**32):
            with pytest.raises(ValueError, match=rf"must be an int in .*, got {epoch} "):
                make().set_epoch(epoch)


# ---- bad input


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (ValueError, "batch_size or max_tokens must be given", ([1, 2],)),
        (ValueError, "batch_size must be an int >= 1, got 0 .or None", ([1, 2], 0)),
        (TypeError, "batch_size must be an int >= 1, got 2.0", ([1, 2], 2.0)),
        (TypeError, "batch_size must be an int >= 1, got True", ([1, 2], True)),
        (ValueError, "max_tokens must be an int >= 1, got 0", ([1, 2], None, 0)),
        (
            ValueError,
            r"lengths\[1\] must be an int in \[0, 4\], got 5 .raise max_",
            ([1, 5, 6], None, 4),
        ),
        (ValueError, r"lengths\[1\] must be an int in \[0, 461.*, got -3", ([1, -3], 2)),
        (
            ValueError,
            r"lengths\[0\] must be .*got 18446744073709551615",
            (np.array([2**64 - 1]), 2),
        ),
        (TypeError, "lengths must be integers, got dtype float64", ([1.0, 2.0], 2)),
        (TypeError, "lengths must be integers, got dtype bool", ([True, False], 2)),
        (TypeError, "lengths must be integers, got dtype <U1", (["a", "b"], 2)),
        (ValueError, "inhomogeneous shape", ([[1, 2], [3]], 2)),
        (ValueError, r"lengths must be a vector, got shape \(2, 2\) .pass", ([[1, 2], [3, 4]], 2)),
        (ValueError, "lengths must be a vector, got shape ", (3, 2)),
    ],
)
def test_arguments_that_are_wrong(error: type[Exception], text: str, arguments: Any) -> None:
    with pytest.raises(error, match=text):
        LengthBucketBatchSampler(*arguments)
    with pytest.raises(ValueError, match="mega_batch_mult must be an int >= 1, got 0"):
        LengthBucketBatchSampler([1, 2], 2, mega_batch_mult=0)


def test_numbers_that_c_does_not_have() -> None:
    given: Any = {"batch_size": 2, "max_tokens": 9, "mega_batch_mult": 3}
    for name in given:
        few, many = ({**given, name: large} for large in (2**20, 2**64))
        found = [list(LengthBucketBatchSampler(range(1, 9), **each)) for each in (few, many)]
        assert found[0] == found[1]
    for ranks in (2**60 - 4, 2**62, 2**64):
        with pytest.raises(MemoryError):
            len(LengthBucketBatchSampler([3, 5, 2, 7], 2, num_replicas=ranks, rank=0))


@pytest.mark.parametrize("length", [-1, 2**62 + 1])
def test_lengths_of_no_shuffle(length: int) -> None:
    with pytest.raises(ValueError, match=f"length_or_dataset must be an int in .*, got {length}"):
        ShuffleSampler(length)
    with pytest.raises(TypeError, match=r"length_or_dataset must be an int.*got 1\.5"):
        ShuffleSampler(1.5)  # type: ignore[arg-type]
