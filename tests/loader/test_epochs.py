"""An iterator stays in the epoch that it began with, whatever other iterators, other processes and
set_epoch() do meanwhile."""

import gc
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from epoch_cases import FORK, PATHS, ROWS, epoch_of, epochs_of, make_dataset, make_loader
from time_limits import limit
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torch.utils.data import DataLoader as TorchLoader
from workers import wait_until

from fastloop import ArrayDataset, DataLoader
from fastloop.data.epochs import Epoch, EpochDataset, IteratorEpochs

every_path = pytest.mark.parametrize("path", PATHS)


# ---- several iterators


@every_path
def test_others_within_an_epoch(path: str) -> None:
    """As a validation is, over the other half of the dataset."""
    dataset = make_dataset()
    outer = make_loader(Subset(dataset, list(range(8))), path)
    rest = Subset(dataset, list(range(8, ROWS)))
    others = [make_loader(rest, other) for other in PATHS]
    for other in others:
        assert epochs_of(other) == {0}
    first, second = iter(outer), iter(outer)
    assert epoch_of(next(first)) == 0
    for other in others:
        for epoch in (1, 2):
            assert epochs_of(other) == {epoch}
    assert epochs_of(first) == {0}
    assert epochs_of(second) == {1}


@every_path
def test_by_turns(path: str) -> None:
    dataset = make_dataset()
    loaders = [make_loader(dataset, path) for _ in range(2)]
    list(loaders[1])
    for epoch in range(2):
        iterators = [iter(loader) for loader in loaders]
        for batches in zip(*iterators, strict=True):
            assert list(map(epoch_of, batches)) == [epoch, epoch + 1]


@every_path
def test_in_two_threads(path: str) -> None:
    dataset = make_dataset()
    loaders = [make_loader(dataset, path) for _ in range(2)]
    list(loaders[1])
    meet = threading.Barrier(2)
    seen: list[list[int]] = [[], []]

    def read(number: int) -> None:
        for _ in range(2):
            for batch in loaders[number]:
                meet.wait(limit(300))
                seen[number].append(epoch_of(batch))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[0] * 3 + [1] * 3, [1] * 3 + [2] * 3]


@every_path
def test_in_two_processes(path: str) -> None:
    """The child begins later epochs of the dataset that both have."""
    dataset = make_dataset()
    loader, childs = make_loader(dataset, path), make_loader(dataset, path)
    list(childs)
    iterator = iter(loader)
    assert epoch_of(next(iterator)) == 0
    context: Any = multiprocessing.get_context("fork")
    asked, told = context.Queue(), context.Queue()

    def train() -> None:
        for _ in range(2):
            inner = iter(childs)
            batches = [next(inner)]
            told.put("begun")
            asked.get(timeout=limit(300))
            told.put(epochs_of([*batches, *inner]))

    child = context.Process(target=train)
    child.start()
    for epoch in (1, 2):
        assert told.get(timeout=limit(300)) == "begun"
        assert epoch_of(next(iterator)) == 0
        assert epochs_of(make_loader(dataset, "sync")) == {0}
        asked.put(True)
        assert told.get(timeout=limit(300)) == {epoch}
    child.join(limit(60))
    assert list(iterator) == []


# ---- set_epoch()


@every_path
def test_set_epoch_counts_from_the_next_iter(path: str) -> None:
    dataset = make_dataset()
    loader = make_loader(dataset, path)
    for before, told in ((0, 7), (7, 3)):
        iterator = iter(loader)
        seen = [epoch_of(next(iterator))]
        dataset.set_epoch(told)
        assert {*seen, *epochs_of(iterator)} == {before}
    assert epochs_of(loader) == {3}


def test_what_is_set_for_one_dataset_of_two() -> None:
    halves = [make_dataset(), make_dataset()]
    halves[1].set_epoch(9)
    loader = DataLoader(ConcatDataset(halves), ROWS)
    assert [[epoch_of(batch) for batch in loader] for _ in range(2)] == [[0, 9], [1, 9]]


# ---- workers that live on


@pytest.mark.parametrize("path", ["array-2", "process", "torch-1"])
def test_persistent_workers(path: str) -> None:
    dataset = make_dataset()
    loader = make_loader(dataset, path, persistent_workers=True)
    other = make_loader(dataset, "sync")
    for epoch in range(3):
        iterator = iter(loader)
        seen = [epoch_of(next(iterator))]
        assert epochs_of(other) == {epoch}
        if epoch != 1:  # that one is left in its middle
            seen += map(epoch_of, iterator)
        assert set(seen) == {epoch}
    dataset.set_epoch(8)
    assert epochs_of(loader) == {8}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "context"), [("process", "spawn"), ("process", "forkserver"), ("torch-1", "spawn")]
)
def test_workers_that_are_sent_the_dataset(path: str, context: str) -> None:
    first, second = make_dataset(), make_dataset()
    second.set_epoch(6)
    loader = make_loader(
        ConcatDataset([first, second]),
        path,
        shuffle=False,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    other = make_loader(first, "sync")
    for epoch in range(2):
        iterator = iter(loader)
        seen = [epoch_of(next(iterator))]
        for _ in range(2):
            list(other)
        second.set_epoch(epoch)
        seen += map(epoch_of, iterator)
        assert seen == [epoch] * 3 + [6 if epoch == 0 else 0] * 3


# ---- who reads the iterator's epoch


class Row:
    """An index that C does not read."""

    def __init__(self, row: int) -> None:
        self.row = row

    def __index__(self) -> int:
        return self.row


@pytest.mark.parametrize("workers", [0, 2])
def test_items_that_python_fetches_for_the_array_path(workers: int) -> None:
    dataset = make_dataset()
    items: Any = [[0, 1, 2, 3], [Row(4), Row(5), Row(6), Row(7)], [8, 9, 10, 11]]
    loader = DataLoader(dataset, batch_sampler=items, path="array", num_workers=workers)
    other = make_loader(dataset, "sync")
    list(other)
    for epoch in range(2):
        iterator = iter(loader)
        seen = [epoch_of(next(iterator))]
        list(other)
        assert {*seen, *epochs_of(iterator)} == {epoch}


class Around(Dataset[Any]):
    """Calls what is given for each sample of another dataset."""

    def __init__(self, inner: Any, call: Any) -> None:
        self.inner, self.call = inner, call

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.call(self.inner, index)


class Ahead(IterableDataset[Any]):
    """Reads its samples when it is asked for an iterator."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter([self.inner[i] for i in range(ROWS)])


class NoDataset:
    """Samples of a dataset, without torch's base class."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


def _first(parts: Any, index: int) -> Any:
    return parts[0][index]


HOLDERS: dict[str, Any] = {
    "list": lambda inner: Subset(Around([inner], _first), range(ROWS)),
    "tuple": lambda inner: Subset(Around((inner, None), _first), range(ROWS)),
    "dict": lambda inner: Subset(Around({0: inner}, _first), range(ROWS)),
    "no Dataset": NoDataset,
    "no Dataset, list": lambda inner: NoDataset(ConcatDataset([inner])),
    "chain": lambda inner: ChainDataset([Ahead(inner)]),
}


@pytest.mark.parametrize("path", ["sync", "process", "torch-1"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_datasets_of_the_user_that_hold_one(holder: str, path: str) -> None:
    loader = make_loader(HOLDERS[holder](make_dataset()), path, shuffle=None)
    assert [epochs_of(loader) for _ in range(2)] == [{0}, {1}]


@pytest.mark.parametrize("path", ["sync", "process", "torch-0", "torch-1"])
def test_iterable_datasets(path: str) -> None:
    dataset = make_dataset()
    loader = make_loader(Ahead(dataset), path, shuffle=None)
    other = make_loader(dataset, "sync")
    list(other)
    for epoch in range(2):
        iterator = iter(loader)
        list(other)
        assert epochs_of(iterator) == {epoch}


def test_an_iterable_dataset_that_reads_at_the_start_of_a_resumed_epoch() -> None:
    dataset = make_dataset()
    loader = make_loader(Ahead(dataset), "sync", shuffle=None)
    dataset.set_epoch(7)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    dataset.set_epoch(2)
    with pytest.warns(RuntimeWarning, match="starts anew"):
        loader.load_state_dict(state)
    assert [epochs_of(loader) for _ in range(2)] == [{7}, {2}]


@pytest.mark.parametrize("path", ["process", "torch-1"])
def test_threads_of_the_users_in_workers(path: str) -> None:
    def read(dataset: Any, index: int) -> Any:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(dataset.__getitem__, index).result()

    dataset = make_dataset()
    iterator = iter(make_loader(Around(dataset, read), path, prefetch_factor=1))
    dataset.set_epoch(4)
    assert epochs_of(iterator) == {0}


@pytest.mark.parametrize("path", ["sync", "process"])
@pytest.mark.parametrize("inner", ["array-0", "sync", "process"])
def test_a_loader_within_a_sample(path: str, inner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        multiprocessing.process.current_process(), "_config", {}
    )  # may have children
    dataset = make_dataset()
    other = make_loader(dataset, inner)
    list(other)

    def read(dataset: Any, index: int) -> Any:
        multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        if index == 5:
            assert epochs_of(other) == {1}
        return dataset[index]

    assert epochs_of(make_loader(Around(dataset, read), path)) == {0}


# ---- who reads the word


def test_samples_by_hand_are_of_the_epoch_that_a_loader_began_last() -> None:
    dataset = make_dataset()
    loader = make_loader(dataset, "sync")
    for epoch in range(3):
        iterator = iter(loader)
        by_hand = torch.utils.data.default_collate([dataset[i] for i in range(ROWS)])
        assert epoch_of(by_hand) == epoch_of(next(iterator)) == epoch
        assert dataset.params(3) == dataset.params(3, epoch=epoch)
        assert f"epoch {epoch}, counted" in dataset.explain()
    dataset.set_epoch(9)
    assert epochs_of(TorchLoader(dataset, 4)) == {9}
    assert "epoch 9, set" in dataset.explain()


class Stamped(EpochDataset):
    """Another dataset of the library's own: a sample is its epoch."""

    def __init__(self) -> None:
        self._epoch = Epoch()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        assert self._epoch is not None
        return self._epoch.value


@every_path
def test_every_dataset_that_has_an_epoch(path: str) -> None:
    path = path if "array" not in path else "sync"
    dataset = Stamped()
    for wrapped in (dataset, ConcatDataset([dataset, dataset]), Around(dataset, lambda d, i: d[i])):
        loader = make_loader(wrapped, path)
        assert [{int(e) for batch in loader for e in batch} for _ in range(2)] == [{0}, {1}]
    dataset.set_epoch(9)
    assert {int(e) for batch in loader for e in batch} == {9}


# ---- what it costs


def descriptors(threads: set[threading.Thread]) -> int:
    """Once there are no other threads: torch's queues are closed by some of their own."""
    gc.collect()
    wait_until(lambda: threads >= set(threading.enumerate()))
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("path", ["process", "torch-1"])
def test_iterators_give_their_shared_memory_back(path: str) -> None:
    loader = make_loader(make_dataset(), path)
    gc.collect()  # what earlier tests left must not be closed in between
    wait_until(lambda: not any("QueueFeeder" in t.name for t in threading.enumerate()))
    threads = set(threading.enumerate())
    list(loader)
    before = descriptors(threads)
    for _ in range(3):
        list(loader)
    assert descriptors(threads) == before


@pytest.mark.parametrize("make", [lambda x: TensorDataset(x), lambda x: ArrayDataset(x)])
@pytest.mark.parametrize("path", ["process", "torch-1"])
def test_nothing_is_shared_where_nothing_is_random(path: str, make: Any) -> None:
    loader = make_loader(make(torch.arange(ROWS)), path)
    iterator: Any = iter(loader)
    assert iterator._worker_init_fn is None
    assert iterator._datasets.__reduce__() == (IteratorEpochs, ((), True, None))


def test_the_users_worker_init_fn_runs_in_the_epoch() -> None:
    dataset = make_dataset()
    list(make_loader(dataset, "sync"))
    seen = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def note(worker: int) -> None:
        seen[worker] = dataset._epoch.value + 100  # type: ignore[union-attr]

    loader = DataLoader(
        dataset, 4, path="process", worker_init_fn=note, **{**FORK, "num_workers": 2}
    )
    for epoch in range(2):
        assert epochs_of(loader) == {epoch}
        assert seen.tolist() == [epoch + 100] * 2
