"""CostBatchSampler in loaders: every path packs torch's batches, ranks die and others go on, and
the number of a batch's targets as its weight gives the gradient of one rank."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers import TorchLoader, assert_same
from lazy_device import LazyAccelerator, LazyDevice
from torch.nn import functional as F

import fastloop.data.cost_batches
import fastloop.loader.device_iter
from fastloop import (
    ArrayDataset,
    CostBatchSampler,
    DataLoader,
    PackCollate,
    PackedDataset,
    RaggedArray,
    Stepper,
    _core,
)

LENGTHS = np.clip(np.random.default_rng(3).lognormal(2.5, 0.9, 240), 2, 60).astype(np.int64)
TOKENS = np.random.default_rng(4).integers(0, 50, LENGTHS.sum())
DATA = ArrayDataset(
    input_ids=RaggedArray(TOKENS, np.append(0, np.cumsum(LENGTHS))),
    number=torch.arange(len(LENGTHS)),
)
PATHS = [("array", 0), ("array", 2), ("sync", 0), ("thread", 2), ("process", 2), ("torch", 2)]


def sampler_of(rank: int, ranks: int, **given: Any) -> CostBatchSampler:
    return CostBatchSampler(LENGTHS, 120, window=100, num_replicas=ranks, rank=rank, **given)


def loader_of(sampler: Any, cls: Any = DataLoader, **given: Any) -> Any:
    return cls(DATA, batch_sampler=sampler, collate_fn=PackCollate(), **given)


@pytest.mark.parametrize(("path", "workers"), PATHS)
def test_every_path_packs_torchs_batches(path: str, workers: int) -> None:
    sampler = sampler_of(1, 3, seed=2)
    ours = loader_of(sampler, path=path, num_workers=workers)
    theirs = loader_of(sampler_of(1, 3, seed=2), TorchLoader, num_workers=workers)
    for epoch in (0, 4):
        sampler.set_epoch(epoch)
        theirs.batch_sampler.set_epoch(epoch)
        batches = list(ours)
        assert_same(batches, list(theirs))
        assert len(ours) == len(batches)
        assert all(batch["input_ids"].numel() <= 120 for batch in batches)
    assert ours.stats().path == path


def test_batches_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(device)
    )
    found = []
    for batch in loader_of(sampler_of(0, 2), device="cuda"):
        device.run()
        found.append({name: torch.as_tensor(part).clone() for name, part in batch.items()})
    expected = [
        {name: torch.as_tensor(part) for name, part in batch.items()}
        for batch in loader_of(sampler_of(0, 2), TorchLoader)
    ]
    assert_same(found, expected)


def test_the_ranks_are_the_process_groups() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=2, world_size=3, store=FakeStore())
    try:
        sampler = CostBatchSampler(LENGTHS, 120, window=100)
    finally:
        dist.destroy_process_group()
    assert list(sampler) == list(sampler_of(2, 3))


# ---- other ranks


@pytest.mark.filterwarnings("ignore:the loaded state is at the end of epoch")
def test_ranks_die_and_others_go_on() -> None:
    """The states of loaders: no sample is read twice, and all are read."""
    draw = random.Random(5)
    for case in range(12):
        state, had = None, Counter[int]()
        while True:
            ranks, size = draw.randrange(1, 9), draw.randrange(1, 4)
            samplers = [
                sampler_of(rank, ranks, accumulate=size, seed=case) for rank in range(ranks)
            ]
            loaders = [loader_of(sampler) for sampler in samplers]
            if state is None:
                for sampler in samplers:
                    sampler.set_epoch(case)
            else:
                for loader in loaders:
                    loader.load_state_dict(json.loads(state), strict=True)
            batches = draw.choice([None, 1, 2, 3, 5])
            found = [list(islice(iterator, batches)) for iterator in map(iter, loaders)]
            assert len({len(each) for each in found}) == 1
            states = [json.dumps(loader.state_dict()) for loader in loaders]
            assert states == states[:1] * ranks
            state = states[0]
            now = Counter(i for each in found for batch in each for i in batch["number"].tolist())
            assert not had & now
            had += now
            if batches is None or len(found[0]) < batches:
                break
        assert sorted(had) == list(range(len(LENGTHS))) and had.total() < len(LENGTHS) + ranks


@pytest.mark.parametrize("ranks", [3, 5])
def test_resuming_plans_the_windows_of_the_place_alone(ranks: int, monkeypatch: Any) -> None:
    """Far into an epoch: the window in which the state stands, the next one, and on other ranks
    the former again. A state without the window says the same."""
    lengths = np.tile(LENGTHS, 50)
    planned = []

    def plan(*args: Any) -> int:
        planned.append(len(args[0]))
        return _core.balance_window(*args)

    monkeypatch.setattr(fastloop.data.cost_batches, "balance_window", plan)

    def make(world: int, **given: Any) -> Any:
        given |= {"num_replicas": world, "rank": 1}
        sampler = CostBatchSampler(lengths, 120, window=300, **given)
        return DataLoader(range(len(lengths)), batch_sampler=sampler, collate_fn=list)

    batches = iter(loader := make(3))
    for _ in range(400):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(planned) < 40 and len(state["dealt"]) == 1
    found = []
    for dealt in (state["dealt"], []):
        again = make(ranks)
        planned.clear()
        again.load_state_dict({**state, "dealt": dealt}, strict=True)
        found.append(list(islice(iter(again), 5)))
        assert not dealt or len(planned) <= 4
    assert found[0] == found[1] and len(planned) > 10
    if ranks == 3:
        assert found[0] == list(islice(batches, 5))


def test_begins_of_windows_that_are_damaged() -> None:
    batches = iter(loader := loader_of(sampler_of(0, 2)))
    next(batches)
    state = loader.state_dict()
    for dealt in ([[-1, 0]], [[0, -1]], [[1.0, 0]], [[2, 1, 3], [1, 1]]):
        with pytest.raises(ValueError, match=r"state\['dealt'\]: each must be \[ranks, batch_size"):
            loader.load_state_dict({**state, "dealt": dealt})
    for dealt in ([[0, 5]], [[240, 0]]):
        with pytest.raises(ValueError, match=r"CostBatchSampler has .* and cannot begin after"):
            loader.load_state_dict({**state, "dealt": dealt})


def test_a_change_of_the_costs_is_told() -> None:
    loader = loader_of(sampler_of(0, 2))
    next(iter(loader))
    other = loader_of(sampler_of(0, 2, cost=(1.0, 1.0)))
    with pytest.raises(ValueError, match=r"batch_sampler_length is lengths and costs \w+ by 120"):
        other.load_state_dict(loader.state_dict(), strict=True)


# ---- packed rows


def packed_rows() -> PackedDataset:
    ends = np.append(0, np.cumsum(LENGTHS))
    return PackedDataset(RaggedArray(TOKENS, ends), 64, window=50, seed=7, return_doc_ids=True)


def packed_loader(rank: int, ranks: int, cls: Any = DataLoader, **given: Any) -> Any:
    data = packed_rows()
    sampler = CostBatchSampler(data, 192, num_replicas=ranks, rank=rank, **given)
    return cls(data, batch_sampler=sampler)


def key_of(row: Any) -> tuple[int, ...]:
    return tuple(row.tolist())


@pytest.mark.parametrize("ranks", [1, 3])
def test_packed_rows_come_once_in_each_epoch_and_cost_the_same(ranks: int) -> None:
    loaders = [packed_loader(rank, ranks) for rank in range(ranks)]
    theirs = [packed_loader(rank, ranks, TorchLoader) for rank in range(ranks)]
    for epoch in range(3):  # the loaders count the epochs of the dataset
        for loader in (*loaders, *theirs):
            loader.batch_sampler.set_epoch(epoch)
        for loader in theirs:
            loader.dataset.set_epoch(epoch)
        found = [list(loader) for loader in loaders]
        assert_same(found, [list(loader) for loader in theirs])
        assert [len(each) for each in found] == [len(loader) for loader in loaders]
        data = theirs[0].dataset
        every = Counter(key_of(data[i]["input_ids"]) for i in range(len(data)))
        had = Counter(key_of(row) for each in found for b in each for row in b["input_ids"])
        assert set(had) == set(every) and (had - every).total() < ranks
        costs = data.row_costs(0, len(data), (1.0, 1 / 24_576))
        lengths, theirs_costs = loaders[0].batch_sampler._source.measure(np.arange(len(data)))
        assert (lengths == 64).all() and (theirs_costs == costs).all()


@pytest.mark.filterwarnings("ignore:the loaded state is at the end of epoch")
def test_packed_rows_go_on_on_other_ranks_in_their_epoch() -> None:
    draw = random.Random(2)
    for case in range(8):
        state, had = None, Counter[tuple[int, ...]]()
        data = packed_rows()
        data.set_epoch(2)
        every = Counter(key_of(data[i]["input_ids"]) for i in range(len(data)))
        while True:
            ranks = draw.randrange(1, 6)
            loaders = [packed_loader(rank, ranks, seed=case) for rank in range(ranks)]
            for loader in loaders:
                if state is None:
                    loader.batch_sampler.set_epoch(2)  # loaders begin this epoch of the dataset
                else:
                    loader.load_state_dict(json.loads(state), strict=True)
            batches = draw.choice([None, 1, 3, 5])
            found = [list(islice(iterator, batches)) for iterator in map(iter, loaders)]
            assert len({len(each) for each in found}) == 1
            state = json.dumps(loaders[0].state_dict())
            had += Counter(key_of(row) for each in found for b in each for row in b["input_ids"])
            if batches is None or len(found[0]) < batches:
                break
        assert set(had) == set(every) and (had - every).total() < ranks


# ---- weights


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(50, 8, dtype=torch.float64)
        self.out = torch.nn.Linear(8, 50, dtype=torch.float64)

    def forward(self, batch: Any) -> torch.Tensor:
        """The mean loss of the batch's targets: each token but the first one of a sequence."""
        logits = self.out(self.embedding(batch["input_ids"][..., :-1]))
        return F.cross_entropy(logits.flatten(0, -2), batch["labels"][..., 1:].flatten())


def gradients_of(model: Model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(("ranks", "size"), [(4, 1), (3, 2)])
def test_targets_as_weights_give_the_gradient_of_one_rank(ranks: int, size: int) -> None:
    """Here all ranks' batches of a step, one after the other, are a window of one stepper. Under
    DDP the ranks of tests/step/test_stepper_ddp.py show the same."""
    loaders = [loader_of(sampler_of(rank, ranks, accumulate=size)) for rank in range(ranks)]
    batches = [batch for step in zip(*loaders, strict=True) for batch in step]
    model, steps = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: steps.append(gradients_of(model)))
    stepper = Stepper(optimizer, accumulate=ranks * size)
    for batch in stepper.iterate(batches):
        with stepper.micro(weight=(batch["labels"] != -100).sum()):
            stepper.backward(model(batch))

    alone, expected, targets = Model(), [], set()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for begin in range(0, len(batches), ranks * size):
        step = batches[begin : begin + ranks * size]
        (whole,) = loader_of([[i for b in step for i in b["number"].tolist()]], TorchLoader)
        optimizer.zero_grad()
        alone(whole).backward()
        expected.append(gradients_of(alone))
        optimizer.step()
        targets.add(int((whole["labels"] != -100).sum()))
    torch.testing.assert_close(steps, expected, rtol=1e-9, atol=1e-12)
    assert len(targets) > 1  # steps have unequal numbers of targets
