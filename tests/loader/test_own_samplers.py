"""The package's samplers in every loader: the same batches, and an epoch that goes on without
what was yielded."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torch.utils.data import BatchSampler, Dataset, TensorDataset

from fastloop import CostBatchSampler, DataLoader, LengthBucketBatchSampler, ShuffleSampler
from fastloop._core import Permutation
from fastloop.data import samplers
from fastloop.loader.arrays.iterator import find_blocks

Batches = list[list[int]]
ROUTES = ["array", "sync", "torch"]


def lengths_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 201, count)


def make_bucket(kind: str, **kwargs: Any) -> Any:
    if kind == "costs":
        return CostBatchSampler(lengths_of(150), 700, window=60, **kwargs)
    limit: dict[str, Any] = {"batch_size": 7} if kind == "size" else {"max_tokens": 700}
    return LengthBucketBatchSampler(lengths_of(150), mega_batch_mult=2, **limit, **kwargs)


class Rows(Dataset[Any]):
    """Not covered by the array path."""

    def __len__(self) -> int:
        return 150

    def __getitem__(self, index: int) -> int:
        return index


def make_loader(route: str, workers: int, sampler: Any, cls: Any = DataLoader) -> Any:
    given: dict[str, Any] = {"num_workers": workers}
    if isinstance(sampler, LengthBucketBatchSampler | CostBatchSampler):
        given["batch_sampler"] = sampler
    else:
        given |= {"sampler": sampler, "batch_size": 4}
    if cls is DataLoader:
        given["path"] = "process" if route == "sync" and workers else route
    return cls(TensorDataset(torch.arange(150)) if route == "array" else Rows(), **given)


def rows_of(loader: Any) -> Batches:
    return [(b[0] if isinstance(b, list) else b).tolist() for b in loader]


def make_sampler(kind: str, **kwargs: Any) -> Any:
    return ShuffleSampler(150, **kwargs) if kind == "shuffle" else make_bucket(kind, **kwargs)


@pytest.mark.parametrize("kind", ["size", "tokens", "costs", "shuffle"])
@pytest.mark.parametrize(
    ("route", "workers"), [("array", 0), ("array", 2), ("sync", 0), ("sync", 2), ("torch", 0)]
)
def test_every_loader_gives_the_same_batches(kind: str, route: str, workers: int) -> None:
    sampler = make_sampler(kind, seed=1, num_replicas=2, rank=1)
    theirs = make_loader(route, 0, copy.deepcopy(sampler), TorchLoader)
    ours = make_loader(route, workers, sampler)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        (theirs.batch_sampler if kind != "shuffle" else theirs.sampler).set_epoch(epoch)
        assert len(ours) == len(theirs)
        assert_same(rows_of(ours), rows_of(theirs))
    assert ours.stats().path == ("process" if route == "sync" and workers else route)


def stop_and_resume(kind: str, route: str, workers: int, stop: int, epoch: int = 5) -> None:
    sampler = make_sampler(kind, num_replicas=2, rank=1)
    sampler.set_epoch(epoch)
    loader = make_loader(route, workers, sampler)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    state = loader.state_dict()
    expected = [rows_of(batches)]
    sampler.set_epoch(epoch + 1)
    expected.append(rows_of(loader))

    fresh = make_sampler(kind, num_replicas=2, rank=1)
    loader = make_loader(route, workers, fresh)
    loader.load_state_dict(state, strict=True)
    assert loader.state_dict() == state
    resumed = [rows_of(loader)]
    fresh.set_epoch(epoch + 1)
    resumed.append(rows_of(loader))
    assert resumed == expected


@pytest.mark.parametrize("kind", ["size", "tokens", "costs", "shuffle"])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_resumed_epoch_goes_on(kind: str, route: str, stop: int) -> None:
    stop_and_resume(kind, route, 0, stop)


@pytest.mark.parametrize("kind", ["tokens", "costs", "shuffle"])
@pytest.mark.parametrize("route", ["array", "sync"])
def test_a_resumed_epoch_goes_on_with_workers(kind: str, route: str) -> None:
    stop_and_resume(kind, route, 2, 4)


def epochs_of_different_length() -> tuple[int, int]:
    """The longest epoch of the first few, and one that is shorter."""
    sampler = make_bucket("tokens")
    counts = [sampler.length_of(epoch) for epoch in range(40)]
    longest, shortest = int(np.argmax(counts)), int(np.argmin(counts))
    assert counts[longest] > counts[shortest]
    return longest, shortest


@pytest.mark.parametrize("left", [0, 1])
def test_an_epoch_longer_than_the_one_that_is_set_resumes(left: int) -> None:
    longest, shortest = epochs_of_different_length()
    sampler = make_bucket("tokens")
    sampler.set_epoch(longest)
    loader = make_loader("array", 0, sampler)
    whole = rows_of(copy.copy(loader))
    batches = iter(loader)
    for _ in range(len(whole) - left):
        next(batches)
    state = loader.state_dict()

    fresh = make_bucket("tokens")
    fresh.set_epoch(shortest)
    loader = make_loader("array", 0, fresh)
    loader.load_state_dict(state, strict=True)
    if left == 0:
        with pytest.warns(UserWarning, match="is at the end of epoch"):
            assert rows_of(loader) == []
    else:
        assert rows_of(loader) == whole[-left:]


def test_other_lengths_do_not_fit_the_state() -> None:
    loader = make_loader("array", 0, make_bucket("tokens"))
    next(iter(loader))
    state = loader.state_dict()
    lengths = lengths_of(150)
    lengths[0] += 1
    other = LengthBucketBatchSampler(lengths, max_tokens=700, mega_batch_mult=2)
    loader = make_loader("array", 0, other)
    with pytest.raises(ValueError, match="batch_sampler_length is 150 samples of lengths"):
        loader.load_state_dict(state, strict=True)


class _Counting:
    """A Permutation that counts the indices it computes."""

    made = 0

    def __init__(self, *args: int) -> None:
        self.inner = _permutation(*args)

    def block(self, first: int, count: int, step: int = 1) -> Any:
        _Counting.made += count
        return self.inner.block(first, count, step)


_permutation = Permutation


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Counting]]:
    _Counting.made = 0
    monkeypatch.setattr(samplers, "Permutation", _Counting)
    yield _Counting


@pytest.mark.parametrize("route", ["array", "sync"])
@pytest.mark.parametrize("is_batched", [True, False])
def test_resuming_a_shuffle_computes_what_is_left(
    route: str, is_batched: bool, counting: type[_Counting]
) -> None:
    count = 100_000
    data = TensorDataset(torch.arange(count))
    given: dict[str, Any] = {"batch_size": 8 if is_batched else None, "path": route}
    loader = DataLoader(data, sampler=ShuffleSampler(count), **given)
    state = loader.state_dict()
    batches = count // 8 if is_batched else count
    next(iter(loader))
    state = {**loader.state_dict(), "yielded": batches - 1}
    loader = DataLoader(data, sampler=ShuffleSampler(count), **given)
    loader.load_state_dict(state, strict=True)
    counting.made = 0
    assert len(list(loader)) == 1
    assert counting.made == (8 if is_batched else 1)


@pytest.mark.parametrize("route", ["array", "sync"])
def test_resuming_buckets_makes_no_batch_that_was_there(
    route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_bucket("size")
    loader = make_loader(route, 0, sampler)
    batches = iter(loader)
    for _ in range(6):
        next(batches)
    state = loader.state_dict()
    made: Batches = []
    cut = LengthBucketBatchSampler.iter_from

    def noting(*args: Any) -> Iterator[list[int]]:
        for batch in cut(*args):
            made.append(batch)
            yield batch

    monkeypatch.setattr(LengthBucketBatchSampler, "iter_from", noting)
    loader.load_state_dict(state)
    assert made == [] and rows_of(loader) == made != []


@pytest.mark.parametrize("kind", ["size", "shuffle"])
def test_a_state_holds_no_random_numbers(kind: str) -> None:
    """The order is no draw, so nobody's generator is to be brought back."""
    loader = make_loader("array", 0, make_sampler(kind))
    next(iter(loader))
    moments = loader.state_dict()["generators"].values()
    assert {text for texts in moments for text in texts.values()} == {""}


def test_the_array_path_reads_a_shuffle_in_blocks() -> None:
    sampler = ShuffleSampler(9000)
    blocks = find_blocks(BatchSampler(sampler, 4, False))
    assert blocks is not None
    sizes = [len(block) for block in blocks if isinstance(block, torch.Tensor)]
    assert sum(sizes) == 9000 and max(sizes) > 1000


class _Reversed(LengthBucketBatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return (batch[::-1] for batch in super().__iter__())


def test_a_subclass_with_an_order_of_its_own_resumes_in_it() -> None:
    made = []
    state = None
    for _ in range(2):
        loader = make_loader("array", 0, _Reversed(lengths_of(150), 7))
        if state is not None:
            loader.load_state_dict(state, strict=True)
        batches = iter(loader)
        if state is None:
            next(batches)
            state = loader.state_dict()
        made.append(rows_of(batches))
    assert made[0] == made[1]
