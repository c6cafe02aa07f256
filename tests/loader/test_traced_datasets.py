"""Datasets of a program whose `__getitem__` only indexes: threads gather their batches, which are
torch's bit for bit, also where the program changes what `__getitem__` reads."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, assert_same_trace, epoch, outcome, trace
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

from fastloop import DataLoader
from fastloop._core import read_numbers
from fastloop.adapters import closed_world

N = 41
both = pytest.mark.parametrize("workers", [0, 2])
LENGTH = 3  # a global name that a dataset reads


@pytest.fixture(autouse=True)
def nothing_refused() -> None:
    closed_world._refused.clear()


class Made(Dataset[Any]):
    """Attributes by name."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.n


def random(*shape: int, dtype: Any = np.float64) -> Any:
    return (np.random.default_rng(sum(shape)).random(shape) * 200 - 50).astype(dtype)


# ---- how programs write it


class Ratings(Made):
    """Lists of lists of ints; one of two lists by a flag."""

    def __len__(self) -> int:
        return (self.negatives + 1) * len(self.labels) // 2

    def __getitem__(self, index: int) -> Any:
        pairs = self.train if self.is_training else self.test
        user = pairs[index][0]
        item = pairs[index][1]
        return user, item, self.labels[index]


class Clicks(Made):
    def __len__(self) -> int:
        return self.targets.shape[0]

    def __getitem__(self, index: int) -> Any:
        return self.items[index], self.targets[index]


class Tables(Made):
    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x, y = self.x[index], self.y[index]
        return x, y


class Series(Made):
    """Windows that overlap, and windows of the same array with another offset."""

    def __len__(self) -> int:
        return len(self.data_x) - self.seen - self.asked + 1

    def __getitem__(self, index: int) -> Any:
        begin = index
        end = begin + self.seen
        next_begin = end - self.label
        next_end = next_begin + self.label + self.asked
        seq_x = self.data_x[begin:end]
        seq_y = self.data_y[next_begin:next_end]
        return seq_x, seq_y, self.stamp[begin:end], self.stamp[next_begin:next_end]


class Chunks(Made):
    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, index: int) -> Any:
        return self.input_ids[index], self.target_ids[index]


class Encodings(Made):
    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        item = {key: torch.tensor(val[index]) for key, val in self.encodings.items()}
        item["labels"] = torch.tensor(self.labels[index])
        return item


class Tokens(Made):
    """Blocks of a mapped file of uint16, cast."""

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.block

    def __getitem__(self, i: int) -> Any:
        if i < 0 or i >= len(self):
            raise IndexError(f"no sample {i}")
        a, b = i * self.block, self.block
        x = torch.from_numpy(self.data[a : a + b].astype(np.int64))
        return x, torch.from_numpy(self.data[a + 1 : a + 1 + b].astype(np.int64))


class Dicts(Made):
    def __len__(self) -> int:
        return self.x.size(0) - self.config.skip

    def __getitem__(self, i: int) -> Any:
        if torch.is_tensor(i):
            i = i.tolist()
        sample = {"x": self.x[i], "column": self.x[i, :, 1], "pair": [self.y[i + 1].long(), i]}
        sample["flat"] = self.x[i].view(-1).double()
        sample["one"] = self.y[i].float().unsqueeze(0)
        if self.transform:
            sample = self.transform(sample)
        return sample


class Globals(Made):
    def __getitem__(self, i: int) -> Any:
        return {"w": self.x[2 * i + 1 : 2 * i + 1 + LENGTH, 0], "c": 1.5, "i": i * 3 - 1}


class Images(Made):
    """Rows with gaps, the last dimension first."""

    def __getitem__(self, i: int) -> Any:
        return torch.as_tensor(self.x[..., :0].shape[0] and self.x[i]), int(self.y[i])


def tokens(folder: Path) -> Any:
    file = np.memmap(folder / "tokens", np.uint16, "w+", shape=(8 * N + 1,))
    file[:] = np.arange(8 * N + 1) * 197 % 50_000
    file.flush()
    return Tokens(data=np.memmap(folder / "tokens", np.uint16, "r"), block=8)


def pairs_of(count: int) -> list[list[int]]:
    return [[i, i * 7 % 50 + 2**33] for i in range(count)]


MAKE: dict[str, Callable[[Path], Any]] = {
    "lists of lists": lambda _: Ratings(
        negatives=1, labels=[i % 2 for i in range(N)], train=pairs_of(N), test=[], is_training=True
    ),
    "rows of NumPy": lambda _: Clicks(
        items=random(N, 2, dtype=np.int64), targets=random(N, dtype=np.float32)
    ),
    "tables": lambda _: Tables(x=random(N, 5), y=random(N, dtype=np.int32)),
    "a table and bools": lambda _: Tables(x=torch.randn(N, 3) > 0, y=tuple(range(N))),
    "series": lambda _: Series(
        data_x=(data := random(N + 20, 7)), data_y=data, stamp=random(N + 20, 4), seen=12, label=6,
        asked=5,
    ),
    "encodings": lambda _: Encodings(
        encodings={"ids": [[i + k for k in range(6)] for i in range(N)], "p": [[0.5] * 6] * N},
        labels=list(range(N)),
    ),
    "tokens": tokens,
    "dicts": lambda _: Dicts(
        x=torch.randn(N, 4, 3), y=torch.arange(N, dtype=torch.int32), config=Namespace(skip=2),
        transform=None,
    ),
    "globals": lambda _: Globals(x=torch.randn(2 * N + 4, 2, dtype=torch.float16), n=N),
}  # fmt: skip
WITH_WORKERS = {
    "lists of tensors": lambda _: Chunks(
        input_ids=[torch.arange(i, i + 6) for i in range(N)],
        target_ids=[torch.arange(i + 1, i + 7) for i in range(N)],
    )
}


def is_served(loader: Any) -> bool:
    return bool(loader.stats().path == "array")


@both
@pytest.mark.parametrize("name", [*MAKE, *WITH_WORKERS])
def test_batches_are_torchs(name: str, workers: int, tmp_path: Path) -> None:
    data = {**MAKE, **WITH_WORKERS}[name](tmp_path)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    ours = DataLoader(data, **options)
    assert is_served(ours) is not (name in WITH_WORKERS and workers == 0), ours.stats().why
    if workers == 0:
        assert_same_trace(trace(ours), trace(TorchLoader(data, **options)))
        options["drop_last"] = True
    whole = epoch(TorchLoader(data, **options))
    assert_same(epoch(DataLoader(data, **options)), whole)
    torch.manual_seed(3)
    left, resumed = DataLoader(data, **options), DataLoader(data, **options)
    next(iter(left))
    resumed.load_state_dict(left.state_dict())
    assert_same(list(resumed), whole[1:])


SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "subset": lambda d: (Subset(d, [3, 3, 0, N - 1, 7]), {}),
    "random_split": lambda d: (random_split(d, [20, N - 20])[1], {"shuffle": True}),
    "a vector": lambda d: (Subset(Subset(d, np.arange(9, 2, -1)), range(1, 5)), {}),
    "indices": lambda d: (d, {"sampler": SubsetRandomSampler([5, 4, 39])}),
    "weights": lambda d: (d, {"sampler": WeightedRandomSampler([1.0] * N, 13)}),
    "replacement": lambda d: (d, {"sampler": RandomSampler(d, True, 70)}),
}


@both
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name: str, workers: int) -> None:
    data, more = SAMPLERS[name](Globals(x=torch.randn(2 * N + 4, 2), n=N))
    options = {"batch_size": 3, "num_workers": workers, **more}
    ours = DataLoader(data, **options)
    assert is_served(ours), ours.stats().why
    assert_same(epoch(ours), epoch(TorchLoader(data, **options)))


OUTSIDE: dict[str, Callable[[Any], Any]] = {
    "from the end": lambda d: (Subset(d, [3, -1]), {}),
    "beyond": lambda d: (Subset(d, [3, N]), {}),
    "other ints": lambda d: (Subset(d, list(np.arange(4, dtype=np.uint8))), {}),
    "another length": lambda d: (d, {"sampler": RandomSampler(range(N + 2))}),
    "indices": lambda d: (d, {"sampler": SubsetRandomSampler([5, -4])}),
    "weights": lambda d: (d, {"sampler": WeightedRandomSampler([1.0] * (N + 1), 13)}),
    "an own sampler": lambda d: (d, {"sampler": [1, 2, 3]}),
    "batches": lambda d: (
        d,
        {"batch_size": 1, "batch_sampler": BatchSampler(SubsetRandomSampler([5, -4]), 2, False)},
    ),
    "single samples": lambda d: (d, {"batch_size": None}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_indices_that_mean_something_else_than_for_arrays(name: str) -> None:
    data, more = OUTSIDE[name](Globals(x=torch.randn(2 * N + 4, 2), n=N))
    options = {"batch_size": 3, **more}
    ours = DataLoader(data, **options)
    assert not is_served(ours)
    theirs = TorchLoader(data, **options)
    assert_same(outcome(lambda: epoch(ours)), outcome(lambda: epoch(theirs)))


def cast_by(text: str) -> Any:
    scope: dict[str, Any] = {"torch": torch, "np": np, "Made": Made}
    exec(f"class Cast(Made):\n def __getitem__(self, i):\n  return {text}", scope)
    return scope["Cast"]


CASTS = """self.x[i].long() | self.x[i].float() | self.x[i].double() | self.x[i].to(torch.float64)
self.x[i].numpy() | torch.as_tensor(self.x[i]) | self.x[i].item() | int(self.x[i])
float(self.x[i]) | self.x[i].astype(np.int64) | self.x[i].astype("float32")
torch.tensor(self.x[i]) | torch.tensor(self.x[i], dtype=torch.float32) | np.float32(self.x[i])
self.x[i].clone().reshape(1) | self.x[i:i+4].float() | np.array(self.x[i:i+2])
torch.from_numpy(self.x[i:i+4].astype(np.float32)) | self.x[i].unsqueeze(0).numpy()
torch.tensor(self.x[i:i+2]) | torch.FloatTensor(self.x[i:i+3]) | self.x[i:i+2].reshape(2, 1)[1]"""
DTYPES = "int8 int16 int32 int64 uint8 uint16 uint32 float16 float32 float64 bool".split()


@pytest.mark.parametrize("text", [each.strip() for each in CASTS.replace("\n", "|").split("|")])
def test_dtypes_are_torchs(text: str) -> None:
    """Whether the dtype is served or not; at least some are."""
    cls, served = cast_by(text), 0
    for dtype in DTYPES:
        array = np.array([2**40 + 1, -3, 7, 2.7, 0, 250, 2**53 + 1, 1e300] * 3)
        with np.errstate(all="ignore"):
            array = np.nan_to_num(array.astype(np.float64), posinf=9).astype(dtype)
        sources: list[Any] = [array, array.tolist()]
        sources += [] if dtype.startswith("uint") and dtype > "uint16" else [torch.tensor(array)]
        for source in sources:
            closed_world._refused.clear()
            data = cls(x=source, n=20)
            with np.errstate(all="ignore"):
                ours = DataLoader(data, 3)
                found = outcome(lambda: epoch(ours))  # noqa: B023
                assert_same(found, outcome(lambda: epoch(TorchLoader(data, 3))))  # noqa: B023
            served += is_served(ours)
    assert served >= 2


ROWS: list[tuple[Any, Any, int, bool]] = [
    ([1, 2, 3], [1], 2, True),
    ([1, 2, 3], [1], 3, False),
    ([1, 2, 3], [-1], 1, False),
    ([1, True, 3], [0], 2, False),
    ([1, 2.0, 3], [0], 2, False),
    ([1, 2**63, 3], [0], 2, False),
    ((-(2**63), 2, 3), [0], 1, True),
    ([[1], [2]], [0], 1, False),
]


def test_numbers_of_a_list() -> None:
    for items, starts, count, is_read in ROWS:
        out = np.full(3, 9)
        assert read_numbers(items, np.array(starts), count, out) is is_read, items
        if is_read:
            at = slice(starts[0], starts[0] + count)
            assert out[at].tolist() == list(items[at])
    pairs = np.zeros((2, 2))
    assert read_numbers([[0.5, 1.5], (2.5, 3.5)], np.array([1, 0]), 1, pairs)
    assert pairs.tolist() == [[0.5, 1.5], [2.5, 3.5]]
    for short in ([[1.0]] * 2, [[1.0, 2.0, 3.0]] * 2, [[1.0, 2]] * 2, [1.0, 2.0], [None] * 2):
        assert not read_numbers(short, np.array([0]), 2, pairs)
    for wrong in (np.zeros(3, np.int32), np.zeros((3, 3))[:, 0], np.zeros((1, 1, 1))):
        with pytest.raises(TypeError, match="must have a list"):
            read_numbers([1], np.array([0]), 1, wrong)


def test_indices_that_a_sampler_is_given_after_iter(recwarn: pytest.WarningsRecorder) -> None:
    data, found = Globals(x=torch.randn(2 * N + 4, 2), n=N), []
    for make in (DataLoader, TorchLoader):
        sampler = SubsetRandomSampler([5])
        iterator = iter(make(data, 1, sampler=sampler))
        sampler.indices = [-4]
        found.append(epoch(iterator))
    assert_same(*found)
    assert recwarn.list == []  # no comparison has found that out


LEFT_OUT = "self.y[i] | self.y[i:i+1] | self.y[i, 0] | self.x[i].squeeze(0) | self.lists[i][1]"


@pytest.mark.parametrize("text", LEFT_OUT.split(" | "))
def test_what_a_sample_leaves_out_raises_its_errors(text: str) -> None:
    data = cast_by(f"[self.z[i], {text}][:1]")(
        x=random(N, 2), y=random(N - 1, 2), z=random(N), lists=[[1]] * N, n=N
    )
    for _ in range(2):
        found = outcome(lambda: epoch(DataLoader(data, 3)))
        assert_same(found, outcome(lambda: epoch(TorchLoader(data, 3))))
    data.y, data.x, data.lists = random(N, 2), random(N, 1), [[1, 2]] * N
    closed_world._refused.clear()
    assert is_served(DataLoader(data, 3))


TWICE = """torch.tensor(self.x[i], dtype=torch.float32) | np.float32(self.x[i].item())
torch.FloatTensor(self.x[i:i+1]) | np.array(self.x[i], dtype="float32")
self.x[i:i+1].astype(np.float32) | self.x[i].float()"""


@pytest.mark.parametrize("text", [each.strip() for each in TWICE.replace("\n", "|").split("|")])
def test_large_ints_are_rounded_as_often_as_in_torch(text: str) -> None:
    values = [1] * 101 + [2**60 + 2**36 + 1]  # rounds to another float32 by way of a float64
    for x in (values, np.array(values), torch.tensor(values)):
        data = cast_by(text)(x=x, n=102)
        found = outcome(lambda: epoch(DataLoader(data, 3)))  # noqa: B023
        assert_same(found, outcome(lambda: epoch(TorchLoader(data, 3))))  # noqa: B023


@both
@pytest.mark.parametrize("make", [list, np.array])
def test_a_tensor_of_a_number_is_rounded_twice_by_the_gather(make: Any, workers: int) -> None:
    y = make([2**60 + 2**36 + 1, -(2**60) - 2**36 - 1, 2**63 - 1, -(2**63), *range(98)])
    data = cast_by("{'y': torch.tensor(self.y[i], dtype=torch.float)}")(y=y, n=102)
    ours = DataLoader(data, 5, num_workers=workers)
    assert_same(epoch(ours), epoch(TorchLoader(data, 5, num_workers=workers)))
    assert is_served(ours)


def test_a_large_number_of_the_index_is_rounded_as_in_torch() -> None:
    text = "self.x[i], torch.tensor(i * 2**30 + 2**60 + 1, dtype=torch.float32)"
    data = cast_by(text)(x=torch.zeros(102), n=102)
    assert_same(epoch(DataLoader(data, 3)), epoch(TorchLoader(data, 3)))


class Optional(Made):
    def __getitem__(self, i: int) -> Any:
        return self.x[i].double() if self.transform is not None else self.x[i]


def test_an_object_that_becomes_none_is_a_change(recwarn: pytest.WarningsRecorder) -> None:
    data = Optional(x=torch.randn(N), n=N, transform=Namespace())
    ours = DataLoader(data, 4)
    assert is_served(ours)
    iterator, left = iter(ours), epoch(TorchLoader(data, 4))[:1]
    found = [next(iterator)]
    data.transform = None
    assert_same([*found, *iterator], left + epoch(TorchLoader(data, 4))[1:])
    assert recwarn.list == []  # no comparison has found that out


# ---- changes


def change_list(data: Any) -> None:
    data.train[0][1] = 77
    data.train[5] = [1, 2]
    data.labels[7] = 9


def change_kind(data: Any) -> None:
    data.labels[3:] = [0.5] * (N - 3)


def shorten(data: Any) -> None:
    del data.labels[30:]


def rebind(data: Any) -> None:
    data.train = pairs_of(2 * N)[N:]


def switch(data: Any) -> None:
    data.is_training, data.test = False, pairs_of(3 * N)[2 * N :]


def replace_method(data: Any) -> None:
    type(data).__getitem__ = lambda self, i: torch.tensor(i)


def replace_code(data: Any) -> None:
    type(data).__getitem__.__code__ = (lambda self, index: index).__code__


def add_property(data: Any) -> None:
    type(data).train = property(lambda self: [[5, 5]] * N)


def fetch_lists(data: Any) -> None:
    type(data).__getitems__ = lambda self, rows: [torch.tensor(row) for row in rows]


def swap_class(data: Any) -> None:
    data.__class__ = type("Other", (type(data),), {"__getitem__": lambda self, i: i})


CHANGES = [change_list, change_kind, shorten, rebind, switch, replace_method, replace_code]


@pytest.mark.parametrize("change", [*CHANGES, add_property, fetch_lists, swap_class])
def test_a_change_within_an_epoch_shows_as_in_torch(change: Any) -> None:
    found = []
    for make in (DataLoader, TorchLoader):
        method = Ratings.__getitem__
        code = method.__code__
        own: Any = type("Own", (Ratings,), {"__getitem__": method})
        data = own(**vars(MAKE["lists of lists"](Path())))
        loader = make(data, 4)
        if make is DataLoader:
            assert is_served(loader)
        iterator, batches = iter(loader), []
        try:
            batches += [next(iterator) for _ in range(2)]
            change(data)
            batches.append(outcome(lambda: [*iterator]))  # noqa: B023
            batches.append(outcome(lambda: [*loader]))  # noqa: B023
        finally:
            method.__code__ = code
        found.append(batches)
    assert_same(*found)


TENSOR_CHANGES: dict[str, Callable[[Any], object]] = {
    "in place": lambda x: x.add_(1),
    "other data": lambda x: setattr(x, "data", torch.zeros(2 * N + 4, 2)),
    "smaller": lambda x: x.resize_(4, 2),
    "grad": lambda x: x.requires_grad_(),
    "moved": lambda x: x.share_memory_(),
    "transposed": lambda x: x.t_(),
}


@pytest.mark.parametrize("name", TENSOR_CHANGES)
def test_a_change_of_a_tensor_shows_as_in_torch(name: str) -> None:
    found = []
    for make in (DataLoader, TorchLoader):
        x = torch.arange(4 * N + 8.0).reshape(-1, 2)
        iterator = iter(make(Globals(x=x, n=N), 4))
        batches = [next(iterator)]
        TENSOR_CHANGES[name](x)
        found.append([*batches, outcome(lambda: [*iterator])])  # noqa: B023
    assert_same(*found)


@both
def test_attributes_are_read_at_each_iter(workers: int) -> None:
    data = MAKE["lists of lists"](Path())
    ours, theirs = (make(data, 4, num_workers=workers) for make in (DataLoader, TorchLoader))
    for _ in range(3):
        assert_same(epoch(ours), epoch(theirs))
        rebind(data)
        data.labels = data.labels[:-2] if len(data.labels) > N - 2 else data.labels
        assert is_served(ours)


def test_arrays_that_change_while_workers_load_are_those_of_iter() -> None:
    data = MAKE["rows of NumPy"](Path())
    expected = epoch(TorchLoader(data, 4))
    iterator = iter(DataLoader(data, 4, num_workers=2))
    data.items[...] = 0
    assert_same([*iterator], expected)


def test_a_dataset_is_not_kept_alive() -> None:
    data = MAKE["dicts"](Path())
    data.me = data.config.owner = data
    loader = DataLoader(data, 4)
    epoch(loader)
    found = weakref.ref(data)
    del data, loader
    gc.collect()
    assert found() is None


class Described(Made):
    def __getitem__(self, i: int) -> Any:
        return self.info["x"][i], len(self.parents)


@pytest.mark.parametrize("name", ["info", "parents"])
def test_a_dataset_within_its_own_dict_or_list_is_not_kept_alive(name: str) -> None:
    data = Described(info={"x": torch.randn(N)}, parents=[], n=N)
    if name == "info":
        data.info["owner"] = data
    else:
        data.parents.append([data])
    loader = DataLoader(data, 4)
    assert is_served(loader)
    epoch(loader)
    found = weakref.ref(data)
    del data, loader
    gc.collect()
    assert found() is None


@pytest.mark.needs_fork("torch's workers have copies of what was pickled")
@pytest.mark.parametrize("kind", ["array", "tensor", "tensor's array"])
def test_memory_that_worker_processes_share_is_read_when_batches_are_made(kind: str) -> None:
    found = []
    for make in (DataLoader, TorchLoader):
        x: Any = np.frombuffer(multiprocessing.RawArray("d", N))  # type: ignore[call-overload]
        if kind == "tensor":
            x = torch.from_numpy(x)
        elif kind != "array":
            x = torch.zeros(N).share_memory_().numpy()
        loader = make(Globals(x=x.reshape(N, 1), n=8), 4, num_workers=1, persistent_workers=True)
        batches = [*loader]
        x[:] = 7
        found.append([batches, [*loader]])
        if make is DataLoader:
            assert is_served(loader)
    assert_same(*found)


def test_what_the_columns_are_compared_with_is_the_programs_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trace that is wrong costs no batch: the first batch is Python's, and so are all others."""
    made = closed_world.World.trace

    def swapped(self: Any, thing: Any) -> Any:
        (items, targets), count = made(self, thing)
        return (targets, items), count

    class Swapped(Clicks):  # of which no other test has compared the first batches
        pass

    monkeypatch.setattr(closed_world.World, "trace", swapped)
    data = Swapped(items=random(N), targets=random(N) + 1)
    ours = DataLoader(data, 4)
    assert is_served(ours)
    with pytest.warns(RuntimeWarning, match="samples of Swapped differ from its __getitem__'s"):
        assert_same(epoch(ours), epoch(TorchLoader(data, 4)))
    assert not is_served(ours)
