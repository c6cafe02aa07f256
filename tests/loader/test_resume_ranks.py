"""A state that was saved with another number of ranks: what is left of the epoch comes once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from helpers import labels, small_dataset
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader, LengthBucketBatchSampler, ShuffleSampler

SAMPLES = 96
LENGTHS = [1 + i * 7 % 13 for i in range(SAMPLES)]


def ranks_of(kind: str, ranks: int, size: int, epoch: int = 2, **options: Any) -> list[Any]:
    """A loader for each rank, in one process."""
    data, loaders = small_dataset(SAMPLES), []
    for rank in range(ranks):
        place = {"num_replicas": ranks, "rank": rank, "seed": 5, **options}
        if kind == "buckets":
            batches = LengthBucketBatchSampler(LENGTHS, size, **place)
            batches.set_epoch(epoch)
            loaders.append(DataLoader(data, batch_sampler=batches, num_workers=2))
            continue
        sampler: Any = (ShuffleSampler if kind == "shuffle" else DistributedSampler)(data, **place)
        sampler.set_epoch(epoch)
        loaders.append(DataLoader(data, size, sampler=sampler, num_workers=2))
    return loaders


def steps_of(loaders: list[Any]) -> list[Counter[int]]:
    """The samples of each step, all ranks together."""
    ranks = [labels(loader) for loader in loaders]
    steps = zip(*ranks, strict=True)
    return [Counter(i for batch in batches for i in batch) for batches in steps]


def saved_after(kind: str, ranks: int, size: int, batches: int) -> dict[str, Any]:
    loader = ranks_of(kind, ranks, size)[-1]
    for done, _ in enumerate(loader, 1):
        if done == batches:
            break
    return loader.state_dict()  # type: ignore[no-any-return]


def resumed(loaders: list[Any], state: dict[str, Any]) -> list[Any]:
    for loader in loaders:
        loader.load_state_dict(state, strict=True)
    return loaders


@pytest.mark.parametrize("kind", ["shuffle", "distributed", "buckets"])
@pytest.mark.parametrize(("ranks", "size"), [(1, 12), (3, 4), (6, 2)])
def test_other_ranks_go_on_with_the_same_steps(kind: str, ranks: int, size: int) -> None:
    for done in (1, 5):
        state = saved_after(kind, 2, 6, done)
        loaders = resumed(ranks_of(kind, ranks, size, epoch=0), state)
        assert steps_of(loaders) == steps_of(ranks_of(kind, 1, 12))[done:]
        for loader in loaders:  # and the next epoch is a whole one
            loader.batch_sampler.sampler.set_epoch(3)
        assert steps_of(loaders) == steps_of(ranks_of(kind, 1, 12, epoch=3))


@pytest.mark.parametrize("kind", ["shuffle", "distributed"])
def test_batches_of_another_size_go_on_where_they_divide_what_was_yielded(kind: str) -> None:
    state = saved_after(kind, 2, 6, 4)  # 48 samples
    loaders = resumed(ranks_of(kind, 4, 4), state)
    assert steps_of(loaders) == steps_of(ranks_of(kind, 1, 16))[3:]
    assert steps_of(resumed(ranks_of(kind, 3, 8), state)) == steps_of(ranks_of(kind, 1, 24))[2:]


@pytest.mark.parametrize("kind", ["shuffle", "distributed", "buckets"])
def test_between_epochs_any_ranks_go_on(kind: str) -> None:
    loader = ranks_of(kind, 2, 6)[0]
    list(loader)
    state = loader.state_dict()
    loaders = resumed(ranks_of(kind, 5, 7, epoch=0), state)
    for loader in loaders:
        loader.batch_sampler.sampler.set_epoch(3)
    assert steps_of(loaders) == steps_of(ranks_of(kind, 5, 7, epoch=3))


@pytest.mark.parametrize("kind", ["shuffle", "distributed"])
def test_the_end_of_an_epoch_is_its_end_with_other_ranks(kind: str) -> None:
    state = saved_after(kind, 5, 6, 4)  # the last batch, of 2 samples
    (loader,) = resumed(ranks_of(kind, 1, 12), state)
    with pytest.warns(UserWarning, match="is at the end of epoch"):
        assert list(loader) == []


def test_other_differences_are_still_named() -> None:
    state = saved_after("shuffle", 2, 6, 1)
    (loader,) = ranks_of("shuffle", 1, 12, seed=6)
    with pytest.raises(ValueError, match=r"sampler\.seed is 5 in the state and 6 here"):
        loader.load_state_dict(state, strict=True)
    fewer = ShuffleSampler(SAMPLES - 2, seed=5)
    loader = DataLoader(small_dataset(SAMPLES), 12, sampler=fewer)
    with pytest.raises(ValueError, match=r"sampler_length is 48 in the state and 94 here"):
        loader.load_state_dict(state, strict=True)
    assert torch.is_tensor(next(iter(loader))[0])
