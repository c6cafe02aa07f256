"""The shape of a state, states that cannot go on in the middle, and loaders that have changed."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ListSampler, N, ShufflingSampler, assert_same, labels, run_script, small_dataset
from torch.utils.data import Dataset, IterableDataset, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader

Arguments = Callable[[], dict[str, Any]]


def loader_of(n: int = N, **kwargs: Any) -> DataLoader[Any]:
    return DataLoader(small_dataset(n), **{"batch_size": 5, **kwargs})


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state_of(loader: DataLoader[Any], batches: int = 2) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return loader.state_dict()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


# ---- one shape


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items()}
    return type(value)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": loader_of,
    "shuffled": lambda: loader_of(shuffle=True),
    "generator": lambda: loader_of(shuffle=True, generator=generator()),
    "generator of a sampler": lambda: loader_of(sampler=SubsetRandomSampler([3] * 25, generator())),
    "distributed": lambda: loader_of(sampler=DistributedSampler(range(N), 2, 0)),
    "singles": lambda: loader_of(batch_size=None, sampler=ShufflingSampler(N)),
    "batches of no length": lambda: loader_of(batch_size=1, batch_sampler=map(list, [[0]] * 9)),
    "stream": lambda: DataLoader(Stream(), batch_size=2),
    "torch": lambda: loader_of(shuffle=True, generator=generator(), path="torch"),
    "persistent": lambda: loader_of(num_workers=2, persistent_workers=True),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_has_one_shape_at_all_times(kind: str) -> None:
    loader = LOADERS[kind]()
    expected = shape(loader_of().state_dict())
    if kind == "stream":  # its own part says how many batches there were
        expected["fetcher_state"] = shape(
            {"dataset_iter_state": None, "fetcher_ended": False, "steps": 0}
        )
    states = [loader.state_dict()]
    iterator = iter(loader)
    states.append(loader.state_dict())
    states.extend(loader.state_dict() for _ in iterator)
    states.append(loader.state_dict())
    for state in states:
        assert shape(state) == expected
        assert json.loads(json.dumps(state)) == state
    other = LOADERS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a stream
        other.load_state_dict(states[3])
    states = [other.state_dict()]
    iterator = iter(other)
    states += [other.state_dict(), (next(iterator), other.state_dict())[1]]
    assert [shape(state) for state in states] == [expected] * 3


def test_keys_of_others_in_a_state_are_left_out() -> None:
    loader = loader_of()
    state = state_of(loader)
    loader.load_state_dict({**state, "_iterator_finished": False})
    assert loader.state_dict() == state


def test_a_distributed_checkpoint_is_loaded_in_place(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    def make(seed: int) -> DataLoader[Any]:
        return loader_of(shuffle=True, generator=generator(seed))

    loader = make(5)
    iterator = iter(loader)
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no process group
        dcp.save({"loader": loader}, checkpoint_id=tmp_path)
        expected = [list(iterator), list(loader)]
        for begun in (False, True):
            other = make(6)
            if begun:
                next(iter(other))
            dcp.load({"loader": other}, checkpoint_id=tmp_path)
            assert_same([list(other), list(other)], expected)


PROGRAM = Path(__file__).parents[1] / "programs" / "checkpoint_two_ranks.py"


def test_a_distributed_checkpoint_of_two_ranks(tmp_path: Path) -> None:
    assert run_script(tmp_path, PROGRAM.read_text()) == "fine\n"


def test_a_checkpoint_of_another_loader_is_loaded_in_place(tmp_path: Path) -> None:
    """Whatever the loader has by now: the keys do not depend on it."""
    from torch.distributed import checkpoint as dcp

    state = {"loader": state_of(loader_of(shuffle=True))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no process group
        dcp.save(state, checkpoint_id=tmp_path / "saved")
        other = loader_of(batch_size=7, shuffle=True, generator=generator())
        template = {"loader": other.state_dict()}
        dcp.load(template, checkpoint_id=tmp_path / "saved")
    assert template == state
    with pytest.warns(UserWarning, match="batch_size is 5 in the state and 7 here"):
        other.load_state_dict(template["loader"])


# ---- saving raises nothing


def loads_anew(loader: DataLoader[Any], state: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loader.load_state_dict(state, strict=True)
    with pytest.warns(RuntimeWarning, match=f"{why}.*; epoch 0 starts anew") as caught:
        loader.load_state_dict(state)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [None, 2])
def test_a_stream_can_be_saved_and_starts_anew(size: int | None, workers: int) -> None:
    loader = DataLoader(Stream(), batch_size=size, num_workers=workers)
    state = state_of(loader)
    assert state["yielded"] == 2
    other = DataLoader(Stream(), batch_size=size, num_workers=workers)
    loads_anew(other, state, r"cannot be resumed there.* \(Stream\) knows its position")
    assert_same(list(other), list(loader))
    assert other.state_dict()["epoch"] == 1


def test_a_stream_between_epochs_needs_no_warning() -> None:
    loader = DataLoader(Stream(), batch_size=2)
    list(loader)
    state = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(state, strict=True)
        loader.load_state_dict(state_of(loader, 0))
    assert len(list(loader)) == 5


@pytest.mark.parametrize("path", ["array", "process", "thread", "torch"])
def test_out_of_order_the_epoch_starts_anew(path: str) -> None:
    given = {"num_workers": 2, "in_order": False, "path": path, "shuffle": True}
    loader = loader_of(**given, generator=generator())
    iterator = iter(loader)
    assert loader.state_dict()["not_resumable"] == ""
    next(iterator)
    state = loader.state_dict()
    rest = list(iterator)
    other = loader_of(shuffle=True, generator=generator(9))
    loads_anew(other, state, "with in_order=False the number of batches does not tell")
    clone = loader_of(shuffle=True, generator=generator())
    assert labels(other) == labels(clone)  # the same epoch, from its start
    assert labels(other) == labels(clone)
    assert len(rest) == 9
    assert state_of(loader_of(**{**given, "num_workers": 1}), 2)["not_resumable"] == ""
    assert state_of(loader_of(**given), 10)["not_resumable"] == ""  # all came


def test_after_another_batch_size_the_epoch_starts_anew() -> None:
    loader = loader_of()
    iterator = iter(loader)
    next(iterator)
    loader.batch_sampler.batch_size = 7  # type: ignore[union-attr]
    next(iterator)
    state = loader.state_dict()
    loads_anew(loader, state, "batch_size was changed in the epoch")
    assert [len(batch) for batch in labels(loader)] == [7] * 7 + [1]


def test_a_length_that_raises_is_none() -> None:
    class Rude(Dataset[int]):
        def __len__(self) -> int:
            raise RuntimeError("not yet")

        def __getitem__(self, index: int) -> int:
            return index

    loader = DataLoader(Rude(), batch_size=2, sampler=ListSampler(range(9)))
    assert state_of(loader)["fits"]["dataset_length"] == ""


# ---- a loader that has changed


CHANGES: dict[str, tuple[Arguments, Arguments, list[str]]] = {
    "batch size": (dict, lambda: {"batch_size": 7}, ["batch_size is 5 in the state and 7 here"]),
    "grown": (dict, lambda: {"n": 60}, ["dataset_length is 50 in the state and 60 here"]),
    "shuffle": (
        dict,
        lambda: {"shuffle": True},
        ["sampler is SequentialSampler in the state and RandomSampler here"],
    ),
    "generator added": (
        lambda: {"shuffle": True},
        lambda: {"shuffle": True, "generator": generator()},
        ["generator is torch in the state and loader here"],
    ),
    "three": (
        dict,
        lambda: {"n": 60, "batch_size": 7, "drop_last": True},
        ["dataset_length is 50 .* 60", "batch_size is 5 .* 7", "drop_last is False .* True"],
    ),
}


@pytest.mark.parametrize(("saves", "resumes", "says"), CHANGES.values(), ids=CHANGES)
def test_the_epoch_starts_anew_in_a_loader_that_has_changed(
    saves: Arguments, resumes: Arguments, says: list[str]
) -> None:
    saver = loader_of(**saves())
    list(saver)
    state = state_of(saver)
    loader, clone = loader_of(**resumes()), loader_of(**resumes())
    with pytest.raises(ValueError, match=".*; ".join(says)):
        loader.load_state_dict(state, strict=True)
    with pytest.warns(UserWarning, match=".*; ".join(says) + ".*; epoch 1 starts anew") as caught:
        loader.load_state_dict(state)
    assert [warning.filename for warning in caught] == [__file__]
    now = loader.state_dict()
    assert (now["epoch"], now["yielded"], now["begun"]) == (1, 0, False)
    assert now["fits"] == clone.state_dict()["fits"]
    for _ in range(2):  # in the order of a loader without a state
        torch.manual_seed(3)
        ours = list(loader)
        torch.manual_seed(3)
        assert_same(ours, list(clone))
    assert loader.state_dict()["epoch"] == 3


def test_a_sampler_that_has_changed_is_set_to_the_epoch_of_the_state() -> None:
    sampler = DistributedSampler(range(N), 2, 0)
    sampler.set_epoch(4)
    state = state_of(loader_of(sampler=sampler))
    other = DistributedSampler(range(N), 5, 0, seed=1)
    loader = loader_of(sampler=other)
    with pytest.warns(UserWarning, match=r"sampler\.seed is 0 in the state and 1 here"):
        loader.load_state_dict(state)
    assert other.epoch == 4
    assert len(list(loader)) == 2


def test_a_state_that_fits_and_one_of_no_epoch_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = loader_of(shuffle=True)
        for batches in (0, 2):
            loader.load_state_dict(state_of(loader, batches))
            list(loader)


def test_a_warning_made_an_error_changes_nothing() -> None:
    state = state_of(loader_of())
    loader = loader_of(batch_size=7)
    before = loader.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="does not fit"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        ended = state_of(loader, 8)
        loader.load_state_dict(ended)
        with pytest.raises(UserWarning, match="end of epoch 0"):
            iter(loader)
    assert loader.state_dict() == ended


# ---- the epoch of a DistributedSampler


def of_rank(rank: int, epoch: int) -> DataLoader[Any]:
    sampler = DistributedSampler(range(N), 2, rank)
    sampler.set_epoch(epoch)
    return loader_of(sampler=sampler)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_keeps_the_samplers_epoch(workers: int) -> None:
    state = state_of(of_rank(0, 4))
    loader = loader_of(sampler=DistributedSampler(range(N), 2, 0), num_workers=workers)
    sampler: Any = loader.sampler
    loader.load_state_dict(state)
    sampler.set_epoch(0)  # as Fabric does, which counts the calls of iter()
    iterator = iter(loader)
    sampler.set_epoch(1)  # as Lightning does, after iter()
    assert_same(list(iterator), list(of_rank(0, 4))[2:])
    sampler.set_epoch(5)
    assert_same(list(loader), list(of_rank(0, 5)))


def test_an_epoch_that_has_not_begun_takes_the_number_set_last() -> None:
    loader = of_rank(0, 4)
    list(loader)
    loader.sampler.set_epoch(5)  # type: ignore[union-attr]
    state = loader.state_dict()
    other = of_rank(0, 0)
    other.load_state_dict(state)
    assert other.sampler.epoch == 5  # type: ignore[union-attr]
    other.sampler.set_epoch(6)  # type: ignore[union-attr]
    assert_same(list(other), list(of_rank(0, 6)))


# ---- the end of an epoch


@pytest.mark.parametrize("path", ["array", "sync", "torch"])
def test_iter_says_that_a_loaded_epoch_is_at_its_end(path: str) -> None:
    loader = loader_of(shuffle=True, path=path)
    state = state_of(loader, 10)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="end of epoch 0: this iter.. gives no batch") as caught:
        assert list(loader) == []
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 10
        loader.load_state_dict(state_of(loader, 9))
        assert len(list(loader)) == 1
