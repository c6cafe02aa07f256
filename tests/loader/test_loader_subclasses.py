"""Subclasses as people write them: with an __init__ of their own, with iterators that never end."""

import copy
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    TorchLoader,
    assert_same,
    epoch,
    in_fives,
    labels,
    run_program,
    small_dataset,
)

from fastloop import DataLoader


class Bare(DataLoader[Any]):
    """Does not call our __init__, as torchdata's StatefulDataLoader does not call torch's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        TorchLoader.__init__(self, *args, **kwargs)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, list])
def test_a_subclass_need_not_call_our_init(workers: int, collate: Any) -> None:
    args: tuple[Any, ...] = (small_dataset(), 7, True)
    kwargs: dict[str, Any] = {"num_workers": workers, "collate_fn": collate}
    loader = Bare(*args, **kwargs)
    assert set(vars(loader)) == set(vars(TorchLoader(*args, **kwargs)))
    for how in (copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))):
        assert len(list(how(loader))) == 8  # before its first use
    assert loader.stats().batches == 0
    loader.close()
    with loader:
        assert_same(epoch(loader), epoch(TorchLoader(*args, **kwargs)))
    assert loader.stats().batches == 8
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 8  # and after it
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    clone = Bare(*args, **kwargs)
    clone.load_state_dict(state)
    assert_same(list(clone), rest)
    assert (loader.device, loader.path) == (None, "auto")
    assert (loader.device_transform, loader.static_buffers) == (None, False)
    assert loader.on_worker_death == "raise"


def test_torchdatas_loader_over_ours(tmp_path: Path) -> None:
    pytest.importorskip("torchdata")
    assert run_program(tmp_path, "torchdata_over_fastloop") == "0 3\n[[2, 3], [4, 5]]\n" * 2


def test_a_loader_whose_iterator_never_ends(tmp_path: Path) -> None:
    """Nothing is printed where its __del__ ends workers that it may not have."""
    arrays = "array 9\n[tensor([0, 1])]\n"
    assert run_program(tmp_path, "infinite_loader") == (
        arrays + arrays + "process 9\n[(tensor(0),), (tensor(1),)]\n"
    )


@pytest.mark.parametrize(("workers", "is_persistent"), [(0, False), (2, False), (2, True)])
def test_ending_the_workers_of_an_array_iterator_closes_it(
    workers: int, is_persistent: bool
) -> None:
    loader = DataLoader(small_dataset(), 5, num_workers=workers, persistent_workers=is_persistent)
    iterator: Any = iter(loader)
    next(iterator)
    assert len(iterator._workers) == 0
    for _ in range(2):
        iterator._shutdown_workers()
        with pytest.raises(RuntimeError, match="was closed"):
            next(iterator)
    assert len(list(loader)) == 10  # persistent workers are started again
    assert len(list(loader)) == 10
    iterator._reset(loader)
    next(iterator)
    iterator._reset(loader)
    assert labels(iterator) == in_fives()


@pytest.mark.parametrize("collate", [None, list])
@pytest.mark.parametrize("batch_size", [5, None])
def test_a_fetcher_is_where_torch_has_one(collate: Any, batch_size: int | None) -> None:
    for workers in (0, 1):
        args = (small_dataset(), batch_size)
        kwargs: dict[str, Any] = {"num_workers": workers, "collate_fn": collate}
        ours, theirs = (vars(iter(cls(*args, **kwargs))) for cls in (DataLoader, TorchLoader))
        assert ("_dataset_fetcher" in ours) == ("_dataset_fetcher" in theirs) == (workers == 0)
        if workers == 0:
            indices = 3 if batch_size is None else [3, 1]
            fetched = [its["_dataset_fetcher"].fetch(indices) for its in (ours, theirs)]
            assert type(ours["_dataset_fetcher"]) is type(theirs["_dataset_fetcher"])
            assert_same(*fetched)


def ranges_of(loader: Any) -> Counter[str]:
    """What a profile of an epoch shows of a loader."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in loader:
            pass
    return Counter(event.name for event in profile.events() if "DataLoader" in event.name)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_profile_names_what_it_names_with_torchs_loader(workers: int) -> None:
    for kwargs in ({}, {"collate_fn": list}, {"path": "torch"}, {"batch_size": None}):
        kwargs = {"batch_size": 20, "num_workers": workers, **kwargs}
        ours = ranges_of(DataLoader(small_dataset(), **kwargs))
        kwargs.pop("path", None)
        assert ours == ranges_of(TorchLoader(small_dataset(), **kwargs))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_cannot_be_skipped_where_the_sampler_is_read_in_blocks(workers: int) -> None:
    """Programs that resume by next(iterator._sampler_iter) must not lose an epoch by it."""
    loader = DataLoader(small_dataset(), 5, num_workers=workers)
    iterator: Any = iter(loader)
    with pytest.raises(RuntimeError, match="pass path='torch'"):
        next(iterator._sampler_iter)
    assert labels(iterator) == in_fives()
    single: Any = iter(DataLoader(small_dataset(), batch_sampler=in_fives()))
    assert next(single._sampler_iter) == in_fives()[0]
    assert labels(single) == in_fives()[1:]
