"""How worker threads end: with the epoch, by close(), with the iterator, and when they cannot."""

import contextlib
import functools
import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from compare import FunctionDataset
from helpers import collector_off
from time_limits import limit
from torch.utils.data import Dataset, IterableDataset, SequentialSampler
from torch.utils.data.datapipes.iter import IterableWrapper
from workers import wait_until

from fastloop import DataLoader
from fastloop.base.threads import has_interpreter_lock
from fastloop.loader.workers import threads
from fastloop.loader.workers.batch_pickle import Order
from fastloop.loader.workers.threads import WorkerThread

Threaded = functools.partial(DataLoader, path="thread", num_workers=2)


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if isinstance(t, WorkerThread)]


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    assert running() == []
    yield
    gc.collect()
    wait_until(lambda: running() == [])
    assert threads._running == set()


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(threads, "PATIENCE_S", 0.05)
        yield


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class Gate:
    """Item `at` waits until the gate is opened; the others do not."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.is_open, self.is_reached = at, threading.Event(), threading.Event()
        self.loaded: list[int] = []
        self.thread = 0  # the one that waits

    def __call__(self, i: int) -> int:
        if i == self.at:
            self.thread = threading.get_ident()
            self.is_reached.set()
            assert self.is_open.wait(limit(300))
        self.loaded.append(i)
        return i


# ---- threads at work


def test_threads_start_at_iter_and_end_with_the_epoch() -> None:
    loader = Threaded(FunctionDataset(), 2)
    assert running() == []
    iterator = iter(loader)
    assert running() == ["fastloop worker 0", "fastloop worker 1"]
    assert len(list(iterator)) == 5
    assert running() == []
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_thread_of_a_stream_ends_with_it() -> None:
    iterator = iter(Threaded(Numbers(), 2, num_workers=1))
    assert [batch.tolist() for batch in iterator] == [[0, 1], [2, 3]]
    assert running() == []


def test_persistent_threads_stay() -> None:
    seen = set()
    loader = Threaded(
        FunctionDataset(lambda i: seen.add(threading.get_ident()) or i),
        1,
        persistent_workers=True,
    )
    for _ in range(3):
        assert [batch.item() for batch in loader] == list(range(10))
        assert len(running()) == 2
    assert len(seen) == 2
    del loader


def test_an_epoch_that_is_left_is_not_loaded_to_its_end() -> None:
    gate = Gate(at=1)
    loader: Any = Threaded(
        FunctionDataset(gate, 100), 1, prefetch_factor=20, persistent_workers=True
    )
    iterator = iter(loader)
    assert next(iterator).item() == 0
    assert gate.is_reached.wait(limit(300))
    waiting = [each for each in loader._iterator._workers if each.ident == gate.thread]
    queue = waiting[0].requests  # either thread may make sample 1
    taken: list[int] = []
    again = threading.Thread(target=lambda loader: taken.append(next(iter(loader))), args=[loader])
    again.start()
    wait_until(lambda: queue.qsize() == 1)  # to resume, and nothing else
    gate.is_open.set()
    again.join(limit(300))
    assert taken == [0]
    assert [batch.item() for batch in loader] == list(range(100))
    del iterator, loader


def test_several_threads_are_in_the_dataset_at_once() -> None:
    both = threading.Barrier(2, timeout=limit(300))
    dataset = FunctionDataset(lambda i: both.wait() * 0 + i)
    assert [batch.item() for batch in Threaded(dataset, 1)] == list(range(10))


def test_the_dataset_is_there_once() -> None:
    class Unpicklable(FunctionDataset):
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

    dataset = Unpicklable(lambda i: id(dataset))
    assert {i for batch in Threaded(dataset, 2) for i in batch.tolist()} == {id(dataset)}


def test_iterators_of_one_loader_at_once() -> None:
    """Their threads have collates, and so batch memory, of their own."""
    loader = Threaded(FunctionDataset(lambda i: torch.full((40_000,), i), 40), 4)
    for _ in range(2):
        iterators: list[Any] = [iter(loader) for _ in range(3)]
        collates = [thread.collation.core for iterator in iterators for thread in iterator._workers]
        assert len(set(map(id, collates))) == 6
        for batches in zip(*iterators, strict=True):
            assert all(torch.equal(batches[0], batch) for batch in batches)
            assert len({batch.data_ptr() for batch in batches}) == 3
        assert len(*loader._shared.collates.values()) == 6


def test_batch_memory_is_used_again() -> None:
    loader = Threaded(FunctionDataset(lambda i: torch.full((400_000,), i), 40), 4)
    places = [{batch.data_ptr() for batch in loader} for _ in range(4)]
    assert len(set().union(*places)) <= 2 * 4  # two threads; two under way, one held, one spare
    held = list(loader)
    assert [batch[:, 0].tolist() for batch in held] == [
        [4 * b + k for k in range(4)] for b in range(10)
    ]
    assert all(bool((batch == batch[:, :1]).all()) for batch in held)


def test_memory_of_a_closed_loader_is_given_back() -> None:
    loader = Threaded(FunctionDataset(lambda i: torch.zeros(9000)), 4)
    list(loader)
    assert any(loader._shared.collates.values())
    loader.close()
    assert not loader._shared.collates


# ---- close(), and references


def test_close_ends_a_waiting_next_and_the_threads() -> None:
    gate = Gate()
    loader = Threaded(FunctionDataset(gate), 1)
    iterator = iter(loader)
    errors: list[str] = []

    def take() -> None:
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        errors.append(str(caught.value))

    taker = threading.Thread(target=take)
    taker.start()
    assert gate.is_reached.wait(limit(300))
    closer = threading.Thread(target=loader.close)
    closer.start()
    taker.join(limit(300))
    gate.is_open.set()
    closer.join(limit(300))
    assert errors == ["the loader of this iterator was closed; call iter() on it again"]
    assert running() == []
    with pytest.raises(RuntimeError, match="was closed"):
        next(iterator)
    assert [batch.item() for batch in loader] == list(range(10))


def test_with_block() -> None:
    with Threaded(FunctionDataset(), 1, persistent_workers=True) as loader:
        next(iter(loader))
        assert len(running()) == 2
    assert running() == []


@pytest.mark.parametrize("persistent", [False, True])
def test_the_last_reference_ends_it_all(persistent: bool) -> None:
    with collector_off():
        dataset = FunctionDataset(lambda i: torch.zeros(9000))
        loader = Threaded(dataset, 1, persistent_workers=persistent)
        iterator = iter(loader)
        batch = next(iterator)
        refs = [weakref.ref(item) for item in (iterator, loader, dataset, iterator._workers[0])]
        del iterator, loader, dataset
        assert [ref() for ref in refs] == [None] * 4
        assert running() == []
        assert batch.shape == (1, 9000)


def test_the_sample_under_way_is_the_last() -> None:
    gate = Gate(at=1)
    iterator = iter(Threaded(FunctionDataset(gate), 5, num_workers=1))
    assert gate.is_reached.wait(limit(300))
    ender = threading.Thread(target=iterator.close)
    ender.start()
    wait_until(lambda: iterator._team.is_done)
    gate.is_open.set()
    ender.join(limit(300))
    assert gate.loaded == [0, 1]


def test_a_finalizer_on_a_worker_thread_does_not_wait_for_it() -> None:
    """A collection of garbage runs anywhere."""
    holder: list[Any] = []
    ended = threading.Event()

    def fetch(i: int) -> int:
        if holder:
            holder.clear()
            ended.set()
        return i

    begin = time.monotonic()
    iterator = iter(Threaded(FunctionDataset(fetch, 1000), 1, num_workers=1))
    next(iterator)
    holder.append(iterator)
    next(iterator)
    del iterator
    if holder:  # the thread had nothing to load any more
        holder.clear()
        ended.set()
    assert ended.wait(limit(300))
    assert time.monotonic() - begin < limit(60)


def test_close_by_the_dataset_itself() -> None:
    loaders: list[Any] = []
    closed: list[None] = []
    dataset = FunctionDataset(lambda i: closed.append(loaders[0].close()) or i)
    loaders.append(Threaded(dataset, 1, num_workers=1))
    with pytest.raises(RuntimeError, match="was closed"):
        list(loaders[0])
    wait_until(lambda: closed == [None])


def test_an_end_that_is_interrupted_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after the first of two threads was told."""
    stop, told = WorkerThread.stop, []

    def interrupted(thread: WorkerThread) -> None:
        if not told:
            told.append(thread)
            raise KeyboardInterrupt
        stop(thread)

    loader: Any = Threaded(FunctionDataset(), 2, persistent_workers=True)
    iterator = iter(loader)
    monkeypatch.setattr(WorkerThread, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert len(running()) == 2
    assert [len(batch) for batch in loader] == [2] * 5
    del loader, iterator


# ---- threads that do not end


def test_a_thread_that_is_stuck_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    loader = Threaded(FunctionDataset(gate), 1)
    iterator = iter(loader)
    assert gate.is_reached.wait(limit(300))
    text = r"worker thread \d is still in code .*, line \d+\)"  # either may take the first sample
    try:
        with impatient(monkeypatch), pytest.warns(RuntimeWarning, match=text):
            loader.close()
        del iterator
        assert len(running()) == 1
        gate.at = -1
        assert [batch.item() for batch in loader] == list(range(10))  # new ones are not hindered
    finally:
        gate.is_open.set()
    wait_until(lambda: running() == [])


def test_timeout() -> None:
    gate = Gate()
    iterator: Any = iter(Threaded(FunctionDataset(gate), 1, timeout=0.05))
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.05 seconds"):
        next(iterator)
    gate.is_open.set()
    taken = sum(len(info) == 2 for info in iterator._task_info.values())
    wait_until(lambda: taken + iterator._data_queue.qsize() == 4)  # all that was asked for
    assert next(iterator).item() == 0


def test_a_thread_that_was_ended_from_outside() -> None:
    gate = Gate(at=1)
    iterator = iter(Threaded(FunctionDataset(gate), 1, timeout=limit(300)))
    assert gate.is_reached.wait(limit(300))
    with contextlib.suppress(queue.Empty):
        while True:
            iterator._workers[1].requests.get_nowait()
    iterator._workers[1].put(None)
    gate.is_open.set()
    with pytest.raises(RuntimeError, match="DataLoader worker thread 1 ended unexpectedly"):
        list(iterator)


def test_next_inside_next() -> None:
    """A sampler that takes what its iterator waits for."""
    taken: list[Any] = []

    class Greedy:
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            if holder:
                taken.extend(holder.pop())
            yield from ()

        def __len__(self) -> int:
            return 3

    holder: list[Any] = []
    loader = Threaded(FunctionDataset(), 1, sampler=Greedy(), num_workers=1, prefetch_factor=1)
    iterator = iter(loader)
    holder.append(iterator)
    assert sorted([batch.item() for batch in iterator] + [b.item() for b in taken]) == [0, 1, 2]


# ---- what it refuses


@pytest.mark.parametrize(
    ("dataset", "kwargs", "text"),
    [
        (FunctionDataset(), {"num_workers": 0}, "num_workers=0; pass the number of threads"),
        (
            FunctionDataset(),
            {"multiprocessing_context": "spawn"},
            "multiprocessing_context=.*; leave multip",
        ),
        (Numbers(), {}, "num_workers=2 each thread would give the whole .*; pass num_workers=1"),
        (IterableWrapper(range(3)), {"num_workers": 1}, "a DataPipe.*use path='process'"),
    ],
)
def test_what_it_cannot_load(dataset: Dataset[Any], kwargs: dict[str, Any], text: str) -> None:
    loader = Threaded(dataset, 2, **kwargs)
    with pytest.raises(ValueError, match=f"path='thread' cannot load this: .*{text}"):
        iter(loader)


def test_it_is_asked_for_only() -> None:
    loader: Any = DataLoader(FunctionDataset(), 2, num_workers=2)
    assert loader.stats().path == "process"


# ---- counts


def test_stats_of_each_thread() -> None:
    loader = Threaded(FunctionDataset(lambda i: time.sleep(0.001) or i, 40), 2)
    batches = len(list(loader))
    stats = loader.stats()
    assert (stats.path, stats.batches, stats.bytes) == ("thread", batches, None)
    assert sum(worker.batches for worker in stats.workers) == 20
    for worker in stats.workers:
        assert worker.seconds_busy >= 0.018
        assert worker.seconds_waiting >= 0
        assert worker.seconds_waiting_for_lock is not None
        assert 0 <= worker.seconds_waiting_for_lock <= worker.seconds_busy
    assert "seconds_waiting_for_lock=" in repr(stats)
    assert stats.fallbacks == {}


def test_fallbacks_are_counted_by_iterator() -> None:
    loader = Threaded(FunctionDataset(lambda i: (i, float(i))[i % 2]), 2)
    for _ in range(2):
        list(loader)
        assert sum(loader.stats().fallbacks.values()) == 5


def test_waiting_for_the_lock_tells_python_from_sleep() -> None:
    """Of the time that threads of pure Python are busy they have the lock for a part. Where there
    is no lock nobody waits for it."""

    def spin(i: int) -> int:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return i

    def share(fetch: Callable[[int], int]) -> float:
        loader = Threaded(FunctionDataset(fetch, 24), 1, num_workers=4)
        list(loader)
        workers = loader.stats().workers
        return sum(w.seconds_waiting_for_lock or 0 for w in workers) / sum(
            w.seconds_busy for w in workers
        )

    waited, slept = share(spin), share(lambda i: time.sleep(0.02) or i)
    assert waited > 2 * slept if has_interpreter_lock() else waited == slept == 0


def test_a_thread_ends_that_is_closed_while_an_epoch_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(2)
    loader = Threaded(FunctionDataset(gate), 1, num_workers=1, persistent_workers=True)
    iterator: Any = iter(loader)
    next(iterator)
    assert gate.is_reached.wait(limit(300))
    with impatient(monkeypatch), pytest.warns(RuntimeWarning, match="still in code"):
        loader.close()
    # The rest of an iter() in another thread, which came before close() to the lock.
    iterator._workers[0].put(Order(0))
    gate.is_open.set()
    wait_until(lambda: running() == [])


@pytest.mark.parametrize("path", ["thread", "process"])
def test_a_loader_that_is_closed_while_an_epoch_begins_says_so(path: str) -> None:
    class Closing(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            if begun:
                loader.close()
            begun.append(True)
            return super().__iter__()

    begun: list[bool] = []
    data = FunctionDataset(int)
    loader = DataLoader(
        data, sampler=Closing(data), num_workers=1, persistent_workers=True, path=path
    )
    for _ in loader:
        pass
    with pytest.raises(RuntimeError, match="the loader of this iterator was closed"):
        iter(loader)
