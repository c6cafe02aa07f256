"""epochs_ahead=1 without persistent workers, on the array path and in worker threads: each epoch
has its own iterator, and what the last one has read ahead is the next one's if the loader still
reads the same data."""

from __future__ import annotations

import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from epoch_cases import epochs_of, make_dataset
from epoch_steps import KINDS, STEPS, ahead, generators, make, run, values
from lazy_device import LazyAccelerator, LazyDevice
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset, SubsetRandomSampler, TensorDataset, default_collate
from workers import threads, wait_until

import fastloop.loader.device_iter
from fastloop import ArrayDataset, DataLoader, PadCollate, RaggedArray, patched, stats
from fastloop.loader.arrays import ahead as arrays_ahead
from fastloop.loader.workers import threads as worker_threads
from fastloop.loader.workers.threads import ThreadIter

pytestmark = pytest.mark.usefixtures("one_thread")  # for forks
HOW = {"persistent_workers": False, "num_workers": 2}


def rows(count: int = 23) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def array(kind: str = "sequential", dataset: Any = None, **more: Any) -> Any:
    return ahead(kind, rows() if dataset is None else dataset, **{**HOW, **more})


def torchs(kind: str = "sequential", dataset: Any = None, **more: Any) -> Any:
    return make(TorchLoader, kind, rows() if dataset is None else dataset, **{**HOW, **more})


@pytest.fixture(params=["auto", "thread"])
def path(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


def counts(loader: Any) -> tuple[int, int]:
    found = loader.stats()
    assert found.path == ("array" if loader.path == "auto" else loader.path)
    return found.ahead_hits, found.ahead_drops


def epoch(loader: Any) -> list[Any]:
    return [values(batch) for batch in loader]


# ---- the same steps with torch's loader


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_is_torchs(path: str, kind: str) -> None:
    workers = 3 if kind in ("shuffle", "weights") else 1
    steps = random.Random(kind).choices(STEPS, k=30) + ["all"] * 3
    with array(kind, path=path, num_workers=workers) as loader:
        assert run(loader, steps) == run(torchs(kind, num_workers=workers), steps)
        assert counts(loader)[0] > 0


def mix(loader: Any, seed: int) -> list[Any]:
    """Some iterators of one loader in turns; each may be left, held at its end, or dropped."""
    choices, found = random.Random(seed), list[Any]()
    torch.manual_seed(seed)
    live: list[Iterator[Any]] = []
    for _ in range(60):
        step = choices.choice(["open", "next", "next", "rest", "drop", "draw", "write", "renew"])
        at = choices.randrange(max(len(live), 1))
        if step == "open" and len(live) < 3:
            live.append(iter(loader))
        elif step == "next" and live:
            found += [values(batch) for batch in islice(live[at], choices.randint(1, 9))]
        elif step == "rest" and live:
            found.append([values(batch) for batch in live[at]])
        elif step == "drop" and live:
            del live[at]
        elif step == "draw":
            torch.rand(choices.choice([1, 2, 100]))
        elif not live:  # else workers and threads may see old numbers or new ones
            data = loader.dataset.tensors[0]
            if step == "write":
                data[choices.randrange(len(data))] = choices.randrange(1000)
            elif step == "renew":
                loader.dataset.tensors = (data + 1,)
        found.append(generators(loader))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["sequential", "shuffle", "generator"])
def test_iterators_in_turns_are_torchs(kind: str, seed: int) -> None:
    with array(kind) as loader:
        assert mix(loader, seed) == mix(torchs(kind), seed)


@pytest.mark.parametrize(
    ("kind", "steps", "expected"),
    [
        ("sequential", "all all all", (2, 0)),
        ("shuffle", "all all all", (2, 0)),  # iter() draws a base seed from the same generator
        ("generator", "all all all", (2, 0)),
        ("subset", "exact exact exact", (2, 0)),
        ("shuffle", "all first all all", (2, 0)),  # an epoch that is left leaves nothing
        ("shuffle", "all validate all validate all validate all", (2, 1)),
        ("shuffle", "all seed all seed all all", (0, 1)),
        ("distributed", "set_epoch all set_epoch all set_epoch all", (1, 1)),
    ],
)
def test_what_is_foreseen(path: str, kind: str, steps: str, expected: tuple[int, int]) -> None:
    with array(kind, path=path) as loader:
        run(loader, steps.split())
        assert counts(loader) == expected


def test_an_iterator_that_is_held_may_have_a_successor(path: str) -> None:
    with array(path=path) as loader:
        held = []
        for _ in range(3):
            iterator = iter(loader)
            held.append(iterator)
            assert [values(next(iterator)) for _ in range(8)] == epoch(torchs())
        assert counts(loader) == (2, 0)
        next(iter(loader))
        assert [next(iterator, None) for iterator in held * 2] == [None] * 6


def test_run_asks_for_loaders_of_torchs_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_AHEAD", "1")
    loader = torchs()
    with patched(["dataloader"]):
        assert epoch(loader) == epoch(loader)
    assert stats(loader).ahead_hits == 1


# ---- what changes between two epochs


def change_tensors(loader: Any, epoch: int) -> None:
    loader.dataset.tensors = (torch.arange(23) + epoch,)


def change_in_place(loader: Any, epoch: int) -> None:
    loader.dataset.tensors[0].add_(epoch)


def change_memory(loader: Any, epoch: int) -> None:
    loader.dataset.tensors[0].data = torch.arange(23) + epoch


def change_size(loader: Any, epoch: int) -> None:
    loader.batch_sampler.batch_size = 3 + epoch


def change_dtype(loader: Any, epoch: int) -> None:
    loader.dataset.tensors = (loader.dataset.tensors[0].view(torch.float64),)


def add_tensor(loader: Any, epoch: int) -> None:
    loader.dataset.tensors += (torch.arange(23),)


@pytest.mark.parametrize(
    "change",
    [change_tensors, change_in_place, change_memory, change_size, change_dtype, add_tensor],
)
def test_a_change_between_epochs_is_seen(change: Callable[[Any, int], None]) -> None:
    def epochs(loader: Any) -> list[Any]:
        found = []
        for number in range(4):
            found.append(epoch(loader))
            if number != 1:
                change(loader, number)
        return found

    with array() as loader:
        assert epochs(loader) == epochs(torchs())
        assert counts(loader)[1] > 0


def test_rows_of_a_subset_are_compared() -> None:
    def epochs(make: Callable[..., Any]) -> list[Any]:
        subset = Subset(rows(), [3, 1, 4, 1, 5])
        loader = make(dataset=subset)
        found = [epoch(loader), epoch(loader)]
        subset.indices = [2, 7, 1, 8, 2]
        found += [epoch(loader), epoch(loader)]
        if make is array:
            assert counts(loader) == (2, 1)
        return found

    assert epochs(array) == epochs(torchs)


def test_columns_that_are_new_each_time_are_read_ahead_seldom() -> None:
    texts = RaggedArray.from_list([[1] * (i % 5 + 1) for i in range(23)])
    with DataLoader(
        ArrayDataset(ids=texts), 3, collate_fn=PadCollate(), num_workers=2, epochs_ahead=1
    ) as loader:
        for _ in range(5):
            assert len(list(loader)) == 8
        assert counts(loader) == (0, 2)
        why = "iter() makes the columns of this dataset anew"
        assert loader.stats().why.endswith(f"; no epoch is read ahead: {why}")
        for _ in range(8):
            list(loader)
        assert counts(loader) == (0, 3)


def test_data_that_change_no_more_are_read_ahead_again() -> None:
    dataset = TensorDataset(torch.arange(23))
    with DataLoader(dataset, 3, num_workers=2, epochs_ahead=1) as loader:
        for i in range(14):
            if i < 4:
                dataset.tensors = (torch.arange(23) + i,)
            expected = dataset.tensors[0].tolist()
            assert torch.cat([batch[0] for batch in loader]).tolist() == expected
        assert counts(loader) == (2, 2)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("auto", "timeout", 9),
        ("auto", "num_workers", 3),
        ("auto", "prefetch_factor", 3),
        ("thread", "num_workers", 3),
        ("thread", "collate_fn", lambda batch: default_collate(batch)),
    ],
)
def test_arguments_that_are_assigned_count(path: str, name: str, value: Any) -> None:
    with array(path=path) as loader:
        first = epoch(loader)
        setattr(loader, name, value)
        assert [epoch(loader), epoch(loader)] == [first, first]
        assert counts(loader) == (1, 1)


def test_fewer_batches_under_way_are_drawn_as_torch_draws_them(path: str) -> None:
    """The sampler draws once more as it ends."""

    def states(loader: Any) -> list[Any]:
        first = [epoch(loader), epoch(loader)]
        loader.prefetch_factor = 1
        iterator = iter(loader)
        return [first, generators(loader), [values(batch) for batch in iterator]]

    with array("generator", rows(7), path=path) as loader:
        assert states(loader) == states(torchs("generator", rows(7)))


def test_each_iterator_counts_what_threads_did_for_it() -> None:
    with array(path="thread") as loader:
        for _ in range(4):
            assert len(epoch(loader)) == 8
            # A thread counts a batch after it has given it away. The last epoch may have made 4
            # batches of this one, and this one may have made 4 of the next.
            assert 2 <= sum(worker.batches for worker in loader.stats().workers) <= 14


def test_threads_that_have_died_are_left_to_nobody() -> None:
    with array(path="thread") as loader:
        first = epoch(loader)
        loader._shared.idle._workers[1].put(None)  # ends the thread
        wait_until(lambda: not loader._shared.idle._workers[1].is_alive())
        assert [epoch(loader), epoch(loader)] == [first, first]
        assert counts(loader) == (1, 1)


def test_a_handler_may_begin_an_epoch_while_threads_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the handler of a signal would, in the middle of leaving the threads."""
    count, begun, turns = ThreadIter.count, list[Iterator[Any]](), iter([True])

    def begin_and_count(iterator: ThreadIter) -> Any:
        if next(turns, False):
            begun.append(iter(loader))
        return count(iterator)

    monkeypatch.setattr(ThreadIter, "count", begin_and_count)
    with array(path="thread") as loader:
        first = epoch(torchs())
        assert [epoch(loader), epoch(loader)] == [first, first]
        assert [values(batch) for batch in begun[0]] == epoch(loader) == first


def test_an_interrupt_while_threads_are_left_says_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> Iterator[str]:
        raise KeyboardInterrupt
        yield

    ignored = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with array(path="thread") as loader:
        iterator = iter(loader)
        with monkeypatch.context() as patch:
            patch.setattr(worker_threads, "_LEFT", interrupt())
            with pytest.raises(KeyboardInterrupt):
                list(iterator)
        assert next(iterator, None) is None
        assert [epoch(loader), epoch(loader)] == [epoch(torchs())] * 2
        assert counts(loader) == (2, 0)
    assert not ignored


def test_loaders_may_change_their_path() -> None:
    before = threads()
    with array(path="thread") as loader:
        first = epoch(loader)
        for path in ("auto", "thread", "process", "thread", "thread"):
            loader.path = path
            assert epoch(loader) == first
        assert counts(loader) == (1, 0)
    wait_until(lambda: not threads() - before)


def test_a_loader_that_is_asked_for_no_more_epochs_ahead_reads_none(path: str) -> None:
    before = threads()
    with array(path=path) as loader:
        for ahead, left in [(1, 2), (0, 0), (1, 2)]:
            loader.epochs_ahead = ahead
            assert len(epoch(loader)) == 8
            wait_until(lambda left=left: len(threads() - before) == left)
        assert counts(loader) == (0, 0)


def test_the_next_epoch_of_random_transforms_is_foreseen() -> None:
    with DataLoader(make_dataset(), 4, shuffle=True, num_workers=2, epochs_ahead=1) as loader:
        dataset: Any = loader.dataset
        assert [epochs_of(loader) for _ in range(4)] == [{0}, {1}, {2}, {3}]
        assert counts(loader) == (3, 0)
        for number in (7, 2):
            dataset.set_epoch(number)
            assert epochs_of(loader) == {number}
        assert counts(loader) == (3, 2)


# ---- states, ends and threads


def test_a_loaded_state_goes_before_the_forecast(path: str) -> None:
    with (
        array("generator", path=path) as loader,
        make(DataLoader, "generator", rows(), **HOW) as other,
    ):
        rest = []
        for each in (loader, other):
            iterator = iter(each)
            next(iterator)
            state = each.state_dict()
            list(iterator)
            each.load_state_dict(state)
            rest.append([epoch(each), epoch(each), repr(each.state_dict())])
        assert rest[0] == rest[1]
        assert counts(loader) == (1, 1)


def test_what_is_idle_ends_with_the_loader_and_by_close(path: str) -> None:
    before = threads()
    gc.collect()
    gc.disable()
    try:
        loader = array(path=path)
        list(loader)
        assert len(threads() - before) == 2
        loader.close()
        wait_until(lambda: not threads() - before)
        list(loader)
        assert counts(loader) == (0, 0)
        del loader
        wait_until(lambda: not threads() - before)
    finally:
        gc.enable()


def test_a_loop_that_is_left_leaves_no_thread(path: str) -> None:
    before = threads()
    with array(path=path, dataset=rows(99)) as loader:
        for _ in loader:
            break
        wait_until(lambda: not threads() - before)


def test_a_loader_that_takes_another_path_leaves_no_thread() -> None:
    before = threads()
    with array() as loader:
        list(loader)
        loader.dataset.tensors = (torch.arange(23.0).requires_grad_(),)
        iterator = iter(loader)
        assert loader.stats().path == "process"
        del iterator
        wait_until(lambda: not threads() - before)


def test_a_closed_iterator_leaves_nothing(path: str) -> None:
    with array(path=path) as loader:
        iterator = iter(loader)
        list(islice(iterator, 8))
        loader.close()
        with pytest.raises(RuntimeError, match="was closed"):
            next(iterator)
        assert epoch(loader) == epoch(torchs())
        assert counts(loader) == (0, 0)


def test_a_forked_child_reads_its_own_batches(path: str) -> None:
    with array(path=path) as loader:
        first = epoch(loader)
        pid = os.fork()
        if pid == 0:
            os._exit(int([epoch(loader), epoch(loader)] != [first, first]))
        assert os.waitpid(pid, 0)[1] == 0
        assert epoch(loader) == first
        assert counts(loader) == (1, 0)


def test_an_index_out_of_bounds_comes_in_its_epoch() -> None:
    sampler = SubsetRandomSampler([30])
    with DataLoader(rows(), sampler=sampler, num_workers=2, epochs_ahead=1) as loader:
        for _ in range(3):
            iterator = iter(loader)
            with pytest.raises(IndexError):
                next(iterator)
            assert next(iterator, None) is None
        assert counts(loader) == (2, 0)


def test_an_iter_that_raises_leaves_batches_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with array() as loader:
        first = epoch(loader)
        with monkeypatch.context() as patch:
            patch.setattr(arrays_ahead._Ahead, "_note_iter", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                iter(loader)
        assert [epoch(loader), epoch(loader)] == [first, first]


def test_a_thread_that_waits_at_the_end_gets_no_batch_of_the_next_epoch(path: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with array(path=path, dataset=rows(600)) as loader:
            expected = epoch(torchs(dataset=rows(600)))
            for _ in range(40):
                iterator, found = iter(loader), list[Any]()
                others = [
                    Thread(target=lambda it=iterator, to=found: to.extend(map(values, it)))
                    for _ in range(3)
                ]
                for other in others:
                    other.start()
                found += map(values, iterator)
                assert epoch(loader) == expected
                for other in others:
                    other.join()
                assert sorted(found) == expected
    finally:
        sys.setswitchinterval(before)


def test_next_may_be_called_within_next_at_the_end(path: str) -> None:
    """As by the handler of a signal, or by another thread, in any frame of Python."""
    with array(path=path) as loader:
        iterator, found = iter(loader), list[Any]()
        assert len(list(iterator)) == len(epoch(torchs()))
        outermost = type(iterator).__next__.__code__

        def call_again(frame: Any, event: str, argument: Any) -> None:
            if frame.f_code is not outermost:
                found.append(next(iterator, None))

        sys.settrace(call_again)
        try:
            found.append(next(iterator, None))
        finally:
            sys.settrace(None)
        assert len(found) > 1 and set(found) == {None}
        assert epoch(loader) == epoch(torchs())


def test_threads_that_begin_epochs_at_once_get_whole_epochs(path: str) -> None:
    before, found = sys.getswitchinterval(), list[Any]()
    sys.setswitchinterval(1e-5)
    try:
        with array(path=path) as loader:
            loops = [
                Thread(target=lambda: found.extend(epoch(loader) for _ in range(300)))
                for _ in range(8)
            ]
            for loop in loops:
                loop.start()
            for loop in loops:
                loop.join()
    finally:
        sys.setswitchinterval(before)
    assert found == [epoch(torchs())] * 2400


def test_an_iterator_that_dies_in_a_cycle_leaves_its_batches(path: str) -> None:
    """The collector clears weak references before it calls finalizers."""

    class Trainer:
        def __init__(self, loader: Any) -> None:
            self.me, self.iterator = self, iter(loader)

    with array(path=path) as loader:
        for _ in range(4):
            trainer = Trainer(loader)
            assert [values(next(trainer.iterator)) for _ in range(len(loader))] == epoch(torchs())
            del trainer
            gc.collect()
        assert counts(loader)[0] > 0


def test_indices_of_a_subset_may_be_written_in_place() -> None:
    chosen = np.arange(8)
    dataset, found = Subset(rows(100), chosen), []  # type: ignore[arg-type]
    with array(dataset=dataset) as loader:
        for number in range(4):
            chosen[:] = np.arange(8) + 10 * number
            found.append(epoch(loader))
            assert found[-1] == epoch(torchs(dataset=dataset))
            time.sleep(0.02)  # threads read ahead
        assert counts(loader) == (0, 2)  # then nothing is read ahead any more


def test_tensors_that_count_no_changes_are_not_read_ahead() -> None:
    with torch.inference_mode():
        x = torch.arange(23)
    with array(dataset=TensorDataset(x)) as loader:
        assert epoch(loader) == epoch(torchs())
        assert "inference" in loader.stats().why or "inference" in loader._shared.not_ahead


def test_batches_on_a_device_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LazyDevice("copies-late")
    monkeypatch.setattr(
        fastloop.loader.device_iter, "open_accelerator", lambda _: LazyAccelerator(late)
    )

    def epochs(loader: Any) -> list[Any]:
        found = []
        for batch in (batch for _ in range(4) for batch in loader):
            late.run()
            found.append(values(batch))
        return found

    with array(device="cuda") as loader:
        assert epochs(loader) == epochs(torchs())
        assert counts(loader)[0] > 0
