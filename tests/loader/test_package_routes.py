"""Datasets of Hugging Face over plain arrays: batches and random numbers are torch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, assert_same_trace, epoch, trace
from torch.utils.data import ConcatDataset, StackDataset, Subset

from fastloop import DataLoader

both = pytest.mark.parametrize("workers", [0, 2])
N = 20
X = np.arange(60, dtype=np.float32).reshape(N, 3)
Y = np.arange(N)


def assert_torchs(dataset: Any, workers: int, is_resumed: bool = True, **options: Any) -> None:
    """Batches and random numbers of two epochs, and the rest of one that was left and goes on."""
    options = {"batch_size": 3, "shuffle": True, **options}
    make = lambda: DataLoader(dataset, num_workers=workers, path="array", **options)  # noqa: E731
    theirs = TorchLoader(dataset, **options)
    if workers == 0:
        assert_same_trace(trace(make()), trace(theirs))
    whole = epoch(theirs)
    assert_same(epoch(make()), whole)
    torch.manual_seed(3)
    left, resumed = make(), make()
    next(iter(left))
    resumed.load_state_dict(left.state_dict())
    assert_same(list(resumed), whole[1:])


def assert_left_to_torch(dataset: Any, why: str, **options: Any) -> None:
    loader = DataLoader(dataset, **options)
    assert loader.stats().path == "sync"
    assert why in loader.stats().why
    assert_same(epoch(loader), epoch(TorchLoader(dataset, **options)))


def columns() -> dict[str, Any]:
    """Of each dtype, with lists of one length in them."""
    ints = {f"{u}int{b}": Y.astype(f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32)}
    floats = {"int64": -Y, "float32": X[:, 0], "float64": X[:, 1] / 7, "bool": Y % 3 == 0}
    lists = {"ids": X.astype(np.int32), "pairs": (X / 3).reshape(N, 3, 1).repeat(2, 2)}
    return {key: value.tolist() for key, value in {**ints, **floats, **lists}.items()}


def features(datasets: Any) -> Any:
    kinds = {key: datasets.Value(key) for key in columns() if key not in ("ids", "pairs")}
    ids = datasets.List(datasets.Value("int32"))
    pairs = datasets.Array2D((3, 2), "float64")
    return datasets.Features({**kinds, "ids": ids, "pairs": pairs})


def in_memory(datasets: Any) -> Any:
    return datasets.Dataset.from_dict(columns(), features=features(datasets))


def in_parts(datasets: Any) -> Any:
    """A file of several record batches, mapped."""
    return datasets.Dataset.from_generator(
        lambda: ({"x": [k, k + 1], "y": k / 3, "z": k % 2 == 0} for k in range(50)),
        writer_batch_size=7,
    )


HUGGING_FACE: dict[str, Callable[[Any], Any]] = {
    "in memory": in_memory,
    "a mapped file in parts": in_parts,
    "shuffled": lambda datasets: in_parts(datasets).shuffle(seed=1),
    "selected": lambda datasets: in_memory(datasets).select([3, 1, 1, 19, 0, 7]),
    "a slice": lambda datasets: in_memory(datasets).select(range(5, 15)),
    "joined": lambda datasets: datasets.concatenate_datasets([in_memory(datasets)] * 2),
}


@pytest.fixture
def datasets(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    found = pytest.importorskip("datasets")
    monkeypatch.setattr(found.config, "HF_DATASETS_CACHE", tmp_path)
    found.disable_progress_bars()
    return found


@both
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_columns_of_hugging_face_are_torchs(name: str, workers: int, datasets: Any) -> None:
    plain = HUGGING_FACE[name](datasets)
    for kind in ("torch", "numpy"):
        dataset = plain.with_format(kind)
        assert_torchs(dataset, workers)
        assert_torchs(Subset(dataset, [4, 3, 0, 2]), workers)
        assert "Arrow columns" in DataLoader(dataset).stats().why
    some = plain.with_format("torch", columns=plain.column_names[1:])
    assert_torchs(some, workers, drop_last=True)


def test_other_columns_and_formats_of_hugging_face_are_left_to_torch(datasets: Any) -> None:
    def made(**kinds: Any) -> Any:
        return datasets.Dataset.from_dict(kinds)

    none = made(x=[1, None, 3, 4, 5, 6]).with_format("torch")
    assert_left_to_torch(none, "column 'x' has null values")
    inner = made(x=[[1.0, None], [2.0, 3.0]]).with_format("torch")
    assert_left_to_torch(inner, "column 'x' has null values")
    ragged = made(x=[[1], [2, 3]]).with_format("torch")
    assert_left_to_torch(ragged, "lists of different length", batch_size=1)
    text = made(x=["a", "b"]).with_format("torch")
    assert_left_to_torch(text, "values of string", batch_size=2)
    plain = made(x=[1, 2, 3], y=[0.5, 1.0, 2.0])
    assert_left_to_torch(plain, "format of the datasets.Dataset is None")
    double = plain.with_format("torch", dtype=torch.float64)
    assert_left_to_torch(double, "was given arguments")
    more = plain.with_format("torch", columns=["x"], output_all_columns=True)
    assert_left_to_torch(more, "output_all_columns")
    numbers = plain.with_format("numpy")
    assert_left_to_torch(numbers, "a single sample", batch_size=None)
    halves = made(x=np.arange(4, dtype=np.float16)).with_format("torch")
    assert_left_to_torch(halves, "values of halffloat")


def test_a_concat_dataset_takes_single_samples_of_a_table(datasets: Any) -> None:
    """In the format of NumPy a number keeps its dtype then, and only batches are cast."""
    plain = in_memory(datasets)
    numbers, tensors = plain.with_format("numpy"), plain.with_format("torch")
    for dataset in (
        ConcatDataset([numbers, numbers]),
        ConcatDataset([Subset(numbers, [3, 0]), numbers]),
        Subset(ConcatDataset([numbers]), [4, 3]),
        StackDataset(ConcatDataset([StackDataset(a=numbers)])),
    ):
        assert_left_to_torch(dataset, "a single sample", batch_size=2)
    assert_torchs(ConcatDataset([tensors, Subset(tensors, [3, 0])]), 0)
    for each in (numbers, tensors):
        assert_torchs(StackDataset(a=Subset(each, range(9)), b=torch.arange(9)), 0)


def test_what_is_known_of_a_table_goes_with_the_dataset(datasets: Any) -> None:
    """A format that is set, and the table of a dataset that is another."""
    dataset = in_memory(datasets)
    dataset.set_format("torch", columns=["int8"])
    loader = DataLoader(dataset, 4)
    assert_same(epoch(loader), epoch(TorchLoader(dataset, 4)))
    dataset.set_format("torch", columns=["float64", "ids"])
    assert_same(epoch(loader), epoch(TorchLoader(dataset, 4)))
    dataset._data = dataset._data.slice(8, 12)
    assert_same(epoch(loader), epoch(TorchLoader(dataset, 4)))
    whole, iterator = epoch(loader), iter(loader)
    first = next(iterator)
    dataset.set_format("numpy", columns=["bool"])  # which the next iter() sees
    assert_same([first, *iterator], whole)
    assert_same(epoch(loader), epoch(TorchLoader(dataset, 4)))
