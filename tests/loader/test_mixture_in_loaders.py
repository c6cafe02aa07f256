"""MixtureDataset in loaders: threads gather the same batches that torch's loader makes, in every
epoch, and an epoch goes on at any sample on any number of ranks."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fastloop import (
    ArrayDataset,
    DataLoader,
    MixtureDataset,
    PackCollate,
    PackedDataset,
    PadCollate,
    RaggedArray,
    ShuffleSampler,
    TokenDataset,
    transforms,
)

Torchs = torch.utils.data.DataLoader
WEIGHTS = {"x": 0.5, "y": 0.3, "z": 0.2}


def tensors(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count)


def of_arrays() -> dict[str, Any]:
    rows = np.arange(400).reshape(200, 2)
    return {
        "x": ArrayDataset(rows[:50], tensors(0, 50)),
        "y": TensorDataset(torch.from_numpy(rows[50:90]), tensors(50, 40)),
        "z": ConcatDataset(
            [
                ArrayDataset(rows[90:100], tensors(90, 10)),
                Subset(ArrayDataset(rows[100:140], tensors(100, 40)), list(range(39, 9, -1))),
            ]
        ),
    }


def of_tensors() -> dict[str, Any]:
    return {"x": tensors(0, 50), "y": tensors(50, 40), "z": tensors(90, 40)}


def of_dicts() -> dict[str, Any]:
    return {
        name: ArrayDataset(image=np.full((30, 3, 4, 4), i, np.uint8), label=tensors(100 * i, 30))
        for i, name in enumerate(WEIGHTS)
    }


def of_images() -> dict[str, Any]:
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 8, 8), np.uint8)
    flip = transforms.RandomHorizontalFlip()
    return {name: ArrayDataset(images, transform=flip, seed=i) for i, name in enumerate(WEIGHTS)}


def of_tokens(mode: str = "jittered", **given: Any) -> dict[str, Any]:
    return {
        name: TokenDataset.from_buffers(np.arange(400) + 1000 * i, [0, 400], 8, mode=mode, **given)
        for i, name in enumerate(WEIGHTS)
    }


def of_documents() -> dict[str, Any]:
    return of_tokens("strided", return_docs=True, eos_id=7)


def of_kinds() -> dict[str, Any]:
    lists = [[i, i + 1] for i in range(40)]
    return {
        "x": RaggedArray(np.arange(80), np.arange(0, 82, 2)),
        "y": torch.arange(60).reshape(30, 2),
        "z": [torch.tensor(each) for each in lists],
    }


KINDS = {"arrays": of_arrays, "tensors": of_tensors, "dicts": of_dicts}
KINDS |= {"windows": lambda: of_tokens("strided"), "documents": of_documents}
OTHERS = {"images": of_images, "tokens": of_tokens, "kinds": of_kinds}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_batches_are_torchs_in_every_epoch(kind: str, workers: int) -> None:
    make = {**KINDS, **OTHERS}[kind]
    data, theirs = (MixtureDataset(make(), WEIGHTS, seed=3) for _ in range(2))
    path = "thread" if workers and kind in OTHERS else "auto"
    loader = DataLoader(data, 7, num_workers=workers, path=path)
    seen = []
    for epoch in range(3):
        theirs.set_epoch(epoch)
        expected = list(Torchs(theirs, 7))
        assert_same(list(loader), expected)
        seen.append(repr(expected))
    assert len(set(seen)) == 3
    assert (loader.stats().path == "array") == (kind in KINDS)


def of_texts(seed: int, has_rows: bool, is_tensor: bool = False) -> Any:
    draw = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(draw.integers(1, 9, 40)))
    values: Any = draw.integers(0, 99, offsets[-1], np.int32)
    ids = RaggedArray(torch.from_numpy(values) if is_tensor else values, offsets)
    rows = {"row": np.arange(80).reshape(40, 2)} if has_rows else {}
    return ArrayDataset(input_ids=ids, score=draw.random(40).astype(np.float32), **rows)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [PadCollate(), PackCollate(max_tokens=32)])
def test_sequences_of_several_sources(collate: Any, workers: int) -> None:
    is_padded = isinstance(collate, PadCollate)
    sources = {name: of_texts(i, is_padded) for i, name in enumerate(WEIGHTS)}
    data, theirs = MixtureDataset(sources, WEIGHTS), MixtureDataset(sources, WEIGHTS)
    loader = DataLoader(data, 8, collate_fn=collate, num_workers=workers)
    for epoch in range(2):
        theirs.set_epoch(epoch)
        assert_same(list(loader), list(Torchs(theirs, 8, collate_fn=collate)))
    assert loader.stats().path == "array"
    kept = dict(data._joined)
    list(loader)
    assert kept and all(data._joined[key] is kept[key] for key in kept)
    sources["x"]._fields[0].values[:] += 100
    theirs.set_epoch(3)
    assert_same(list(loader), list(Torchs(theirs, 8, collate_fn=collate)))
    sources = {**sources, "z": of_texts(3, is_padded, is_tensor=True)}
    loader = DataLoader(MixtureDataset(sources), 8, collate_fn=collate)
    assert_same(list(loader), list(Torchs(MixtureDataset(sources), 8, collate_fn=collate)))
    assert loader.stats().why == "field 'input_ids' has sequences in tensors, within a mixture"


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_shuffled_loader_and_a_subset(shuffle: bool) -> None:
    data = MixtureDataset(of_arrays(), WEIGHTS)
    rows = Subset(data, list(range(len(data) - 1, 4, -2)))
    batches = []
    for make in (DataLoader, Torchs):
        torch.manual_seed(0)
        batches.append(list(make(rows, 5, shuffle=shuffle)))
    assert_same(*batches)


def test_an_index_out_of_range_is_the_datasets_error() -> None:
    data = MixtureDataset(of_tensors(), WEIGHTS)
    loader = DataLoader(data, batch_sampler=[[0, len(data)]])
    with pytest.raises(IndexError, match=f"index {len(data)} is out of bounds for a length of"):
        list(loader)


def test_sources_that_differ_are_named() -> None:
    sources = {"x": ArrayDataset(a=tensors(0, 9)), "y": ArrayDataset(b=tensors(0, 9))}
    with pytest.raises(
        ValueError, match=r"samples of source '.' must have the structure of source"
    ):
        list(DataLoader(MixtureDataset(sources), 9))


def test_changed_weights_come_with_the_next_epoch() -> None:
    data = MixtureDataset(of_tensors(), WEIGHTS, length=60)
    loader = DataLoader(data, 6)
    batches = iter(loader)
    first = [next(batches) for _ in range(5)]
    data.set_weights(60, {"z": 1})
    rest = torch.cat([*first, *batches])
    assert sum(rest < 50) > 20 and len(rest) == 60
    assert torch.cat(list(loader)).min() >= 90


@pytest.mark.parametrize("make", [of_tensors, lambda: of_tokens("strided")])
def test_a_source_that_has_gone_is_asked_for_no_later_sample(make: Any) -> None:
    data = MixtureDataset(make(), WEIGHTS, length=24)
    data.set_weights(24, {"x": 1, "z": 1})
    fewer = {name: source for name, source in make().items() if name != "y"}
    again = MixtureDataset(fewer)
    again.load_state_dict(data.state_dict())
    for each in (data, again):
        each.set_epoch(1)
    assert_same(list(DataLoader(again, 6)), list(DataLoader(data, 6)))
    again.set_epoch(0)
    with pytest.raises(ValueError, match="sources must hold 'y' for this sample, got none"):
        list(DataLoader(again, 6))


# ---- ranks


def order_of(data: MixtureDataset, epoch: int) -> list[int]:
    data.set_epoch(epoch)
    return [int(x) for x in data.__getitems__(range(len(data)))]


def test_an_epoch_goes_on_at_any_sample_on_any_ranks() -> None:
    draw = random.Random(5)
    for trial in range(18):
        sources = of_tensors()
        once = "all_exhausted_without_replacement"
        given: dict[str, Any] = {"order": draw.choice(["even", "jittered"]), "seed": trial}
        given["stopping_strategy"] = draw.choice(["first_exhausted", "all_exhausted", once])
        expected = order_of(MixtureDataset(sources, WEIGHTS, **given), 2)
        had: list[int] = []
        state: Any = None
        for stage in range(4):
            ranks, size = draw.randrange(1, 6), draw.randrange(1, 5)
            steps = None if stage == 3 else draw.randrange(0, 4)
            steps = steps if len(had) + ranks * size * (steps or 0) < len(expected) else 0
            parts, states, deal = [], [], draw.choice(["stride", "runs"])
            for rank in range(ranks):
                data = MixtureDataset(sources, WEIGHTS, **given)
                sampler = ShuffleSampler(
                    data, shuffle=False, deal=deal, num_replicas=ranks, rank=rank
                )
                sampler.set_epoch(2 if state is None else 0)
                loader = DataLoader(data, size, sampler=sampler)
                if state is not None:
                    loader.load_state_dict(state, strict=True)
                batches = iter(loader)
                parts.append([x for b in islice(batches, steps) for x in b.tolist()])
                states.append(json.loads(json.dumps(loader.state_dict())))
            state = states[0]
            together = [x for part in parts for x in part]
            if steps is not None:
                assert Counter(together) == Counter(expected[len(had) : len(had) + len(together)])
            had += together
        again = len(had) - len(expected)
        assert 0 <= again < ranks and not Counter(expected) - Counter(had)


def test_a_source_of_another_length_is_a_difference() -> None:
    loader = DataLoader(MixtureDataset(of_tensors(), WEIGHTS, length=70), 7)
    next(iter(loader))
    state = loader.state_dict()
    sources = {**of_tensors(), "y": tensors(50, 41)}
    other = DataLoader(MixtureDataset(sources, WEIGHTS, length=70), 7)
    text = r"dataset_length is 70 of x: 50, y: 40, z: 40; .* in the state and 70 of x: 50, y: 41"
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(state, strict=True)


def test_packed_rows_of_other_documents_are_a_difference() -> None:
    """Two documents have changed places: there are as many rows as before."""

    def make(lengths: list[int]) -> DataLoader[Any]:
        tokens = RaggedArray(np.arange(sum(lengths)), np.append(0, np.cumsum(lengths)))
        packed = PackedDataset(tokens, 8)
        return DataLoader(MixtureDataset({"a": packed, "b": packed}, {"a": 1, "b": 1}), 2)

    next(iter(loader := make([3, 5, 8, 2])))
    make([3, 5, 8, 2]).load_state_dict(loader.state_dict(), strict=True)
    with pytest.raises(ValueError, match=r"a: \d of checksum \w+, b: .* in the state and "):
        make([5, 3, 8, 2]).load_state_dict(loader.state_dict(), strict=True)


def test_a_resumed_epoch_keeps_what_came_before_a_change() -> None:
    data = MixtureDataset(of_tensors(), WEIGHTS, length=90)
    loader = DataLoader(data, 9)
    batches = iter(loader)
    first = [next(batches) for _ in range(4)]
    state = loader.state_dict()
    weights = data.state_dict()
    again = MixtureDataset(
        {**of_tensors(), "new": tensors(500, 30)}, {**WEIGHTS, "new": 1}, length=5
    )
    again.load_state_dict(weights)
    again.set_weights(36, {"new": 1, "y": 1})
    loader = DataLoader(again, 9)
    loader.load_state_dict(state, strict=True)
    rest = torch.cat(list(loader)).tolist()
    assert len(rest) == 54 and sum(x >= 500 for x in rest) in (26, 27, 28)
    ys = [x for x in [*torch.cat(first).tolist(), *rest] if 50 <= x < 90]
    assert len(set(ys)) == len(ys), "y goes on with samples that have not come yet"
