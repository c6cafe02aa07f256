"""States that do not fit, or that no loader made: refused by name, and nothing has changed.
What DistributedSampler adds to a state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import FailingSampler, ListSampler, N, SamplerError, assert_same, labels, small_dataset
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader
from fastloop.loader.resume.epoch import LoaderState

Arguments = Callable[[], dict[str, Any]]


def loader_of(n: int = N, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(small_dataset(n), **{"batch_size": 5, **kwargs})


def state_of(loader: DataLoader[Any], batches: int = 2) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


def distributed(**kwargs: Any) -> dict[str, Any]:
    return {"sampler": DistributedSampler(range(N), **{"num_replicas": 2, "rank": 0, **kwargs})}


# What saves, what resumes, and what the error says.
MISFITS: dict[str, tuple[Arguments, Arguments, str]] = {
    "dataset": (dict, lambda: {"n": 40}, "dataset_length is 50 in the state and 40 here"),
    "batch size": (dict, lambda: {"batch_size": 7}, "batch_size is 5 in the state and 7 here"),
    "no batches": (dict, lambda: {"batch_size": None}, "batch_size is 5 .* absent here"),
    "drop_last": (dict, lambda: {"drop_last": True}, "drop_last is False .* True here"),
    "shuffle": (
        lambda: {"shuffle": True},
        dict,
        "sampler is RandomSampler in the state and SequentialSampler here",
    ),
    "replacement": (
        lambda: {"sampler": RandomSampler(range(N), True)},
        lambda: {"sampler": RandomSampler(range(N))},
        "sampler.replacement is True",
    ),
    "sampler length": (
        lambda: {"sampler": SubsetRandomSampler(range(20))},
        lambda: {"sampler": SubsetRandomSampler(range(21))},
        "sampler_length is 20 in the state and 21 here",
    ),
    "sampler class": (
        lambda: {"sampler": WeightedRandomSampler([1.0] * N, N)},
        lambda: {"sampler": ListSampler(range(N))},
        "WeightedRandomSampler in the state and ListSampler",
    ),
    "batch sampler": (
        lambda: {"batch_size": 1, "batch_sampler": ListSampler([[1, 2]] * 9)},
        lambda: {"batch_size": 1, "batch_sampler": [[1, 2]] * 9},
        "batch_sampler is ListSampler in the state and list here",
    ),
    "generator": (
        lambda: {"shuffle": True},
        lambda: {"shuffle": True, "generator": torch.Generator()},
        "generator is (absent|torch) in the state and loader here",
    ),
    "generator gone": (
        lambda: {"generator": torch.Generator()},
        dict,
        "generator is loader in the state and absent here",
    ),
    "seed": (distributed, lambda: distributed(seed=4), "sampler.seed is 0 in the state and 4"),
    "in order": (distributed, lambda: distributed(shuffle=False), "sampler.shuffle is True"),
}


@pytest.mark.parametrize(("saves", "resumes", "says"), MISFITS.values(), ids=MISFITS)
@pytest.mark.parametrize("batches", [0, 2])
def test_a_state_that_does_not_fit(
    saves: Arguments, resumes: Arguments, says: str, batches: int
) -> None:
    saver = loader_of(**saves())
    state = state_of(saver, batches) if batches else saver.state_dict()
    loader = loader_of(**resumes())
    before = loader.state_dict()
    with pytest.raises(ValueError, match=says):
        loader.load_state_dict(state, strict=True)
    assert loader.state_dict() == before
    clone = loader_of(**resumes())
    torch.manual_seed(3)
    expected = list(clone)
    torch.manual_seed(3)
    assert_same(list(loader), expected)


def test_several_differences_are_all_named() -> None:
    state = state_of(loader_of(shuffle=True))
    with pytest.raises(ValueError, match=r"batch_size is 5 .*; .*RandomSampler"):
        loader_of(batch_size=7).load_state_dict(state, strict=True)


def test_arguments_that_do_not_change_the_order_may_differ() -> None:
    state = state_of(loader_of(shuffle=True))
    for kwargs in (
        {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True},
        {"path": "torch", "timeout": 0},
        {"num_workers": 2, "in_order": False, "timeout": 9},
    ):
        loader = loader_of(shuffle=True, **kwargs)
        loader.load_state_dict(state)
        assert len(list(loader)) == 8
    sampler = BatchSampler(RandomSampler(range(N)), 5, False)
    loader = loader_of(batch_size=1, batch_sampler=sampler)
    loader.load_state_dict(state)
    assert len(list(loader)) == 8


def damaged(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, **changes}


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {k: v for k, v in state.items() if k != key}


def generators(texts: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, "generators": {**state["generators"], "next": texts}}


def torchs(text: Any) -> Callable[[dict[str, Any]], Any]:
    return generators({"torch": text, "loader": "", "batch_sampler": "", "sampler": ""})


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], Any], type[Exception], str]] = {
    "none": (lambda state: None, TypeError, r"state must be a dict, got None \(pass what"),
    "list": (lambda state: [state], TypeError, "state must be a dict, got "),
    "empty": (lambda state: {}, ValueError, r"state must be a dict with 'epoch'"),
    "version": (damaged(version=99), ValueError, r"'version'\] must be 1, got 99"),
    "no epoch": (without("epoch"), ValueError, "state must be a dict with 'epoch'"),
    "no reason": (
        without("not_resumable"),
        ValueError,
        "must be a dict with 'not_resumable'",
    ),
    "no generators": (without("generators"), ValueError, "state must be a dict with 'generators'"),
    "yielded text": (
        damaged(yielded="2"),
        TypeError,
        r"'yielded'\] must be an int in .*, got '2'",
    ),
    "yielded bool": (damaged(yielded=True), TypeError, "must be an int in .*, got True"),
    "yielded float": (damaged(yielded=2.0), TypeError, "must be an int in .*, got 2.0"),
    "negative": (damaged(yielded=-1), ValueError, r"must be an int in \[0, .*, got -1"),
    "negative epoch": (damaged(epoch=-1), ValueError, r"must be an int in \[0, .*, got -1"),
    "too many": (
        damaged(yielded=11),
        ValueError,
        r"must be an int in \[0, 10\], got 11",
    ),
    "not begun": (damaged(begun=False), ValueError, "must be 0 if no epoch has begun, got 2"),
    "begun text": (damaged(begun="yes"), TypeError, "must be a bool, got 'yes'"),
    "fits": (damaged(fits=[]), TypeError, r"state\['fits'\] must be a dict, got \[\]"),
    "no facts": (damaged(fits={}), ValueError, r"state\['fits'\] must be a dict with"),
    "sampler epoch": (damaged(sampler_epoch=-2), ValueError, r"must be an int in \[-1, .*, got -2"),
    "random epoch": (damaged(random_epoch=-1), ValueError, r"must be an int in \[0, .*, got -1"),
    "no random epoch": (
        without("random_epoch"),
        ValueError,
        "must be a dict with 'random_epoch'",
    ),
    "set epochs": (
        damaged(set_epochs=[None, "x"]),
        TypeError,
        r"state\['set_epochs'\]: each must be an int in .*, got 'x' \(pass",
    ),
    "set too large": (damaged(set_epochs=[4294967296]), ValueError, "got 4294967296"),
    "set text": (damaged(set_epochs="7"), TypeError, "must be a list, got '7'"),
    "another moment": (
        lambda state: {**state, "generators": {**state["generators"], "then": 5}},
        ValueError,
        r"state\['generators'\] must be about .*'then'",
    ),
    "moments": (
        damaged(generators={}),
        ValueError,
        r"\['generators'\] must be a dict with 'now'",
    ),
    "moment": (generators([]), TypeError, r"'next'\] must be a dict, got \[\]"),
    "no torch": (generators({}), ValueError, r"\['next'\] must be a dict with 'torch'"),
    "other": (generators({"disk": "00"}), ValueError, r"\['next'\] must be a dict with 'torch'"),
    "number": (torchs(5), TypeError, r"\['next'\]\['torch'\] must be a str, got 5"),
    "hex": (torchs("xyz"), ValueError, "generator 'torch' cannot be read"),
    "short": (torchs("00ff"), ValueError, "generator 'torch' cannot be read"),
    "zeros": (torchs("00" * 5056), ValueError, "'torch' cannot be read"),
}


@pytest.mark.parametrize(("damage", "error", "says"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state(
    damage: Callable[[dict[str, Any]], Any], error: type[Exception], says: str
) -> None:
    loader = loader_of(shuffle=True)
    state = state_of(loader)
    random_state = torch.get_rng_state()
    for strict in (False, True):
        with pytest.raises(error, match=says):
            loader.load_state_dict(damage(state), strict)
    assert loader.state_dict() == state
    assert torch.equal(torch.get_rng_state(), random_state)
    loader.load_state_dict(state)
    assert len(list(loader)) == 8


def test_a_refused_state_sets_no_generator() -> None:
    generator = torch.Generator().manual_seed(5)
    loader = loader_of(shuffle=True, generator=generator)
    state = loader.state_dict()
    generator.manual_seed(6)
    with pytest.raises(ValueError, match="dataset_length"):
        loader.load_state_dict(
            {**state, "fits": {**state["fits"], "dataset_length": "1"}}, strict=True
        )
    assert generator.initial_seed() == 6
    loader.load_state_dict(state)
    assert generator.initial_seed() == 5


def test_a_loaded_state_is_a_copy() -> None:
    loader = loader_of()
    state = state_of(loader)
    loader.load_state_dict(state)
    state["yielded"] = 9
    loader.state_dict()["yielded"] = 9
    assert labels(loader)[0] == [10, 11, 12, 13, 14]


def test_a_sampler_without_length_that_has_become_shorter() -> None:
    items = [[0, 1], [2, 3], [4, 5]]
    loader = loader_of(batch_size=1, batch_sampler=map(list, items * 2))
    state = state_of(loader, 4)
    loader = loader_of(batch_size=1, batch_sampler=map(list, items))
    loader.load_state_dict(state)
    with pytest.raises(
        ValueError, match=r"counts 4 batches, but the sampler \(map\) ended after 3"
    ):
        list(loader)


@pytest.mark.parametrize("path", ["array", "sync", "torch"])
def test_a_batch_that_raised_was_not_yielded(path: str) -> None:
    loader = loader_of(sampler=FailingSampler(N, 12), path=path)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(SamplerError):
        next(iterator)
    assert loader.state_dict()["yielded"] == 2


def test_an_iter_that_failed_keeps_the_loaded_state() -> None:
    class Once(ListSampler):
        fails = False

        def __iter__(self) -> Any:
            if self.fails:
                raise SamplerError
            return iter(self.items)

    sampler = Once([[0, 1], [2, 3], [4, 5]])
    loader = loader_of(batch_size=1, batch_sampler=sampler)
    loader.load_state_dict(state_of(loader, 2))
    sampler.fails = True
    with pytest.raises(SamplerError):
        iter(loader)
    sampler.fails = False
    assert labels(loader) == [[4, 5]]


# ---- DistributedSampler


def of_rank(rank: int, epoch: int) -> DataLoader[Any]:
    loader = loader_of(**distributed(rank=rank))
    loader.sampler.set_epoch(epoch)
    return loader


def test_the_state_of_one_rank_resumes_all() -> None:
    loader = of_rank(0, 4)
    state = state_of(loader)
    for rank in (0, 1):
        other = of_rank(rank, 0)
        other.load_state_dict(state)
        assert other.sampler.epoch == 4
        other.sampler.set_epoch(4)
        assert_same(list(other), list(of_rank(rank, 4))[2:])


def test_the_epoch_of_the_sampler_is_the_one_it_drew_in() -> None:
    loader = of_rank(0, 4)
    iterator = iter(loader)
    next(iterator)
    loader.sampler.set_epoch(5)
    assert loader.state_dict()["sampler_epoch"] == 4
    list(iterator)
    assert loader.state_dict()["sampler_epoch"] == 5


def test_a_state_has_no_other_attributes() -> None:
    with pytest.raises(TypeError, match="yeilded"):
        LoaderState().but(yeilded=1)
