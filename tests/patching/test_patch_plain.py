"""patch(): loaders whose samples and batches Python makes in this process. iter() asks little, the
counts and the table of types are right, and nothing holds the loader."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fastloop


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    fastloop.unpatch()


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index))


class Mixed(Dataset[Any]):
    """Samples whose second part has two types, so torch's functions collate that part."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return 1, index if index % 2 else 0.5


def own_collate(samples: list[Any]) -> list[Any]:
    return samples


def count_calls(function: Callable[[], object]) -> int:
    """How many functions of Python a call runs."""
    calls = 0

    def note(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"batch_size": None}])
def test_iter_asks_little_where_the_users_collate_makes_the_batches(options: Any) -> None:
    loader = DataLoader(range(8), collate_fn=own_collate, **options)  # type: ignore[arg-type]
    list(loader)
    torchs = count_calls(lambda: iter(loader))
    with fastloop.patched("dataloader"):
        list(loader)
        assert count_calls(lambda: iter(loader)) <= torchs + 32
        stats = fastloop.stats(loader)
        assert (stats.path, stats.batches, stats.waits) == ("sync", *[len(loader)] * 2)
        data = torch.utils.data
        loader.collate_fn = data.default_collate if loader.batch_size else data.default_convert
        list(loader)
        assert fastloop.stats(loader).workers == ()
        served = fastloop.patch_status().seams["dataloader"].served
    assert next(iter(served)) == "range: in this process, collated by the program's function"
    assert len(served) == (2 if loader.batch_size else 1)  # single samples take the same way


DATASETS = [Mixed(), [Mixed()[i] for i in range(4)]]


@pytest.mark.parametrize("dataset", DATASETS, ids=["class", "list"])
def test_the_leaves_that_torch_collates_are_counted_for_each_epoch(dataset: Any) -> None:
    loader = DataLoader(dataset, 2)
    with fastloop.patched("dataloader"):
        list(loader)
        first = fastloop.stats(loader).fallbacks
        list(loader)
        assert first and sum(first.values()) == 2 and fastloop.stats(loader).fallbacks == first
        loader.collate_fn = own_collate
        list(loader)
        assert fastloop.stats(loader).fallbacks == {}


@pytest.mark.parametrize("dataset", DATASETS, ids=["class", "list"])
def test_a_change_of_torchs_table_of_types_counts_from_the_next_iter(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(dataset, 2)
    with fastloop.patched("dataloader"):
        assert torch.equal(next(iter(loader))[0], torch.tensor([1, 1]))
        table = torch.utils.data._utils.collate.default_collate_fn_map
        monkeypatch.setitem(table, int, lambda batch, **_: sum(batch))
        assert next(iter(loader))[0] == 2


class Holder:
    """Has a loader whose collate function is a method, so that they hold each other."""

    def __init__(self) -> None:
        self.loader = DataLoader(Squares(), 4, collate_fn=self.collate)

    def collate(self, samples: Any) -> Any:
        return samples


def test_a_loader_that_its_collate_function_holds_is_freed() -> None:
    with fastloop.patched("dataloader"):
        holder = Holder()
        assert [len(list(holder.loader)) for _ in range(2)] == [3, 3]
        reference = weakref.ref(holder.loader)
        del holder
        gc.collect()
        assert reference() is None
