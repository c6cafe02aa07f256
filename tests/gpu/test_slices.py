"""Large batches reach a real device in slices: they equal torch's, an epoch has more copies than
batches, the host does not wait, and threads live on between epochs."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from helpers import TorchLoader, assert_same

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

N, SLICE = 512, 4 << 20  # FL_SLICE_BYTES
IMAGE = (3, 224, 224)
BATCH = 96  # 14.5 MB: three slices


def rows(**more: Any) -> ArrayDataset:
    """Images between two small fields."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (N, *IMAGE), dtype=torch.uint8, generator=generator)
    return ArrayDataset(a=torch.arange(N), images=images, z=torch.randn(N, 7), **more)


def batches(loader: Any) -> list[list[torch.Tensor]]:
    torch.manual_seed(5)
    return [[part.cpu() for part in batch.values()] for _ in range(3) for batch in loader]


def copies_of(work: Callable[[], Any]) -> int:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        work()
        torch.cuda.synchronize()
    return sum(event.key == "cudaMemcpyAsync" for event in profile.events())


@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize("batch", [BATCH, N])
def test_batches_are_torchs(workers: int, batch: int) -> None:
    data = rows()
    loader = DataLoader(data, batch, True, num_workers=workers, device="cuda")
    assert_same(batches(loader), batches(TorchLoader(data, batch, True, num_workers=workers)))


@pytest.mark.parametrize("transforms_on", ["auto", "device"])
def test_images_are_those_of_the_cpu(transforms_on: Any) -> None:
    ops = [T.RandomCrop(224, 8), T.RandomHorizontalFlip(), T.ToDtype(torch.float16, True)]
    data = rows(transform={"images": T.Compose(ops)})
    expected = batches(DataLoader(data, BATCH, True))
    where = {"device": "cuda", "num_workers": 4, "transforms_on": transforms_on}
    assert_same(batches(DataLoader(data, BATCH, True, **where)), expected)


def test_a_batch_that_is_filled_slowly_is_several_copies() -> None:
    """One thread, which the loop waits for, fills each slice while the one before it is copied."""
    data = rows()
    loader = DataLoader(data, BATCH, num_workers=1, prefetch_factor=1, device="cuda")
    list(loader)  # pins
    count = len(loader)
    copies = copies_of(lambda: [batch["a"].sum().item() for batch in loader])
    assert copies > count and copies <= count * (3 + data[0]["images"].nbytes * BATCH // SLICE)


def test_the_host_waits_for_no_slice(
    waits_are: Callable[[str], AbstractContextManager[None]],
) -> None:
    loader = DataLoader(rows(), BATCH, num_workers=4, device="cuda", persistent_workers=True)
    list(loader)
    torch.cuda._sleep(200_000_000)  # the device is busy: copies wait for nothing of it
    iterator = iter(loader)
    with waits_are("error"):
        kept = list(iterator)
    assert torch.equal(torch.cat([batch["a"] for batch in kept]).cpu(), torch.arange(N))


def test_threads_live_on_between_epochs() -> None:
    loader = DataLoader(rows(), BATCH, num_workers=4, device="cuda")
    list(loader)
    threads = set(os.listdir("/proc/self/task"))
    list(loader)
    assert set(os.listdir("/proc/self/task")) == threads
    loader.close()
    assert len(set(os.listdir("/proc/self/task")) & threads) <= len(threads) - 4
