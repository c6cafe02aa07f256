"""epochs_ahead=1 on the array path: batches and generators are torch's in each state, data that
change between epochs are seen, and what was read ahead ends with the loader."""

from __future__ import annotations

import gc
import os
import random
import signal
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from epoch_cases import epochs_of, make_dataset
from epoch_steps import KINDS, STEPS, ahead, make, run, values
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import (
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from workers import wait_until

from fastloop import DataLoader
from fastloop.loader.ahead import Forecast
from fastloop.loader.arrays import ahead as arrays_ahead

pytestmark = pytest.mark.usefixtures("one_thread")  # for forks


def rows(count: int = 23) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def counts(loader: Any) -> tuple[int, int]:
    stats = loader.stats()
    assert stats.path == "array"
    return stats.ahead_hits, stats.ahead_drops


def array(kind: str = "shuffle", dataset: Any = None, **more: Any) -> Any:
    return ahead(kind, rows() if dataset is None else dataset, **more)


# ---- the same steps with torch's loader


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_is_torchs(kind: str) -> None:
    workers = 3 if kind in ("shuffle", "weights") else 1
    steps = random.Random(kind).choices(STEPS, k=30) + ["all"] * 3
    loader = array(kind, num_workers=workers)
    assert run(loader, steps) == run(make(TorchLoader, kind, rows(), num_workers=workers), steps)
    assert counts(loader)[0] > 0
    loader.close()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 11, 12, 13])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_shorter_than_the_queue_are_torchs(length: int, drop_last: bool) -> None:
    how = {"num_workers": 2, "drop_last": drop_last}
    loader = array(dataset=rows(length), **how)
    steps = ["all", "exact", "all", "first", "all", "all"]
    expected = run(make(TorchLoader, "shuffle", rows(length), **how), steps)
    assert run(loader, steps) == expected
    loader.close()


def test_draws_with_replacement_are_torchs() -> None:
    def loaders() -> Iterator[Any]:
        for cls, more in ((DataLoader, {"epochs_ahead": 1}), (TorchLoader, {})):
            yield cls(
                rows(100), 7, sampler=RandomSampler(range(100), True, 90), num_workers=2,
                persistent_workers=True, multiprocessing_context="fork", **more,
            )  # fmt: skip

    steps = ["all", "all", "draw", "all", "exact", "all"]
    ours, torchs = loaders()
    assert run(ours, steps) == run(torchs, steps)
    assert counts(ours)[0] > 1
    ours.close()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("all all all", (2, 0)),
        ("exact exact exact", (2, 0)),
        ("all first all", (1, 0)),  # nothing was foreseen when the second epoch was left
        ("all validate all validate all validate all", (2, 1)),
        ("all seed all seed all all", (0, 1)),
    ],
)
def test_what_is_foreseen(steps: str, expected: tuple[int, int]) -> None:
    loader = array()
    run(loader, steps.split())
    assert counts(loader) == expected
    loader.close()


# ---- what changes between two epochs


@pytest.mark.parametrize("path", ["auto", "array"])
def test_a_row_that_is_written_between_epochs_is_seen(path: str) -> None:
    def epochs(cls: Any, **more: Any) -> list[Any]:
        data = torch.arange(23).share_memory_()  # type: ignore[no-untyped-call]
        loader, found = make(cls, "sequential", TensorDataset(data), **more), []
        for epoch in range(4):
            found += [values(batch) for batch in loader]
            if epoch != 2:
                data[epoch] = 100 + epoch
        if more:
            assert counts(loader) == (1, 2)
        return found

    assert epochs(DataLoader, epochs_ahead=1, path=path) == epochs(TorchLoader)


def test_a_size_of_batches_that_changes_is_noticed() -> None:
    with array("sequential", rows(12)) as loader:
        list(loader)
        loader.batch_sampler.batch_size = 5
        assert [len(batch[0]) for batch in loader] == [5, 5, 2]
        assert counts(loader) == (0, 1)


@pytest.mark.parametrize("last", range(4, 9))
def test_a_size_of_batches_that_changes_while_they_are_read_ahead_is_noticed(last: int) -> None:
    def epochs(loader: Any) -> list[Any]:
        found = []
        for _ in range(3):
            loader.batch_sampler.batch_size = 3
            for batch in loader:
                found.append(values(batch))
                if len(found) % 9 == last:
                    loader.batch_sampler.batch_size = 5
        return found

    with array("sequential", rows(25)) as loader:
        assert epochs(loader) == epochs(make(TorchLoader, "sequential", rows(25)))


def test_a_dataset_that_grows_between_epochs_leaves_generators_torchs() -> None:
    """The foreseen epoch has ended at once, but of the longer one torch draws a block."""

    def epochs(cls: Any, **more: Any) -> list[Any]:
        indices, generator = list(range(6)), torch.Generator().manual_seed(3)
        sampler, found = RandomSampler(indices, generator=generator), list[Any]()
        loader = cls(
            rows(64), 3, sampler=sampler, num_workers=2, persistent_workers=True,
            multiprocessing_context="fork", **more,
        )  # fmt: skip
        for length in (6, 6, 60, 60, 6):
            indices[:] = range(length)
            iterator = iter(loader)
            found.append(generator.get_state().tolist())
            found += [(values(batch), generator.get_state().tolist()) for batch in iterator]
        return found

    assert epochs(DataLoader, epochs_ahead=1) == epochs(TorchLoader)


def test_an_error_of_the_sampler_comes_when_it_would_without_a_forecast() -> None:
    def epochs(**more: Any) -> list[Any]:
        sampler = WeightedRandomSampler([1.0] * 9, 9)
        torch.manual_seed(1)
        with DataLoader(
            rows(), 2, sampler=sampler, num_workers=3, persistent_workers=True, **more
        ) as loader:
            found = [values(batch) for batch in islice(loader, 4)]  # one is left
            sampler.weights[0] = -1
            iterator = iter(loader)
            with pytest.raises(RuntimeError, match="prob"):
                next(iterator)
            found += map(values, iterator)
            sampler.weights[0] = 1
            return [*found, *map(values, loader)]

    assert epochs(epochs_ahead=1) == epochs()


def test_a_sampler_that_is_replaced_is_asked() -> None:
    with array("sequential", rows(6)) as loader:
        list(loader)
        loader.batch_sampler.sampler = [5, 4, 3, 2, 1, 0]
        assert [values(batch) for batch in loader] == [[[5, 4, 3]], [[2, 1, 0]]]
        loader.batch_sampler.sampler = range(6)
        assert [values(batch) for batch in loader] == [[[0, 1, 2]], [[3, 4, 5]]]


def test_a_longer_epoch_than_foreseen_is_whole() -> None:
    sampler = SubsetRandomSampler(range(5))
    with DataLoader(
        rows(), 2, sampler=sampler, num_workers=4, persistent_workers=True, epochs_ahead=1
    ) as loader:
        list(loader)
        sampler.indices = range(9)
        assert sorted(torch.cat([batch[0] for batch in loader]).tolist()) == list(range(9))
        assert counts(loader) == (0, 1)


# ---- datasets with epochs


def crops(**more: Any) -> DataLoader[Any]:
    return DataLoader(
        make_dataset(), 4, shuffle=True, num_workers=2, persistent_workers=True, **more
    )


def test_the_next_epoch_of_random_transforms_is_foreseen() -> None:
    with crops(epochs_ahead=1) as loader:
        assert [epochs_of(loader) for _ in range(4)] == [{0}, {1}, {2}, {3}]
        assert counts(loader) == (3, 0)


def test_epochs_that_the_program_sets_are_foreseen_by_their_step() -> None:
    with crops(epochs_ahead=1) as loader:
        dataset: Any = loader.dataset
        for epoch in (0, 2, 4, 6, 6, 6):
            dataset.set_epoch(epoch)
            assert epochs_of(loader) == {epoch}
        assert counts(loader) == (3, 2)


# ---- states, deaths and ends


def test_a_state_is_that_of_a_loader_that_does_not_read_ahead() -> None:
    torch.manual_seed(1)
    with array() as loader, make(DataLoader, "shuffle", rows()) as other:
        found: list[Any] = []
        for each in (loader, other):
            torch.manual_seed(1)
            steps: list[Any] = []
            for _ in range(2):
                steps += [(values(batch), repr(each.state_dict())) for batch in each]
                steps.append(repr(each.state_dict()))
            found.append(steps)
        assert found[0] == found[1]


def test_a_loaded_state_goes_before_the_forecast() -> None:
    loader, other = array("generator"), make(DataLoader, "generator", rows())
    for each in (loader, other):
        torch.manual_seed(1)
        iterator = iter(each)
        next(iterator)
        state = each.state_dict()
        list(iterator)
        each.load_state_dict(state)
    rest, expected = ([values(batch) for batch in each] for each in (loader, other))
    assert rest == expected
    assert len(rest) == 7
    assert counts(loader) == (0, 1)
    assert [values(b) for b in loader] == [values(b) for b in other]
    loader.close()
    other.close()


def test_an_index_out_of_bounds_comes_in_its_epoch() -> None:
    sampler = SubsetRandomSampler([30])
    with DataLoader(
        rows(), sampler=sampler, num_workers=2, persistent_workers=True, epochs_ahead=1
    ) as loader:
        for _ in range(3):
            iterator = iter(loader)
            with pytest.raises(IndexError):
                next(iterator)
            assert next(iterator, None) is None
        assert counts(loader) == (2, 0)


def test_the_end_of_an_epoch_stays_its_end() -> None:
    with array("sequential") as loader:
        iterator = iter(loader)
        assert len(list(iterator)) == 8
        assert [next(iterator, None) for _ in range(3)] == [None] * 3
        assert len(list(loader)) == 8


def test_close_ends_what_was_read_ahead() -> None:
    with array("sequential") as loader:
        list(loader)
        loader.close()
        assert values(next(iter(loader))) == [[0, 1, 2]]
        iterator = iter(loader)
        loader.close()
        with pytest.raises(RuntimeError, match="was closed"):
            next(iterator)


def test_the_last_reference_ends_the_loader() -> None:
    gc.collect()
    gc.disable()
    try:
        loader = array()
        list(loader)
        iterator = weakref.ref(iter(loader))
        del loader
        assert iterator() is None
    finally:
        gc.enable()


def test_a_forked_child_reads_its_own_batches() -> None:
    with array("sequential") as loader:
        first = [values(batch) for batch in loader]
        pid = os.fork()
        if pid == 0:
            os._exit(int([values(batch) for batch in loader] != first))
        assert os.waitpid(pid, 0)[1] == 0
        assert [values(batch) for batch in loader] == first
        assert counts(loader) == (1, 0)


def test_an_interrupt_waits_until_the_next_epoch_is_foreseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Indices of the last batch wait meanwhile, and would be lost."""
    copy_batches = Forecast.copy_batches
    is_inside, taken = [False], []

    def interrupted(forecast: Forecast) -> Any:
        is_inside[0] = True
        os.kill(os.getpid(), signal.SIGINT)
        batches = copy_batches(forecast)
        is_inside[0] = False
        return batches

    monkeypatch.setattr(Forecast, "copy_batches", interrupted)
    before = signal.signal(signal.SIGINT, lambda *_: taken.append(is_inside[0]))
    try:
        with array("sequential") as loader:
            assert torch.cat([batch[0] for batch in loader]).tolist() == list(range(23))
            wait_until(lambda: taken)
        assert taken == [False]
    finally:
        signal.signal(signal.SIGINT, before)


class Faltering:
    """Blocks of a sampler that are interrupted once, before the second block."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self.blocks, self.turn = blocks, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.turn += 1
        if self.turn == 2:
            raise KeyError("a signal's handler has raised")
        return next(self.blocks)


def first_block(blocks: Iterator[Any]) -> Iterator[Any]:
    return islice(blocks, 1)


@pytest.mark.parametrize("change", [Faltering, first_block])
def test_blocks_that_lack_indices_are_dropped(
    change: Callable[[Iterator[Any]], Iterator[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    within = arrays_ahead.within
    monkeypatch.setattr(arrays_ahead, "within", lambda *args: change(within(*args)))
    sampler = RandomSampler(range(100), True, 90)
    with DataLoader(
        rows(100), 7, sampler=sampler, num_workers=4, persistent_workers=True, epochs_ahead=1
    ) as loader:
        for drops in range(2):
            assert [len(batch[0]) for batch in loader] == [7] * 12 + [6]
            monkeypatch.undo()
            assert counts(loader) == (0, drops)
