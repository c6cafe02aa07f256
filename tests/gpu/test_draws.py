"""Random parameters that the device draws are the CPU's, for a million keys of each operation. Only
a device can show it: nvcc may fuse a product with a sum; the kernel compiled as C++ does not."""

from typing import Any

import pytest
import torch

from fastloop import ArrayDataset, _core
from fastloop import transforms as T

KEYS = 10**6
JITTER = T.ColorJitter(0.4, 0.3, (0.2, 1.7), 0.2)
CHAINS: dict[str, list[Any]] = {
    "Pad": [T.Pad((1, 2, 3, 4), padding_mode="reflect"), T.RandomHorizontalFlip()],
    "CenterCrop": [T.CenterCrop((240, 31)), T.RandomVerticalFlip(0.3)],
    "RandomCrop": [T.RandomCrop((60, 70), padding=9, padding_mode="symmetric")],
    "RandomResizedCrop": [T.RandomResizedCrop(32), T.RandomHorizontalFlip()],
    "RandomResizedCrop of rare areas": [T.RandomResizedCrop(8, (0.9, 1), (0.2, 4))],
    "RandomErasing": [T.RandomErasing(0.9), T.RandomErasing(0.5, (0.3, 0.9), (0.1, 9))],
    "ColorJitter": [T.CenterCrop(8), JITTER, T.RandomChannelPermutation()],
    "RandomPhotometricDistort": [T.CenterCrop(8), T.RandomPhotometricDistort()],
    "one number": [T.CenterCrop(8), T.RandomSolarize(99.9), T.RandomPosterize(3), T.RandomInvert()],
    "no number": [T.CenterCrop(8), T.RandomEqualize(), T.RandomGrayscale(), T.RandomAutocontrast()],
    "RandomApply": [T.CenterCrop(8), T.RandomApply([JITTER, T.RandomInvert()], 0.8)],
    "RandomChoice": [T.CenterCrop(8), T.RandomChoice([JITTER, T.RandomEqualize()], [0.3, 0.7])],
    "RandomOrder": [
        T.CenterCrop(8),
        T.RandomOrder([JITTER, T.RandomInvert(), T.RandomSolarize(9)]),
    ],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_maps_are_those_of_the_cpu(chain: str) -> None:
    image = torch.zeros(1, 3, 224, 200, dtype=torch.uint8)
    plan = ArrayDataset(image, transform=T.Compose(CHAINS[chain]), seed=2**63 + 11)._plans[0]
    assert plan is not None
    drawn: list[torch.Tensor] = []

    def new_batch(count: int) -> list[torch.Tensor]:
        return [torch.empty(count, *plan.out_shape, dtype=torch.uint8, device="cuda")]

    def new_maps(count: int) -> list[torch.Tensor]:
        drawn[:] = [torch.empty(count, plan.map_length, dtype=torch.int32, device="cuda")]
        return [*drawn, torch.empty(count, dtype=torch.int64, device="cuda")]

    table = torch.frombuffer(plan.values(), dtype=torch.uint8).cuda()
    source: Any = (image.cuda().expand(KEYS, -1, -1, -1), None, (plan, table))
    memory = (new_batch, torch.empty_like, new_maps)
    gatherer = _core.Gatherer(torch.Tensor, memory, None, (source,), 0)
    rows = torch.arange(KEYS)
    gatherer.set_rows(rows.cuda(), KEYS)
    first = 0
    while first < KEYS:
        epoch = first * 2654435761 % 2**32 if first else 2**32 - 1
        gatherer.take(first, 1, epoch, False)  # draws for as many rows as fit into the memory
        (maps,) = drawn
        expected = torch.empty(maps.shape, dtype=torch.int32)
        plan.map(rows[first : first + len(maps)], expected, epoch)
        assert torch.equal(maps.cpu(), expected), first
        first += len(maps)
