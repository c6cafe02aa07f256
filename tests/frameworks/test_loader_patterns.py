"""Subclasses of torch's loader as vision libraries write them: worker processes that live for the
whole training, samplers that never end, batches fetched ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from framework_trials import assert_same_everywhere
from time_limits import limit
from torch.utils.data import Dataset

from fastloop.loader.shared import SyncIter
from fastloop.loader.workers.processes import ProcessIter


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return 14

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 4, 4), index, dtype=torch.uint8), index % 3


class Repeated:
    """A sampler without end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def infinite_loader(base: Any) -> Any:
    """As ultralytics': an epoch is so many batches of one iterator, which ``reset()`` replaces."""

    class InfiniteDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def __del__(self) -> None:
            for worker in getattr(self.iterator, "_workers", ()):
                if worker.is_alive():
                    worker.terminate()
            if hasattr(self.iterator, "_shutdown_workers"):
                self.iterator._shutdown_workers()

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return InfiniteDataLoader


def multi_epochs_loader(base: Any) -> Any:
    """As timm's: torch's check of its own attributes is switched off to change the sampler."""

    class MultiEpochsDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:
                self.sampler = Repeated(self.sampler)
            else:
                self.batch_sampler = Repeated(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            one = self.sampler if self.batch_sampler is None else self.batch_sampler.sampler
            return len(one)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    return MultiEpochsDataLoader


def own_iter_loader(base: Any) -> Any:
    """Its ``__iter__`` goes through torch's and changes what comes."""

    class Normalized(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            for x, y in super().__iter__():
                yield x.float().div(255), y

    return Normalized


class Prefetcher:
    """One batch ahead of the loop, as timm's and apex's."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        waiting = None
        for batch in self.loader:
            if waiting is not None:
                yield waiting
            waiting = batch
        yield waiting


def fast_collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    batch = torch.zeros((len(samples), *samples[0][0].shape), dtype=torch.uint8)
    for row, (image, _) in zip(batch, samples, strict=True):
        row += image
    return batch, torch.tensor([label for _, label in samples])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pattern", [infinite_loader, multi_epochs_loader, own_iter_loader])
def test_subclasses(pattern: Any, workers: int) -> None:
    def program(base: Any) -> Any:
        loader = pattern(base)(Images(), 4, shuffle=True, num_workers=workers)
        found = [len(loader)]
        for _ in range(3):
            found += list(loader)
        if hasattr(loader, "reset"):
            loader.reset()
            found += list(loader)
        return found

    assert_same_everywhere(program, ProcessIter if workers else SyncIter)


def test_one_sampler_of_samples_without_end() -> None:
    def program(base: Any) -> Any:
        loader = multi_epochs_loader(base)(Images(), batch_size=None, shuffle=True)
        return [list(itertools.islice(loader, 20)) for _ in range(2)]

    assert_same_everywhere(program)


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetcher_with_a_fast_collate(workers: int) -> None:
    def program(base: Any) -> Any:
        loader = base(
            *(Images(), 4),
            shuffle=True,
            num_workers=workers,
            collate_fn=fast_collate,
            persistent_workers=workers > 0,
            drop_last=True,
        )
        return [list(Prefetcher(loader)) for _ in range(2)]

    assert_same_everywhere(program)


def test_workers_end_with_their_loader() -> None:
    import fastloop

    with fastloop.patched():
        loader = infinite_loader(torch.utils.data.DataLoader)(Images(), 4, num_workers=2)
        workers = list(loader.iterator._workers)
        assert len(list(loader)) == 4 and all(worker.is_alive() for worker in workers)
        del loader
        for worker in workers:
            worker.join(limit(60))
            assert worker.exitcode is not None
