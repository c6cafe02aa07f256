"""Iterators: several at once, left early, broken off by errors, reset, closed, collected."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    FailingSampler,
    ListSampler,
    N,
    SamplerError,
    TorchLoader,
    assert_same,
    collector_off,
    epoch,
    in_fives,
    labels,
    loader_of,
    outcome,
    slow_array,
    small_dataset,
    trace,
)
from torch.utils.data import TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastloop import ArrayDataset, DataLoader

both = pytest.mark.parametrize("workers", [0, 2])


@both
def test_iterators_of_one_loader_are_independent(workers: int) -> None:
    loader = loader_of(workers)
    first, second = iter(loader), iter(loader)
    assert first is not second
    taken: list[list[Any]] = [[], [], []]
    taken[0] += [next(first), next(first)]
    taken[1].append(next(second))
    third = iter(loader)
    for batches, iterator in zip(taken, (first, second, third), strict=True):
        batches.extend(iterator)
    assert [labels(batches) for batches in taken] == [in_fives()] * 3
    assert [labels(pair) for pair in zip(loader, loader, strict=True)] == [
        [b, b] for b in in_fives()
    ]


@both
def test_an_iterator_is_torchs_and_its_own_iterator(workers: int) -> None:
    iterator = iter(loader_of(workers))
    assert isinstance(iterator, _BaseDataLoaderIter)
    assert iter(iterator) is iterator
    assert len(iterator) == N // 5
    assert labels(iterator) == in_fives()
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@both
def test_a_loop_left_early_or_by_an_error_leaves_the_loader_usable(workers: int) -> None:
    loader = loader_of(workers)
    for taken in range(N // 5):
        for i, _ in enumerate(loader):
            if i == taken:
                break
        with pytest.raises(ZeroDivisionError):
            for i, _ in enumerate(loader):
                1 // (taken - i)
        for _ in loader:
            pass
    assert labels(loader) == in_fives()


@both
def test_an_iterator_is_freed_with_its_last_reference(workers: int) -> None:
    loader = loader_of(workers)
    with collector_off():
        for taken in (0, 1, N // 5, N // 5 + 1):
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator, None)
            gone = weakref.ref(iterator)
            del iterator
            assert gone() is None, taken
        gone = weakref.ref(loader)
        del loader
        assert gone() is None


class Holder(ListSampler):
    """A sampler that knows the iterator that reads it."""

    iterator: Any = None

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield item
            assert self is not None


@both
@pytest.mark.parametrize("taken", [0, 2, 10])
def test_a_cycle_through_an_iterator_is_collected(workers: int, taken: int) -> None:
    sampler = Holder(range(N))
    dataset = TensorDataset(torch.arange(N), torch.arange(N))
    loader = DataLoader(dataset, 5, sampler=sampler, num_workers=workers, path="array")
    sampler.iterator = iter(loader)
    dataset.iterator = sampler.iterator  # type: ignore[attr-defined]
    dataset.tensors[0].iterator = sampler.iterator
    batch = None
    for _ in range(taken):
        batch = next(sampler.iterator)
    gone = [weakref.ref(o) for o in (sampler, sampler.iterator, dataset, dataset.tensors[0])]
    del sampler, loader, dataset
    gc.collect()
    assert [ref() for ref in gone] == [None] * 4
    assert batch is None or batch[0].tolist() == list(range(5 * taken - 5, 5 * taken))


@both
def test_a_sampler_that_raises_is_met_after_the_batches_before_it(workers: int) -> None:
    for at in (0, 4, 5, 12, 20):
        loader = loader_of(workers, sampler=FailingSampler(20, at))
        for _ in range(2):
            iterator = iter(loader)
            got = [next(iterator) for _ in range(at // 5)]
            with pytest.raises(SamplerError, match="no more"):
                next(iterator)
            assert labels(got) == in_fives()[: at // 5]


@both
def test_a_generator_that_raised_has_ended(workers: int) -> None:
    def indices() -> Iterator[int]:
        yield from range(7)
        raise SamplerError("broken")

    loader = loader_of(workers, sampler=indices())
    iterator = iter(loader)
    assert labels([next(iterator)]) == [[0, 1, 2, 3, 4]]
    with pytest.raises(SamplerError) as caught:
        next(iterator)
    assert [entry.name for entry in caught.traceback][-1] == "indices"
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


@both
def test_a_batch_sampler_that_raised_may_go_on(workers: int) -> None:
    class Batches(FailingSampler):
        def check(self, i: int) -> Any:
            return [super().check(i), i + 1]

    loader = DataLoader(small_dataset(), batch_sampler=Batches(6, 3), num_workers=workers)
    got = [outcome(lambda it=it: next(it)) for it in [iter(loader)] for _ in range(6)]
    assert got[3][:2] == ("raised", SamplerError)
    assert labels(got[:3] + got[4:]) == [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_interrupt_inside_a_sampler_is_raised_at_once_and_loses_no_batch(
    workers: int, error: type[BaseException]
) -> None:
    loader = loader_of(workers, sampler=FailingSampler(40, 32, error))
    iterator, got = iter(loader), []
    with pytest.raises(error):
        got.extend(iterator)
    got.extend(iterator)
    assert labels(got) == in_fives()[:6]


def test_an_error_of_iter_leaves_the_loader_usable() -> None:
    class Once(ListSampler):
        raised = False

        def __iter__(self) -> Iterator[Any]:
            if not self.raised:
                self.raised = True
                raise SamplerError("not yet")
            return super().__iter__()

    for workers in (0, 2):
        loader = DataLoader(
            small_dataset(), batch_sampler=Once([[1], [2]]), num_workers=workers, path="array"
        )
        with pytest.raises(SamplerError, match="not yet"):
            iter(loader)
        assert labels(loader) == [[1], [2]]


@both
def test_a_sampler_that_asks_its_own_iterator_gets_a_clear_error(workers: int) -> None:
    asked: list[Any] = []

    class Asks(ListSampler):
        def __iter__(self) -> Iterator[Any]:
            for item in self.items:
                if asked:
                    asked.append(outcome(lambda: next(asked[0])))
                yield item

    iterator = iter(loader_of(workers, sampler=Asks(range(N)), prefetch_factor=workers or None))
    asked.append(iterator)
    assert labels(iterator) == in_fives()
    assert len(asked) > 5
    for kind, error, text in asked[1:]:
        assert (kind, error) == ("raised", RuntimeError)
        assert "already in use by this thread" in text


@both
def test_a_sampler_may_use_another_iterator_of_its_loader(workers: int) -> None:
    class Twice(ListSampler):
        is_inner = False

        def __iter__(self) -> Iterator[Any]:
            if not self.is_inner:
                self.is_inner = True
                assert labels(loader) == in_fives()
                self.is_inner = False
            return super().__iter__()

    loader = DataLoader(
        small_dataset(), batch_sampler=Twice(in_fives()), num_workers=workers, path="array"
    )
    assert labels(loader) == in_fives()


@pytest.mark.parametrize("in_order", [True, False])
def test_persistent_workers_keep_their_iterator(in_order: bool) -> None:
    loader = loader_of(2, persistent_workers=True, in_order=in_order)
    first = iter(loader)
    for _ in range(3):
        iterator = iter(loader)
        assert iterator is first
        assert sorted(labels(iterator)) == in_fives()
        with pytest.raises(StopIteration):
            next(iterator)
    for taken in range(N // 5):
        for _ in range(taken):
            next(first)
        assert iter(loader) is first
    assert sorted(labels(first)) == in_fives()


def test_without_workers_no_iterator_is_kept() -> None:
    loader = loader_of(0)
    iter(loader)
    assert loader._iterator is None


@pytest.mark.parametrize("prefetch_factor", [None, 1, 2, 5, 1000])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("in_order", [True, False])
def test_every_batch_comes_once(workers: int, prefetch_factor: int | None, in_order: bool) -> None:
    loader = loader_of(workers, prefetch_factor=prefetch_factor, in_order=in_order)
    for _ in range(3):
        got = labels(loader)
        assert (got if in_order else sorted(got)) == in_fives()


def test_one_worker_keeps_the_order_even_if_it_need_not() -> None:
    """As torch's one process does: with in_order=False too, the same seed gives the same epoch."""
    rows = np.arange(8, dtype=np.uint8).repeat(1 << 18).reshape(8, 1 << 18)[:, ::-1]
    for _ in range(400):
        loader = DataLoader(
            ArrayDataset(rows), num_workers=1, prefetch_factor=4, in_order=False, path="array"
        )
        assert [int(batch[0, 0]) for (batch,) in loader] == list(range(8))


@pytest.mark.slowest
def test_timeout_is_raised_as_in_torch_and_waiting_goes_on(tmp_path: Path) -> None:
    array = slow_array(tmp_path)
    for timeout in (0.05, 0.1):
        rows = [*range(30)] * 3
        loader = DataLoader(
            ArrayDataset(array), batch_sampler=[rows], num_workers=1, timeout=timeout
        )
        iterator = iter(loader)
        with pytest.raises(RuntimeError) as caught:
            next(iterator)
        assert str(caught.value) == f"DataLoader timed out after {timeout} seconds"
        loader.timeout = 0
        while True:
            try:
                (batch,) = next(iterator)
                break
            except RuntimeError:
                continue
        assert batch[:, 5].tolist() == rows


@pytest.mark.parametrize("timeout", [300, 360.5, 1e10, 1e300])
def test_a_long_timeout_does_not_run_out(timeout: float, tmp_path: Path) -> None:
    dataset = ArrayDataset(slow_array(tmp_path, 12))
    (batch,) = next(iter(DataLoader(dataset, 12, num_workers=1, timeout=timeout)))
    assert batch[:, 0].tolist() == list(range(12))


@pytest.mark.parametrize("workers", [0, 1])
def test_trace_after_close_is_that_of_a_new_loader(workers: int) -> None:
    loader = loader_of(workers, shuffle=True)
    next(iter(loader))
    loader.close()
    for (_, batch, *states), (_, batch2, *states2) in zip(
        trace(loader), trace(loader_of(workers, shuffle=True)), strict=True
    ):
        assert_same(batch, batch2)
        assert states == states2


def test_batches_of_one_and_of_everything() -> None:
    for batch_size in (1, N - 1, N, N + 1, 2**40, 2**62):
        ours, theirs = (cls(small_dataset(), batch_size, True) for cls in (DataLoader, TorchLoader))
        assert_same(epoch(ours), epoch(theirs))


def test_drawing_an_order_leaves_no_thread_of_torchs_spinning() -> None:
    """They would spin on the cores that the loader's own threads need."""
    seen: list[int] = []
    randperm = torch.randperm

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return randperm(*args, **kwargs)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randperm", watched)
            next(iter(DataLoader(TensorDataset(torch.arange(40_000)), 8, shuffle=True)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1]
