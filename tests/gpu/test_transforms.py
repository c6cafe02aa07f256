"""Images that become batches on a real device: the bits of the CPU on every path, and which of them
travel as bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import TorchLoader, bits

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop.device.accelerator import open_accelerator
from fastloop.loader.route import choose_route, fast_iterator

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("torch", 0), ("torch", 2)]
every_path = pytest.mark.parametrize(("path", "workers"), PATHS)
MEAN, STD = (0.485, 0.456, 0.406, 0.5), (0.229, 0.224, 0.225, 0.3)
COUNT, BATCH = 50, 7


def chain(dtype: torch.dtype, channels: int, *behind: Any) -> T.Compose:
    ops = [
        T.RandomCrop(24, padding=4, fill=7),
        T.RandomHorizontalFlip(),
        T.ToDtype(dtype, scale=True),
        T.Normalize(MEAN[:channels], STD[:channels]),
    ]
    return T.Compose([*ops, *behind])


def dataset(
    dtype: torch.dtype = torch.float32,
    channels: int = 3,
    out_layout: str = "CHW",
    size: tuple[int, int] = (28, 31),
    *behind: Any,
) -> ArrayDataset:
    generator = torch.Generator().manual_seed(channels)
    shape = (COUNT, channels, *size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    aug = chain(dtype, channels, *behind)
    return ArrayDataset(images, torch.arange(COUNT), transform=aug, out_layout=out_layout, seed=5)


def on_device(data: ArrayDataset, path: str, workers: int, **kwargs: Any) -> Any:
    return DataLoader(data, BATCH, num_workers=workers, path=path, device="cuda", **kwargs)


def travels_cut(data: ArrayDataset) -> bool:
    """Whether the loader's threads fill its batches with bytes."""
    table = choose_route(DataLoader(data), "auto", "").columns.table
    return table.for_device() is not table


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that count."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def assert_same(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.is_cuda and (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a.cpu()) == bits(b)


def assert_epochs(data: ArrayDataset, path: str, workers: int, epochs: int = 2) -> None:
    loader = on_device(data, path, workers)
    for epoch in range(epochs):
        ours = [[t.clone() for t in batch] for batch in loader]
        data.set_epoch(epoch)
        for a, b in zip(ours, TorchLoader(data, BATCH), strict=True):
            assert_same(a, b)
        data.set_epoch(epoch + 1)


@every_path
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_batches_have_the_bits_of_the_cpu(path: str, workers: int, dtype: torch.dtype) -> None:
    if dtype == torch.uint8:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (COUNT, 3, 28, 28), dtype=torch.uint8, generator=generator)
        data = ArrayDataset(images, transform=T.RandomCrop(24, padding=2))
    else:
        data = dataset(dtype)
    data.set_epoch(0)
    assert travels_cut(data) == (dtype != torch.uint8)
    assert_epochs(data, path, workers)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout(channels: int, out_layout: str, dtype: torch.dtype) -> None:
    data = dataset(dtype, channels, out_layout)
    data.set_epoch(0)
    assert travels_cut(data)
    assert_epochs(data, "array", 2)
    (x, _), (y, _) = next(iter(on_device(data, "array", 2))), next(iter(DataLoader(data, BATCH)))
    assert strides(x) == strides(y)


def test_images_of_one_pixel_and_of_many() -> None:
    for size, crop in (((1, 1), 1), ((1, 3), 1), ((200, 333), 190)):
        images = torch.randint(0, 256, (20, 3, *size), dtype=torch.uint8)
        ops = [T.RandomCrop(crop), T.ToDtype(torch.float32, scale=True)]
        data = ArrayDataset(images, transform=T.Compose(ops))
        data.set_epoch(0)
        assert travels_cut(data)
        assert_epochs(data, "array", 2)


def test_several_fields_of_images() -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (COUNT, 3, 28, 28), dtype=torch.uint8, generator=generator)
    aug = {
        "left": chain(torch.float32, 3),
        "right": chain(torch.float16, 3),
        "whole": T.RandomHorizontalFlip(),
    }
    fields = {"left": images, "label": torch.arange(COUNT), "right": images, "whole": images}
    data = ArrayDataset(**fields, transform=aug)
    data.set_epoch(0)
    loader = on_device(data, "array", 2)
    for ours, theirs in zip(loader, TorchLoader(data, BATCH), strict=True):
        assert list(ours) == list(theirs)
        assert_same(ours.values(), theirs.values())


def test_what_no_byte_becomes_is_made_by_the_cpu() -> None:
    data = dataset(torch.float32, 3, "CHW", (28, 28), T.RandomErasing(p=1.0))
    data.set_epoch(0)
    assert not travels_cut(data)
    assert_epochs(data, "array", 2)


def test_without_our_uploads_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    data = dataset()
    data.set_epoch(0)
    assert_epochs(data, "array", 2)


def test_the_host_never_waits(no_sync: None) -> None:
    data = dataset()
    for _ in range(2):
        for x, _ in on_device(data, "array", 2):
            torch.cuda._sleep(1_000_000)
            x.mul_(2)


def test_late_kernels_read_their_own_batches() -> None:
    """The device is far behind, batches die at once, and their memory goes round."""
    data = dataset()
    data.set_epoch(3)
    sums = []
    for _ in range(3):
        for x, _ in on_device(data, "array", 2):
            torch.cuda._sleep(5_000_000)
            sums.append(x.sum(dtype=torch.float64))
            del x
    wanted = [x.cuda().sum(dtype=torch.float64) for x, _ in TorchLoader(data, BATCH)] * 3
    assert [s.item() for s in sums] == [w.item() for w in wanted]


def test_static_buffers_and_a_transform_on_the_device() -> None:
    data = dataset()
    data.set_epoch(0)
    more: Callable[[Any], Any] = lambda batch: [batch[0] * 2, batch[1]]  # noqa: E731
    loader = on_device(data, "array", 2, device_transform=more, drop_last=True)
    static = on_device(data, "array", 2, static_buffers=True, drop_last=True)
    wanted = TorchLoader(data, BATCH, drop_last=True)
    for (twice, _), (x, _), (theirs, _) in zip(loader, static, wanted, strict=True):
        assert torch.equal(twice.cpu(), theirs * 2)
        assert bits(x.cpu()) == bits(theirs)


def test_bytes_go_over_the_link() -> None:
    data = dataset()
    with on_device(data, "array", 2) as loader:
        iterator = fast_iterator(loader, "array", loader._shared, open_accelerator("cuda"))
        assert iterator.is_on_device
        del iterator
        count = sum(len(x) for x, _ in loader)
        assert count == COUNT
        sent = loader.stats().bytes
    assert sent < COUNT * (3 * 24 * 24 + 64) + 64 * 64


@pytest.mark.parametrize("path", ["array", "process", "torch"])
def test_batches_are_mixed_on_the_device(path: str) -> None:
    data = dataset()
    mix = T.RandomChoice([T.MixUp(num_classes=COUNT), T.CutMix(num_classes=COUNT)])
    for epoch in range(2):
        data.set_epoch(epoch)
        ours = on_device(data, path, 2, batch_transform=mix)
        theirs = DataLoader(data, BATCH, batch_transform=mix)
        assert_same_all(ours, theirs)


def assert_same_all(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert_same(a, b)
