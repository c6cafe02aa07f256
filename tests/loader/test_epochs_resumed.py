"""Which number a loader's epoch has: its own count, a sampler's, the user's; and after a resume."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from epoch_cases import PATHS, ROWS, epoch_of, epochs_of, make_dataset, make_loader
from torch.utils.data import ConcatDataset, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader
from fastloop.adapters import lightning
from fastloop.loader.resume.epoch import LoaderState


def of_rank(rank: int = 0, path: str = "array-0", dataset: Any = None) -> Any:
    """A loader, whose sampler it has as an attribute."""
    dataset = make_dataset() if dataset is None else dataset
    sampler: Any = DistributedSampler(dataset, 2, rank)
    return DataLoader(dataset, 2, sampler=sampler, **PATHS[path])


# ---- the number of an epoch


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([None, None, None], [0, 1, 2]),  # torch's order is then the same each time
        ([5, 6, 7], [5, 6, 7]),
        ([5, None, None], [5, 6, 7]),
        ([0, 0, 1, 2], [0, 1, 2, 3]),  # a look at one batch before the first epoch
        ([4, 0, 9], [4, 5, 9]),
        ([2**32 + 3, None], [3, 4]),
        ([-7, None], [0, 1]),
    ],
)
@pytest.mark.parametrize("path", ["array-0", "sync", "process"])
def test_the_epoch_of_a_sampler(path: str, told: list[int | None], expected: list[int]) -> None:
    loader = of_rank(path=path)
    for number, epoch in zip(told, expected, strict=True):
        if number is not None:
            loader.sampler.set_epoch(number)
        assert epochs_of(loader) == {epoch}


def test_a_loader_made_anew_for_each_epoch() -> None:
    dataset = make_dataset()
    sampler: Any = DistributedSampler(dataset, 2, 1)
    for epoch in range(3):
        assert epochs_of(DataLoader(dataset, 2)) == {0}
        sampler.set_epoch(epoch)
        assert epochs_of(DataLoader(dataset, 2, sampler=sampler)) == {epoch}


def test_ranks_agree() -> None:
    for rank in range(2):
        loader = of_rank(rank)
        for epoch in (3, 4):
            loader.sampler.set_epoch(epoch)
            assert epochs_of(loader) == {epoch}


def test_what_the_user_sets_stands_above_the_sampler() -> None:
    loader = of_rank()
    loader.sampler.set_epoch(6)
    loader.dataset.set_epoch(2)
    assert epochs_of(loader) == {2}


class Counting(Sampler[int]):
    """A sampler of the user's with an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter(range(ROWS))

    def __len__(self) -> int:
        return ROWS


def test_a_sampler_of_the_users() -> None:
    loader = DataLoader(make_dataset(), 4, sampler=Counting())
    loader.sampler.set_epoch(3)  # type: ignore[union-attr]
    assert [epochs_of(loader) for _ in range(2)] == [{3}, {4}]


# ---- resuming


def saved(loader: DataLoader[Any], batches: int = 1) -> dict[str, Any]:
    """Its state after so many batches of an epoch, behind JSON."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


@pytest.mark.parametrize("path", PATHS)
def test_the_users_epoch_comes_with_the_state(path: str) -> None:
    dataset = make_dataset()
    dataset.set_epoch(7)
    state = saved(make_loader(dataset, path))
    assert (state["random_epoch"], state["set_epochs"]) == (0, [7])
    again = make_loader(make_dataset(), path)
    again.load_state_dict(state, strict=True)
    assert again.state_dict() == state
    assert [epochs_of(again) for _ in range(2)] == [{7}, {7}]  # as it would have been
    again.dataset.set_epoch(3)  # type: ignore[attr-defined]
    assert epochs_of(again) == {3}


@pytest.mark.filterwarnings("ignore")  # of no process group
def test_the_users_epoch_comes_with_a_distributed_checkpoint(tmp_path: Path) -> None:
    """It is a list in the state, and is loaded into the list of a loader that has None there."""
    from torch.distributed import checkpoint as dcp

    dataset = make_dataset()
    dataset.set_epoch(7)
    loader = make_loader(dataset, "sync")
    next(iter(loader))
    dcp.save({"loader": loader}, checkpoint_id=tmp_path)
    again = make_loader(make_dataset(), "sync")
    assert again.state_dict()["set_epochs"] == [None]
    dcp.load({"loader": again}, checkpoint_id=tmp_path)
    assert [epochs_of(again) for _ in range(2)] == [{7}, {7}]


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("was_set", [True, False], ids=["set", "counted"])
@pytest.mark.parametrize("path", ["array-2", "sync", "process"])
def test_a_resumed_epoch_keeps_its_own(path: str, was_set: bool, is_before: bool) -> None:
    """Whatever the user sets before it, which later ones take."""
    dataset = make_dataset()
    if was_set:
        dataset.set_epoch(7)
    state = saved(make_loader(dataset, path))
    again = make_loader(make_dataset(), path)
    if is_before:
        again.dataset.set_epoch(2)  # type: ignore[attr-defined]
    again.load_state_dict(state)
    if not is_before:
        again.dataset.set_epoch(2)  # type: ignore[attr-defined]
    assert [epochs_of(again) for _ in range(2)] == [{7 if was_set else 0}, {2}]


def test_an_epoch_that_is_left_in_its_middle_after_another_was_set() -> None:
    dataset = make_dataset()
    dataset.set_epoch(7)
    loader = make_loader(dataset, "sync")
    iterator = iter(loader)
    next(iterator)
    dataset.set_epoch(8)
    again = make_loader(make_dataset(), "sync")
    again.load_state_dict(loader.state_dict())
    assert epochs_of(again) == {7}


def test_between_epochs() -> None:
    loader = make_loader(make_dataset(), "array-0")
    list(loader), list(loader)
    again = make_loader(make_dataset(), "array-0")
    again.load_state_dict(loader.state_dict())
    assert epochs_of(again) == {2}
    loader.dataset.set_epoch(9)  # type: ignore[attr-defined]
    again = make_loader(make_dataset(), "array-0")
    again.load_state_dict(loader.state_dict())
    assert [epochs_of(again) for _ in range(2)] == [{9}, {9}]


def test_two_datasets() -> None:
    def joined() -> ConcatDataset[Any]:
        return ConcatDataset([make_dataset(), make_dataset()])

    loader = DataLoader(joined(), ROWS)
    list(loader)
    loader.dataset.datasets[1].set_epoch(9)  # type: ignore[attr-defined]
    state = saved(loader)
    assert (state["random_epoch"], sorted(state["set_epochs"], key=str)) == (1, [9, None])
    again = DataLoader(joined(), ROWS)
    again.load_state_dict(state)
    assert [epoch_of(batch) for batch in again] == [9]
    assert [epoch_of(batch) for batch in again] == [2, 9]


@pytest.mark.parametrize("path", ["array-0", "process"])
def test_two_ranks_resume_from_the_state_of_one(path: str) -> None:
    loader = of_rank(path=path)
    for epoch in (3, 4):
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        next(iterator)
    state = loader.state_dict()
    rows = []
    for rank in range(2):
        again = of_rank(rank, path)
        again.load_state_dict(state, strict=True)
        again.sampler.set_epoch(0)  # as Fabric does
        batches = list(again)
        assert epochs_of(batches) == {4}
        rows += [row for batch in batches for row in batch["row"].tolist()]
        assert epochs_of(again) == {5}
        again.sampler.set_epoch(8)
        assert epochs_of(again) == {8}
    assert len(set(rows)) == len(rows) == ROWS - 4


def test_a_count_that_runs_before_the_samplers_goes_on() -> None:
    loader = of_rank()
    list(loader), list(loader)
    again = of_rank()
    again.load_state_dict(saved(loader))
    assert [epochs_of(again) for _ in range(2)] == [{2}, {3}]


@pytest.mark.parametrize("told", [None, 4])
def test_lightning_that_counts_an_epoch_as_trained(
    told: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, again = of_rank(), of_rank()
    if told is not None:
        loader.sampler.set_epoch(told)
    else:
        loader, again = (make_loader(make_dataset(), "array-0") for _ in range(2))
    monkeypatch.setattr(lightning, "as_counted", LoaderState.next_epoch)
    again.load_state_dict(saved(loader, 3))
    assert epochs_of(again) == {(told or 0) + 1}


@pytest.mark.parametrize(("told", "numbers"), [(None, [1, 2]), (6, [6, 6])])
def test_an_epoch_that_starts_anew(told: int | None, numbers: list[int]) -> None:
    loader = make_loader(make_dataset(), "array-0")
    list(loader)
    if told is not None:
        loader.dataset.set_epoch(told)  # type: ignore[attr-defined]
    state = saved(loader)
    again = make_loader(make_dataset(), "array-0", batch_size=5)
    with pytest.warns(UserWarning, match="epoch 1 starts anew"):
        again.load_state_dict(state)
    assert [epochs_of(again) for _ in range(2)] == [{number} for number in numbers]


def test_a_state_of_other_datasets_says_nothing_about_these() -> None:
    state = saved(make_loader(TensorDataset(torch.arange(ROWS)), "array-0"))
    assert state["set_epochs"] == []
    loader = make_loader(make_dataset(), "array-0")
    loader.dataset.set_epoch(5)  # type: ignore[attr-defined]
    loader.load_state_dict(state, strict=True)
    assert epochs_of(loader) == {5}


def test_a_copy_of_a_loader_counts_on() -> None:
    loader = of_rank()
    loader.sampler.set_epoch(4)
    list(loader)
    assert epochs_of(pickle.loads(pickle.dumps(loader))) == {5}
