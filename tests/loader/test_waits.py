"""What stats() says of waiting: the time that next() is blocked, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from workers import wait_until

from fastloop import DataLoader
from fastloop.loader import shared


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """A forked worker must not find OpenMP's threads missing."""
    torch.set_num_threads(1)


class Slow:
    """Where it is unpickled, that takes 20 ms."""

    def __init__(self, i: int) -> None:
        self.i = i

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return made_slowly, (self.i,)


def made_slowly(i: int) -> Slow:
    begin = shared.perf_counter_ns()
    while shared.perf_counter_ns() - begin < 20_000_000:
        pass
    return Slow(i)


class Gated(Dataset[Slow]):
    """Item `held` and those behind it are made when `is_open`; `asked` is the latest asked for."""

    def __init__(self, held: int) -> None:
        self.held = held
        self.is_open = torch.zeros(1).share_memory_()
        self.asked = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self.held + 4

    def __getitem__(self, i: int) -> Slow:
        self.asked.fill_(i)
        if i >= self.held:
            wait_until(lambda: bool(self.is_open))
        return Slow(i)


def first(samples: list[Slow]) -> Slow:
    return samples[0]


@pytest.mark.parametrize("path", ["process", "thread", "torch"])
def test_batches_that_are_there_cost_no_wait_however_slow_their_handling(path: str) -> None:
    """A worker that is asked for item 4 has sent those before."""
    data = Gated(4)
    loader: Any = DataLoader(data, 1, num_workers=1, prefetch_factor=5, collate_fn=first, path=path)
    iterator = iter(loader)
    wait_until(lambda: int(data.asked) == 4)
    if path == "torch":  # whose queue is written to by a thread
        wait_until(lambda: iterator._data_queue._reader.poll())
    got = [next(iterator).i for _ in range(1 if path == "torch" else 4)]
    assert got == list(range(len(got)))
    assert (loader.stats().waits, loader.stats().seconds_waited) == (0, 0)
    data.is_open.fill_(1)
    assert [batch.i for batch in iterator] == list(range(len(got), 8))
    loader.close()


def test_a_wait_is_one_however_often_the_parent_looks() -> None:
    """It looks for dead workers every 50 ms; what is waited for comes after it has looked twice."""
    data = Gated(1)
    loader: Any = DataLoader(data, 1, num_workers=1, prefetch_factor=2, collate_fn=first)
    iterator: Any = iter(loader)
    wait_until(lambda: int(data.asked) == 1)
    assert next(iterator).i == 0
    looks = []

    def look() -> list[int]:
        looks.append(1)
        if len(looks) == 2:
            data.is_open.fill_(1)
        return []

    iterator._find_dead = look
    assert next(iterator).i == 1
    assert len(looks) >= 2
    stats = loader.stats()
    assert stats.waits == 1
    assert stats.seconds_waited > 0
    loader.close()


class Clock:
    """Tells what it is set to."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.mark.parametrize("path", ["sync", "torch"])
def test_without_workers_the_making_of_a_batch_is_a_wait(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(shared, "perf_counter_ns", clock)

    class Takes(Dataset[int]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> int:
            clock.ns += 1_000_000_000
            return i

    loader: Any = DataLoader(Takes(), 3, path=path)
    for _ in loader:
        clock.ns += 7_000_000_000  # the loop's own time
    assert (loader.stats().waits, loader.stats().seconds_waited) == (4, 12)
