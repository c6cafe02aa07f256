"""Requests and replies in corners: batches larger than expected, tight budgets, ends in between."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers import assert_same
from time_limits import limit
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from workers import on_collection

from fastloop import DataLoader, _core
from fastloop.device.destinations import Destination
from fastloop.loader.workers.batch_pickle import PICKLED, WRITTEN, unpack

TINY = 1000  # a budget that holds one small batch


def worker_id() -> int:
    info = get_worker_info()
    assert info is not None
    return info.id


class Stream(IterableDataset[torch.Tensor]):
    """Worker w gives counts[w] items of `size`; the last of worker 0 has `last`."""

    def __init__(self, counts: tuple[int, ...], size: int = 10, last: int = 10) -> None:
        self.counts, self.size, self.last = counts, size, last

    def __iter__(self) -> Iterator[torch.Tensor]:
        count = self.counts[worker_id()]
        for i in range(count):
            is_last = i == count - 1 and worker_id() == 0
            yield torch.full((self.last if is_last else self.size,), float(i))


class Sized(Dataset[torch.Tensor]):
    """Item i has sizes[i] elements; an item whose index is in `kills` ends its worker."""

    def __init__(self, sizes: list[int], kills: tuple[int, ...] = (), nap: float = 0) -> None:
        self.sizes, self.kills, self.nap = sizes, kills, nap

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(self.nap * (1 + worker_id()))
        if i in self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((self.sizes[i],), float(i))


def finish(loader: DataLoader[Any]) -> list[Any]:
    """All batches; a test that hangs here is ended by its timeout."""
    return list(loader)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("counts", [(6,), (6, 5), (2, 7)])
def test_the_last_batch_of_a_stream_is_larger_than_all_before(
    counts: tuple[int, ...], in_order: bool
) -> None:
    """Its worker says that it has ended before that batch can be sent again."""
    stream = Stream(counts, last=300_000)
    kwargs: dict[str, Any] = {"num_workers": len(counts), "in_order": in_order}
    ours, torchs = finish(DataLoader(stream, 1, **kwargs)), list(TorchLoader(stream, 1, **kwargs))
    if in_order:
        assert_same(ours, torchs)
    assert sorted(map(len_of, ours)) == sorted(map(len_of, torchs))


def len_of(batch: torch.Tensor) -> int:
    return batch.numel()


@pytest.mark.parametrize("persistent", [True, False])
def test_a_worker_ends_while_tasks_for_it_wait_for_memory(persistent: bool) -> None:
    loader = DataLoader(Stream((0, 6), 1000), 1, num_workers=2, persistent_workers=persistent)
    loader.memory_budget = TINY
    for _ in range(2):
        assert len(finish(loader)) == 6


def take_all(iterator: Iterator[Any]) -> tuple[int, int]:
    """How many batches and how many errors there are to the end."""
    batches = errors = 0
    while True:
        with contextlib.suppress(RuntimeError):
            for _ in iterator:
                batches += 1
            return batches, errors
        errors += 1


def test_the_others_go_on_after_a_death_with_little_memory() -> None:
    """Not compared with torch's loader, which waits for ever if the dead worker held the lock of
    its queue."""
    loader = DataLoader(Sized([1000] * 40, kills=(4,)), 2, num_workers=2)
    loader.memory_budget = TINY
    batches, errors = take_all(iter(loader))
    assert errors == 1
    assert batches >= 18


def test_an_epoch_left_while_a_batch_waits_for_more_memory() -> None:
    sizes = [1000 if i < 16 else 100_000 for i in range(64)]
    loader = DataLoader(Sized(sizes, nap=0.005), 4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for k, batch in enumerate(loader):
            assert batch[:, 0].tolist() == [4.0 * k + i for i in range(4)]
            if k == 3:
                break


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("budget", [1, 100_000, None])
def test_any_budget_delivers_ragged_batches(workers: int, budget: int | None) -> None:
    sizes = [(i * 7919) % 60_000 for i in range(48)]
    loader = DataLoader(Sized(sizes), 1, num_workers=workers)
    loader.memory_budget = budget
    assert [len_of(batch) for batch in finish(loader)] == sizes


def keep_looking(batch: torch.Tensor, is_freed: Any, answers: Any) -> None:
    before = batch.clone()
    is_freed.wait(limit(300))
    answers.put(bool(torch.equal(batch, before)))


def test_a_forked_child_keeps_the_batch_that_its_parent_drops() -> None:
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    loader = DataLoader(Sized([20_000] * 200), 2, num_workers=1)
    iterator = iter(loader)
    batch = next(iterator)
    is_freed, answers = context.Event(), context.SimpleQueue()
    child = context.Process(target=keep_looking, args=(batch, is_freed, answers))
    child.start()
    del batch
    for _ in range(60):
        next(iterator)
    is_freed.set()
    assert answers.get() is True
    child.join()


class Rows(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.x = torch.arange(4_000_000).view(1000, 4000)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> torch.Tensor:
        return self.x[i]


def test_a_list_of_views_costs_what_they_look_at() -> None:
    loader = DataLoader(Rows(), 8, shuffle=True, num_workers=1, collate_fn=list)
    batches = list(loader)
    assert len(batches) == 125
    for row in batches[3]:
        assert torch.equal(row, torch.arange(4000) + row[0])
    stats = loader.stats()
    assert stats.bytes is not None
    assert stats.bytes < 2 * 1000 * 4000 * 8


# ---- what is shared is overwritten

OVERWRITTEN = "worker 0 has overwritten the memory shared with this process"
TASK = b"a task that is found by its text"


class Channel:
    """A parent end and the end of worker 0 in one process."""

    def __init__(self, workers: int = 1, has_destination: bool = False) -> None:
        pool = _core.BatchPool(0, is_shared=True)
        memory = Destination(lambda size: torch.empty(size, dtype=torch.uint8))
        destination = memory if has_destination else None
        self.parent_end = _core.ParentEnd(pool, torch.Tensor, workers, 4, 1 << 20, destination)
        self.worker_end = _core.WorkerEnd(torch.Tensor, *self.parent_end.address(), 0)

    def send(self) -> None:
        self.parent_end.submit(0, TASK, (0, None))

    def answer(self, head: bytes, kind: int = PICKLED) -> None:
        self.send()
        assert self.worker_end.receive(1.0) == TASK
        source = torch.ones(100)
        self.worker_end.copy(source.data_ptr(), 400)
        assert self.worker_end.answer(head, kind, False)

    def change(self, text: bytes) -> None:
        """Writes over the middle of it, wherever it lies."""
        base = self.parent_end.address()[-1]
        at = ctypes.string_at(base, 2 << 20).find(text)
        assert at > 0
        ctypes.memset(base + at + len(text) // 2, 0x6A, 2)


class Indices(list[int]):
    """Which can be watched."""


@pytest.mark.parametrize("after", range(4))
def test_a_task_is_told_though_the_collector_drops_its_request(after: int) -> None:
    """Up to CPython 3.11 it runs where an object is made."""
    channel = Channel()
    indices = Indices([1])
    channel.parent_end.submit(0, TASK, (0, indices))
    assert channel.worker_end.receive(1.0) == TASK
    is_alive = weakref.ref(indices)
    del indices
    used_up = [(i, i) for i in range(3000)]  # the interpreter's spare tuples
    with on_collection(lambda: channel.parent_end.cancel(0, is_gone=True), after):
        begun, task = channel.parent_end.begun(0)
    assert begun == 1 and (task is None or is_alive())
    del used_up


def test_a_task_that_was_overwritten_is_not_unpickled() -> None:
    channel = Channel()
    channel.send()
    channel.change(TASK)
    with pytest.raises(RuntimeError, match="worker 0 shares with its parent process has been over"):
        channel.worker_end.receive(1.0)
    with pytest.raises(RuntimeError, match=f"^{OVERWRITTEN}; look for writes out of bounds in"):
        channel.parent_end.receive(0)
    assert channel.parent_end.is_overwritten


@pytest.mark.parametrize("kind", [PICKLED, WRITTEN])
def test_a_batch_that_was_overwritten_is_not_read(kind: int) -> None:
    head = b"s" + (11).to_bytes(8, "little") + b"some string"
    channel = Channel(workers=3)
    channel.answer(head, kind)
    _, reply = channel.parent_end.receive(1.0)
    assert not channel.parent_end.is_overwritten
    channel.change(head)
    with pytest.raises(
        RuntimeError, match=r"^worker 0, or a different one of the 3 workers, has overwritten"
    ):
        unpack(reply)
    assert channel.parent_end.is_overwritten


def test_a_batch_that_was_overwritten_does_not_land() -> None:
    channel = Channel(has_destination=True)
    channel.answer(b"what was pickled")
    _, reply = channel.parent_end.receive(1.0)
    channel.change(b"what was pickled")
    with pytest.raises(RuntimeError, match=OVERWRITTEN):
        reply.deliver()


def test_what_was_opened_may_change() -> None:
    """A batch is read from a copy, which the worker cannot reach."""
    channel = Channel(has_destination=True)
    channel.answer(b"what was pickled")
    _, reply = channel.parent_end.receive(1.0)
    reply.deliver()
    channel.change(b"what was pickled")
    assert reply.open() == b"what was pickled"


def test_places_outside_of_a_batch() -> None:
    channel = Channel()
    channel.answer(b"")
    _, reply = channel.parent_end.receive(1.0)
    reply.open()
    code, most = 2 * 256 + 32, (1 << 63) - 1
    assert torch.equal(reply.split([(0, code, (10, 10))])[0], torch.ones(10, 10))
    assert reply.split([(400, code, (0, 7))])[0].shape == (0, 7)
    for place in (
        (0, code, (101 * 16,)),
        (448, code, (1,)),
        (-4, code, (1,)),
        (most, code, (1,)),
        (most - 3, code, (1,)),
        (0, code, (most,)),
        (0, code, (1 << 32, 1 << 32)),
        (0, code, (0, 1 << 62, 1 << 62)),
        (0, code, (1 << 62, 1 << 62, 0)),
        (0, code, (-1,)),
        (0, code, (-1, -1)),
    ):
        with pytest.raises(ValueError, match="a slot must lie within the batch of"):
            reply.split([place])


def test_a_worker_end_needs_a_channel_that_can_be() -> None:
    """It does not believe what is written in the channel itself."""
    fd, size, offset, _, _, base = Channel().parent_end.address()
    for workers, depth, worker in ((1, 4, 1), (1, 4, -1), (0, 4, 0), (1, 3, 0), (1, 0, 0)):
        with pytest.raises(
            ValueError, match=f"WorkerEnd: worker must be .*, got {worker} of {workers}"
        ):
            _core.WorkerEnd(torch.Tensor, fd, size, offset, workers, depth, base, worker)
