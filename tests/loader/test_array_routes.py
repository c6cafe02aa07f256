"""Datasets over plain arrays that are no TensorDataset: tensors and arrays themselves, and
StackDataset and ConcatDataset of them. Same batches, same random numbers as torch's loader."""

import os
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare import Raised, assert_identical, results
from helpers import (
    TorchLoader,
    assert_same,
    assert_same_trace,
    collector_off,
    epoch,
    outcome,
    trace,
)
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from fastloop import ArrayDataset, DataLoader, ShuffleSampler, _core
from fastloop.loader.arrays.iterator import ArrayConfig

both = pytest.mark.parametrize("workers", [0, 2])

X = torch.arange(60.0).reshape(20, 3)
Y = torch.arange(20)
A = np.arange(80, dtype=np.int32).reshape(20, 2, 2)
PAIR = TensorDataset(X, Y)
BACK = TensorDataset(-X.T.contiguous().T, -Y)  # rows that are not contiguous
SOME = np.array([3, -1, 5, 5, -20])


def stacks(part: int) -> StackDataset[Any]:
    x = X + 100 * part
    inner: Any = StackDataset(A[:, 0], ArrayDataset(y=Y, x=x))  # type: ignore[type-var, arg-type]
    return StackDataset(x=x, inner=inner)  # type: ignore[arg-type]


MAKE: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "tensor of numbers": lambda: Y,
    "array": lambda: A,
    "array of numbers": lambda: A[:, 1, 0],
    "rows backwards": lambda: A[::-1, :, ::2],
    "stack": lambda: StackDataset(X, A, Y),  # type: ignore[arg-type]
    "stack of datasets": lambda: StackDataset(PAIR, BACK),
    "stack by name": lambda: StackDataset(b=PAIR, a=ArrayDataset(q=A)),  # type: ignore[arg-type]
    "stack of stacks": lambda: stacks(0),
    "stack of subsets": lambda: StackDataset(Subset(PAIR, SOME), Subset(X, range(9, 4, -1))),  # type: ignore
    "stack of concats": lambda: StackDataset(ConcatDataset([X, X[:5]]), ConcatDataset([Y[:5], Y])),  # type: ignore
    "concat": lambda: ConcatDataset([PAIR, TensorDataset(X[:7] + 100, Y[:7] + 100)]),
    "concat of one": lambda: ConcatDataset([PAIR]),
    "concat of tensors": lambda: ConcatDataset([X, X[:0], X[4:] + 7]),  # type: ignore[list-item]
    "concat of numbers": lambda: ConcatDataset([A[:, 0, 0], A[::-2, 1, 1]]),  # type: ignore
    "concat of strided": lambda: ConcatDataset([BACK, BACK, TensorDataset(-X.T.contiguous().T, Y)]),
    "concat of subsets": lambda: ConcatDataset([Subset(PAIR, SOME), Subset(PAIR, range(4, 20, 3))]),  # type: ignore
    "concat of nested subsets": lambda: ConcatDataset(
        [Subset(Subset(PAIR, range(0, 20, 2)), [-1, 0, 4]), PAIR]
    ),
    "concat of stacks": lambda: ConcatDataset([stacks(0), stacks(1), stacks(2)]),
    "concat of concats": lambda: ConcatDataset([ConcatDataset([PAIR, PAIR]), PAIR]),
    "concat beside an empty one": lambda: ConcatDataset([TensorDataset(Y[:0].bool()), PAIR]),
    "concat of arrays": lambda: ConcatDataset([ArrayDataset(x=A, y=Y), ArrayDataset(x=-A, y=-Y)]),
}
names = pytest.mark.parametrize("name", MAKE)
LOADERS = (DataLoader, TorchLoader)
OPTIONS: list[dict[str, Any]] = [
    {"batch_size": 6, "shuffle": True},
    {"batch_size": 4, "drop_last": True},
    {"batch_sampler": [[0], [-1, 2, 1], [3, 3]]},
    {"batch_size": None, "shuffle": True},
]


def load(cls: Any, *args: Any, **options: Any) -> list[Any]:
    return epoch(cls(*args, **options))


def two(dataset: Any, workers: int, **options: Any) -> list[Any]:
    """Ours and torch's, which has no workers, each with a generator of its own."""
    if options.get("shuffle"):
        options["generator"] = torch.Generator()
    ours = DataLoader(dataset, num_workers=workers, path="array", **options)
    if options.get("shuffle"):
        options["generator"] = torch.Generator()
    return [ours, TorchLoader(dataset, **options)]


@names
def test_batches_and_random_numbers_are_torchs(name: str) -> None:
    dataset = MAKE[name]()
    for options in OPTIONS:
        loaders = two(dataset, 0, **options)
        for loader in loaders:
            if loader.generator is not None:
                loader.generator.manual_seed(7)
        assert_same_trace(*(trace(loader, loader.generator) for loader in loaders))
        without: dict[str, Any] = {**options, "generator": None}
        assert_same_trace(
            trace(DataLoader(dataset, path="array", **without)),
            trace(TorchLoader(dataset, **without)),
        )


@names
def test_workers_change_no_batch(name: str) -> None:
    dataset = MAKE[name]()
    for options in OPTIONS:
        assert_same(*map(epoch, two(dataset, 2, **options)))


@both
@names
def test_subsets_of_them_are_torchs(name: str, workers: int) -> None:
    dataset = MAKE[name]()
    part = random_split(dataset, [0.7, 0.3], torch.Generator().manual_seed(1))[0]
    for subset in (part, Subset(Subset(dataset, [4, -1, 2, 0, 1]), [3, 0, -4])):
        assert_same(*map(epoch, two(subset, workers, batch_size=3, shuffle=True)))


@pytest.mark.parametrize("workers", [(0, 2), (2, 0)])
@names
def test_an_epoch_goes_on_where_it_was(name: str, workers: tuple[int, int]) -> None:
    dataset = MAKE[name]()

    def make(count: int) -> Any:
        return DataLoader(dataset, 2, shuffle=True, num_workers=count, path="array")

    torch.manual_seed(3)
    whole = list(make(workers[0]))
    torch.manual_seed(3)
    stopped = make(workers[0])
    iterator = iter(stopped)
    next(iterator)
    state = stopped.state_dict()
    resumed = make(workers[1])
    resumed.load_state_dict(state)
    assert_same(list(resumed), whole[1:])


def test_numbers_of_each_dtype_are_torchs_or_left_to_it() -> None:
    for code in "?bBhHiIlLefdgFDO":
        for array in (np.arange(6).astype(code), np.arange(6).astype(code).reshape(3, 2)):
            made = [outcome(partial(load, cls, array, 2)) for cls in LOADERS]
            assert_same(*made, repr(array.dtype))
    assert DataLoader(A[:, 0, 0].astype(np.float16)).stats().path == "array"
    foreign = DataLoader(A.astype(">i4"))
    assert foreign.stats().path == "sync"
    assert "must have a dtype that torch has" in foreign.stats().why


def test_indices_that_are_no_integers_give_what_torch_gives() -> None:
    odd: list[Any] = [True, slice(1, 3), [1, 2], torch.tensor([1, 2]), None, 1.5, (1, 2)]
    for name in ("tensor", "array", "stack", "stack by name", "concat of arrays"):
        dataset = MAKE[name]()
        for index in odd:
            options = {"batch_sampler": [[0], [1, index]]}
            found = [outcome(partial(load, cls, dataset, **options)) for cls in LOADERS]
            assert_same(*found, f"{name}, {index!r}")


@both
@names
def test_an_index_outside_raises_what_torch_raises_in_the_same_place(
    name: str, workers: int
) -> None:
    """With workers, too, the text is that of torch's loader without any."""
    dataset = MAKE[name]()
    end = len(dataset)
    batches = [[0], [1, end], [-end - 1], [2, -1], [-end, 99, -(2**63)], [end - 1], [2**63 - 1, 99]]
    cases: list[dict[str, Any]] = [
        {"batch_sampler": batches, "path": "array"},
        {"batch_size": 4, "sampler": range(end + 2), "path": "array"},
    ]
    if workers == 0:  # with workers some of these samplers are left to worker processes
        cases += [
            {"batch_size": 2, "sampler": torch.tensor([0, 1, 2, end, 1, 2])},
            {"batch_size": None, "sampler": [0, end, 1, -end - 1, 2]},
        ]
    for case in cases:
        ours = results(DataLoader(dataset, num_workers=workers, **case))
        case.pop("path", None)
        theirs = results(TorchLoader(dataset, **case))
        assert any(isinstance(item, Raised) for item in ours)
        assert_identical(ours, theirs, f"{case}")


def test_a_sampler_of_lists_is_left_to_torch_where_datasets_are_nested() -> None:
    for name, path in (("tensor", "array"), ("array", "array"), ("stack", "sync")):
        options: dict[str, Any] = {"batch_size": None, "sampler": [[0, 1], [2]]}
        ours = DataLoader(MAKE[name](), **options)
        assert ours.stats().path == path
        assert_same(list(ours), list(TorchLoader(MAKE[name](), **options)))
    assert "do not index a StackDataset" in ours.stats().why
    sampler = ShuffleSampler(MAKE["concat"]())
    loader = DataLoader(MAKE["concat"](), None, sampler=sampler, num_workers=1)
    assert loader.stats().path == "array"


@both
def test_what_is_assigned_to_a_dataset_is_met_by_the_next_iter(workers: int) -> None:
    x, y = X.clone(), Y.clone()
    stack: Any = StackDataset(x=TensorDataset(x), y=y)
    both_parts: Any = ConcatDataset([stack, Subset(stack, range(5))])
    ours, theirs = two(both_parts, workers, batch_size=5)
    iterator = iter(ours)
    next(iterator)
    stack.datasets["x"].tensors, stack.datasets["y"] = (-X,), -Y
    both_parts.datasets[1] = Subset(stack, range(15, 20))
    rest = ((slice(k, k + 5)) for k in (5, 10, 15, 0))
    assert_same(list(iterator), [{"x": [X[rows]], "y": Y[rows]} for rows in rest])
    assert_same(epoch(ours), epoch(theirs))


def test_without_workers_data_that_change_in_place_are_met_by_the_next_batch() -> None:
    x = X.clone()
    parts: Any = ConcatDataset([TensorDataset(x), TensorDataset(x)])
    ours, theirs = (iter(loader) for loader in two(parts, 0, batch_size=5))
    assert_same(next(ours), next(theirs))
    x += 1
    assert_same(next(ours), next(theirs))
    parts.datasets[1].tensors[0].resize_(15, 3)
    with pytest.raises((RuntimeError, ValueError), match="got 15"):
        next(ours)


@both
def test_mapped_parts(workers: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.npy" for k in range(3)]
    arrays = [torch.randint(0, 255, (rows, 512), dtype=torch.uint8) for rows in (30, 5, 30)]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array.numpy())
    shards = ConcatDataset([ArrayDataset(str(path)) for path in paths] + [ArrayDataset(arrays[0])])
    assert_same(*map(epoch, two(shards, workers, batch_size=7, shuffle=True)))
    mapped = np.load(paths[0], mmap_mode="r")
    taken = StackDataset(Subset(mapped, [3, 1]), Y[:2])  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # once
        assert_same(*map(epoch, two(taken, workers, batch_size=2)))
    # Row 8 of a file lies in its last page, which is then read as zeros, row 20 behind it.
    os.truncate(paths[2], 128 + 512 * 8 + 100)
    for row in (8, 20):
        loader = DataLoader(shards, batch_sampler=[[0], [4, 35 + row]], num_workers=workers)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OSError, match=rf"field 0, row {35 + row} can no") as caught:
            next(iterator)
        assert caught.value.filename == str(paths[2])


@both
def test_nothing_holds_the_arrays_of_a_loader_that_is_gone(workers: int) -> None:
    array, tensor = A.copy(), X.clone()
    gone = [weakref.ref(array), weakref.ref(tensor)]
    dataset: Any = ConcatDataset([StackDataset(array, Subset(tensor, range(20)))] * 2)  # type: ignore
    del array, tensor
    iterator = iter(DataLoader(dataset, 4, num_workers=workers, path="array"))
    next(iterator)
    with collector_off():
        del iterator, dataset
        assert [ref() for ref in gone] == [None, None]


BAD: dict[str, tuple[Any, Any]] = {
    "no segments": ((None,), ()),
    "half a segment": ((None, X), (None,)),
    "too few files": ((None, X, 20, X, 20), (None,)),
    "no tuple of files": ((None, X, 20), None),
    "no file": ((None, X, 20), (3,)),
    "rows that are no integers": ((None, X, 2.5), (None,)),
    "rows of int32": ((None, X, SOME.astype(np.int32)), (None,)),
    "other rows": ((None, X, 19), (None,)),
    "a negative row": ((None, X, SOME), (None,)),
    "too many rows": ((None, X, 2**64), (None,)),
    "other dtypes": ((None, X, 20, X.int(), 20), (None, None)),
    "other strides": ((None, X, 20, BACK.tensors[0], 20), (None, None)),
    "no array": ((None, "x", 20), (None,)),
}


@pytest.mark.parametrize("name", BAD)
def test_segments_that_are_none_are_refused(name: str) -> None:
    source, files = BAD[name]
    with pytest.raises((TypeError, ValueError, OverflowError)):
        _core.Table(torch.Tensor, ((source, "x", files),))


def test_structures_that_do_not_fit_are_refused() -> None:
    table = _core.Table(torch.Tensor, ((X, "x", None), (Y, "y", None)))
    deep: Any = (None, None)
    for _ in range(1_000_000):  # CPython 3.14 allows what fits the stack
        deep = (deep,)
    for structure in (None, (None,), (None, 3), {"x": None}, [None, None], deep):
        with pytest.raises((ValueError, RecursionError)):
            _core.ArrayLoader(table, _core.BatchPool(2), ArrayConfig(structure))


ROWS_WITH_GAPS: dict[str, Any] = {
    "channels last": torch.arange(288.0).view(6, 3, 4, 4).to(memory_format=torch.channels_last),
    "transposed": torch.arange(48.0).view(8, 6).t(),
    "every second": torch.arange(48.0).view(6, 8)[:, ::2],
    "one element wide": torch.arange(84.0).view(7, 2, 6)[:, :, :1],
    "one element high": torch.arange(14.0).view(7, 2, 1, 1).transpose(1, 2),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ROWS_WITH_GAPS)
def test_single_samples_keep_their_strides(name: str, workers: int) -> None:
    rows = ROWS_WITH_GAPS[name]
    for dataset in (
        TensorDataset(rows),
        rows,
        rows.numpy(),
        Subset(TensorDataset(rows), [2, 0]),
        ConcatDataset([TensorDataset(rows)] * 2),
        ArrayDataset(rows),
    ):
        want, got = (
            torch.utils.data.default_convert([*cls(dataset, batch_size=None, num_workers=workers)])
            for cls in (TorchLoader, DataLoader)
        )
        assert_same(got, want)
        pairs = zip(got, want, strict=True)
        for mine, theirs in (
            pairs if isinstance(got[0], torch.Tensor) else ((a[0], b[0]) for a, b in pairs)
        ):
            assert mine.stride() == theirs.stride()
