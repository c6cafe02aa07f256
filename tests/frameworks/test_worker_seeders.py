"""Functions that frameworks set on loaders as worker_init_fn, to seed their workers."""

import importlib
from functools import partial, wraps
from typing import Any

import pytest
from helpers import TorchLoader, assert_same, epoch, small_dataset

from fastloop import DataLoader

# They are known by their place, so a test must fail when a framework has moved one.
SEEDERS = [
    ("lightning.fabric.utilities.seed", "pl_worker_init_function", {"rank": 1}),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function", {"rank": 1}),
    ("transformers.trainer_utils", "seed_worker", {"num_workers": 1, "rank": 1}),
]


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


def path_of(init: Any) -> str:
    return DataLoader(small_dataset(), num_workers=1, worker_init_fn=init).stats().path
