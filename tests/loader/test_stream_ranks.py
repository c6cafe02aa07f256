"""Streams on other ranks: the states of all ranks are joined, and the dataset deals them out to the
ranks that load them. States that disagree are refused by name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from helpers import labels, small_dataset
from ranked_streams import SAMPLES, Divided, Fixed
from streams import MapWithState, OfIterator, Plain
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader
from fastloop.loader.resume.state import GENERATORS, MOMENTS


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """This process as one of several ranks, as torch.distributed would tell."""
    told = {"is_initialized": True, "get_world_size": ranks, "get_rank": rank}
    with mock.patch.multiple(
        dist, **{name: lambda value=value: value for name, value in told.items()}
    ):
        yield


def run(
    data: Any, ranks: int, workers: int, batches: int | None, state: Any = None
) -> tuple[list[list[list[int]]], list[Any]]:
    """The batches of each rank, and its state after them."""
    found, states = [], []
    for rank in range(ranks):
        with as_rank(rank, ranks):
            loader = DataLoader(data(), 2, num_workers=workers)
            if state is not None:
                loader.load_state_dict(state, strict=True)
            iterator = iter(loader)
            had = []
            for batch in iterator:
                had.append(batch.tolist())
                if len(had) == batches:
                    break
            found.append(had)
            states.append(loader.state_dict())
            loader.close()
    return found, states


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return sorted(row for batches in ranks for batch in batches for row in batch)


def test_any_ranks_go_on_with_a_stream_that_can_be_divided() -> None:
    had, states = run(Divided, 7, 0, 2)
    seen = flat(had)
    for ranks, batches in ((3, 4), (16, 1), (1, None)):
        joined = json.loads(json.dumps(DataLoader.join_states(states)))
        had, states = run(Divided, ranks, 0, batches, joined)
        seen += flat(had)
    assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.parametrize(("before", "now"), [((2, 2), (3, 1)), ((2, 1), (1, 2)), ((1, 2), (2, 0))])
@pytest.mark.needs_fork("the ranks of these workers are their parent's")
def test_workers_of_all_ranks_are_dealt_out(before: Any, now: Any) -> None:
    had, states = run(Divided, *before, 3)
    rest, _ = run(Divided, *now, None, DataLoader.join_states(states))
    assert sorted(flat(had) + flat(rest)) == list(range(SAMPLES))
    with as_rank(0, now[0]):
        loader = DataLoader(Divided(), 2, num_workers=now[1])
        loader.load_state_dict(DataLoader.join_states(states))
        counts = before[0] * max(before[1], 1), now[0] * max(now[1], 1)
        assert loader.dataset.asked == [counts]  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Fixed, Divided])
def test_as_many_ranks_have_each_its_own_part(data: Any, workers: int) -> None:
    whole, _ = run(data, 2, workers, None)
    had, states = run(data, 2, workers, 3)
    joined = DataLoader.join_states(states)
    file = io.BytesIO()
    torch.save(joined, file)
    file.seek(0)
    rest, after = run(data, 2, workers, 2, torch.load(file, weights_only=True))
    assert [a + b for a, b in zip(had, rest, strict=True)] == [batches[:5] for batches in whole]
    assert [state["rank"] for state in after] == [0, 1]
    end, _ = run(data, 2, workers, None, DataLoader.join_states(after))
    assert [a + b + c for a, b, c in zip(had, rest, end, strict=True)] == whole


def test_a_stream_that_cannot_be_divided_is_refused() -> None:
    _, states = run(Fixed, 2, 0, 3)
    joined = DataLoader.join_states(states)
    with as_rank(0, 3):
        loader = DataLoader(Fixed(), 2)
        before = loader.state_dict()
        text = (
            r"the number of ranks must be 2, .*, got 3 \(or give Fixed a method reshard_state_dict"
        )
        for strict in (False, True):
            with pytest.raises(ValueError, match=text):
                loader.load_state_dict(joined, strict)
        assert loader.state_dict() == before
    with as_rank(0, 3):
        iterators = DataLoader(OfIterator([SAMPLES]), 2)
        states = [{**states[0], "rank": rank} for rank in (0, 1)]
        with pytest.raises(ValueError, match="give OfIterator a method"):
            iterators.load_state_dict(DataLoader.join_states(states))


def test_the_state_of_one_rank_is_refused_by_other_ranks() -> None:
    _, states = run(Divided, 2, 0, 3)
    with as_rank(0, 3):
        loader = DataLoader(Divided(), 2)
        text = (
            r"ranks is 2 in the state and 3 here \(load DataLoader.join_states\(\) of all ranks\)"
        )
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(states[0], strict=True)
        with pytest.warns(UserWarning, match=f"{text}; epoch 0 starts anew"):
            loader.load_state_dict(states[0])
        assert flat([[batch.tolist() for batch in loader]]) == list(range(0, SAMPLES, 3))


def test_streams_without_a_state_say_so() -> None:
    states = []
    for rank in (0, 1):
        with as_rank(rank, 2):
            loader = DataLoader(Plain([SAMPLES]), 2)
            next(iter(loader))
            states.append(loader.state_dict())
    with as_rank(0, 3), pytest.raises(ValueError, match="give Plain a method"):
        DataLoader(Plain([SAMPLES]), 2).load_state_dict(DataLoader.join_states(states))


def test_map_style_datasets_with_a_state_keep_each_its_own() -> None:
    data, states, rest = MapWithState(20), [], []
    for rank in (0, 1):
        with as_rank(rank, 2):
            loader = DataLoader(MapWithState(20), 2, sampler=DistributedSampler(data))
            loader.dataset.asked = 100 * rank  # type: ignore[attr-defined]
            next(iter(loader))
            states.append(loader.state_dict())
    for rank in (0, 1):
        with as_rank(rank, 2):
            loader = DataLoader(MapWithState(20), 2, sampler=DistributedSampler(data))
            loader.load_state_dict(DataLoader.join_states(states), strict=True)
            rest.append([asked for _, batch in loader for asked in batch.tolist()])
    assert rest == [list(range(3, 11)), list(range(103, 111))]


# ---- ranks that disagree


def map_states(**changed: Any) -> list[Any]:
    states = []
    for rank in range(3):
        sampler = DistributedSampler(range(50), 3, rank)
        loader = DataLoader(small_dataset(), 5, sampler=sampler)
        next(iter(loader))
        states.append(loader.state_dict())
    states[2].update(changed)
    return states


def test_map_style_states_that_agree_are_one() -> None:
    states = map_states()
    assert DataLoader.join_states(states) == states[0]
    (sampler,) = (DistributedSampler(range(50), 1, 0),)
    loader = DataLoader(small_dataset(), 5, sampler=sampler)
    loader.load_state_dict(DataLoader.join_states(tuple(states)), strict=True)
    assert len(labels(loader)) == 7


DISAGREEMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "yielded": ({"yielded": 2}, "must agree, got yielded=1 on rank 0 and 2 on rank 2 .pass"),
    "epoch": (
        {"epoch": 4, "sampler_epoch": 3},
        "epoch=0 on rank 0 and 4 on rank 2; sampler_epoch=0 on rank 0 and 3 on rank 2",
    ),
    "ranks before": (
        {"dealt": [[7, 2, 1]]},
        r"dealt=\[\] on rank 0 and \[\[7, 2, 1\]\] on rank 2",
    ),
    "generator": (
        {"generators": dict.fromkeys(MOMENTS, dict.fromkeys(GENERATORS, "00" * 5056))},
        "generators.now.torch='' on rank 0 and 'another' on rank 2",
    ),
    "a joined state": ({"joined": [{}]}, r"a joined state as states\[2\]"),
}


@pytest.mark.parametrize(("changed", "says"), DISAGREEMENTS.values(), ids=DISAGREEMENTS)
def test_ranks_that_disagree(changed: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataLoader.join_states(map_states(**changed))


def test_facts_that_differ_are_named() -> None:
    states = map_states()
    states[1]["fits"]["batch_size"] = "7"
    with pytest.raises(ValueError, match=r"fits\.batch_size='5' on rank 0 and '7' on rank 1"):
        DataLoader.join_states(states)


def test_one_state_of_a_stream_for_all_ranks_is_refused() -> None:
    _, states = run(Divided, 3, 0, 3)
    with pytest.raises(ValueError, match=r"rank 0 as states\[1\]; .* rank 0 as states\[2\]"):
        DataLoader.join_states([states[0]] * 3)
    with pytest.raises(ValueError, match=r"rank 0 as states\[1\]; .* rank 1 as states\[0\]"):
        DataLoader.join_states([states[1], states[0], states[2]])
    with pytest.raises(ValueError, match=r"fits\.ranks=3 in 2 states"):
        DataLoader.join_states(states[:2])


@pytest.mark.parametrize("states", [[], None, {}, "no"])
def test_what_must_be_a_list_of_states(states: Any) -> None:
    with pytest.raises(ValueError, match="states must be a list of one state for each rank, got"):
        DataLoader.join_states(states)


def test_what_must_be_a_state() -> None:
    states = map_states()
    with pytest.raises(TypeError, match=r"states\[1\] must be a dict, got None"):
        DataLoader.join_states([states[0], None])  # type: ignore[list-item]
    del states[2]["yielded"]
    with pytest.raises(ValueError, match=r"states\[2\] must be a dict with 'yielded'"):
        DataLoader.join_states(states)


@pytest.mark.parametrize(
    ("joined", "error"),
    [
        ([3], TypeError),
        ([{}, {}], ValueError),
        ({}, TypeError),
        ([{"rank": 0, "generators": {}, "_snapshot": 3}], ValueError),
    ],
)
def test_a_damaged_joined_state(joined: Any, error: type[Exception]) -> None:
    _, states = run(Divided, 2, 0, 3)
    state = {**DataLoader.join_states(states), "joined": joined}
    with as_rank(0, 2):
        loader = DataLoader(Divided(), 2)
        before = loader.state_dict()
        with pytest.raises(error):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
