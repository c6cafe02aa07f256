"""Lists of tuples of equal tensors, which C gathers once they are stacked: torch's batches, random
numbers, and the samples of the moment of iter()."""

import tempfile
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, assert_same_trace, epoch, trace
from torch import Tensor
from torch.utils.data import Subset, WeightedRandomSampler

from fastloop import DataLoader
from fastloop.loader.route import choose_route


def tensors(count: int = 23, dtype: torch.dtype = torch.float32, *shape: int) -> list[Tensor]:
    torch.manual_seed(7)
    return [torch.randint(0, 2, shape or (3, 2)).to(dtype) for _ in range(count)]


ROWS = np.arange(69, dtype=np.float32).reshape(23, 3)
DATA: dict[str, Any] = {
    "tensors and numbers": [(t, i, -i / 3) for i, t in enumerate(tensors())],
    "tuples of one": [(t,) for t in tensors()],
    "a tuple": tuple((t, t[0]) for t in tensors()),
    "tensors": tensors(23, torch.uint8, 5),
    "numbers": list(range(-5, 18)),
    "a range": range(40, -6, -2),
    "lists": [[i, -i, 3] for i in range(23)],
    "lists of one": [[t] for t in tensors()],
    "no dimension": [(t.sum(), 2**62) for t in tensors()],
    "no element": [torch.empty(0, 3) for _ in range(23)],
    "rows of an array": [(x, i) for i, x in zip(np.arange(23), ROWS, strict=True)],
    "arrays": [(x.copy(), np.float32(x[0])) for x in ROWS.astype(np.uint16)],
    "arrays without a dimension": [np.array(i) for i in range(23)],
    **{str(t): [(x, 1) for x in tensors(23, t)] for t in (torch.bool, torch.bfloat16, torch.int64)},
}


def loader_of(data: Any, **given: Any) -> DataLoader:
    return DataLoader(data, 4, num_workers=2, **given)


def path_of(loader: DataLoader) -> str:
    return choose_route(loader, "auto", "").path


MOVED = "torch's loader moves the tensors that it pickles"


@pytest.mark.needs_fork(MOVED)
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("is_persistent", [False, True])
def test_batches_are_torchs(name: str, is_persistent: bool) -> None:
    given = {"shuffle": True, "num_workers": 2, "persistent_workers": is_persistent}
    loaders = [cls(DATA[name], 4, **given) for cls in (DataLoader, TorchLoader)]
    assert_same_trace(*map(trace, loaders))
    assert loaders[0].stats().path == "array", loaders[0].stats().why
    assert type(epoch(loaders[0])[0]) is type(epoch(loaders[1])[0])


def test_a_range_needs_no_workers() -> None:
    given = {"dataset": range(3, 90, 4), "batch_size": 4, "shuffle": True}
    ours, theirs = DataLoader(**given), TorchLoader(**given)
    assert_same_trace(trace(ours), trace(theirs))
    assert ours.stats().path == "array", ours.stats().why
    for more in ({"batch_size": None, "shuffle": False}, {"sampler": [0, -1, 5], "shuffle": False}):
        ours, theirs = DataLoader(**{**given, **more}), TorchLoader(**{**given, **more})
        assert_same_trace(trace(ours), trace(theirs))
        assert ours.stats().path == "sync"


@pytest.mark.needs_fork(MOVED)
def test_subsets_and_samplers() -> None:
    data = DATA["tensors and numbers"]
    for given in (
        {"dataset": Subset(data, [3, -1, 5, 5, *range(10)])},
        {"dataset": data, "sampler": WeightedRandomSampler([1.0] * 23, 40), "drop_last": True},
    ):
        given = {"batch_size": 4, "num_workers": 2, **given}
        ours, theirs = DataLoader(**given), TorchLoader(**given)
        assert_same(epoch(ours), epoch(theirs))
        assert ours.stats().path == "array", ours.stats().why


def test_the_samples_are_those_of_iter() -> None:
    data = [(t.clone(), i) for i, t in enumerate(tensors())]
    loader = loader_of(data)
    expected, batches = epoch(loader), iter(loader)
    data[9][0].fill_(9)
    data[10] = (data[10][0] + 5, -1)
    assert_same(list(batches), expected)
    changed = epoch(loader)
    assert changed[2][0][1].eq(9).all() and changed[2][1][2] == -1
    data.append((tensors()[0], 3))
    assert sum(len(y) for _, y in loader) == 24


def test_state_in_the_middle() -> None:
    batches = iter(loader := loader_of(DATA["a tuple"], shuffle=True))
    next(batches)
    state, rest = loader.state_dict(), list(batches)
    other = loader_of(DATA["a tuple"], shuffle=True)
    other.load_state_dict(state)
    assert_same(list(other), rest)


def with_one(sample: Any, data: Any = DATA["tensors and numbers"]) -> list[Any]:
    return [*data[:-1], sample]


T = torch.zeros(3, 2)
with tempfile.TemporaryFile() as file:
    MAPPED = np.memmap(file, np.uint8, "w+", shape=(23, 4))
LEFT: dict[str, Any] = {
    "another shape": with_one((T[:2], 1, 0.0)),
    "another dtype": with_one((T.double(), 1, 0.0)),
    "an int among floats": with_one((T, 1, 1)),
    "a bool among ints": with_one((T, True, 0.0)),
    "another length": with_one((T, 1)),
    "a list": with_one([T, 1, 0.0]),
    "text": [(T, "a")] * 8,
    "dicts": [{"x": T}] * 8,
    "a subclass": with_one((torch.nn.Parameter(T, requires_grad=False), 1, 0.0)),
    "gaps": with_one((torch.zeros(2, 3).T, 1, 0.0)),
    "gradients": with_one((torch.zeros(3, 2, requires_grad=True), 1, 0.0)),
    "sparse": [T.to_sparse()] * 8,
    "shared memory": with_one((T.clone().share_memory_(), 1, 0.0)),
    "memory of NumPy": with_one((torch.from_numpy(np.zeros((3, 2), np.float32)), 1, 0.0)),
    "every second column": [np.arange(6.0)[::2]] * 8,
    "rows of a file": list(MAPPED),
    "arrays that are read-only": [np.broadcast_to(ROWS[0], 3)] * 8,
    "arrays of text": [np.array(["a"])] * 8,
    "arrays of several dtypes": [np.zeros(2), np.zeros(2, np.int64)] * 4,
    "an ndarray of another class": with_one(np.ma.ones(3), list(ROWS)),
    "bools of NumPy": [np.bool_(True)] * 8,
    "nothing in a tuple": [()] * 8,
    "large": [torch.zeros(1 << 20)] * 20,
    "lists of many numbers": [[0] * 1000] * 9000,
    "lists and tuples": [[0, 1], (0, 1)] * 8,
    "a long range": range(1 << 24),
    "a range of large ints": range(2**70, 2**70 + 23),
    "large together": [(torch.zeros(1 << 19),) * 2] * 20,
    "many": [0] * 70_000,
    "large ints": with_one((T, 2**70, 0.0)),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_to_worker_processes(name: str) -> None:
    assert path_of(loader_of(LEFT[name])) == "process"


def test_no_more_is_stacked_than_an_epoch_takes() -> None:
    data = DATA["tensors and numbers"]
    assert path_of(loader_of(Subset(data, range(8)))) == "process"
    assert path_of(DataLoader(data, 4)) == "sync"
    assert path_of(DataLoader(data, None, num_workers=2)) == "process"
    assert path_of(loader_of([])) == "process"
    assert path_of(DataLoader(data, batch_sampler=[[1, 2], [-3]], num_workers=2)) == "process"
