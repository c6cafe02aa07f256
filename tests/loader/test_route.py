"""Which loaders take the array path, which fall to torch's own code and why; either way the
batches are torch's."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    ListSampler,
    N,
    TorchLoader,
    assert_same,
    assert_same_trace,
    epoch,
    outcome,
    small_dataset,
    trace,
)
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
    random_split,
)
from torch.utils.data._utils import collate

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop.loader.arrays import iterator as array_iterator

X = torch.arange(24.0).reshape(8, 3)
Y = [1, 2]
IMAGES = torch.arange(96, dtype=torch.uint8).reshape(8, 3, 2, 2)
both = pytest.mark.parametrize("workers", [0, 2])


class MyTensors(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return [t * 2 for t in super().__getitem__(index)]


class MyArrays(ArrayDataset):
    pass


class MySubset(Subset[Any]):
    pass


class MyConcat(ConcatDataset[Any]):
    pass


class Tagged(torch.Tensor):
    pass


class Squares(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        if not 0 <= index < 8:
            raise IndexError(index)
        return index * index

    def __len__(self) -> int:
        return 8


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(X)


def last_two(samples: list[Any]) -> Any:
    return default_collate(samples[-2:])


def grown() -> Any:
    part = TensorDataset(X)
    whole = ConcatDataset([part, TensorDataset(X)])
    part.tensors = (torch.cat([X, -X]),)
    return whole


def seed_worker(worker: int) -> None:
    torch.manual_seed(worker)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(X, 0.5, 3, torch.quint8)


def told(loader: Any) -> list[Any]:
    """What 12 calls of next() give: batches, or type and text of what is raised."""
    iterator = iter(loader)
    return [outcome(lambda: next(iterator)) for _ in range(12)]


Case = tuple[Callable[[], Any], dict[str, Any], str]
# dataset, arguments, and what `why` says
OTHERS: dict[str, Case] = {
    "subclass of TensorDataset": (lambda: MyTensors(X), {}, "dataset is a MyTensors"),
    "subclass of ArrayDataset": (lambda: MyArrays(X), {}, "dataset is a MyArrays"),
    "subclass of Subset": (lambda: MySubset(TensorDataset(X), [1]), {}, "MySubset"),
    "a dataset of Python's": (Squares, {}, "dataset is a Squares"),
    "a range": (lambda: range(8), {"sampler": [0, 5]}, "dataset is a range"),
    "a parameter": (lambda: X.clone().requires_grad_(), {}, "the dataset requires grad"),
    "a masked array": (lambda: np.ma.MaskedArray(X.numpy()), {}, "dataset is a MaskedArray"),
    "text": (lambda: np.array(["a", "b"]), {}, "encode the text"),
    "subclass of ConcatDataset": (lambda: MyConcat([TensorDataset(X)] * 2), {}, "MyConcat"),
    "ConcatDataset": (lambda: ConcatDataset([TensorDataset(X), Squares()]), {}, "is a Squares"),
    "ConcatDataset of a list": (lambda: ConcatDataset([list(X)]), {}, "is a list"),  # type: ignore
    "an array whose rows go backwards": (lambda: X.numpy()[:, ::-1], {}, "rows of strides"),
    "ConcatDataset of what has grown since": (grown, {"batch_size": 4}, "had 8 rows"),
    "ConcatDataset of other structures": (
        lambda: ConcatDataset([StackDataset(x=X), StackDataset(y=X)]),  # type: ignore
        {"batch_size": 4},
        "different structure",
    ),
    "ConcatDataset of other dtypes": (
        lambda: ConcatDataset([X, X.double()]),  # type: ignore[list-item]
        {"batch_size": 5},
        "differ in dtype or shape",
    ),
    "ConcatDataset of other strides": (
        lambda: ConcatDataset([X, X.T.contiguous().T]),  # type: ignore[list-item]
        {"batch_size": 5},
        "differ in strides",
    ),
    "ConcatDataset of tensors and arrays": (
        lambda: ConcatDataset([X, X.numpy()]),  # type: ignore[list-item]
        {"batch_size": 4},
        "combines a dataset of tensors with one of ndarrays",
    ),
    "ConcatDataset of transformed images": (
        lambda: ConcatDataset([ArrayDataset(IMAGES, transform=T.ToDtype(torch.float32))]),
        {},
        "field 0 is not of plain arrays",
    ),
    "ConcatDataset around a Subset of one": (
        lambda: ConcatDataset([Subset(ConcatDataset([X, X]), [9]), X]),  # type: ignore
        {},
        "lies within a combined dataset",
    ),
    "StackDataset": (lambda: StackDataset(x=list(X)), {}, "is a list"),  # type: ignore[arg-type]
    "Subset out of range in a StackDataset": (
        lambda: StackDataset(Subset(X, [0, 8]), Y),  # type: ignore[arg-type]
        {},
        "out of bounds for a length of 8",
    ),
    "IterableDataset": (Stream, {}, "dataset is a Stream"),
    "collate_fn": (lambda: TensorDataset(X), {"collate_fn": last_two}, "collate_fn"),
    "collate_fn without batches": (
        lambda: TensorDataset(X),
        {"collate_fn": default_collate, "batch_size": None, "sampler": [[0, 1]]},
        "collate_fn",
    ),
    "parameter": (
        lambda: TensorDataset(torch.nn.Parameter(X, requires_grad=False)),
        {},
        "tensor 0 is a Parameter",
    ),
    "subclass of Tensor": (
        lambda: TensorDataset(X, X.clone().as_subclass(Tagged)),
        {},
        "tensor 1 is a Tagged",
    ),
    "requires_grad": (
        lambda: TensorDataset(X.clone().requires_grad_()),
        {},
        "tensor 0 requires grad",
    ),
    "requires_grad in ArrayDataset": (
        lambda: ArrayDataset(a=X, b=X.clone().requires_grad_()),
        {},
        "field 'b' requires grad",
    ),
    "sparse": (lambda: TensorDataset(X.to_sparse()), {}, "sparse_coo"),
    "csr": (lambda: TensorDataset(X.to_sparse_csr()), {}, "sparse_csr"),
    "conjugate": (lambda: TensorDataset((X + 1j).conj()), {}, "conjugate view"),
    "negative": (lambda: TensorDataset((X + 1j).conj().imag), {}, "negative view"),
    "quantized": (lambda: TensorDataset(quantized()), {}, "quantized"),
    "meta": (lambda: TensorDataset(torch.zeros(8, device="meta")), {}, "is on meta"),
    "Subset with floats": (lambda: Subset(TensorDataset(X), [1.0]), {}, "plain integers"),
    "Subset with booleans": (lambda: Subset(TensorDataset(X), [True, False]), {}, "plain integers"),
    "Subset with lists": (lambda: Subset(TensorDataset(X), [[0, 1]]), {}, "plain integers"),
    "Subset with a mask": (
        lambda: Subset(TensorDataset(X), torch.tensor([True, False])),
        {},
        "plain integers",
    ),
    "Subset with bytes of a tensor": (
        lambda: Subset(TensorDataset(X), torch.tensor([1, 1], dtype=torch.uint8)),
        {},
        "plain integers",
    ),
    "Subset with a matrix": (
        lambda: Subset(TensorDataset(X), np.array([[0, 1], [2, 3]])),
        {},
        "plain integers",
    ),
    "Subset of a mapping": (
        lambda: Subset(TensorDataset(X), {0: 5, 1: 6}),  # type: ignore[arg-type]
        {},
        "plain integers",
    ),
    "no tensors": (TensorDataset, {"sampler": [0]}, "at least one field"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse CSR")
@pytest.mark.parametrize(("make", "kwargs", "why"), OTHERS.values(), ids=OTHERS)
def test_what_the_array_path_does_not_cover_goes_another_way(
    make: Callable[[], Any], kwargs: dict[str, Any], why: str
) -> None:
    dataset = make()
    for workers in (0, 2):
        ours = DataLoader(dataset, num_workers=workers, **kwargs)
        assert ours.stats().path == ("process" if workers else "sync")
        assert why in ours.stats().why
    assert_same(*(told(cls(dataset, **kwargs)) for cls in (DataLoader, TorchLoader)))
    demanding = DataLoader(dataset, path="array", **kwargs)
    for use in (lambda: iter(demanding), demanding.stats):
        with pytest.raises(ValueError, match="path='array' cannot load this") as caught:
            use()
        assert why in str(caught.value)
        assert "use path='auto'" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["a dataset of Python's", "collate_fn", "IterableDataset", "ConcatDataset"]
)
def test_what_is_not_covered_runs_in_torchs_worker_processes(name: str) -> None:
    make, kwargs, _ = OTHERS[name]
    loaders = [cls(make(), num_workers=2, **kwargs) for cls in (DataLoader, TorchLoader)]
    assert_same_trace(*(trace(loader) for loader in loaders))


@pytest.mark.parametrize("path", ["auto", "array"])
def test_worker_init_fn_needs_worker_processes(path: str) -> None:
    kwargs: dict[str, Any] = {"batch_size": 3, "worker_init_fn": seed_worker, "path": path}
    assert DataLoader(TensorDataset(X), **kwargs).stats().path == "array"
    loader = DataLoader(TensorDataset(X), num_workers=1, **kwargs)
    if path == "array":
        with pytest.raises(ValueError, match="worker_init_fn runs in worker processes"):
            iter(loader)
        return
    assert "worker_init_fn" in loader.stats().why
    assert_same(epoch(loader), epoch(TorchLoader(TensorDataset(X), 3)))


def test_an_extended_registry_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(TensorDataset(X), 4)
    assert loader.stats().path == "array"
    last = lambda batch, *, collate_fn_map=None: batch[-1]  # noqa: E731
    for key, value in ((torch.Tensor, last), (set, last)):
        with monkeypatch.context() as patch:
            patch.setitem(collate.default_collate_fn_map, key, value)
            assert "registry" in loader.stats().why
            assert_same(epoch(loader), epoch(TorchLoader(TensorDataset(X), 4)))
    assert loader.stats().path == "array"


@both
def test_torchs_own_collate_functions_may_be_named(workers: int) -> None:
    for batch_size, collate_fn in ((3, default_collate), (None, default_convert)):
        loader = DataLoader(
            TensorDataset(X), batch_size, num_workers=workers, collate_fn=collate_fn, path="array"
        )
        assert_same(epoch(loader), epoch(TorchLoader(TensorDataset(X), batch_size)))


@both
@pytest.mark.parametrize("name", ["default_collate", "default_convert"])
def test_a_function_put_in_their_place_is_called(
    workers: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs = getattr(collate, name)
    monkeypatch.setattr(collate, name, lambda samples: (torchs(samples), "patched"))
    for dataset in (TensorDataset(X), Squares()):
        for batch_size in (3, None):
            options: dict[str, Any] = {"batch_size": batch_size, "num_workers": workers}
            ours = epoch(DataLoader(dataset, **options))
            is_used = (name == "default_collate") == (batch_size == 3)
            assert ours[0][-1] == "patched" if is_used else "patched" not in str(ours), ours
            assert_same(ours, epoch(TorchLoader(dataset, **options)))


def test_the_route_is_chosen_anew_at_every_iter() -> None:
    x = X.clone()
    loader = DataLoader(TensorDataset(x), 4)
    list(loader)
    x.requires_grad_()
    assert loader.stats().path == "sync"
    assert next(iter(loader))[0].grad_fn is not None
    x.requires_grad_(False)
    assert loader.stats().path == "array"
    assert loader.stats().batches == 3
    assert next(iter(loader))[0].grad_fn is None


@both
@pytest.mark.parametrize("batch_size", [None, 3])
def test_path_torch_gives_the_same(workers: int, batch_size: int | None) -> None:
    loaders = [
        DataLoader(small_dataset(), batch_size, True, num_workers=workers, path=path)
        for path in ("torch", "auto")
    ]
    assert loaders[0].stats().why == "path='torch' was asked for"
    assert_same(*map(epoch, loaders))


def subsets() -> dict[str, Any]:
    base, arrays = small_dataset(), ArrayDataset(a=np.arange(N), b=torch.arange(3.0 * N).view(N, 3))
    split = random_split(base, [0.5, 0.3, 0.2], torch.Generator().manual_seed(1))
    return {
        "list": Subset(base, [3, 1, 1, 49]),
        "negative": Subset(base, [-1, 0, -N, 5]),
        "range": Subset(base, range(40, 2, -3)),
        "tuple": Subset(base, (4, 5, 6)),
        "array": Subset(base, np.array([4, 5, 6], np.int16)),
        "tensor": Subset(base, torch.tensor([4, -5, 6])),
        "int32 tensor": Subset(base, torch.tensor([4, -5, 6], dtype=torch.int32)),
        "strided": Subset(base, torch.arange(40)[::3]),
        "numpy ints": Subset(base, list(np.array([7, 8, 9], np.uint8))),
        "tensors in a list": Subset(base, [torch.tensor(7), torch.tensor(-8)]),  # type: ignore
        "empty": Subset(base, []),
        "nested": Subset(Subset(Subset(base, range(0, N, 2)), [-1, 3, 5, 7]), [3, -1, 0]),
        "split": split[0],
        "split of a split": random_split(split[1], [5, 10], torch.Generator().manual_seed(2))[1],
        "of arrays": Subset(Subset(arrays, range(N)), [9, -9]),
    }


@both
@pytest.mark.parametrize("name", subsets())
def test_subsets_and_splits_take_the_array_path(name: str, workers: int) -> None:
    dataset = subsets()[name]
    for kwargs in ({"batch_size": 2}, {"batch_size": None}, {"batch_sampler": [[0, -1], [1]]}):
        if name == "empty" and "batch_sampler" in kwargs:
            continue
        ours = DataLoader(dataset, num_workers=workers, path="array", **kwargs)
        assert_same(epoch(ours), epoch(TorchLoader(dataset, **kwargs)))
    if len(dataset) > 0:
        ours = DataLoader(dataset, 3, True, num_workers=workers, path="array")
        assert_same(epoch(ours), epoch(TorchLoader(dataset, 3, True)))


@both
def test_an_index_outside_a_subset_or_in_it_is_an_index_error(workers: int) -> None:
    base = small_dataset()
    for dataset, index, value, length in (
        (Subset(base, [1, 2, 3]), 3, 3, 3),
        (Subset(base, [1, 2, 3]), -4, -4, 3),
        (Subset(base, [1, N, 3]), 1, N, N),
        (Subset(Subset(base, [5, 6]), [0, -3]), 1, -3, 2),
    ):
        loader = DataLoader(dataset, batch_sampler=[[0], [0, index]], num_workers=workers)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(IndexError) as ours:
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)
        with pytest.raises(IndexError) as theirs:
            list(TorchLoader(dataset, batch_sampler=[[0, index]]))
        assert str(ours.value) == str(theirs.value)
        where = rf"index {value} at position 1.*length {length}\b"
        assert re.search(where, str(ours.value.__context__))


def test_indices_of_a_subset_that_change_are_seen_in_the_next_epoch() -> None:
    indices = [0, 1, 2]
    loader = DataLoader(Subset(small_dataset(), indices), 8)
    assert next(iter(loader))[1].tolist() == [0, 10, 20]
    indices.append(9)
    assert next(iter(loader))[1].tolist() == [0, 10, 20, 90]


byte = lambda i: torch.tensor(i, dtype=torch.uint8)  # noqa: E731
# Indices no array path can mean as integers: torch's own code decides.
ODD: dict[str, Any] = {
    "bool": True,
    "numpy bool": np.True_,
    "bool tensor": torch.tensor(True),
    "byte tensor as a mask": byte(1),
    "zero byte tensor as a mask": byte(0),
    "slice": slice(1, 3),
    "tensor": torch.tensor([1, 2]),
    "one-element tensor": torch.tensor([1]),
    "one-element array": np.array([1]),
    "list": [1, 2],
    "tuple": (1, 2),
    "None": None,
    "Ellipsis": ...,
    "float": 1.0,
    "numpy float": np.float32(1),
    "float tensor": torch.tensor(1.5),
    "complex": 1j,
    "text": "1",
    "empty list": [],
    "huge": 2**63,
    "huger": -(2**100),
    "uint64": np.uint64(3),
    "huge uint64": np.uint64(2**64 - 1),
    "uint16 tensor": torch.tensor(3, dtype=torch.uint16),
    "uint64 tensor": torch.tensor(3, dtype=torch.uint64),
    "requires grad": torch.tensor(1.0, requires_grad=True),
    "meta tensor": torch.tensor(1, device="meta"),
    "object": object,
}


@both
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_indices_give_what_torch_gives(odd: Any, workers: int) -> None:
    for dataset in (
        TensorDataset(X),
        TensorDataset(X[:, 0].to(torch.int32)),
        Subset(TensorDataset(X), [5, 4, 3, 2]),
        ArrayDataset(x=X),
    ):
        for kwargs in (
            {"batch_sampler": [[0], [2, odd], [1]]},
            {"batch_sampler": [[0], [odd], [1]]},
            {"batch_sampler": [[0], (odd, odd), [1]]},
            {"batch_sampler": [[0], odd, [1]]},
            {"batch_size": None, "sampler": [0, odd, 1]},
        ):
            ours = DataLoader(dataset, num_workers=workers, path="array", **kwargs)
            assert_same(told(ours), told(TorchLoader(dataset, **kwargs)), repr(kwargs))


@both
def test_odd_indices_through_a_sampler_give_what_torch_gives(workers: int) -> None:
    for odd in (True, byte(1), torch.tensor(True), np.uint64(3), 2.0, None):
        for sampler in (
            ListSampler([1, odd]),
            torch.utils.data.SubsetRandomSampler([odd]),
            torch.utils.data.SubsetRandomSampler([odd, odd]),
        ):
            torch.manual_seed(5)
            ours = told(DataLoader(TensorDataset(X), 2, sampler=sampler, num_workers=workers))
            torch.manual_seed(5)
            theirs = told(TorchLoader(TensorDataset(X), 2, sampler=sampler))
            assert_same(ours, theirs, repr(odd))


@both
def test_a_loader_with_nothing_to_load(workers: int) -> None:
    for dataset in (TensorDataset(X[:0]), ArrayDataset(X[:0]), Subset(TensorDataset(X), [])):
        for kwargs in ({}, {"drop_last": True}, {"batch_size": None}, {"sampler": []}):
            loader = DataLoader(dataset, num_workers=workers, path="array", **kwargs)
            assert list(loader) == list(loader) == []
            assert loader.stats().batches == 0


def test_an_empty_batch_is_refused_as_by_torch() -> None:
    for batch in ([], (), torch.tensor([], dtype=torch.int64), np.array([], int), range(0)):
        ours, theirs = (
            told(cls(TensorDataset(X), batch_sampler=[[0], batch, [1]]))
            for cls in (DataLoader, TorchLoader)
        )
        assert_same(ours, theirs)


def test_iter_reads_the_indices_of_a_sampler_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SubsetRandomSampler may have millions of them in a list."""
    sampler = torch.utils.data.SubsetRandomSampler([3, 1, 2])
    loader = DataLoader(TensorDataset(X), 2, sampler=sampler)
    true_vector, reads = array_iterator.as_vector, []
    monkeypatch.setattr(
        array_iterator, "as_vector", lambda found: reads.append(1) or true_vector(found)
    )
    iter(loader)
    assert len(reads) == 1
