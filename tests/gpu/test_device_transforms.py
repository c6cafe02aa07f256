"""Images that are uploaded untouched and made into batches by a kernel of a real device: the bits,
order and states of the CPU, for many plans, and who waits for what."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, bits

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

COUNT, BATCH = 150, 32
LAYOUTS = {"CHW": (COUNT, 3, 36, 33), "HWC": (COUNT, 40, 37, 1), "gaps": (COUNT, 3, 36, 40)}
FLOATS = [T.ToDtype(torch.float32, scale=True), T.Normalize([0.4], [0.2])]
HALVES = [T.ToDtype(torch.float16, scale=True)]
JITTER = T.ColorJitter(0.4, 0.4, 0.4, 0.2)
CHAINS: dict[str, list[Any]] = {
    "cifar": [T.RandomCrop(28, 4), T.RandomHorizontalFlip(), *FLOATS],
    "reflected": [T.RandomCrop(24, padding=6, padding_mode="reflect"), T.RandomVerticalFlip(0.7)],
    "erased": [*FLOATS, T.RandomErasing(0.8, value=3.5), T.RandomHorizontalFlip()],
    "padded": [T.Pad(3, 9), T.RandomCrop(33, 2, fill=200), *HALVES],
    "centre": [T.CenterCrop((60, 7)), T.ToDtype(torch.bfloat16, scale=True), T.RandomErasing(1.0)],
    "flipped": [T.RandomHorizontalFlip(0.5)],
    "resized crop": [T.RandomResizedCrop((28, 50)), T.RandomHorizontalFlip(), *FLOATS],
    "bicubic": [T.RandomCrop(27), T.Resize(33, interpolation="bicubic"), T.CenterCrop(30), *HALVES],
    "nearest": [T.RandomVerticalFlip(), T.Resize((9, 60), interpolation="nearest"), T.Pad(3, 7)],
    "all": [T.RandomResizedCrop(32), T.RandomCrop(32, 4), *FLOATS, T.RandomErasing(0.8)],
    "jittered": [T.RandomResizedCrop(30), JITTER, T.RandomHorizontalFlip(), *FLOATS],
    "tables": [T.RandomCrop(31), T.RandomEqualize(), T.RandomAutocontrast(), T.RandomPosterize(5)],
    "gates": [T.RandomApply([JITTER], 0.8), T.RandomGrayscale(0.4), *HALVES, T.RandomErasing(0.5)],
    "distorted": [T.RandomPhotometricDistort(), T.RandomSolarize(99), T.RandomInvert(), *FLOATS],
}


def images_of(kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(kind))
    images = torch.randint(256, LAYOUTS[kind], dtype=torch.uint8, generator=generator)
    return images[..., :33] if kind == "gaps" else images


def dataset(chain: str, kind: str = "CHW", out_layout: str = "CHW") -> ArrayDataset:
    layout = "HWC" if kind == "HWC" else "CHW"
    kinds = {"layout": layout, "out_layout": out_layout, "seed": 7}
    transform = T.Compose(CHAINS[chain])
    data = ArrayDataset(images_of(kind), torch.arange(COUNT), transform=transform, **kinds)
    data.set_epoch(0)
    return data


def on_device(data: Any, workers: int = 3, **more: Any) -> Any:
    kinds = {"num_workers": workers, "device": "cuda", "transforms_on": "device", **more}
    return DataLoader(data, BATCH, **kinds)


def assert_same(ours: Any, theirs: Any) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.is_cuda and (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bits(a.cpu()) == bits(b)


def assert_epochs(data: ArrayDataset, loader: Any, **more: Any) -> None:
    for epoch in range(2):
        ours = [[tensor.clone() for tensor in batch] for batch in loader]
        data.set_epoch(epoch)
        for a, b in zip(ours, TorchLoader(data, BATCH, **more), strict=True):
            assert_same(a, b)
        data.set_epoch(epoch + 1)
    assert "; transforms by a kernel on cuda:0" in loader.stats().why


@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("chain", CHAINS)
def test_batches_have_the_bits_of_the_cpu(chain: str, kind: str, out_layout: str) -> None:
    data = dataset(chain, kind, out_layout)
    loader = on_device(data)
    assert_epochs(data, loader)
    (x, _), (y, _) = next(iter(loader)), next(iter(DataLoader(data, BATCH)))
    assert x.stride() == y.stride()


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("workers", [1, 8])
def test_order_and_random_numbers_are_torchs(chain: str, workers: int) -> None:
    found, states = [], []
    for cls in (DataLoader, TorchLoader):
        kinds: Any = {"num_workers": workers, "device": "cuda", "transforms_on": "device"}
        torch.manual_seed(3)
        more = kinds if cls is DataLoader else {}
        found.append(list(cls(dataset(chain), BATCH, shuffle=True, **more)))
        states.append(torch.get_rng_state())
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs)
    assert torch.equal(*states)


def test_every_place_gives_the_same_batches() -> None:
    data = dataset("cifar")
    for where in ("auto", "cpu", "device"):
        loader = on_device(data, transforms_on=where)
        data.set_epoch(4)
        for ours, theirs in zip(loader, TorchLoader(data, BATCH), strict=True):
            assert_same(ours, theirs)
        data.set_epoch(4)


def test_large_images_of_large_batches() -> None:
    images = torch.randint(256, (300, 3, 256, 256), dtype=torch.uint8)
    chain = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *FLOATS])
    data = ArrayDataset(images, transform=chain)
    data.set_epoch(0)
    for (ours,), (theirs,) in zip(on_device(data), TorchLoader(data, BATCH), strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_several_fields_and_views() -> None:
    pair = {"first": T.Compose(CHAINS["cifar"]), "second": T.Compose(CHAINS["resized crop"])}
    data = ArrayDataset(image=images_of("CHW"), label=torch.arange(COUNT), transform=pair)
    data.set_epoch(0)
    for ours, theirs in zip(on_device(data), TorchLoader(data, BATCH), strict=True):
        assert list(ours) == list(theirs)
        assert_same(ours.values(), theirs.values())


def test_a_mapped_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", images_of("CHW").numpy())
    transform = T.Compose(CHAINS["cifar"])
    data = ArrayDataset(str(tmp_path / "images.npy"), transform=transform)
    data.set_epoch(0)
    assert_epochs(data, on_device(data))


def test_a_loop_that_was_left_goes_on() -> None:
    data = dataset("resized crop")
    loader = on_device(data, shuffle=True, generator=torch.Generator().manual_seed(1))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    wanted = [[tensor.cpu() for tensor in batch] for batch in iterator]
    again = on_device(dataset("resized crop"), shuffle=True, generator=torch.Generator())
    again.load_state_dict(state)
    for ours, theirs in zip(again, wanted, strict=True):
        assert_same(ours, theirs)


def test_the_host_never_waits(waits_are: Callable[[str], AbstractContextManager[None]]) -> None:
    loader = on_device(dataset("all"))
    list(loader)
    with waits_are("error"):
        for x, _ in loader:
            torch.cuda._sleep(1_000_000)
            x.mul_(2)


def test_late_kernels_read_their_own_batches() -> None:
    """The device is far behind, batches die at once, and their memory goes round."""
    data = dataset("resized crop")
    data.set_epoch(3)
    sums = []
    for _ in range(3):
        for x, _ in on_device(data):
            torch.cuda._sleep(5_000_000)
            sums.append(x.sum(dtype=torch.float64))
            del x
    wanted = [x.cuda().sum(dtype=torch.float64) for x, _ in TorchLoader(data, BATCH)] * 3
    assert [s.item() for s in sums] == [w.item() for w in wanted]


def test_batches_of_several_streams() -> None:
    data = dataset("bicubic")
    streams, found = [torch.cuda.Stream() for _ in range(3)], []
    iterator = iter(on_device(data))
    for i in range(-(-COUNT // BATCH)):
        with torch.cuda.stream(streams[i % 3]):
            found.append(next(iterator)[0])
    torch.cuda.synchronize()
    data.set_epoch(0)
    for ours, (theirs, _) in zip(found, TorchLoader(data, BATCH), strict=True):
        assert torch.equal(ours.cpu(), theirs)


def test_static_buffers_and_a_transform_on_the_device() -> None:
    data = dataset("cifar")
    more: Callable[[Any], Any] = lambda batch: [batch[0] * 2, batch[1]]  # noqa: E731
    loader = on_device(data, device_transform=more, drop_last=True)
    static = on_device(data, static_buffers=True, drop_last=True)
    wanted, addresses = TorchLoader(data, BATCH, drop_last=True), set()
    for (twice, _), (x, _), (theirs, _) in zip(loader, static, wanted, strict=True):
        assert torch.equal(twice.cpu(), theirs * 2)
        assert torch.equal(x.cpu(), theirs)
        addresses.add(x.data_ptr())
    assert len(addresses) == 1


def test_without_our_uploads_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    data = dataset("all")
    loader = on_device(data)
    for ours, theirs in zip(loader, TorchLoader(data, BATCH), strict=True):
        assert_same(ours, theirs)
    assert "on the CPU, because FASTLOOP_DISABLE_CUDA is set" in loader.stats().why
