"""Iterators shared by threads, and iterators that are closed."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import N, Yields, in_fives, labels, loader_of, outcome, slow_array
from torch.utils.data import TensorDataset

from fastloop import ArrayDataset, DataLoader

both = pytest.mark.parametrize("workers", [0, 2])


def run_threads(work: Callable[[], None], count: int = 4) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


@pytest.mark.parametrize("in_order", [True, False])
@both
def test_threads_that_share_an_iterator_get_each_batch_once(workers: int, in_order: bool) -> None:
    n = 3000
    dataset = TensorDataset(torch.arange(n), torch.arange(n) * 10)
    sampler = Yields(range(n))
    for kwargs in ({}, {"sampler": sampler}, {"shuffle": True}):
        loader = DataLoader(dataset, 3, num_workers=workers, in_order=in_order, **kwargs)
        for _ in range(3):
            iterator, got = iter(loader), []

            def take(iterator: Any = iterator, got: list[Any] = got) -> None:
                for x, y in iterator:
                    assert torch.equal(x * 10, y)
                    got.append(x)

            run_threads(take)
            assert sorted(torch.cat(got).tolist()) == list(range(n))


@both
def test_threads_with_iterators_of_their_own(workers: int) -> None:
    loader = loader_of(workers)

    def take() -> None:
        for _ in range(20):
            assert labels(loader) == in_fives()

    run_threads(take)
    assert loader.stats().batches == 4 * 20 * N // 5
    assert loader.stats().slots_lent == 0


@both
@pytest.mark.parametrize("path", ["array", "torch"])
def test_close_ends_iterators_and_the_loader_starts_anew(workers: int, path: str) -> None:
    loader = loader_of(workers, path=path)
    iterators = [iter(loader), iter(loader)]
    kept = [next(iterator) for iterator in iterators]
    loader.close()
    for iterator in iterators:
        for _ in range(2):
            with pytest.raises((RuntimeError, AssertionError)):
                next(iterator)
    assert labels(kept) == [[0, 1, 2, 3, 4]] * 2
    assert labels(loader) == in_fives()
    loader.close()
    loader.close()
    assert labels(loader) == in_fives()


@both
def test_with_closes_and_passes_errors_on(workers: int) -> None:
    with loader_of(workers) as loader:
        iterator = iter(loader)
        next(iterator)
    with pytest.raises(RuntimeError, match=r"closed; call iter\(\)"):
        next(iterator)
    with pytest.raises(ValueError), loader_of(workers) as loader:
        next(iter(loader))
        int("")


def test_close_of_persistent_workers() -> None:
    loader = loader_of(2, persistent_workers=True)
    first = iter(loader)
    assert labels(first) == in_fives()
    loader.close()
    assert iter(loader) is not first
    assert labels(loader) == in_fives()


@both
def test_close_from_another_thread_ends_a_wait(workers: int, tmp_path: Path) -> None:
    array = slow_array(tmp_path)
    loader = DataLoader(
        ArrayDataset(array), 24, num_workers=workers, prefetch_factor=workers or None
    )
    iterator = iter(loader)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(outcome(lambda: next(iterator))))
    thread.start()
    time.sleep(0.1)
    loader.close()
    thread.join(60)
    assert not thread.is_alive()
    assert results[0][:2] == ("raised", RuntimeError)
    assert "closed" in results[0][2]
    (batch,) = next(iter(DataLoader(ArrayDataset(array), 2)))
    assert batch[:, 7].tolist() == [0, 1]


@both
def test_close_inside_the_loop_and_inside_the_sampler(workers: int) -> None:
    loader = loader_of(workers)
    with pytest.raises(RuntimeError, match="closed"):
        for _ in loader:
            loader.close()

    class Closes(Yields):
        def __iter__(self) -> Iterator[Any]:
            yield from self.items[:23]
            loader.close()
            yield from self.items[23:]

    loader = loader_of(workers, sampler=Closes(range(N)))
    outcome(lambda: list(loader))
    loader.close()
    assert outcome(lambda: next(iter(loader_of(workers)))) is not None
