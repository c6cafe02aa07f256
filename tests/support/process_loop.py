"""What the trials of uploads from worker processes share: a dataset, and a loop that checks."""

import time
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset
from upload_device import EAGER, LAZY, RANDOM, Device, FakeAccelerator, fake

from fastloop.loader.route import fast_iterator

LENGTH = 40
Pair = namedtuple("Pair", "image label")


def image(index: int) -> torch.Tensor:
    return torch.full((30 + 7 * (index % 2), 50), index, dtype=torch.float32)[:30]


class ImageDataset(Dataset[Any]):
    def __init__(self, pause_s: float = 0.0) -> None:
        self.pause_s = pause_s

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.pause_s)
        return {"image": image(index), "label": index, "name": f"{index}.png"}


def collate_ragged(samples: list[Any]) -> Any:
    """As many rows as the first index says, part of something larger, in containers."""
    first = samples[0]["label"]
    rows = torch.arange(float(first * 100 + 100)).reshape(first + 1, 100)[1:]
    return Pair([rows, {"names": [sample["name"] for sample in samples]}], first)


class CheckedLoop:
    """Takes batches of a loader on a device of the fake, and queues kernels that check them."""

    def __init__(self, loader: Any, device: Device) -> None:
        self.loader, self.device = loader, device
        self.accelerator: Any = FakeAccelerator(device)

    def iterate(self) -> Any:
        return fast_iterator(self.loader, "auto", self.loader._shared, self.accelerator)

    def begin(self, is_on_device: bool = True) -> Any:
        iterator = self.iterate()
        self.loader._shared.position.begin(iterator)
        assert iterator.is_on_device == is_on_device
        return iterator

    def close(self) -> None:
        """The caller has let go of everything else."""
        self.device.synchronize()
        self.loader.close()
        self.loader = None
        self.accelerator.recorded.clear()
        self.device.close()

    def check_tensor(self, tensor: torch.Tensor, expected: torch.Tensor) -> None:
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert tensor.is_contiguous()
        data = expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        fake.fake_launch_compare(self.device.stream, tensor.data_ptr(), data, len(data))

    def check(self, batch: Any, indices: list[int]) -> None:
        assert list(batch) == ["image", "label", "name"]
        self.check_tensor(batch["image"], torch.stack([image(index) for index in indices]))
        self.check_tensor(batch["label"], torch.tensor(indices))
        assert batch["name"] == [f"{index}.png" for index in indices]


def each_stream_order(most_workers: int = 3) -> Iterator[tuple[int, int]]:
    for workers in range(1, most_workers + 1):
        for order, seed in ((EAGER, 0), (LAZY, 0), (RANDOM, 0), (RANDOM, 1)):
            fake.fake_set_order(order, seed)
            yield workers, seed


def split(indices: list[int], size: int) -> list[list[int]]:
    return [indices[k : k + size] for k in range(0, len(indices), size)]
