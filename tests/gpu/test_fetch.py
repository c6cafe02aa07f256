"""Loaders whose device reads the rows in host memory do as torch's loader does, and as the CPU's
plan of transforms: the same batches, order and random states. Memory is registered once, and for as
long as the dataset lives."""

import gc
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torch.utils.data import RandomSampler, Subset

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop.loader.arrays.resident import ResidentIter

N = 5000
FIELDS: dict[str, Any] = {
    "bytes": np.random.default_rng(0).integers(0, 256, (N, 3001), np.uint8),
    "halves": torch.randn(N, 7).half(),
    "apart": np.arange(N * 6, dtype=np.int64).reshape(N, 6)[:, 1:4],
    "labels": torch.arange(N),
    "none": torch.empty(N, 0),
}
CHAINS: dict[str, list[Any]] = {
    "cifar": [T.RandomCrop(28, 4), T.RandomHorizontalFlip(), T.ToDtype(torch.float16, True)],
    "erased": [T.ToDtype(torch.float32, True), T.RandomErasing(0.8, value=2)],
    "resized crop": [T.RandomResizedCrop(48), T.RandomHorizontalFlip()],
}


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(5)
    found = []
    for _ in range(2):
        for batch in loader:
            parts = batch.values() if isinstance(batch, dict) else batch
            found.append([part.cpu() for part in parts])
    return [*found, [torch.get_rng_state()]]


def fetching(dataset: Any, *args: Any, **kwargs: Any) -> DataLoader[Any]:
    loader = DataLoader(dataset, *args, device="cuda", **kwargs)
    assert "read by cuda" in loader.stats().why, loader.stats().why
    return loader


def is_registered(tensor: torch.Tensor) -> bool:
    """As the driver has it."""
    return tensor.is_pinned()


@pytest.mark.parametrize("size", [100, 4096])
@pytest.mark.parametrize("kind", ["whole", "subset", "replaced"])
def test_batches_are_torchs(kind: str, size: int) -> None:
    data: Any = ArrayDataset(**FIELDS, gather="device")
    if kind == "subset":
        data = Subset(data, list(range(N - 1, 9, -3)))
    more: dict[str, Any] = {"shuffle": True}
    if kind == "replaced":
        more = {"sampler": RandomSampler(data, True, 3000)}
    loader = fetching(data, size, **more)
    assert type(iter(loader)) is ResidentIter
    assert_same(batches(loader), batches(TorchLoader(data, size, **more)))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_transforms_are_those_of_the_cpu(chain: str, out_layout: str) -> None:
    images = torch.randint(256, (N, 3, 32, 30), dtype=torch.uint8)
    kinds: dict[str, Any] = {"transform": {"x": T.Compose(CHAINS[chain])}, "out_layout": out_layout}
    expected = batches(DataLoader(ArrayDataset(x=images, y=FIELDS["labels"], **kinds), 128, True))
    data = ArrayDataset(x=images, y=FIELDS["labels"], gather="device", **kinds)
    assert_same(batches(fetching(data, 128, True)), expected)


def test_memory_is_registered_as_long_as_the_dataset_lives() -> None:
    rows = torch.randn(N, 1000)
    data = ArrayDataset(rows, gather="device")
    assert not is_registered(rows)
    iterator = iter(fetching(data, 10))
    assert is_registered(rows)
    next(iterator)
    other = ArrayDataset(rows[10:], gather="device")
    assert_same(batches(fetching(other, 900)), batches(TorchLoader(other, 900)))
    with pytest.raises(RuntimeError, match="cannot move to shared memory"):
        rows.share_memory_()
    again = pickle.loads(pickle.dumps(data))
    del data, iterator
    gc.collect()
    assert is_registered(rows)
    del other
    gc.collect()
    assert not is_registered(rows) and not is_registered(again._fields[0].source)
    assert_same(batches(fetching(again, 900)), batches(TorchLoader(again, 900)))


def test_memory_that_is_pinned_already_is_refused() -> None:
    data = ArrayDataset(torch.randn(64, 2), torch.randn(64, 100).pin_memory(), gather="device")
    with pytest.raises(RuntimeError, match=r"cannot register 25,600 bytes.*neither pinned"):
        iter(fetching(data, 2))
    gc.collect()
    assert not is_registered(data._fields[0].source)
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_a_dataset_that_goes_while_kernels_read(
    waits_are: Callable[[str], AbstractContextManager[None]],
) -> None:
    for _ in range(20):
        rows = torch.randn(20_000, 1000)
        data = ArrayDataset(rows, gather="device")
        iterator = iter(fetching(data, 20_000))
        list(fetching(data, 20_000))  # what is allocated once is
        with waits_are("error"):
            (batch,) = next(iterator)
        expected = rows.clone()
        del data, iterator
        rows.zero_()
        assert torch.equal(batch.cpu(), expected)


def test_data_that_change_are_seen() -> None:
    rows = torch.zeros(N, 10)
    for i, (batch,) in enumerate(fetching(ArrayDataset(rows, gather="device"), 1000)):
        assert (batch == i).all().item()  # waits for the kernel
        rows += 1


def test_batches_of_several_streams() -> None:
    data = ArrayDataset(torch.arange(N), gather="device")
    streams = [torch.cuda.Stream() for _ in range(3)]
    iterator, found = iter(fetching(data, 90)), []
    for i in range(-(-N // 90)):
        with torch.cuda.stream(streams[i % 3]):
            found.append(next(iterator)[0])
    torch.cuda.synchronize()
    assert torch.equal(torch.cat(found).cpu(), torch.arange(N))


def test_static_buffers_and_transforms_of_the_loader() -> None:
    data = ArrayDataset(torch.randn(N, 10), gather="device")
    loader = fetching(data, 500, static_buffers=True)
    assert len({batch[0].data_ptr() for batch in loader}) == 1
    doubled = fetching(data, 500, device_transform=lambda batch: [batch[0] * 2])
    for (batch,), (rows,) in zip(doubled, TorchLoader(data, 500), strict=True):
        assert torch.equal(batch.cpu(), rows * 2)
