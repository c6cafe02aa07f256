"""Functions for worker_init_fn that only seem to be those that frameworks set on loaders."""

import gc
import os
import random
import sys
import types
from functools import partial, wraps
from typing import Any

import pytest
from helpers import TorchLoader, epoch, small_dataset
from torch.utils.data import Dataset
from torch.utils.data._utils import worker as worker_module

from fastloop import DataLoader


def seed_worker(worker_id: int, num_workers: int = 0, rank: int = 0) -> None:
    """The user's own, under a name that a framework uses, too."""
    os.environ["RANK"] = str(rank)


def test_a_function_of_the_users_is_not_taken_for_one_of_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, name = "transformers.trainer_utils", "seed_worker"
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


class Inherited(Dataset[bool]):
    def __init__(self) -> None:
        self.mark: list[int] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        return any(each is self.mark for each in gc.get_objects())


def test_a_worker_does_not_collect_what_its_parent_has_made() -> None:
    data = Inherited()
    assert data[0]
    for batch in DataLoader(data, 2, num_workers=2, multiprocessing_context="fork"):
        assert not batch.any()
