"""fastloop.stats() of any loader: fastloop's, torch's, or one that a framework has wrapped."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop


def dataset() -> TensorDataset:
    return TensorDataset(torch.arange(10))


class Counted(DataLoader[Any]):
    """A loader of torch's with a `stats` that is the user's own."""

    stats = None


def test_a_loader_of_ours_gives_its_own() -> None:
    loader = fastloop.DataLoader(dataset(), 4)
    list(loader)
    assert fastloop.stats(loader) == loader.stats()
    assert fastloop.stats(loader).batches == 3


@pytest.mark.parametrize("cls", [DataLoader, Counted])
def test_torchs_loader_counts_what_came_through_the_seam(cls: Any) -> None:
    loader = cls(dataset(), 4)
    list(loader)
    before = fastloop.stats(loader)
    assert (before.path, before.batches) == ("torch", 0) and "fastloop.patch()" in before.why
    with fastloop.patched():
        list(loader)
        list(cls(dataset(), 4))
    after = fastloop.stats(loader)
    assert (after.path, after.batches, after.samples) == ("array", 3, 10)


def test_what_frameworks_put_around_a_loader_is_seen_through() -> None:
    loader = fastloop.DataLoader(dataset(), 4)
    list(loader)
    wrapper: Any = SimpleNamespace(_dataloader=None, base_dataloader=loader)
    for name in ("dataloader", "_dataloader", "base_dataloader"):
        wrapper = SimpleNamespace(**{name: wrapper})
    assert fastloop.stats(wrapper).batches == 3


@pytest.mark.parametrize("what", [None, 3, [1], {}, object(), dataset(), SimpleNamespace()])
def test_what_is_no_loader_is_refused(what: Any) -> None:
    with pytest.raises(TypeError, match=f"must be a DataLoader.*, got a {type(what).__name__}$"):
        fastloop.stats(what)
    iterator = iter(DataLoader(dataset()))
    with pytest.raises(TypeError, match="got a _SingleProcessDataLoaderIter"):
        fastloop.stats(iterator)
