"""What samplers and users do to a loader and its data while it is being iterated."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from time_limits import limit
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler
from workers import threads

from fastloop import DataLoader


class Runs:
    """Yields 0 a few times, runs `work`, yields 1."""

    def __init__(self, work: Callable[[], object], times: int = 1) -> None:
        self.work, self.times = work, times

    def __iter__(self) -> Iterator[int]:
        yield from [0] * self.times
        self.work()
        yield 1


def test_data_that_a_sampler_replaces_is_read_where_it_is_now() -> None:
    seen = []
    for cls in (DataLoader, TorchLoader):
        t = torch.zeros(1 << 20)

        def replace(t: torch.Tensor = t) -> None:
            t.data = torch.ones(1 << 24)

        seen.append([b[0].tolist() for b in cls(TensorDataset(t), sampler=Runs(replace))])
    assert seen[0] == seen[1] == [[0.0], [1.0]]


@pytest.mark.parametrize("workers", [0, 3])
def test_close_from_the_sampler_ends_the_iterator_and_its_threads(workers: int) -> None:
    x = torch.arange(2000.0)
    sampler = Runs(lambda: loader.close(), times=9)
    loader = DataLoader(TensorDataset(x), sampler=sampler, num_workers=workers)
    before = threads()
    with pytest.raises(RuntimeError, match="closed"):
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        next(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    assert threads() <= before


def test_a_dataset_may_have_more_fields_in_the_next_epoch() -> None:
    dataset = TensorDataset(torch.arange(6))
    loader = DataLoader(dataset, 2)
    assert len(list(loader)) == 3
    dataset.tensors = (torch.arange(6), torch.ones(6), torch.zeros(6))
    assert [len(batch) for batch in loader] == [3, 3, 3]
    assert loader.stats().batches == 6


@pytest.mark.parametrize("name", ["uint4", "int3"])
def test_dtypes_that_lose_their_name_on_the_way_are_left_to_torch(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    x = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))
    assert DataLoader(TensorDataset(x)).stats().path == "sync"


@pytest.mark.parametrize("size", [5, 1, 0])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_batch_size_may_change_within_an_epoch(drop_last: bool, size: int) -> None:
    sizes = []
    for cls in (DataLoader, TorchLoader):
        loader = cls(TensorDataset(torch.arange(20)), 2, drop_last=drop_last)
        iterator = iter(loader)
        first = len(next(iterator)[0])
        loader.batch_sampler.batch_size = size
        rest = (len(batch) for (batch,) in itertools.islice(iterator, 30))
        sizes.append([first, *rest])
    assert sizes[0] == sizes[1]


def test_asking_for_stats_leaves_the_data_resizable() -> None:
    x = torch.arange(10.0)
    loader = DataLoader(TensorDataset(x), num_workers=1)
    assert loader.stats().path == "array"
    assert x.untyped_storage().resizable()


def test_a_default_device_does_not_reach_into_the_loader() -> None:
    x = torch.arange(10)
    samplers = [
        torch.utils.data.DistributedSampler(range(10), 2, 1, shuffle=False),
        WeightedRandomSampler([1.0] * 10, 4),
    ]
    torch.set_default_device("meta")
    try:
        for workers in (0, 1):
            for sampler in samplers[:1]:
                loader = DataLoader(TensorDataset(x), 5, sampler=sampler, num_workers=workers)
                iterator = fresh(loader)
                assert next(iterator)[0].tolist() == [1, 3, 5, 7, 9]
    finally:
        torch.set_default_device(None)


def fresh(loader: DataLoader) -> Iterator:
    """An iterator whose base seed is drawn on the CPU, as torch's own needs it to be."""
    with torch.device("cpu"):
        return iter(loader)


def test_an_index_list_of_ones_own_class_is_asked_item_by_item() -> None:
    class Reversed(list):  # type: ignore[type-arg]
        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            return 19 - i

    subset = Subset(TensorDataset(torch.arange(20)), Reversed(range(4)))
    ours, theirs = (list(cls(subset, 4)) for cls in (DataLoader, TorchLoader))
    assert ours[0][0].tolist() == theirs[0][0].tolist() == [19, 18, 17, 16]


def test_a_thread_may_close_while_another_iterates() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10_000_000)), 10, num_workers=2)
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(sum(1 for _ in loader))
        except RuntimeError as error:
            outcome.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while loader.stats().batches < 10:
        pass
    loader.close()
    thread.join(limit(60))
    assert "closed" in str(outcome[0])
