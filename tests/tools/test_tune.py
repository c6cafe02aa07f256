"""tune() over real loaders: what it leaves unchanged, what it tells, what it refuses."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from time_limits import limit
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    get_worker_info,
)
from torch.utils.data import DataLoader as TorchLoader
from workers import wait_until

import fastloop
from fastloop import ArrayDataset, DataLoader, transforms, tune
from fastloop.tools.tune import Batch, Setting, _notes

# Bytes for their batches of eight samples. A busy machine is slower with many.
FOUR_WORKERS = 4 * 3 * 8 * 4 * 4


class Waits(Dataset[torch.Tensor]):
    """Each sample waits for something, as for a disk; not so for a worker, however busy the machine
    is."""

    def __init__(self, seconds: float = 0.004, length: int = 64) -> None:
        self.seconds = seconds
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if threading.current_thread() is threading.main_thread() and get_worker_info() is None:
            time.sleep(self.seconds)
        return torch.full((4,), float(index))


def workers_of_mine() -> list[int]:
    """Other tests have started servers, which stay."""
    return [process.pid or 0 for process in multiprocessing.active_children()]


def random_states() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.slowest
@pytest.mark.parametrize("make", [DataLoader, TorchLoader])
def test_a_loop_that_waits_gets_workers(make: Any) -> None:
    torch.manual_seed(1)
    before = random_states()
    loader = make(Waits(0.04), 8, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch's, of more workers than CPUs
        found = tune(loader, lambda batch: time.sleep(0.002), seconds=2, ram_budget=FOUR_WORKERS)
    assert random_states() == before
    assert loader.num_workers == 0 and loader._iterator is None
    assert found.num_workers > 0 and found.prefetch_factor in (2, 4, 8, 16)
    assert found.speedup > 1
    assert found.batch.bytes == 8 * 4 * 4
    assert found.measured[found.now].wait_s >= 8 * 0.04
    assert found.line in str(found) and "random seeds" in str(found)
    assert f"num_workers={found.num_workers}, prefetch_factor={found.prefetch_factor}" in found.line
    tuned = eval(f"make(loader.dataset, 8, shuffle=True, {found.line})")
    assert sum(len(batch) for batch in tuned) == 64
    del tuned
    gc.collect()
    wait_until(lambda: not workers_of_mine(), 60)


def test_threads_where_they_are_asked_for() -> None:
    loader = DataLoader(Waits(0.04), 8)
    found = tune(loader, seconds=1, paths=["thread"], ram_budget=FOUR_WORKERS)
    assert {setting.path for setting in found.measured if setting.workers == 0} == {"auto"}
    assert found.path == "thread" and "path='thread'" in found.line
    assert "safe" in str(found)
    assert found.batch.step_s == 0 and "not measured" in str(found)
    assert loader.path == "auto"
    assert not workers_of_mine()


def test_notes_name_what_helps_more_than_workers() -> None:
    loader = TorchLoader(Waits(), 4)
    now, found = Setting(0), Setting(2, 2)

    def note(load_cpu_s: float) -> str:
        search: Any = SimpleNamespace(is_complete=True, batch=Batch(1, load_cpu_s, 0, 0, 1))
        return " ".join(_notes(loader, now, found, search))

    assert "paths=['thread']" in note(0.1) and "thread" not in note(0.9)
    loader.dataset.files = ["a.jpg"]  # type: ignore[attr-defined]
    assert "fastloop.ImageFolder" in note(0.1) and "thread" not in note(0.1)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_the_next_epoch_is_as_without_it(is_resumed: bool) -> None:
    """Order, augmentation, and where a loaded state stands."""

    def batches(is_tuned: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        images = np.arange(16 * 3 * 8 * 8, dtype=np.uint8).reshape(16, 3, 8, 8)
        plan = transforms.Compose([transforms.RandomCrop(8, padding=2)])
        dataset = ArrayDataset(images, transform=plan, seed=5)
        generator = torch.Generator().manual_seed(9)
        loader = DataLoader(dataset, 4, shuffle=True, generator=generator)
        list(loader)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
        if is_resumed:
            loader.load_state_dict(state)
        if is_tuned:
            before = dataset.explain()
            tune(loader, seconds=0.2)
            assert dataset.explain() == before  # which names its epoch
        return [field for _ in range(2) for (field,) in loader]

    for one, other in zip(batches(False), batches(True), strict=True):
        assert torch.equal(one, other)


class Draws(Dataset[Any]):
    """Of generators of its own."""

    def __init__(self) -> None:
        self.python = random.Random(1)
        self.numpy = np.random.default_rng(2)
        self.old_numpy = np.random.RandomState(3)
        self.torch = torch.Generator().manual_seed(4)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[float, ...]:
        drawn = torch.rand(1, generator=self.torch).item()
        return index, self.python.random(), self.numpy.random(), self.old_numpy.rand(), drawn


@pytest.mark.parametrize("kind", [TorchLoader, DataLoader])
def test_generators_inside_samplers_and_datasets_are_put_back(kind: Any) -> None:
    def batches(is_tuned: bool) -> list[Any]:
        dataset = Subset(Draws(), range(16))
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5))
        loader = kind(dataset, batch_sampler=BatchSampler(sampler, 4, False))
        if is_tuned:
            tune(loader, seconds=0.1)
        return [torch.stack(batch).tolist() for batch in loader]

    assert batches(False) == batches(True)


def test_a_stream() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(40))

    found = tune(DataLoader(Stream(), 4), seconds=0.5)
    assert set(found.measured) >= {found.now, found.found}
    loader = DataLoader(Stream(), 4, num_workers=1, path="thread")
    with pytest.raises(ValueError, match=r"paths must be \['process'\] for an IterableDataset"):
        tune(loader)


def test_a_loader_with_a_timeout() -> None:
    timeout = limit(100)
    loader = DataLoader(Waits(0), 8, num_workers=1, timeout=timeout)
    found = tune(loader, seconds=0.1)
    assert found.now.workers == 1 and loader.timeout == timeout
    assert any(setting.workers == 0 for setting in found.measured)


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_what_can_be_iterated_once_is_not_used_up(name: str) -> None:
    once: Any = iter([1, 2, 3] if name == "sampler" else [[1], [2], [3]])
    loader: Any = DataLoader(Waits(0), **{name: once})
    with pytest.raises(ValueError, match=rf"{name} must be iterable again, got <list_it.*a list"):
        tune(loader)
    assert len(list(loader)) == 3


def test_an_error_of_the_step_or_the_dataset_is_the_users_and_all_is_as_before() -> None:
    before = random_states()
    with pytest.raises(ZeroDivisionError):
        tune(DataLoader(Waits(0), 8, shuffle=True), lambda batch: 1 / 0, seconds=0.2)
    assert random_states() == before
    assert not workers_of_mine()


def test_a_step_of_a_number_is_told_what_it_is_called_with() -> None:
    """find_batch_size() calls its step with one."""
    loader = DataLoader(ArrayDataset(torch.arange(20)), 4)
    text = r"called step\(batch\) with a list; it raised TypeError: .*; find_.* tune\(\) with"
    with pytest.raises(TypeError, match=text):
        tune(loader, lambda n: torch.arange(20)[:n], seconds=0.1)
    with pytest.raises(TypeError, match="step must be a function of a batch of the loader, got 4"):
        tune(loader, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "loader, arguments, error, text",
    [
        ([1], {}, TypeError, r"loader must be a torch DataLoader, got \[1\]"),
        (Waits(0, 0), {}, ValueError, "loader must give batches, got an empty"),
        (Waits(), {"seconds": 0}, ValueError, "seconds must be a number >= 0.01, got 0"),
        (Waits(), {"paths": ["array"]}, ValueError, "paths must be some of"),
        (Waits(), {"paths": "thread"}, ValueError, "paths must be some of"),
        (Waits(), {"cpu_budget": 0}, ValueError, "cpu_budget must be a number >= 0.01, got 0"),
        (Waits(), {"ram_budget": -1}, ValueError, "ram_budget must be an int >= 1, got -1"),
    ],
)
def test_what_it_refuses(loader: Any, arguments: Any, error: type[Exception], text: str) -> None:
    if isinstance(loader, Dataset):
        loader = DataLoader(loader, 4)
    with pytest.raises(error, match=text):
        tune(loader, **arguments)


def test_paths_are_of_fastloops_loader() -> None:
    with pytest.raises(ValueError, match="paths must be None for torch's DataLoader"):
        tune(TorchLoader(Waits(), 4), paths=["thread"])


def test_it_is_public() -> None:
    assert {"tune", "Suggestion"} <= set(fastloop.__all__)
