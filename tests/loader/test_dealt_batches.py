"""The first batch of each worker thread in an epoch: all threads make its samples, and the batch,
its errors and its end are those of one thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_folders import write_folder
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, Subset
from workers import wait_until

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T

THREADS, WAIT_S = 3, 60


class Called(Dataset[Any]):
    """Samples that a function of the index makes."""

    def __init__(self, make: Callable[[int], Any], length: int = 30) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class AtOnce(Called):
    __getitem__ = None  # type: ignore[assignment]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.make(index) for index in indices]


def threads(make: Callable[[int], Any], batch_size: int = THREADS, **more: Any) -> Any:
    kind = more.pop("kind", Called)
    how = {"num_workers": THREADS, "path": "thread", **more}
    return DataLoader(kind(make), batch_size, **how)


def name(_: int) -> str:
    return threading.current_thread().name


# ---- who makes what


def test_all_threads_make_the_first_batches() -> None:
    """Each sample waits until every thread makes one of the same batch."""
    barriers = [threading.Barrier(THREADS) for _ in range(THREADS)]

    def meet(index: int) -> int:
        if index < THREADS * THREADS:
            barriers[index // THREADS].wait(WAIT_S)
        return index

    with threads(meet, persistent_workers=True) as loader:
        for _ in range(3):
            assert torch.cat(list(loader)).tolist() == list(range(30))


@pytest.mark.parametrize("kind", ["subset", "images", "images within"])
def test_subsets_and_image_folders_are_dealt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    barriers = [threading.Barrier(THREADS) for _ in range(THREADS)]
    made = ImageFolder._sample

    def meet(row: int) -> int:
        if row < THREADS * THREADS and threading.current_thread().name.startswith("fastloop"):
            barriers[row // THREADS].wait(WAIT_S)
        return row

    def meet_and_make(dataset: Any, row: int, *more: Any) -> Any:
        return made(dataset, meet(row), *more)

    monkeypatch.setattr(ImageFolder, "_sample", meet_and_make)
    dataset: Any = Called(meet)
    if kind != "subset":
        recipe = T.Compose([T.RandomResizedCrop(9), T.RandomHorizontalFlip()])
        dataset = ImageFolder(write_folder(tmp_path, count=14), recipe)
        dataset.set_epoch(1)
    if kind != "images":
        dataset = Subset(dataset, range(len(dataset)))
    expected = list(TorchLoader(dataset, THREADS))
    with DataLoader(dataset, THREADS, num_workers=THREADS, path="thread") as loader:
        for batch, wanted in zip(loader, expected, strict=True):
            assert all(map(torch.equal, list(batch), list(wanted)))


def test_threads_write_images_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is copied, and a batch that the loop holds is not written again."""
    written: set[int] = set()
    made = ImageFolder._sample

    def note(dataset: Any, row: int, view: int, slot: torch.Tensor | None = None) -> Any:
        sample = made(dataset, row, view, slot)
        if threading.current_thread().name.startswith("fastloop"):
            written.add(sample[0].data_ptr())
        return sample

    monkeypatch.setattr(ImageFolder, "_sample", note)
    dataset = ImageFolder(write_folder(tmp_path, count=14), T.RandomResizedCrop(60))
    how = {"num_workers": THREADS, "path": "thread", "persistent_workers": True}
    with DataLoader(dataset, 4, **how) as loader:  # type: ignore[arg-type]
        held, expected = [], []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            expected += list(TorchLoader(dataset, 4))
            held += list(loader)
    for batch, wanted in zip(held, expected, strict=True):
        assert all(map(torch.equal, list(batch), list(wanted)))
        assert {image.data_ptr() for image in batch[0]} <= written


def test_a_batch_whose_sample_fails_leaves_its_memory_to_the_next(tmp_path: Path) -> None:
    dataset = ImageFolder(write_folder(tmp_path, count=14), T.RandomResizedCrop(60))
    paths, how = list(dataset.samples), {"num_workers": THREADS, "path": "thread"}
    with DataLoader(dataset, 4, persistent_workers=True, **how) as loader:  # type: ignore[arg-type]
        for _ in range(3):
            dataset.samples[1] = "nothing.jpg", 0
            with pytest.raises(FileNotFoundError, match="nothing"):
                next(iter(loader))
            dataset.samples[:] = paths
            dataset.set_epoch(1)
            expected = list(TorchLoader(dataset, 4))
            for batch, wanted in zip(loader, expected, strict=True):
                assert all(map(torch.equal, list(batch), list(wanted)))


def test_later_batches_are_made_by_one_thread_each() -> None:
    with threads(name, collate_fn=set) as loader:
        batches = list(loader)
    assert [len(batch) for batch in batches[THREADS:]] == [1] * (10 - THREADS)


@pytest.mark.parametrize("more", [{"kind": AtOnce}, {"num_workers": 1}, {"batch_sampler": True}])
def test_what_is_not_dealt(more: dict[str, Any]) -> None:
    """A dataset that makes batches, one thread, and indices that are no list."""
    second = threading.Event()

    def wait(index: int) -> int:
        if index == 0:
            assert not second.wait(0.2)
        if index == 1:
            second.set()
        return index

    if "batch_sampler" in more:
        sampler = [(i, i + 1, i + 2) for i in range(0, 30, 3)]
        loader = DataLoader(Called(wait), batch_sampler=sampler, num_workers=THREADS, path="thread")
    else:
        loader = threads(wait, **more)
    assert torch.cat(list(loader)).tolist() == list(range(30))
    loader.close()


def test_collate_functions_get_samples_in_their_order() -> None:
    for more in ({}, {"collate_fn": list}, {"batch_size": 7}, {"drop_last": True, "batch_size": 7}):
        expected = list(TorchLoader(Called(int), **{"batch_size": THREADS, **more}))
        with threads(int, **more) as loader:
            assert [list(map(int, batch)) for batch in loader] == [
                list(map(int, batch)) for batch in expected
            ]


# ---- errors


def test_the_error_is_that_of_the_first_bad_sample() -> None:
    """A later sample of the batch raises before."""
    second = threading.Event()

    def fail(index: int) -> int:
        if index == 0:
            second.wait(WAIT_S)
            raise KeyError("the first sample is bad")
        if index == 1:
            second.set()
            raise ValueError("the second sample is bad")
        return index

    with threads(fail) as loader:
        iterator = iter(loader)
        with pytest.raises(KeyError, match=r"first sample is bad[\s\S]*batch 0 \(indices \[0, 1"):
            next(iterator)
        assert torch.cat(list(iterator)).tolist() == list(range(3, 30))


def test_an_error_names_the_worker_whose_batch_it_is() -> None:
    """Thread 1 waits in the sample of batch 0. Meanwhile thread 0 makes the sample of batch 1."""
    has_begun = threading.Event()

    class Odd(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            if index == 0:
                has_begun.wait(5)
                return 0
            has_begun.set()
            time.sleep(0.2)
            raise ValueError(f"made by {threading.current_thread().name}")

    def init(worker: int) -> None:
        time.sleep(0.2 * (worker == 0))

    loader: Any = DataLoader(Odd(), num_workers=2, path="thread", worker_init_fn=init)
    iterator = iter(loader)
    assert next(iterator).item() == 0
    with pytest.raises(ValueError, match=r"in DataLoader worker thread 1\.\n"):
        next(iterator)


def test_samples_of_a_batch_that_fails_die_with_it() -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def fail(index: int) -> Any:
        sample = torch.tensor(index)
        if index < 5:  # samples of the second batch may lie there until the iterator dies
            alive.add(sample)
        if index in (1, 3):
            raise ValueError("a bad sample")
        return sample

    gc.collect()
    gc.disable()
    try:
        with threads(fail, 5) as loader, pytest.raises(ValueError, match="a bad sample"):
            list(loader)
        wait_until(lambda: len(alive) == 0)  # a thread may still be in the batch
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_errors_that_end_programs_end_no_thread(error: BaseException) -> None:
    def fail(index: int) -> int:
        if index == 4:
            raise error
        return index

    with threads(fail) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError, match=type(error).__name__):
            next(iterator)
        assert torch.cat(list(iterator)).tolist() == list(range(6, 30))


def test_a_thread_that_could_not_begin_makes_no_sample() -> None:
    def begin(number: int) -> None:
        if number == 1:
            raise ValueError("no file is left")

    def slow_name(_: int) -> str:
        time.sleep(0.005)
        return threading.current_thread().name

    with threads(slow_name, worker_init_fn=begin, collate_fn=set) as loader:
        iterator, found = iter(loader), []
        for turn in range(10):
            if turn % THREADS == 1:
                with pytest.raises(ValueError, match="no file is left"):
                    next(iterator)
            else:
                found.append(next(iterator))
        assert "fastloop worker 1" not in set.union(*found)


def test_a_timeout_shows_the_sample_that_hangs() -> None:
    gate = threading.Event()

    def hang_here(index: int) -> int:
        if index == 2:
            gate.wait(WAIT_S)
        return index

    with threads(hang_here, timeout=0.2) as loader:
        iterator = iter(loader)
        with pytest.raises(RuntimeError, match=r"batch 0 \(indices \[0, 1, 2\]\)[\s\S]*hang_here"):
            next(iterator)
        gate.set()


# ---- ends


def test_close_while_a_sample_of_another_thread_is_made() -> None:
    gate, inside = threading.Event(), threading.Barrier(THREADS + 1)
    made: list[int] = []

    def wait(index: int) -> int:
        if index < THREADS:
            inside.wait(WAIT_S)
        gate.wait(WAIT_S)
        made.append(index)
        return index

    loader = threads(wait, 10)
    iterator = iter(loader)
    inside.wait(WAIT_S)
    with pytest.warns(RuntimeWarning, match="still in code of the dataset"):
        loader.close()
    gate.set()
    wait_until(lambda: not any(thread.is_alive() for thread in iterator._workers))
    assert sorted(made) == list(range(THREADS))


def test_an_epoch_that_is_left_in_its_first_batches() -> None:
    made: list[int] = []
    with threads(lambda index: made.append(index) or index, persistent_workers=True) as loader:
        for _ in range(20):
            assert next(iter(loader)).tolist() == [0, 1, 2]
        assert torch.cat(list(loader)).tolist() == list(range(30))
