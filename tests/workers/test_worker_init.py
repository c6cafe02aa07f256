"""Functions for worker_init_fn that frameworks set on loaders, to seed their workers."""

import importlib
import os
import random
import sys
import types
from functools import partial, wraps
from typing import Any

import pytest
from helpers import TorchLoader, assert_same, epoch, small_dataset
from torch.utils.data._utils import worker as worker_module

from fastloop import DataLoader

# They are known by their place, so a test must fail when a framework has moved one.
SEEDERS = [
    ("lightning.fabric.utilities.seed", "pl_worker_init_function", {"rank": 1}),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function", {"rank": 1}),
    ("transformers.trainer_utils", "seed_worker", {"num_workers": 1, "rank": 1}),
]


def seed_worker(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """The user's own, under a name that a framework uses, too."""
    os.environ["RANK"] = str(rank)


def test_lightning_seeds_workers_and_the_array_path_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    from lightning.fabric import Fabric, seed_everything

    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setenv(name, "0")  # put back afterwards
    loader = DataLoader(small_dataset(), 8, True, num_workers=2)
    fabric = Fabric(accelerator="cpu", devices=1)
    seed_everything(3, workers=True, verbose=False)
    wrapped = fabric.setup_dataloaders(loader)
    assert loader.worker_init_fn is not None
    assert loader.stats().path == "array"
    assert "pl_worker_init_function" in loader.stats().why
    theirs = TorchLoader(
        small_dataset(), 8, True, num_workers=1, worker_init_fn=loader.worker_init_fn
    )
    assert_same(epoch(wrapped), epoch(theirs))


@pytest.mark.parametrize(("module", "name", "named"), SEEDERS)
def test_what_only_seeds_workers_keeps_the_array_path(
    module: str, name: str, named: dict[str, Any]
) -> None:
    pytest.importorskip(module.partition(".")[0])
    init = partial(getattr(importlib.import_module(module), name), **named)
    loader = DataLoader(small_dataset(), num_workers=1, worker_init_fn=init, path="array")
    assert name in loader.stats().why
    assert name not in DataLoader(small_dataset(), worker_init_fn=init).stats().why


@pytest.mark.parametrize(("module", "name", "named"), SEEDERS)
def test_a_wrapper_of_a_frameworks_seeder_is_called(
    module: str, name: str, named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module.partition(".")[0])
    theirs = importlib.import_module(module)
    function = getattr(theirs, name)
    wrapped = wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))
    assert path_of(partial(wrapped, **named)) == "process"
    monkeypatch.setattr(theirs, name, wrapped)
    assert path_of(partial(wrapped, **named)) == "process"


def test_a_function_of_the_users_is_not_taken_for_one_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, name, _ = SEEDERS[-1]
    for init in (seed_worker, partial(seed_worker, rank=1), lambda worker_id: print(), int):
        assert path_of(init) == "process"
    patched = types.ModuleType(module)
    setattr(patched, name, seed_worker)
    monkeypatch.setitem(sys.modules, module, patched)
    assert path_of(seed_worker) == "process"
    monkeypatch.delitem(sys.modules, module)
    assert path_of(seed_worker) == "process"
    assert module not in sys.modules  # looked for, not imported


def test_a_function_of_the_users_that_only_seeds_runs_in_the_workers() -> None:
    for init in (lambda worker_id: random.seed(worker_id), lambda worker_id: None):
        assert path_of(init) == "process"


def path_of(init: Any) -> str:
    stats = DataLoader(small_dataset(), num_workers=1, worker_init_fn=init).stats()
    assert stats.path == "array" or "worker_init_fn" in stats.why
    return stats.path


@pytest.mark.parametrize("has_original", [True, False])
def test_a_wrapper_of_torchs_worker_loop_gets_its_arguments_by_position(
    has_original: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: Any = worker_module._worker_loop

    def loop(kind: Any, data: Any, *others: Any) -> None:
        before(kind, data, *others)

    if has_original:
        loop = wraps(before)(loop)
    monkeypatch.setattr(worker_module, "_worker_loop", loop)
    given: dict[str, Any] = {"num_workers": 2, "collate_fn": list}
    assert epoch(DataLoader(list("abcde"), 2, **given)) == epoch(
        TorchLoader(list("abcde"), 2, **given)
    )
