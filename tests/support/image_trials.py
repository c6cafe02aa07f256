"""Trials of images that go to a device, in a process of their own:
`python image_trials.py core.so trial`."""

import sys
from typing import Any

import torch
from upload_device import Device, FakeAccelerator, fake
from upload_trials import each_way_with_workers

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T
from fastloop.loader.route import fast_iterator


def images_from_end_to_end() -> None:
    """Each batch is what the dataset makes of its rows, and a quarter of it was copied."""
    images = torch.randint(0, 256, (40, 3, 20, 21), dtype=torch.uint8)
    ops = [T.RandomCrop(16, padding=2), T.RandomHorizontalFlip()]
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    for behind, size, layout in (
        ([], 3 * 16 * 16, "CHW"),
        ([T.RandomErasing()], 4 * 3 * 16 * 16, "CHW"),
        ([], 3 * 16 * 16, "channels_last"),
        ([T.RandomErasing()], 4 * 3 * 16 * 16, "channels_last"),
    ):
        chain = T.Compose([*ops, *values, *behind])
        data = ArrayDataset(images, torch.arange(40), transform=chain, out_layout=layout)
        order = (0, 2, 3, 1) if layout == "channels_last" else (0, 1, 2, 3)
        for workers, _, device, accelerator in each_way_with_workers():
            loader: Any = DataLoader(data, 8, num_workers=workers)
            for epoch in range(2):
                data.set_epoch(epoch)
                iterator: Any = fast_iterator(loader, "auto", loader._shared, accelerator)
                loader._shared.position.begin(iterator)
                for k, (x, y) in enumerate(iterator):
                    rows = range(8 * k, 8 * k + 8)
                    for tensor, expected in (
                        (x, torch.stack([data[i][0] for i in rows])),
                        (y, torch.tensor(rows)),
                    ):
                        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
                        if tensor.ndim == 4:
                            tensor, expected = tensor.permute(order), expected.permute(order)
                        assert tensor.is_contiguous()
                        held = expected.contiguous().numpy().tobytes()
                        fake.fake_launch_compare(device.stream, tensor.data_ptr(), held, len(held))
                device.synchronize()
                del iterator, x, y, tensor
            assert loader.stats().bytes == 2 * 40 * (size + 8)
            loader.close()
            del loader


def images_are_made_there() -> None:
    """Each batch is what the dataset makes of its rows, of images that were copied as they are."""
    images = torch.randint(0, 256, (40, 3, 20, 21), dtype=torch.uint8)
    floats = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    halves = [T.ToDtype(torch.float16, scale=True), T.RandomErasing(0.7, value=0.3)]
    flips = [T.RandomHorizontalFlip(), T.RandomVerticalFlip(0.7)]
    colors = [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.RandomGrayscale(0.3), T.RandomEqualize()]
    for ops, layout in (
        ([T.RandomCrop(16, padding=2), T.RandomHorizontalFlip(), *floats], "CHW"),
        ([T.RandomCrop(24, 6, padding_mode="reflect"), *halves], "channels_last"),
        ([T.RandomVerticalFlip(), T.RandomResizedCrop((9, 17)), *halves], "HWC"),
        ([T.Resize((30, 11)), T.Pad(3, 7)], "CHW"),
        ([T.RandomCrop(20, 2), *colors, *floats, T.RandomErasing(1.0, value=0.5)], "CHW"),
        ([T.RandomResizedCrop(17), T.RandomApply(colors, 0.7), *halves], "channels_last"),
        ([T.RandomApply(flips, 0.6), T.RandomCrop(16, 2), *floats], "CHW"),
    ):
        data = ArrayDataset(
            images, torch.arange(40), transform=T.Compose(ops), out_layout=layout, seed=3
        )
        for workers, _, device, accelerator in each_way_with_workers():
            more: Any = {"device": "cuda:1", "transforms_on": "device"}
            loader: Any = DataLoader(data, 8, num_workers=workers, **more)
            for epoch in range(2):
                data.set_epoch(epoch)
                iterator: Any = fast_iterator(loader, "auto", loader._shared, accelerator)
                loader._shared.position.begin(iterator)
                for k, (x, _) in enumerate(iterator):
                    held = torch.stack([data[i][0] for i in range(8 * k, 8 * k + 8)])
                    assert (x.dtype, x.shape) == (held.dtype, held.shape)
                    if layout == "channels_last":
                        x, held = x.permute(0, 2, 3, 1), held.permute(0, 2, 3, 1)
                    assert x.is_contiguous()
                    raw = held.contiguous().view(torch.uint8).numpy().tobytes()
                    fake.fake_launch_compare(device.stream, x.data_ptr(), raw, len(raw))
                device.synchronize()
                del iterator, x, _
            assert "; transforms by a kernel on cuda:1" in loader.stats().why, loader.stats().why
            assert loader.stats().bytes >= 2 * 40 * 3 * 20 * 21
            loader.close()
            del loader
    assert fake.fake_compared() > 100


def the_user_says_where() -> None:
    """On the CPU all of it, and the finished batch is copied; else its bytes, or its images."""
    images = torch.randint(0, 256, (40, 3, 20, 21), dtype=torch.uint8)
    ops = [T.RandomCrop(16, padding=2), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, True)]
    data = ArrayDataset(images, transform=T.Compose(ops))
    for where, size, why in (
        ("cpu", 4 * 3 * 16 * 16, "; transforms on the CPU"),
        ("auto", 3 * 16 * 16, "; the transforms' last step by a kernel on cuda:1"),
        ("device", 3 * 20 * 21 + 8, "; transforms by a kernel on cuda:1"),
    ):
        device = Device(1)
        device.use(device.new_stream())
        accelerator: Any = FakeAccelerator(device)
        loader: Any = DataLoader(data, 8, num_workers=2, device="cuda:1", transforms_on=where)
        data.set_epoch(1)
        iterator: Any = fast_iterator(loader, "auto", loader._shared, accelerator)
        loader._shared.position.begin(iterator)
        for k, (x,) in enumerate(iterator):
            held = torch.stack([data[i][0] for i in range(8 * k, 8 * k + 8)]).numpy().tobytes()
            fake.fake_launch_compare(device.stream, x.data_ptr(), held, len(held))
        device.synchronize()
        del iterator, x
        assert loader.stats().why.endswith(why), loader.stats().why
        values = 5 * len(data._plans[0].values()) if where == "device" else 0
        assert 0 <= loader.stats().bytes - 40 * size - values < 5 * 3 * 64
        loader.close()
        del loader
        device.close()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
