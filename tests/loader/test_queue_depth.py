"""prefetch_factor="auto": when the queue gets deeper, and that batches stay the same."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from workers import Gate, Items, Stream, wait_until

from fastloop import DataLoader
from fastloop.loader.workers.common import AutoDepth, QueueDepth

FORK = {"multiprocessing_context": "fork"}
PATHS: dict[str, dict[str, Any]] = {"process": FORK, "thread": {"path": "thread"}}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A forked worker must not find OpenMP's threads missing."""
    torch.set_num_threads(1)


# ---- the rule


def fill(depth: QueueDepth, workers: int = 2) -> None:
    for _ in range(depth.value * workers):
        depth.note(has_waited=False)


def test_a_wait_after_a_full_queue_deepens_it() -> None:
    depth = QueueDepth(2)
    fill(depth)
    depth.note(has_waited=True)
    assert depth.value == 3
    depth.note(has_waited=True)  # it was not full since
    assert depth.value == 3


def test_workers_that_are_too_slow_deepen_nothing() -> None:
    depth = QueueDepth(2)
    for _ in range(100):
        for _ in range(3):  # one less than the queue holds
            depth.note(has_waited=False)
        depth.note(has_waited=True)
    assert depth.value == 2


def test_the_first_batch_of_an_epoch_says_nothing() -> None:
    depth = QueueDepth(2)
    fill(depth)
    depth.start_epoch()
    depth.note(has_waited=True)
    assert depth.value == 2


def test_it_ends_at_16() -> None:
    depth = QueueDepth(2)
    for _ in range(40):
        fill(depth)
        depth.note(has_waited=True)
    assert depth.value == 16


# ---- in loaders


class HeldAt:
    """The sample at which the loop waits."""

    def __init__(self, index: int) -> None:
        self.index, self.gate = index, Gate()

    def __call__(self, index: int) -> None:
        if index == self.index:
            self.gate()


def open_when_waited_for(gate: Gate, iterator: Any) -> None:
    """Opens the gate when nothing has come in a wait and the iterator looks for a reason."""
    look = iterator._look_for_dead

    def open_and_look() -> Any:
        gate.open()
        return look()

    iterator._look_for_dead = open_and_look


def workers_left() -> list[str]:
    """Threads and processes of loaders; other tests have started others, which stay."""
    threads = [thread.name for thread in threading.enumerate()]
    left = [name for name in threads if name.startswith("fastloop worker")]
    return left + [process.name for process in multiprocessing.active_children()]


def is_there(iterator: Any, path: str) -> bool:
    if path == "thread":
        return not iterator._data_queue.empty()
    return bool(iterator._parent_end.has_replies(0))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_the_queue_of_a_loader_gets_deeper(path: str, persistent: bool) -> None:
    held = HeldAt(40)
    loader = DataLoader(
        Items(100, held), 1, num_workers=1, prefetch_factor="auto",
        persistent_workers=persistent, **PATHS[path],
    )  # fmt: skip
    assert loader.stats().prefetch_factor == 2
    iterator: Any = iter(loader)
    for k in range(40):
        wait_until(partial(is_there, iterator, path), 60)
        assert int(next(iterator)[0, 0]) == k
        if k == 0:
            assert iterator._send_idx == 3  # as torch has it
    open_when_waited_for(held.gate, iterator)
    assert int(next(iterator)[0, 0]) == 40
    assert iterator._send_idx == 41 + 3
    assert loader.stats().prefetch_factor == 3
    assert [int(batch[0, 0]) for batch in iterator] == list(range(41, 100))
    again: Any = iter(loader)
    found = again._prefetch_factor  # more by now, perhaps
    assert 3 <= found <= 16 and again._send_idx == found
    del iterator, again, loader
    gc.collect()
    wait_until(lambda: not workers_left(), 60)


@pytest.mark.parametrize("arguments", [{}, {"in_order": False}, {"persistent_workers": True}])
@pytest.mark.parametrize("path", PATHS)
def test_batches_are_torchs(path: str, arguments: dict[str, Any]) -> None:
    """However deep the queue gets; the loop is as fast as it can be."""

    def epochs(make: Any, **more: Any) -> list[list[int]]:
        torch.manual_seed(2)
        loader = make(Items(60), 3, shuffle=True, num_workers=2, **arguments, **more)
        epochs = [[int(i) for batch in loader for i in batch[:, 0]] for _ in range(2)]
        return [sorted(epoch) for epoch in epochs] if "in_order" in arguments else epochs

    ours = epochs(DataLoader, prefetch_factor="auto", **PATHS[path])
    assert ours == epochs(TorchLoader, **FORK)


@pytest.mark.parametrize("path", PATHS)
def test_streams(path: str) -> None:
    workers = 1 if path == "thread" else 2
    loader = DataLoader(Stream(30), 2, num_workers=workers, prefetch_factor="auto", **PATHS[path])
    assert sorted(int(i) for batch in loader for i in batch[:, 0]) == sorted(
        list(range(30)) * workers
    )


def test_it_is_a_number_to_others_and_auto_to_a_loader() -> None:
    loader = DataLoader(Items(), num_workers=1, prefetch_factor="auto")
    for found in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert found.prefetch_factor == 2
        assert type(found.prefetch_factor) is AutoDepth
    anew = DataLoader(Items(), num_workers=1, prefetch_factor=loader.prefetch_factor)
    assert type(anew.prefetch_factor) is AutoDepth
    assert DataLoader(Items(), prefetch_factor="auto").prefetch_factor is None


def test_the_array_path_stays_at_2() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(100))
    loader = DataLoader(dataset, 5, num_workers=1, prefetch_factor="auto")
    assert [int(i) for (batch,) in loader for i in batch] == list(range(100))
    assert loader.stats().path == "array" and loader.stats().prefetch_factor == 2


def test_other_words_are_torchs_error() -> None:
    for make in (DataLoader, TorchLoader):
        with pytest.raises(TypeError):
            make(Items(), num_workers=1, prefetch_factor="automatic")
