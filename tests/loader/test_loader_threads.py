"""Iterators shared by threads, and iterators that are closed."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ListSampler, N, in_fives, labels, loader_of, outcome, run_program, slow_array
from time_limits import limit
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, TensorDataset
from workers import is_thread_in, wait_until

from fastloop import ArrayDataset, DataLoader, prefetch

both = pytest.mark.parametrize("workers", [0, 2])


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A forked worker must not find OpenMP's threads missing."""
    torch.set_num_threads(1)


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
        thread.join(limit(60))
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


@pytest.mark.parametrize("in_order", [True, False])
@both
def test_threads_that_share_an_iterator_get_each_batch_once(workers: int, in_order: bool) -> None:
    n = 3000
    dataset = TensorDataset(torch.arange(n), torch.arange(n) * 10)
    sampler = ListSampler(range(n))
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


class Alone:
    """An iterator of indices that must not be asked by two threads at once."""

    def __init__(self, n: int) -> None:
        self.items, self.inside = iter(range(n)), 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.inside += 1
        for _ in range(3):
            time.sleep(0)  # lets others run
            assert self.inside == 1
        self.inside -= 1
        return next(self.items)


@pytest.mark.parametrize(
    ("path", "workers", "kwargs"),
    [
        ("sync", 0, {}),
        ("process", 2, {}),
        ("process", 2, {"in_order": False}),
        ("process", 1, {"persistent_workers": True}),
        ("torch", 0, {}),
        ("torch", 1, {}),
    ],
)
def test_threads_share_iterators_of_every_path(path: str, workers: int, kwargs: Any) -> None:
    n = 240
    data = [torch.full((100,), i) for i in range(n)]
    for _ in range(2):
        loader = DataLoader(data, 3, sampler=Alone(n), num_workers=workers, path=path, **kwargs)
        iterator, got = iter(loader), []

        def take(iterator: Any = iterator, got: list[Any] = got) -> None:
            for batch in iterator:
                assert torch.equal(batch, batch[:, :1].expand(-1, 100))
                got.append(batch[:, 0])

        run_threads(take)
        assert sorted(torch.cat(got).tolist()) == list(range(n))
        assert loader.stats().batches == iterator._num_yielded == n // 3
        loader.close()


def test_threads_share_what_is_read_ahead() -> None:
    got: list[torch.Tensor] = []
    batches = prefetch((torch.full((3,), i) for i in range(300)), "cpu", depth=3)
    run_threads(lambda: got.extend(batches))
    assert sorted(int(batch[0]) for batch in got) == list(range(300))


class Calls(Dataset[torch.Tensor]):
    """Item i is i; before item 3 it calls `hook`."""

    def __init__(self, hook: Callable[[], object]) -> None:
        self.hook = hook

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 3:
            self.hook()
        return torch.tensor(i)


@pytest.mark.parametrize("path", ["sync", "torch"])
def test_a_dataset_may_take_from_the_iterator_it_is_read_by(path: str) -> None:
    traces = []
    for kind, kwargs in ((DataLoader, {"path": path}), (TorchLoader, {})):
        trace: list[Any] = []
        own: list[Any] = []  # the iterator
        data = Calls(lambda trace=trace, own=own: trace.append(next(own[0]).tolist()))
        own.append(iter(kind(data, 2, **kwargs)))  # type: ignore[operator]
        trace += [batch.tolist() for batch in own[0]]
        traces.append(trace)
    assert traces[0] == traces[1]
    assert sorted(i for batch in traces[0] for i in batch) == list(range(12))


def test_a_child_that_was_forked_while_another_thread_is_in_next(tmp_path: Path) -> None:
    run_program(tmp_path, "fork_in_next")


def test_a_signal_handler_takes_the_batch_that_is_waited_for(tmp_path: Path) -> None:
    """As in torch, the call that it has interrupted gets the next one. Where there is none, it ends
    with an error that says why."""
    run_program(tmp_path, "signal_in_next")


def test_ctrl_c_while_another_thread_is_in_next(tmp_path: Path) -> None:
    run_program(tmp_path, "interrupt_in_next")


@pytest.mark.slowest
def test_close_ends_the_wait_for_a_worker(tmp_path: Path) -> None:
    """One thread waits for a batch, another for the lock of next()."""
    run_program(tmp_path, "close_in_next")


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
    wait_until(lambda: is_thread_in("__next__", thread.ident))
    loader.close()
    thread.join(limit(60))
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

    class Closes(ListSampler):
        def __iter__(self) -> Iterator[Any]:
            yield from self.items[:23]
            loader.close()
            yield from self.items[23:]

    loader = loader_of(workers, sampler=Closes(range(N)))
    outcome(lambda: list(loader))
    loader.close()
    assert outcome(lambda: next(iter(loader_of(workers)))) is not None
