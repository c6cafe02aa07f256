"""Batches of graphs that fastloop copies out of PyG's InMemoryDataset: equal to those of PyG's
Collater in all that a Batch holds, and left to PyG if a program changes what makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from framework_trials import assert_same_patched

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")
from torch.utils.data import Subset
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.storage import NodeStorage
from torch_geometric.loader import DataLoader

import fastloop
from fastloop._core import copy_slices
from fastloop.adapters import torch_geometric as adapter
from fastloop.compat.verification import same_bits
from fastloop.loader.arrays.iterator import ArrayIter


class Graphs(InMemoryDataset):
    def __init__(self, graphs: list[Any], transform: Any = None) -> None:
        super().__init__(transform=transform)
        self.data, self.slices = self.collate(graphs)


def graph(index: int, kind: type[Any] = Data) -> Any:
    nodes, numbers = index % 4, torch.Generator().manual_seed(index)
    data = kind(
        x=torch.rand(nodes, 3, generator=numbers),
        edge_index=torch.arange(2 * nodes).reshape(2, nodes) % max(nodes, 1),
        y=torch.tensor([index % 3]),
    )
    data.name = f"graph {index}"
    return data


def graphs(count: int = 23) -> Any:
    return Graphs([graph(i) for i in range(count)])


def without_features() -> Any:
    """Graphs that keep the numbers of their nodes, and whose x is a part of a wider tensor."""
    made = Graphs(
        [
            Data(num_nodes=i % 3 + 1, a=torch.rand(2, 2), b_index=torch.tensor([0]))
            for i in range(23)
        ]
    )
    made._data.a = made._data.a[:, 1:]
    return made


def read(batch: Any) -> Any:
    return adapter._read_batch(batch) if isinstance(batch, Data) else batch.to_dict()


PARTS: dict[str, Any] = {
    "all": lambda: graphs(),
    "some": lambda: graphs()[[3, 5, 20, 1, 3]],
    "a range": lambda: graphs()[4:17],
    "a Subset": lambda: Subset(graphs()[2:20], [5, 1, 1, 16]),
    "shuffled": lambda: graphs().shuffle(),
    "counted": without_features,
}


@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in PARTS), ("some", 2), ("counted", 2)]
)
def test_batches_of_a_dataset(name: str, workers: int) -> None:
    def program(_: Any) -> Any:
        dataset = PARTS[name]()
        options: Any = (
            {"follow_batch": ["x", "name"]},
            {"exclude_keys": ["edge_index", "num_nodes"]},
        )
        found: list[Any] = []
        for each in options:
            loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers, **each)
            found += [read(batch) for _ in range(2) for batch in loader]
        return found

    assert_same_patched(program, ArrayIter)


def batches_of(loader: Any, change: Any = None) -> list[Any]:
    """The batches of two epochs. `change` is called after the first batch."""
    found: list[Any] = []
    for _ in range(2):
        for batch in loader:
            found.append(read(batch))
            if change is not None and len(found) == 1:
                change()
    return found


def both(loader: Any, change: Any = None) -> tuple[list[Any], str]:
    """The same by fastloop, and its reason."""
    with fastloop.patched():
        return batches_of(loader, change), fastloop.stats(loader).why


class Own(Data):
    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 7 if key == "edge_index" else super().__inc__(key, value, *args, **kwargs)


class OwnGet(Graphs):
    def get(self, idx: int) -> Any:
        return super().get(idx)


def of_two_kinds() -> Any:
    data = HeteroData()
    data["paper"].x = torch.zeros(2, 2)
    return data


def with_changed_graph() -> Any:
    dataset = graphs()
    dataset[3]
    dataset._data_list[3].x = torch.ones(1, 3)
    return dataset


LEFT: dict[str, tuple[Any, str]] = {
    "a list": (lambda: [graph(i) for i in range(9)], "not an InMemoryDataset"),
    "a transform": (lambda: Graphs([graph(i) for i in range(9)], lambda data: data), "transform"),
    "own increments": (
        lambda: Graphs([graph(i, Own) for i in range(9)]),
        "of Own, not of PyG's Data",
    ),
    "own get": (lambda: OwnGet([graph(i) for i in range(9)]), "OwnGet has its own get()"),
    "several kinds": (lambda: Graphs([of_two_kinds() for _ in range(9)]), "HeteroData"),
    "one graph": (lambda: Graphs([graph(2)]), "no slices of several graphs"),
    "no nodes": (lambda: Graphs([Data(z=torch.zeros(2)) for _ in range(9)]), "how many nodes"),
    "no ints": (
        lambda: Graphs([Data(x=torch.zeros(2), index=torch.zeros(1)) for _ in range(9)]),
        "dtype",
    ),
    "lists": (lambda: Graphs([Data(x=torch.zeros(2), z=[1, 2]) for _ in range(9)]), "than texts"),
    "a changed graph": (with_changed_graph, "has changed graphs"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_pyg_names_the_reason(name: str) -> None:
    make, reason = LEFT[name]
    loader = DataLoader(make(), batch_size=4, follow_batch=["x"])
    expected = batches_of(loader)
    found, why = both(loader)
    assert reason in why and same_bits(found, expected), why


def set_transform(dataset: Any) -> None:
    dataset.transform = lambda data: Data(x=data.x + 1)


def replace_features(dataset: Any) -> None:
    dataset._data.x = (
        dataset._data.x * 2
    )  # PyG goes on with the old ones of graphs that it has made


def replace_all_features(dataset: Any) -> None:
    with pytest.warns(UserWarning, match="not recommended"):
        dataset.data.x = dataset._data.x * 2


CHANGES: dict[str, Any] = {
    "in place": lambda dataset: dataset._data.x.add_(1),
    "a transform": set_transform,
    "other features": replace_features,
    "other features everywhere": replace_all_features,
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_batches_show_as_in_pyg(name: str) -> None:
    def make(find: Any) -> Any:
        dataset = graphs(12)
        return find(DataLoader(dataset, batch_size=4), lambda: CHANGES[name](dataset))

    assert same_bits(make(both)[0], make(batches_of))


def shuffle_indices(dataset: Any) -> None:
    dataset.indices().reverse()


def rename(dataset: Any) -> None:
    dataset._data.name[:] = ["other"] * 12


@pytest.mark.parametrize("change", [shuffle_indices, rename])
def test_lists_that_change_between_epochs_are_noticed(change: Any) -> None:
    def make(find: Any) -> Any:
        dataset = graphs(12)[[3, 7, 1, 2, 9]]
        loader = DataLoader(dataset, batch_size=4)
        before = find(loader)
        change(dataset)
        return before, find(loader)

    assert same_bits(make(lambda loader: both(loader)[0]), make(batches_of))


def test_workers_have_the_data_of_iter() -> None:
    dataset = graphs(12)
    expected = batches_of(DataLoader(dataset, batch_size=4))[:3]
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    found, _ = both(loader, lambda: dataset._data.x.add_(1))
    assert same_bits(found[:3], expected) and not same_bits(found[3:], expected)


def test_a_replaced_function_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(graphs(), batch_size=4)
    assert "Collater" in both(loader)[1]
    monkeypatch.setattr(Data, "__inc__", lambda _, key, *__: 5 if key == "edge_index" else 0)
    expected = batches_of(loader)
    found, why = both(loader)
    assert "__inc__ was replaced" in why and same_bits(found, expected)


def test_the_battery_finds_another_way_of_batching(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapter._find_difference(False) == ""
    monkeypatch.setattr(NodeStorage, "can_infer_num_nodes", False)
    assert "graphs of kind 0" in adapter._find_difference(False)


def test_slices_are_copied_block_by_block() -> None:
    wide = np.arange(2 * 6 * 3, dtype=np.int64).reshape(2, 6, 3)
    source = wide[:, :, :1].view(np.uint8)  # rows with gaps between them
    begins, lengths, more = (np.array(each) for each in ([4, 0, 5], [2, 0, 1], [10, 20, -1]))
    out = np.zeros((2, 3), np.int64)
    copy_slices(source, begins, lengths, more, out)
    assert out.tolist() == [[22, 25, 14], [40, 43, 32]]
    half = np.array([[[2**31 - 1]]], np.int32)
    copy_slices(
        half.view(np.uint8),
        begins[1:2],
        np.array([1]),
        np.array([1]),
        short := np.zeros(1, np.int32),
    )
    assert short.tolist() == [-(2**31)]


@pytest.mark.parametrize(
    ("begins", "lengths"), [([5], [2]), ([-1], [1]), ([0], [-1]), ([0], [2]), ([2**62], [1])]
)
def test_slices_outside_the_array_are_refused(begins: list[int], lengths: list[int]) -> None:
    source, out = np.zeros((1, 6, 4), np.uint8), np.zeros(4, np.uint8)
    with pytest.raises(ValueError, match="the slices do not fit"):
        copy_slices(source, np.array(begins), np.array(lengths), None, out)
