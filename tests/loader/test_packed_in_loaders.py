"""PackedDataset in loaders: threads gather the same batches that torch's loader makes, in every
epoch, and an epoch goes on at any row on any number of ranks."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same

from fastloop import (
    ArrayDataset,
    CostBatchSampler,
    DataLoader,
    MixtureDataset,
    PackedDataset,
    RaggedArray,
    ShuffleSampler,
)

Torchs = torch.utils.data.DataLoader


def ragged(seed: int, count: int = 200, first: int = 0, dtype: Any = np.int32) -> RaggedArray:
    lengths = np.random.default_rng(seed).integers(0, 50, count)
    offsets = np.append(0, np.cumsum(lengths))
    return RaggedArray((np.arange(offsets[-1]) + first).astype(dtype), offsets)


def of_columns(**given: Any) -> PackedDataset:
    tokens = ragged(1)
    mask = RaggedArray(tokens.values % 3 == 0, tokens.offsets)
    return PackedDataset({"input_ids": tokens, "loss_mask": mask}, 40, window=30, **given)


def of_mixture(**given: Any) -> PackedDataset:
    sources = {"web": ragged(2), "code": ragged(3, 100, 10**6), "math": ragged(4, 50, 2 * 10**6)}
    mixture = MixtureDataset(sources, {"web": 0.5, "code": 0.3, "math": 0.2})
    return PackedDataset(mixture, 64, window=40, **given)


def of_mixed_columns(**given: Any) -> PackedDataset:
    sources = {}
    for i, name in enumerate(("a", "b")):
        tokens = ragged(i, 80)
        labels = RaggedArray(tokens.values + 7, tokens.offsets)
        sources[name] = ArrayDataset(input_ids=tokens, labels=labels)
    return PackedDataset(MixtureDataset(sources), 64, window=40, **given)


MAKE = {
    "one": lambda **given: PackedDataset(ragged(1), 40, window=30, **given),
    "wrapped": lambda **given: PackedDataset(ragged(1), 40, strategy="wrapped", **given),
    "kept": lambda **given: PackedDataset(ragged(1), 40, window=30, repack=False, **given),
    "columns": of_columns,
    "mixture": of_mixture,
    "mixed columns": of_mixed_columns,
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", MAKE)
def test_batches_are_torchs_in_every_epoch(kind: str, workers: int) -> None:
    data, theirs = (MAKE[kind](seed=3, return_doc_ids=True) for _ in range(2))
    loader = DataLoader(data, 7, num_workers=workers, persistent_workers=workers > 0)
    seen = []
    for epoch in range(3):
        theirs.set_epoch(epoch)
        expected = list(Torchs(theirs, 7))
        assert_same(list(loader), expected)
        seen.append(repr(expected))
    assert len(set(seen)) == 3 and loader.stats().path == "array"


@pytest.mark.parametrize("path", ["thread", "process", "sync", "torch"])
def test_paths(path: str) -> None:
    data, theirs = (of_columns(seed=1) for _ in range(2))
    loader = DataLoader(data, 7, num_workers=2 * (path not in ("sync", "torch")), path=path)
    for epoch in range(2):
        theirs.set_epoch(epoch)
        assert_same(list(loader), list(Torchs(theirs, 7)))


def test_single_rows() -> None:
    data = of_columns(seed=1)
    loader = DataLoader(data, batch_size=None)
    assert_same(list(loader), [data[i] for i in range(len(data))])
    assert loader.stats().path == "array"


def test_indices_of_a_program() -> None:
    data = of_columns(seed=1)
    batches = [[0, 5, -1], [len(data) - 1, -len(data)]]
    loader = DataLoader(data, batch_sampler=batches)
    assert_same(list(loader), list(Torchs(data, batch_sampler=batches)))
    for index in (len(data), -len(data) - 1):
        loader = DataLoader(data, batch_sampler=[[0, index]])
        with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
            list(loader)


def test_every_document_of_a_mixture_comes_at_its_positions() -> None:
    data = of_mixture()
    mixture = data._data
    joined = RaggedArray.from_parts([*mixture._sources.values()])
    for epoch in range(3):
        data.set_epoch(epoch)
        rows = mixture._core.rows(np.arange(len(mixture)), epoch)
        expected = sorted(token for row in rows.tolist() for token in joined[row].tolist())
        found = [data[i]["input_ids"] for i in range(len(data))]
        pieces = [data.row(i) for i in range(len(data))]
        counts = [sum(piece[2] for piece in row) for row in pieces]
        kept = [ids[:count].tolist() for ids, count in zip(found, counts, strict=True)]
        assert sorted(token for row in kept for token in row) == expected


def test_weights_that_change() -> None:
    data = of_mixture()
    mixture = data._data
    assert data[0]["input_ids"].max() < 3 * 10**6
    mixture.set_weights(0, {"new": 1.0}, {"new": ragged(9, 300, 5 * 10**6)})
    tokens = torch.cat([batch["input_ids"].view(-1) for batch in DataLoader(data, 8)])
    assert bool(((tokens == 0) | (tokens >= 5 * 10**6)).all())


# ---- ranks and resuming


def ranked(data: PackedDataset, ranks: int, size: int, state: Any = None) -> Iterator[list[Any]]:
    """Yield the batches of each step, rank by rank, from the state on."""
    loaders = []
    for rank in range(ranks):
        sampler = ShuffleSampler(data, shuffle=False, num_replicas=ranks, rank=rank)
        loader = DataLoader(data, size, sampler=sampler)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        loaders.append(loader)
    for batches in zip(*map(iter, loaders), strict=True):
        yield [batches, loaders[0].state_dict()]


@pytest.mark.parametrize("seed", range(6))
def test_an_epoch_goes_on_at_any_row_on_other_ranks(seed: int) -> None:
    """Deaths at random: each row comes once, whatever the ranks, in later epochs as well."""
    any_of = random.Random(seed)
    data = of_columns(seed=seed)
    data.set_epoch(seed % 3)
    expected = sorted(data[i]["input_ids"].tolist() for i in range(len(data)))
    state, had = None, []
    for ranks in (7, 3, 16, 1):
        steps = ranked(of_again(data, seed), ranks, any_of.randint(1, 2), state)
        for batches, now in islice(steps, None if ranks == 1 else any_of.randint(0, 2)):
            state = now
            had += [row for batch in batches for row in batch["input_ids"].tolist()]
    assert sorted(had) == expected


def of_again(data: PackedDataset, seed: int) -> PackedDataset:
    """Return a dataset as a new process would make it."""
    again = of_columns(seed=seed)
    again.set_epoch(data._epoch.value)
    return again


def uneven() -> tuple[PackedDataset, list[int]]:
    """Return a dataset, and the numbers of rows of four epochs, which differ."""
    data = PackedDataset(ragged(1, 3000), 50, window=20, seed=1)
    lengths = [data._packing.place(epoch, -1)[2] for epoch in range(4)]
    assert len(set(lengths)) > 1
    return data, lengths


@pytest.mark.parametrize("workers", [0, 1])
def test_iterators_of_several_epochs_at_once(workers: int) -> None:
    """Each has the rows of its own epoch, whose numbers differ."""
    data, lengths = uneven()
    loader = DataLoader(data, 8, num_workers=workers)
    batches = [iter(loader) for _ in range(4)]
    found = [sum(len(batch["labels"]) for batch in each) for each in batches]
    assert found == lengths


def test_a_sampler_has_the_length_of_the_epoch() -> None:
    data, lengths = uneven()
    samplers = [ShuffleSampler(data, shuffle=False, num_replicas=2, rank=r) for r in range(2)]
    for epoch, count in enumerate(lengths):
        data.set_epoch(epoch)
        found = {row for sampler in samplers for row in sampler}
        assert found == set(range(count)) and len(samplers[0]) == -(-count // 2)


@pytest.mark.parametrize("epoch", range(4))
def test_the_end_of_an_epoch_on_other_ranks(epoch: int) -> None:
    """Whether a state is at the end of its epoch, the length of that epoch says."""
    data, lengths = uneven()

    def make(ranks: int, rank: int) -> DataLoader[Any]:
        again = PackedDataset(data._data, 50, window=20, seed=1)
        sampler = ShuffleSampler(again, shuffle=False, num_replicas=ranks, rank=rank)
        sampler.set_epoch(epoch)
        return DataLoader(again, 8, sampler=sampler)

    for passed in (0, 1):
        first = make(2, 0)
        batches = iter(first)
        had = sum(len(batch["labels"]) for batch in islice(batches, len(first) - passed))
        rest = max(0, lengths[epoch] - 2 * had)
        assert rest < 20
        state, left = first.state_dict(), 0
        for rank in range(3):
            again = make(3, rank)
            again.load_state_dict(state, strict=True)
            left += sum(len(batch["labels"]) for batch in again)
        assert left == -(-rest // 3) * 3


def test_a_loader_resumes_in_a_later_epoch() -> None:
    loader = DataLoader(of_columns(seed=3), 4)
    list(loader)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    state, rest = loader.state_dict(), list(batches)
    again = DataLoader(of_columns(seed=3), 4)
    again.load_state_dict(state, strict=True)
    assert_same(list(again), rest)
    assert first
    assert_same(list(again), list(loader))
    other = DataLoader(of_columns(seed=4), 4)
    with pytest.raises(ValueError, match=r"True, 3\) in the state and .*True, 4\) here"):
        other.load_state_dict(state, strict=True)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("batches", ["sampler", "costs"])
def test_a_resumed_epoch_packs_no_window_before_its_place(batches: str, ranks: int) -> None:
    """Documents of earlier windows are damaged, so packing one of these windows would raise."""
    lengths = np.random.default_rng(0).integers(1, 50, 1000)
    ends = np.append(0, np.cumsum(lengths))
    tokens = np.arange(ends[-1])

    def make(world: int) -> DataLoader[Any]:
        data = PackedDataset(RaggedArray(tokens, ends), 64, window=50, shuffle=False)
        if batches == "sampler":
            order = ShuffleSampler(data, shuffle=False, num_replicas=world, rank=0)
            return DataLoader(data, 4, sampler=order)
        costs = CostBatchSampler(data, 256, window=40, num_replicas=world, rank=0, shuffle=False)
        return DataLoader(data, batch_sampler=costs)

    loader = make(2)
    iterator = iter(loader)
    for _ in range(30):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    old = {key: part for key, part in state.items() if key != "place"}  # as earlier states are
    window = state["place"][1]
    assert 8 <= window <= 13 and len(loader.dataset) == state["place"][3]
    again = make(ranks)
    again.load_state_dict(old, strict=True)
    expected = list(islice(again, 10))
    if ranks == 2:
        assert_same(expected, list(islice(iterator, 10)))
    loaders = [make(ranks), make(ranks)]
    for loader in loaders:
        offsets = loader.dataset._data.offsets
        offsets.flags.writeable = True
        offsets[: 50 * window] = offsets[: 50 * window][::-1]
    loaders[0].load_state_dict(state, strict=True)
    assert len(loaders[0].dataset) == state["place"][3]
    assert_same(list(islice(loaders[0], 10)), expected)
    with pytest.raises(ValueError, match="the offsets have been changed"):
        loaders[1].load_state_dict(old, strict=True)
        next(iter(loaders[1]))


def test_the_place_in_an_epoch_is_for_the_same_rows_alone() -> None:
    """Weights that have been changed since, and that the state does not compare."""

    def make() -> tuple[MixtureDataset, PackedDataset]:
        mixture = MixtureDataset({"a": ragged(2), "b": ragged(3)}, {"a": 1, "b": 1})
        return mixture, PackedDataset(mixture, 64, window=40)

    mixture, data = make()
    mixture.set_weights(60, {"a": 1, "b": 3})
    batches = iter(loader := DataLoader(data, 4))
    for _ in range(9):
        next(batches)
    state, rest = loader.state_dict(), list(batches)
    for is_changed in (False, True):
        mixture, data = make()
        if is_changed:
            mixture.set_weights(60, {"a": 1, "b": 3})
        rows = [data[i] for i in range(len(data))]
        again = DataLoader(data, 4)
        again.load_state_dict(state, strict=True)
        assert len(data) == len(rows)
        assert_same([data[i] for i in range(len(rows))], rows)
        assert_same(list(DataLoader(pickle.loads(pickle.dumps(data)), None)), rows)
        assert not is_changed or state["place"] == data._place_of(36)
    again = DataLoader(data, 4)
    again.load_state_dict(state, strict=True)
    assert_same(list(again), rest)


@pytest.mark.parametrize("place", [[1, 2, 3], [1, -2, 3, 4], ["1", 2, 3, 4], [True, 2, 3, 4], 3])
def test_places_that_are_damaged(place: Any) -> None:
    loader = DataLoader(of_columns(), 4)
    next(iter(loader))
    with pytest.raises((TypeError, ValueError), match=r"state\['place'\] must be"):
        loader.load_state_dict({**loader.state_dict(), "place": place})


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_place_with_another_number_loses_no_row(number: int) -> None:
    loader = DataLoader(of_columns(), 4)
    iterator = iter(loader)
    for _ in range(15):
        next(iterator)
    state = loader.state_dict()
    state["place"][number] -= 1
    again = DataLoader(of_columns(), 4)
    again.load_state_dict(state, strict=True)
    assert_same(list(again), list(iterator))


def test_documents_that_have_changed_are_a_difference() -> None:
    """Two documents have changed places: their number and their tokens are as before."""
    lengths = [3, 9, 20, 5, 11, 30] * 5
    first, second = (
        PackedDataset(RaggedArray(np.arange(390), np.append(0, np.cumsum(each))), 32)
        for each in (lengths, lengths[::-1])
    )
    loader = DataLoader(first, 4)
    next(iter(loader))
    with pytest.raises(ValueError, match="dataset_length is 30 documents of 390 tokens in rows"):
        DataLoader(second, 4).load_state_dict(loader.state_dict(), strict=True)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"shuffle": False},
        {"order": "even"},
        {"weights": {"a": 1, "b": 2}},
        {"by": "tokens"},
    ],
)
def test_a_mixture_that_has_changed_is_a_difference(change: Any) -> None:
    sources = {"a": ragged(1), "b": ragged(2, 100, 10**5)}

    def mixed(**given: Any) -> MixtureDataset:
        return MixtureDataset(sources, **{"weights": {"a": 1, "b": 1}, "length": 150, **given})

    alike = mixed(weights={"b": 2, "a": 2})  # the same shares
    makes = [lambda data: PackedDataset(data, 64, window=20), lambda data: data]
    for make in makes:
        loader = DataLoader(make(mixed()), 4, collate_fn=list)
        next(iter(loader))
        state = loader.state_dict()
        DataLoader(make(alike), 4, collate_fn=list).load_state_dict(state, strict=True)
        other = DataLoader(make(mixed(**change)), 4, collate_fn=list)
        with pytest.raises(ValueError, match=r"dataset_length is .* in the state and .* here"):
            other.load_state_dict(state, strict=True)


# ---- mapped files


def test_a_mapped_file(tmp_path: Any) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(40_000, dtype=np.uint16))
    offsets = np.append(0, np.cumsum(np.random.default_rng(0).integers(1, 100, 500)))
    data = PackedDataset(RaggedArray(path, offsets), 64, window=100)
    theirs = PackedDataset(RaggedArray(np.load(path), offsets), 64, window=100)
    for workers in (0, 2):
        assert_same(list(DataLoader(data, 8, num_workers=workers)), list(Torchs(theirs, 8)))
        theirs.set_epoch(workers + 1)
        data.set_epoch(workers + 1)
    batches = iter(DataLoader(data, 8))
    next(batches)
    with open(path, "r+b") as file:
        file.truncate(4096)
    with pytest.raises(OSError, match=r"tokens.npy"):
        list(batches)
    with pytest.raises(OSError, match=r"tokens.npy"):
        data[3]


# ---- rows in a mixture


def packed_sources() -> dict[str, PackedDataset]:
    made = {"web": ragged(2), "code": ragged(3, 100, 10**6)}
    return {name: PackedDataset(each, 64, window=40, seed=2) for name, each in made.items()}


@pytest.mark.parametrize("order", ["jittered", "even"])
def test_rows_in_a_mixture_by_tokens(order: str) -> None:
    """Rows have equally many tokens, so each prefix of rows has its share of tokens."""
    sources = packed_sources()
    weights = {"web": 0.75, "code": 0.25}
    data, theirs = (
        MixtureDataset(
            sources, weights, by="tokens", order=order, stopping_strategy="all_exhausted"
        )
        for _ in range(2)
    )
    turns = {
        name: PackedDataset(each._data, 64, window=40, seed=2, repack=False)
        for name, each in sources.items()
    }
    loader = DataLoader(data, 5)
    at = 0
    for epoch in range(3):
        theirs.set_epoch(epoch)
        expected = list(Torchs(theirs, 5))
        assert_same(list(loader), expected)
        rows = [row for batch in expected for row in batch["input_ids"].tolist()]
        for row in rows:
            name, index = data.locate(at)
            before = data.seen(at)
            assert abs(before[name] - at * weights[name]) <= 2
            turns[name].set_epoch(before[name] // len(turns[name]))
            assert index == before[name] % len(turns[name])
            assert row == turns[name][index]["input_ids"].tolist()
            at += 1
    assert data.seen(at)["code"] > len(turns["code"]), "a second turn has begun"


def test_rows_in_a_mixture_that_resumes() -> None:
    data = MixtureDataset(packed_sources(), {"web": 0.5, "code": 0.5})
    loader = DataLoader(data, 4)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, rest = loader.state_dict(), list(batches)
    again = DataLoader(MixtureDataset(packed_sources(), {"web": 0.5, "code": 0.5}), 4)
    again.load_state_dict(state, strict=True)
    assert_same(list(again), rest)
    copy = pickle.loads(pickle.dumps(data))
    assert_same([copy[i] for i in range(9)], [data[i] for i in range(9)])
    with pytest.raises(ValueError, match="must be the dataset that has the name already"):
        data.set_weights(0, {"web": 1.0}, {"web": packed_sources()["web"]})
