"""Large batches of the path without workers: whose memory they lie in, and who copies them. Speed
is benchmarks/bench_fresh.py's; here is what it rests on."""

import gc
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same, collector_off, run_program
from torch.utils.data import Dataset

from fastloop import DataLoader
from fastloop._core import Collate

IMAGE = (3, 224, 224)  # u8: 147 KiB, 9.2 MiB in a batch of 64
BATCHES = 4


class Images(Dataset[Any]):
    """Image i is all of one value, and different in each epoch."""

    def __init__(self, batches: int = BATCHES) -> None:
        self.length = 64 * batches
        self.array = np.zeros((64, *IMAGE), np.uint8)
        self.pixels = torch.from_numpy(self.array)
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.array[index % 64].fill((index + 7 * self.epoch) % 251)
        return self.pixels[index % 64], index


def assert_images(batch: Any, number: int, epoch: int = 0) -> None:
    pixels, labels = batch
    rows = np.arange(64 * number, 64 * (number + 1))
    assert (labels.numpy() == rows).all()
    assert pixels.shape == (64, *IMAGE)
    assert (pixels.numpy().reshape(64, -1) == ((rows + 7 * epoch) % 251)[:, None]).all()


def faults_of_an_epoch(loader: Any, held: int = 0) -> int:
    """Pages that the kernel made for this process meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept: list[Any] = []
    for batch in loader:
        kept = [*kept, batch][-held:] if held else []
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def count_collates() -> int:
    return sum(type(thing) is Collate for thing in gc.get_objects())


@pytest.mark.parametrize("held", [0, 8])
def test_the_memory_of_an_epoch_serves_the_next(held: int) -> None:
    """One fresh slot would be 300 faults with huge pages, 2 300 without."""
    loader = DataLoader(Images(10), 64)
    faults_of_an_epoch(loader, held)
    faults = [faults_of_an_epoch(loader, held) for _ in range(3)]
    assert min(faults) < 150, faults


def test_close_gives_the_memory_back() -> None:
    loader = DataLoader(Images(), 64)
    faults_of_an_epoch(loader)
    loader.close()
    assert faults_of_an_epoch(loader) > 150


def test_a_loader_gives_its_memory_back_when_it_is_dropped() -> None:
    """At once: Python's collector counts objects and not their bytes, so it would come late."""
    images = Images()
    with collector_off():
        alive = count_collates()
        faults_of_an_epoch(DataLoader(images, 64))
        assert count_collates() == alive
        iterator = iter(DataLoader(images, 64))
        next(iterator)
        del iterator
        assert count_collates() == alive


def test_batches_that_are_kept_are_not_written_again() -> None:
    dataset = Images()
    loader = DataLoader(dataset, 64)
    kept = []
    for epoch in range(3):
        dataset.epoch = epoch
        kept.append(list(loader))
    for epoch, batches in enumerate(kept):
        for number, batch in enumerate(batches):
            assert_images(batch, number, epoch)


def test_iterators_of_one_loader_do_not_disturb_each_other() -> None:
    loader = DataLoader(Images(), 64)
    for number, both in enumerate(zip(loader, loader, strict=True)):
        for batch in both:
            assert_images(batch, number)


class Steps(Images):
    """Several threads may ask it."""

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.full(IMAGE, index % 251, np.uint8)), index


def test_threads_with_an_iterator_each() -> None:
    loader, wrong = DataLoader(Steps(), 64), []

    def run() -> None:
        try:
            for _ in range(2):
                for number, batch in enumerate(loader):
                    assert_images(batch, number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_goes_on_in_memory_of_its_own(tmp_path: Path) -> None:
    """With NumPy alone: threads of torch's that the parent has started are not there."""
    run_program(tmp_path, "fork_with_batches")


def test_large_samples_are_not_stacked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.stack starts and awaits its threads once for each."""
    calls: list[int] = []
    stack = torch.stack

    def counted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(len(tensors))
        return stack(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "stack", counted)
    loader = DataLoader(Images(1), 64)
    assert_images(next(iter(loader)), 0)
    assert calls == []
    small = [torch.full((4096,), i % 251, dtype=torch.uint8) for i in range(512)]
    (batch,) = DataLoader(small, 512)  # type: ignore[arg-type]
    assert calls == [512]
    assert_same(batch, next(iter(TorchLoader(small, 512))))  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.int64], ids=str)
def test_every_byte_is_torchs(threads: int, dtype: torch.dtype) -> None:
    """Sizes that no hand-out of the copy divides."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(1)
        for shape, count in (((20_011,), 101), ((3, 101, 103), 37), ((1 << 20,), 1)):
            samples = [torch.randint(0, 127, shape, generator=generator) for _ in range(count)]
            samples = [sample.to(dtype) for sample in samples]
            ours, theirs = (
                next(iter(kind(samples, count)))  # type: ignore[arg-type]
                for kind in (DataLoader, TorchLoader)
            )
            assert_same(ours, theirs)
    finally:
        torch.set_num_threads(before)


def test_fallbacks_are_counted_for_each_epoch() -> None:
    loader = DataLoader([(1.0, 2.0 + i, {"a": (i if i % 2 else 0.5)}) for i in range(4)], 2)
    list(loader)
    first = loader.stats().fallbacks
    list(loader)
    assert first and loader.stats().fallbacks == first
    loader.close()
    assert loader.stats().fallbacks == first
