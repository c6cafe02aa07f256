"""patch() reaches loaders that call torch's iterators themselves, as fastai's does, whether their
module is imported before or after."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import fastloop
from fastloop.loader.plain.torch_iters import SyncIter
from fastloop.loader.workers.processes import ProcessIter
from fastloop.patching.bootstrap.fastloop_import_hook import forget

TORCHS = _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter
NAMES = ("fastai", "fastai.data", "fastai.data.load")
# As much of fastai as torch's iterators see of it.
SOURCE = """
import itertools
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Workers
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter as Single
_loaders = (Workers, Single)

class FakeLoader:
    _IterableDataset_len_called, _auto_collation, drop_last, in_order = None, False, False, True
    _index_sampler, generator, prefetch_factor = itertools.count(), None, 2
    _get_shared_seed = multiprocessing_context = worker_init_fn = None
    pin_memory, pin_memory_device, timeout, persistent_workers = False, "", 0, False
    dataset_kind = _dataset_kind = 1

    def __init__(self, num_workers):
        self.dataset, self.num_workers = self, num_workers

    def collate_fn(self, x):
        return x

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first = 0 if info is None else info.id
        return (torch.rand(2) + i for i in range(first, 7, max(self.num_workers, 1)))

def make(num_workers):
    return _loaders[num_workers == 0](FakeLoader(num_workers))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes such a module, which import_module() then finds."""
    (tmp_path / "fastai" / "data").mkdir(parents=True)
    for folder in ("fastai", "fastai/data"):
        (tmp_path / folder / "__init__.py").write_text("")
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield (tmp_path / "fastai" / "data" / "load.py").write_text
    fastloop.unpatch()
    sys.meta_path[:] = finders
    for name in NAMES:
        sys.modules.pop(name, None)


def import_it() -> Any:
    return importlib.import_module("fastai.data.load")


def run(module: Any, workers: int) -> list[Any]:
    torch.manual_seed(4)
    return [*module.make(workers), torch.get_rng_state()]


@pytest.mark.parametrize("is_imported", [True, False])
def test_its_loaders_are_served(write: Any, is_imported: bool) -> None:
    write(SOURCE)
    if is_imported:
        import_it()
    fastloop.patch()
    module = import_it()
    found = [run(module, workers) for workers in (0, 2)]
    assert [type(module.make(workers)) for workers in (0, 2)] == [SyncIter, ProcessIter]
    status = fastloop.patch_status().seams["dataloader"]
    assert (status.native, status.left) == (4, {})
    fastloop.unpatch()
    assert module._loaders == TORCHS
    for ours, workers in zip(found, (0, 2), strict=True):
        theirs = run(module, workers)
        assert len(ours) == 8 and all(map(torch.equal, ours, theirs))


def test_nothing_is_put_in_once_it_is_off(write: Any) -> None:
    write(SOURCE)
    forget("fastai.data.load")  # of tests that have patched before
    finders = len(sys.meta_path)
    for _ in range(3):
        fastloop.patch()
        fastloop.unpatch()
    assert len(sys.meta_path) == finders + 1
    module = import_it()
    assert len(sys.meta_path) == finders
    assert module._loaders == TORCHS
    fastloop.patch()
    assert module._loaders != TORCHS
    ours = module._loaders
    module._loaders = (*ours,)  # somebody else's now
    fastloop.unpatch()
    assert type(module.make(0)) is _SingleProcessDataLoaderIter


@pytest.mark.parametrize("is_imported", [True, False])
@pytest.mark.parametrize("line", ["_loaders = (Workers, Single, Single)", "del _loaders"])
def test_a_module_that_differs_is_left_alone_and_named(
    write: Any, line: str, is_imported: bool
) -> None:
    write(SOURCE + line)
    if is_imported:
        import_it()
    assert fastloop.patch().seams["dataloader"].is_on
    module = import_it()
    assert "Single" not in line or module._loaders == (*TORCHS, TORCHS[1])
    (reason,) = fastloop.patch_status().seams["dataloader"].left
    assert reason.startswith("fastai.data.load is not as this version of fastloop knows it")


def test_a_module_that_cannot_be_imported_is_tried_again(write: Any) -> None:
    write("1 / 0")
    fastloop.patch()
    with pytest.raises(ZeroDivisionError):
        import_it()
    write(SOURCE + "# longer than what is cached")
    importlib.invalidate_caches()
    assert type(import_it().make(0)) is SyncIter
