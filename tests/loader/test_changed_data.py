"""Data that the program changes in place. torch's worker processes keep them as they were when the
workers began; threads read them as they are, so the loader notices that and says so."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import run_script
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, TensorDataset

import fastloop
from fastloop import ArrayDataset, DataLoader
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.workers.processes import ProcessIter

ROWS, SIZE = 64, 4


@pytest.fixture(autouse=True)
def out() -> Iterator[None]:
    yield
    fastloop.unpatch()


def labelled() -> TensorDataset:
    return TensorDataset(torch.arange(float(ROWS)), torch.zeros(ROWS, dtype=torch.int64))


def epochs(loader: Any, labels: torch.Tensor, count: int = 3) -> list[int]:
    """The sum of labels of each epoch, which adds one to them behind the first batch."""
    sums = []
    for _ in range(count):
        sums.append(0)
        for step, batch in enumerate(loader):
            sums[-1] += int(batch[1].sum())
            if step == 0:
                labels.add_(1)
    return sums


def test_behind_patch_the_epochs_after_a_change_are_torchs() -> None:
    fastloop.patch("dataloader", verbose=False)
    data = labelled()
    loader = TorchLoader(data, SIZE, num_workers=2)
    assert type(iter(loader)) is ArrayIter
    with pytest.warns(RuntimeWarning, match="data of the TensorDataset were changed in place"):
        epochs(loader, data.tensors[1], 1)
    assert "changed in place" in fastloop.stats(loader).why
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert epochs(loader, data.tensors[1]) == [ROWS, 2 * ROWS, 3 * ROWS]  # as torch's workers
    assert type(iter(loader)) is ProcessIter


@pytest.mark.parametrize("is_patched", [False, True])
def test_persistent_workers_would_never_see_a_change(is_patched: bool) -> None:
    if is_patched:
        fastloop.patch("dataloader", verbose=False)
    cls = TorchLoader if is_patched else DataLoader
    data = labelled()
    loader = cls(data, SIZE, num_workers=2, persistent_workers=True)
    assert sum(1 for _ in loader) == ROWS // SIZE
    data.tensors[1].add_(1)
    with pytest.warns(RuntimeWarning, match="worker processes would keep the values of iter"):
        iter(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert sum(1 for _ in loader) == ROWS // SIZE


DATASETS: dict[str, Any] = {
    "TensorDataset": lambda x: TensorDataset(x),
    "Subset": lambda x: Subset(TensorDataset(x), range(4, 60)),
    "tensor": lambda x: x,
    "ArrayDataset": lambda x: ArrayDataset(x),
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_change_is_noticed_in(name: str) -> None:
    x = torch.arange(float(ROWS))
    loader = DataLoader(DATASETS[name](x), SIZE, num_workers=2)
    iterator = iter(loader)
    assert type(iterator) is ArrayIter
    next(iterator)
    x[:] = 7
    with pytest.warns(RuntimeWarning, match="were changed in place"):
        next(iterator)
    assert loader.stats().path == "process"


def test_a_change_is_noticed_beside_a_profiler() -> None:
    x = torch.arange(float(ROWS))
    iterator = iter(DataLoader(TensorDataset(x), SIZE, num_workers=1))
    with torch.profiler.profile(), pytest.warns(RuntimeWarning, match="were changed in place"):
        next(iterator)
        x.zero_()
        next(iterator)


def test_a_change_before_the_first_batch_is_noticed() -> None:
    x = torch.arange(float(ROWS))
    iterator = iter(DataLoader(TensorDataset(x), SIZE, num_workers=1))
    x.zero_()
    with pytest.warns(RuntimeWarning, match="were changed in place"):
        next(iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_warning_that_is_an_error_costs_no_batch(persistent: bool) -> None:
    x = torch.arange(float(ROWS))
    loader = DataLoader(TensorDataset(x), SIZE, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    found = [next(iterator)[0]]
    x.add_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="were changed in place"):
            next(iterator)
        assert loader.state_dict()["yielded"] == 1
        found += [batch for (batch,) in iterator]
        assert torch.equal(torch.cat(found), x)
        assert sum(1 for _ in loader) == ROWS // SIZE  # nothing of the epoch before


@pytest.mark.parametrize("is_over", [False, True])
def test_the_batch_of_such_a_warning_ends_with_its_epoch(is_over: bool) -> None:
    x = torch.arange(float(ROWS))
    loader = DataLoader(TensorDataset(x), SIZE, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    x.add_(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="were changed in place"):
            next(iterator)
    if is_over:
        loader.close()
        with pytest.raises(RuntimeError, match="closed"):
            next(iterator)
    else:
        assert next(iter(loader))[0].tolist() == [0, 1, 2, 3]


class _Eager(torch.utils.data.Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(ROWS).reshape(-1, SIZE).tolist())


def test_a_warning_of_iter_that_is_an_error_draws_nothing() -> None:
    data, orders = TensorDataset(torch.arange(float(ROWS))), []
    for is_changed in (False, True):
        torch.manual_seed(3)
        loader = DataLoader(data, batch_sampler=_Eager(), num_workers=1, persistent_workers=True)
        list(loader)
        if is_changed:
            data.tensors[0].add_(0)
            with warnings.catch_warnings(), pytest.raises(RuntimeWarning, match="in place"):
                warnings.simplefilter("error")
                iter(loader)
        orders.append(torch.cat([batch for (batch,) in loader]).tolist())
    assert orders[0] == orders[1]


def _line_of(warning: warnings.WarningMessage) -> str:
    return linecache.getline(warning.filename, warning.lineno).strip()


@pytest.mark.parametrize("is_patched", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_warning_names_the_line_of_the_program(persistent: bool, is_patched: bool) -> None:
    if is_patched:
        fastloop.patch("dataloader", verbose=False)
    cls = TorchLoader if is_patched else DataLoader
    data = labelled()
    loader = cls(data, SIZE, num_workers=2, persistent_workers=persistent)
    with pytest.warns(RuntimeWarning, match="were changed in place") as found:
        epochs(loader, data.tensors[1], 1)
    assert _line_of(found[0]) == "for step, batch in enumerate(loader):"
    if persistent:
        loader = cls(data, SIZE, num_workers=2, persistent_workers=True)
        list(loader)
        data.tensors[1].add_(1)
        with pytest.warns(RuntimeWarning, match="were changed in place") as found:
            iter(loader)
        assert _line_of(found[0]) == "iter(loader)"


def _shared(x: torch.Tensor) -> torch.Tensor:
    return x.share_memory_()


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (torch.clone, {"num_workers": 0}),
        (torch.clone, {"num_workers": 2, "path": "array"}),
        (_shared, {"num_workers": 2}),  # torch's workers see it, too
    ],
)
def test_data_that_are_read_as_they_are_need_no_warning(make: Any, given: dict[str, Any]) -> None:
    x = make(torch.arange(float(ROWS)))
    loader = DataLoader(TensorDataset(x), SIZE, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterator = iter(loader)
        next(iterator)
        x.fill_(7)
        *_, (last,) = iterator
    assert last.tolist() == [7] * SIZE
    assert loader.stats().path == "array"


def test_a_change_behind_the_last_batch_and_between_epochs_is_as_with_torch() -> None:
    data = labelled()
    loader = DataLoader(data, SIZE, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            assert sum(int(labels.sum()) for _, labels in loader) == epoch * ROWS
            data.tensors[1].add_(1)
        for step, _ in enumerate(loader):
            if step == ROWS // SIZE - 1:
                data.tensors[1].add_(1)
    assert loader.stats().path == "array"


def test_tensors_without_a_count_of_changes_are_loaded() -> None:
    with torch.inference_mode():
        x = torch.arange(float(ROWS))
    loader = DataLoader(TensorDataset(x), SIZE, num_workers=2)
    assert sum(1 for _ in loader) == ROWS // SIZE and loader.stats().path == "array"


# ---- single samples


@pytest.mark.parametrize("name", ["tensor", "TensorDataset", "Subset", "ndarray"])
@pytest.mark.parametrize("is_patched", [False, True])
def test_single_samples_are_views_as_torchs(name: str, is_patched: bool) -> None:
    rows = torch.arange(12.0).reshape(3, 4).T  # strides that a copy would not have
    make: dict[str, Any] = {
        "tensor": lambda: rows,
        "TensorDataset": lambda: TensorDataset(rows),
        "Subset": lambda: Subset(TensorDataset(rows), [2, 0]),
        "ndarray": lambda: np.asarray(rows),
    }
    if is_patched:
        fastloop.patch("dataloader", verbose=False)
    found = list((TorchLoader if is_patched else DataLoader)(make[name](), batch_size=None))
    fastloop.unpatch()
    wanted = list(TorchLoader(make[name](), batch_size=None))
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        a, b = (item[0] if isinstance(item, (list, tuple)) else item for item in (ours, theirs))
        assert type(ours) is type(theirs)
        assert (a.data_ptr(), a.stride(), a.tolist()) == (b.data_ptr(), b.stride(), b.tolist())


class _Mixed(torch.utils.data.Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([1, [2, 0], 3])


def test_a_sampler_may_yield_lists_and_single_indices() -> None:
    rows = torch.arange(12.0).reshape(4, 3)
    loader = DataLoader(TensorDataset(rows), batch_size=None, sampler=_Mixed())
    assert loader.stats().path == "array"
    (one,), (two,), (three,) = loader
    assert [one.data_ptr(), three.data_ptr()] == [rows[1].data_ptr(), rows[3].data_ptr()]
    assert torch.equal(two, rows[[2, 0]])
    asked = DataLoader(TensorDataset(rows), batch_size=None, path="array")
    assert [row.data_ptr() == rows.data_ptr() for (row,) in asked] == [False] * 4  # copies


# ---- methods of torch that a program replaces


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return []


@pytest.mark.parametrize("is_patched", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (TensorDataset, "__getitem__"),
        (torch.utils.data._utils.fetch._MapDatasetFetcher, "fetch"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
        (torch.utils.data.dataloader._BaseDataLoaderIter, "_next_index"),
        (torch.utils.data.RandomSampler, "__iter__"),
    ],
)
def test_methods_that_a_program_replaces_are_called(
    owner: Any, name: str, workers: int, is_patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs = getattr(owner, name)

    def changed(self: Any, *args: Any) -> Any:
        found = torchs(self, *args)
        if name == "__iter__":
            return reversed(list(found))
        if name == "_next_index":
            return [1, 0]
        return [part + 1000 for part in found] if name != "__getitem__" else (found[0] + 1000,)

    monkeypatch.setattr(owner, name, changed)
    results = []
    for cls in (TorchLoader, TorchLoader if is_patched else DataLoader):
        torch.manual_seed(5)
        loader = cls(TensorDataset(torch.arange(24)), SIZE, shuffle=True, num_workers=workers)
        results.append([batch[0].tolist() for batch in loader])
        if is_patched:
            fastloop.patch("dataloader", verbose=False)
    assert results[0] == results[1]
    if name != "__iter__":
        assert "was replaced by the program" in fastloop.stats(loader).why
        assert results[0][0][0] >= 1000 or name == "_next_index"
    monkeypatch.undo()
    assert fastloop.stats(loader).path == "array"


@pytest.mark.parametrize("is_within", [False, True])
@pytest.mark.parametrize("owner", ["instance", "Dataset"])
def test_getitems_of_a_program_is_called(
    owner: str, is_within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TensorDataset(torch.arange(24))
    on = data if owner == "instance" else torch.utils.data.Dataset
    monkeypatch.setattr(on, "__getitems__", lambda *_: [(torch.tensor(7),)] * SIZE, raising=False)
    if is_within:
        data = Subset(data, range(8))
    loader = DataLoader(data, SIZE)
    assert all(batch.tolist() == [7] * SIZE for (batch,) in loader)
    assert "__getitems__" in loader.stats().why


def test_a_torch_without_sources_is_no_torch_with_other_methods(tmp_path: Path) -> None:
    """Modules of .pyc files alone: their code names the files that it was compiled from."""
    program = """
import torch.utils.data
for name, module in list(sys.modules.items()):
    if name.startswith("torch.utils.data") and module.__file__.endswith(".py"):
        module.__file__ += "c"
from fastloop import DataLoader
loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(4)), shuffle=True)
list(loader)
print(loader.stats().path, loader.stats().why)
"""
    found = run_script(tmp_path, "import sys\n" + program)
    assert found == "array TensorDataset of plain arrays, default collate\n"
