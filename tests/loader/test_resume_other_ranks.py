"""An epoch goes on with any number of ranks at any sample: each index comes once, in an order that
is stated here, and nothing that was yielded is loaded."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import labels, small_dataset
from torch.utils.data import BatchSampler, Dataset
from torch.utils.data.distributed import DistributedSampler

from fastloop import (
    BlockShuffleSampler,
    CostBatchSampler,
    DataLoader,
    LengthBucketBatchSampler,
    ShuffleSampler,
    TokenDataset,
)
from fastloop.adapters import lightning
from fastloop.loader.resume.epoch import LoaderState

SAMPLES = 203
LENGTHS = [1 + i * 7 % 13 for i in range(SAMPLES)]
SHAPES = [(7, 3), (3, 5), (16, 2), (1, 4)]  # ranks and batch_size, one after the other
OURS = ["shuffle", "shuffle in runs", "row after row", "row after row in runs"]
OURS += ["blocks", "blocks in runs"]
DEALING = [*OURS, "distributed", "in order", "drop_last"]
BUCKETS = ["buckets", "tokens", "tokens and size"]
PLANNED = [*BUCKETS, "costs"]


class Counting(Dataset[int]):
    """Samples of Python that counts what is loaded."""

    def __init__(self, length: int = SAMPLES) -> None:
        self.length, self.loaded = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.loaded += 1
        return index


def sampler_of(kind: str, size: int, ranks: int, rank: int, length: int = SAMPLES) -> Any:
    place = {"num_replicas": ranks, "rank": rank, "seed": 5}
    if kind in BUCKETS:
        most = {"max_tokens": 29} if "tokens" in kind else {}
        batch = None if kind == "tokens" else size
        return LengthBucketBatchSampler(LENGTHS[:length], batch, **most, **place)  # type: ignore[arg-type]
    if kind == "costs":
        given: Any = {"window": 40, "accumulate": size, **place}
        return CostBatchSampler(LENGTHS[:length], 29, **given)
    if kind in OURS:
        place["deal"] = "runs" if kind.endswith("runs") else "stride"
        if kind.startswith("blocks"):
            return BlockShuffleSampler(length, 4, 5, **place)  # type: ignore[arg-type]
        place["shuffle"] = kind.startswith("shuffle")
        return ShuffleSampler(length, **place)  # type: ignore[arg-type]
    flags = {"shuffle": kind != "in order", "drop_last": kind == "drop_last"}
    return DistributedSampler(range(length), **place, **flags)  # type: ignore[arg-type]


def ranks_of(
    kind: str, ranks: int, size: int, data: Any = None, epoch: int = 2, **given: Any
) -> list[Any]:
    """A loader for each rank, in one process."""
    data = small_dataset(SAMPLES) if data is None else data
    loaders = []
    for rank in range(ranks):
        sampler = sampler_of(kind, size, ranks, rank, len(data))
        sampler.set_epoch(epoch)
        batching = {"batch_sampler": sampler}
        if kind not in PLANNED:
            batching = {"batch_size": size, "sampler": sampler}
        loaders.append(DataLoader(data, **batching, **given))
    return loaders


def rows_of(batch: Any) -> list[int]:
    if isinstance(batch, list | tuple):
        return (batch[1] // 10).tolist()  # type: ignore[no-any-return]
    return torch.as_tensor(batch).reshape(-1).tolist()  # type: ignore[no-any-return]


def run(loaders: list[Any], batches: int | None) -> tuple[list[list[list[int]]], Any]:
    """The batches of each rank, and the state of all after so many; None: to the end."""
    found, states = [], []
    for loader in loaders:
        iterator = iter(loader)
        found.append([rows_of(batch) for batch in islice(iterator, batches)])
        assert batches is None or len(found[-1]) == batches
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    return found, states[0]


def resumed(loaders: list[Any], state: Any) -> list[Any]:
    for loader in loaders:
        loader.load_state_dict(state, strict=True)
    return loaders


def through(state: Any) -> Any:
    """A state that was in a file."""
    return json.loads(json.dumps(state))


def chain_of(kind: str, stages: list[tuple[int, int, int | None]], **given: Any) -> list[Any]:
    """The batches of each rank in each stage: ranks, batch_size, batches."""
    state, found = None, []
    for ranks, size, batches in stages:
        loaders = ranks_of(kind, ranks, size, epoch=2 if state is None else 0, **given)
        had, state = run(loaders if state is None else resumed(loaders, through(state)), batches)
        found.append(had)
    return found


def flat(ranks: list[list[list[int]]]) -> list[int]:
    return [row for batches in ranks for batch in batches for row in batch]


def order_of(kind: str, length: int = SAMPLES) -> list[int]:
    kind = kind.removesuffix(" in runs")  # the ranks together have the same order
    sampler = sampler_of("distributed" if kind == "drop_last" else kind, 1, 1, 0, length)
    sampler.set_epoch(2)
    return list(sampler)


def in_batches(rows: list[int], size: int) -> list[list[int]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def expect_dealt(kind: str, stages: list[tuple[int, int, int | None]], length: int) -> list[Any]:
    """What ranks have, by the rule: rest[r::R] of the order, padded by its beginning; with runs the
    r-th run of each global batch, the last one being shorter."""
    order = order_of(kind, length)
    passed, found = 0, []
    for ranks, size, batches in stages:
        rest = order[passed:]
        if kind == "drop_last":
            rest = rest[: len(rest) // ranks * ranks]
        else:
            rest = rest + (order * ranks)[: -len(rest) % ranks]
        if kind.endswith("runs"):
            steps = in_batches(rest, ranks * size)
            runs = [in_batches(step, len(step) // ranks) for step in steps]
            dealt = [[run[r] for run in runs][:batches] for r in range(ranks)]
        else:
            dealt = [in_batches(rest[r::ranks], size)[:batches] for r in range(ranks)]
        found.append(dealt)
        passed += ranks * size * (batches or 0)
    return found


STAGES: list[tuple[int, int, int | None]] = [(7, 3, 2), (3, 5, 4), (16, 2, 1), (1, 4, None)]


@pytest.mark.parametrize("kind", DEALING)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("data", [small_dataset, Counting])
def test_each_rank_has_its_share_of_the_rest(kind: str, workers: int, data: Any) -> None:
    stages = [*STAGES[:3], (5, 4, None)] if workers else STAGES
    if workers and data is Counting:
        stages = [(2, 3, 2), (3, 5, None)]
    found = chain_of(kind, stages, data=data(SAMPLES), num_workers=workers)
    assert found == expect_dealt(kind, stages, SAMPLES)


@pytest.mark.parametrize("kind", DEALING)
def test_any_ranks_at_any_sample(kind: str) -> None:
    draw = random.Random(7)
    for _ in range(60):
        length = draw.randrange(1, 60)
        stages: list[tuple[int, int, int | None]] = []
        left = length
        while True:
            ranks, size = draw.randrange(1, 9), draw.randrange(1, 5)
            whole = left // (ranks * size)
            if len(stages) == 4 or whole == 0 or (stages and draw.random() < 0.2):
                break
            stages.append((ranks, size, draw.randrange(1, whole + 1)))
            left -= ranks * size * (stages[-1][2] or 0)
            if left == 0:
                break
        least = max(ranks, *(r for r, _, _ in stages)) if kind == "drop_last" and stages else 1
        if left < least:
            continue  # the end of the epoch, for which there is another test
        stages.append((ranks, size, None))
        found = chain_of(kind, stages, data=small_dataset(length))
        assert found == expect_dealt(kind, stages, length), stages
        if kind != "drop_last":
            count = Counter(row for ranks_ in found for row in flat(ranks_))
            assert set(count) == set(range(length)) and count.total() - length < ranks


@pytest.mark.parametrize("kind", BUCKETS)
def test_buckets_are_made_anew_of_the_rest(kind: str) -> None:
    for stages in (
        STAGES,
        [*STAGES[:1], (2, 9, 1), (7, 3, 1), (5, 2, None)],
        [(1, 4, 9), (4, 4, None)],
    ):
        found = chain_of(kind, stages)
        had = Counter(row for ranks in found for row in flat(ranks))
        assert set(had) == set(range(SAMPLES))
        assert had.total() - SAMPLES < stages[-1][0]
        for ranks, (count, size, _) in zip(found, stages, strict=True):
            assert len({len(batches) for batches in ranks}) == 1 and len(ranks) == count
            for batches in ranks:
                for batch in batches:
                    lengths = [LENGTHS[row] for row in batch]
                    assert kind == "tokens" or len(batch) <= size
                    assert kind == "buckets" or len(batch) * max(lengths) <= 29
                    if batch is not batches[-1]:  # which may be padded
                        assert lengths == sorted(lengths, reverse=True)
        # The ranks of a step have neighbours in length.
        steps = [flat([list(step)]) for ranks in found for step in zip(*ranks, strict=True)]
        spreads = [np.ptp([LENGTHS[row] for row in step]) for step in steps]
        assert np.mean(spreads) < 5


def test_buckets_of_the_rest_begin_with_its_longest_and_are_one_order_for_all() -> None:
    taken = chain_of("buckets", [(2, 3, 5), (4, 2, None)])
    rest = set(range(SAMPLES)) - set(flat(taken[0]))
    first = [row for batches in taken[1] for row in batches[0]]
    assert max(LENGTHS[row] for row in rest) == max(LENGTHS[row] for row in first)
    # batch_size * ranks is the same: the same steps, on whichever ranks
    again = chain_of("buckets", [(2, 3, 5), (4, 2, 3), (1, 8, None)])
    one = [sorted(row for batch in step for row in batch) for step in zip(*taken[1], strict=True)]
    assert [sorted(batch) for batch in again[2][0]][:-1] == one[3:-1]


@pytest.mark.parametrize("kind", [*DEALING, *PLANNED])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_dealt_rest_resumes_on_the_same_ranks(kind: str, workers: int) -> None:
    _, state = run(ranks_of(kind, 3, 4), 2)
    given = {"num_workers": workers}
    whole, _ = run(resumed(ranks_of(kind, 2, 5, **given), state), None)
    begun, state = run(resumed(ranks_of(kind, 2, 5, **given), state), 3)
    rest, after = run(resumed(ranks_of(kind, 2, 5, **given), through(state)), None)
    assert [a + b for a, b in zip(begun, rest, strict=True)] == whole
    assert (after["epoch"], after["dealt"], after["yielded"]) == (1, [], 0)
    loaders = resumed(ranks_of(kind, 5, 6), after)  # and the next epoch is a whole one
    for loader in loaders:
        loader.batch_sampler.sampler.set_epoch(3)
    assert run(loaders, None)[0] == run(ranks_of(kind, 5, 6, epoch=3), None)[0]


@pytest.mark.parametrize("kind", [*DEALING, *PLANNED])
def test_nothing_that_was_yielded_is_loaded(kind: str) -> None:
    _, state = run(ranks_of(kind, 7, 3), 2)
    data = Counting()
    for ranks, size in SHAPES:
        had, _ = run(resumed(ranks_of(kind, ranks, size, data), state), None)
        assert data.loaded == len(flat(had)) > 0
        data.loaded = 0


def test_single_samples_are_dealt_out_too() -> None:
    stages: list[tuple[int, Any, int | None]] = [(7, None, 4), (3, None, 9), (2, None, None)]
    found = chain_of("distributed", stages, data=Counting())
    expected = expect_dealt("distributed", [(r, 1, n) for r, _, n in stages], SAMPLES)
    assert found == expected


@pytest.mark.parametrize("kind", ["drop_last", "buckets"])
def test_a_rest_without_a_batch_is_the_end_of_the_epoch(kind: str) -> None:
    data = small_dataset(32)
    loaders = ranks_of(kind, 1, 4, data)
    for loader in loaders:
        loader.batch_sampler.drop_last = True
    _, state = run(loaders, 7)  # 4 samples are left
    (loader, *_) = ranks_of(kind, 4, 3, data)
    loader.batch_sampler.drop_last = True
    loader.load_state_dict(state, strict=True)
    with pytest.warns(UserWarning, match="is at the end of epoch 0"):
        assert list(loader) == []
    assert len(list(loader)) == 2


@pytest.mark.parametrize("kind", [*DEALING, *PLANNED])
def test_the_end_of_a_dealt_rest_is_the_end_of_the_epoch(kind: str) -> None:
    _, state = run(ranks_of(kind, 3, 4), 2)
    loader = resumed(ranks_of(kind, 2, 5), state)[0]
    for _batch in loader:
        state = loader.state_dict()
    assert state["dealt"] and state["begun"]
    for ranks, size in ((2, 5), (3, 4), (1, 1)):
        loader = resumed(ranks_of(kind, ranks, size), state)[0]
        with pytest.warns(UserWarning, match="is at the end of epoch 0"):
            assert list(loader) == []


@pytest.mark.parametrize("mode", ["strided", "random", "jittered"])
def test_windows_of_tokens(mode: str, tmp_path: Path) -> None:
    tokens = np.arange(4096, dtype=np.uint16)
    tokens.tofile(tmp_path / "tokens.bin")

    def make() -> TokenDataset:
        path = tmp_path / "tokens.bin"
        return TokenDataset(path, 16, dtype="uint16", format="raw", mode=mode, targets=None, seed=3)

    def windows(loaders: list[Any], batches: int | None) -> tuple[list[Any], Any]:
        rows: list[Any] = []
        for loader in loaders:
            for i, batch in enumerate(loader, 1):
                rows += map(tuple, batch.tolist())
                if i == batches:
                    break
        return rows, loaders[0].state_dict()

    def loaders_of(ranks: int, size: int) -> list[Any]:
        return [
            DataLoader(data, size, sampler=ShuffleSampler(data, num_replicas=ranks, rank=rank))
            for rank in range(ranks)
            for data in [make()]
        ]

    whole, _ = windows(loaders_of(1, 8), None)
    (first, second) = loaders_of(1, 8)[0], loaders_of(1, 8)[0]
    list(first)
    later, _ = windows([first], None)  # of the second epoch
    list(second)
    found, state = windows([second], 9)
    for ranks, size, batches in ((7, 3, 2), (3, 5, 1), (4, 4, None)):
        rows, state = windows(resumed(loaders_of(ranks, size), state), batches)
        found += rows
    repeated = Counter(found) - Counter(later)
    assert Counter(found) - repeated == Counter(later) and repeated.total() < 4
    assert (Counter(later) == Counter(whole)) == (mode == "strided")


# ---- what cannot go on, and what states say


def test_an_epoch_out_of_order_starts_anew_on_other_ranks() -> None:
    loader = ranks_of("shuffle", 2, 6, num_workers=2, in_order=False)[0]
    next(iter(loader))
    state = loader.state_dict()
    (other,) = ranks_of("shuffle", 1, 5)
    with pytest.raises(ValueError, match="in_order=False"):
        other.load_state_dict(state, strict=True)
    with pytest.warns(RuntimeWarning, match=r"in_order=False .* epoch 0 starts anew"):
        other.load_state_dict(state)
    assert Counter(flat([labels(other)])) == Counter(range(SAMPLES))


def test_other_samplers_are_still_refused() -> None:
    class Own(DistributedSampler[Any]):
        pass

    def loader_of(ranks: int) -> DataLoader[Any]:
        return DataLoader(small_dataset(), 5, sampler=Own(range(50), ranks, 0))

    _, state = run([loader_of(2)], 2)
    with pytest.raises(ValueError, match=r"sampler\.num_replicas is 2 in the state and 3 here"):
        loader_of(3).load_state_dict(state, strict=True)
    _, state = run(ranks_of("shuffle", 2, 3), 2)
    for kind in ("distributed", "buckets"):
        with pytest.raises(ValueError, match="num_replicas is 2 in the state and 3 here"):
            ranks_of(kind, 3, 3)[0].load_state_dict(state, strict=True)


class Fetching(Counting):
    """A dataset that takes a list of indices."""

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index)


@pytest.mark.parametrize("kind", ["distributed", "shuffle", "buckets", "tokens", "costs"])
@pytest.mark.parametrize("length", [SAMPLES, 20])
def test_a_sampler_that_batches_for_a_dataset_of_lists(kind: str, length: int) -> None:
    def made(ranks: int, size: int) -> list[Any]:
        loaders = []
        for rank in range(ranks):
            sampler = sampler_of(kind, size, ranks, rank, length)
            sampler.set_epoch(2)
            outer = sampler if kind in PLANNED else BatchSampler(sampler, size, False)
            loaders.append(DataLoader(Fetching(length), batch_size=None, sampler=outer))
        return loaders

    first, state = run(made(2, 4), 1)
    second, state = run(resumed(made(3, 3), through(state)), 1)
    third, _ = run(resumed(made(1, 5), through(state)), None)
    count = Counter(flat(first) + flat(second) + flat(third))
    assert sorted(count) == list(range(length)) and count.total() <= length + 3


@pytest.mark.parametrize("kind", ["shuffle", "distributed"])
def test_the_end_of_an_epoch_whose_last_batch_is_short(kind: str) -> None:
    (loader,) = ranks_of(kind, 1, 4, Counting(75))
    iterator = iter(loader)
    rows = [rows_of(next(iterator)) for _ in range(19)]
    state = through(loader.state_dict())  # in the body of the last batch
    assert len(rows[-1]) == 3
    for loaders in (ranks_of(kind, 1, 4, Counting(75)), ranks_of(kind, 2, 7, Counting(75))):
        with pytest.warns(UserWarning, match="is at the end of epoch"):
            rest = [list(each) for each in resumed(loaders, state)]
        assert rest == [[]] * len(loaders)
        assert len(flat([[rows_of(b) for b in each] for each in loaders])) in (75, 76)


def test_a_state_without_what_ranks_consumed_is_refused() -> None:
    (loader, other) = ranks_of("distributed", 2, 3)
    _, state = run([loader, other], 4)
    del state["dealt"]
    with pytest.raises(ValueError, match="state must be a dict with 'dealt', got"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "dealt", [[7], [[7, 3]], [[0, 3, 1]], [[7, 3, 0]], [[7, -1, 2]], [["7"] * 3]]
)
def test_damaged_counts_of_other_ranks(dealt: Any) -> None:
    (loader, other) = ranks_of("shuffle", 2, 3)
    _, state = run([loader, other], 1)
    text = r"state\['dealt'\]: each must be \[ranks, batch_size, batches\], got"
    with pytest.raises(ValueError, match=text):
        loader.load_state_dict({**state, "dealt": dealt})
    with pytest.raises(ValueError, match=r"state\['yielded'\] must be an int in \[0, 0\], got 1 "):
        loader.load_state_dict({**state, "dealt": [[7, 3, 99]]})


def test_a_dealt_state_is_a_copy_and_its_next_epoch_is_whole(monkeypatch: Any) -> None:
    _, state = run(ranks_of("shuffle", 7, 3), 2)
    (loader,) = resumed(ranks_of("shuffle", 1, 5), state)
    state = loader.state_dict()
    saved = json.dumps(state)
    state["dealt"][0][0], state["fits"]["drop_last"] = 9, "?"
    state["set_epochs"].append(3)
    assert json.dumps(loader.state_dict()) == saved
    monkeypatch.setattr(lightning, "as_counted", LoaderState.next_epoch)
    loader.load_state_dict(json.loads(saved))
    assert loader.state_dict()["dealt"] == []
    assert len(list(loader)) == len(loader)


@pytest.mark.parametrize("kind", [*DEALING, *PLANNED])
def test_a_state_takes_less_than_a_kilobyte(kind: str) -> None:
    _, state = run(ranks_of(kind, 7, 3), 1)
    for ranks, size in ((3, 5), (16, 2), (2, 3)):
        _, state = run(resumed(ranks_of(kind, ranks, size), state), 1)
    assert len(state["dealt"]) == 3
    assert len(json.dumps(state, separators=(",", ":"))) < 1000
    assert torch.is_tensor(torch.tensor(state["dealt"]))
