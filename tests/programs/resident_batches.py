"""Loaders over data on a device, whose kernel runs on the CPU: batches are torch's, of one launch
each, and what does not fit together is refused. Needs a core of tests/cuda/build_core.py."""

import ctypes
from typing import Any

import as_cuda  # noqa: F401 (tensors are seen on a device from here on)
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import RandomSampler, Subset, TensorDataset

from fastloop import ArrayDataset, DataLoader, _core
from fastloop.loader.arrays import columns

columns._RESIDENT = ("cpu",)
N = 200
TABLES = TensorDataset(torch.randn(N, 100), torch.arange(N), torch.rand(N, 3) > 0.5)
MANY = ArrayDataset(**{f"f{i}": torch.randint(99, (N, i), dtype=torch.uint8) for i in range(1, 41)})
APART = TensorDataset(torch.randn(3 * N, 7)[::3], torch.randn(N + 1, 5).half()[1:])
fake: Any = ctypes.CDLL(_core.__file__)
fake.fake_launches.restype = ctypes.c_int64


def values(batch: Any) -> list[torch.Tensor]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def compare(dataset: Any, launches: int, **arguments: Any) -> None:
    epochs = []
    for cls in (DataLoader, TorchLoader):
        torch.manual_seed(4)
        before = fake.fake_launches()
        epochs.append([values(batch) for _ in range(2) for batch in cls(dataset, **arguments)])
        if cls is DataLoader:
            assert fake.fake_launches() - before == launches * len(epochs[0])
    assert len(epochs[0]) == len(epochs[1]) > 0
    for batch, expected in zip(*epochs, strict=True):
        for mine, theirs in zip(batch, expected, strict=True):
            assert mine.dtype is theirs.dtype and torch.equal(mine, theirs)


for size in (1, 32, 300):
    compare(TABLES, 1, batch_size=size, shuffle=True)
    compare(APART, 1, batch_size=size)
    compare(MANY, 2, batch_size=size, shuffle=True, drop_last=size == 32)
compare(Subset(TABLES, list(range(90, 10, -1))), 1, batch_size=9, shuffle=True)
compare(TABLES, 1, batch_size=64, sampler=RandomSampler(TABLES, True, 500))
compare(TABLES, 1, batch_sampler=[[3, 1], [-1], [0, 0, 7]])

x, rows = torch.arange(12.0).view(6, 2), torch.tensor([4, 0, 5])
REFUSED: list[tuple[Any, str]] = [
    (((x,), rows.int(), (x[:3],), 6), "indices must be a contiguous vector of int64"),
    (((x,), rows[::2], (x[:2],), 6), "indices must be a contiguous vector of int64"),
    (((x,), rows, (x[:2],), 6), "a batch has another shape or dtype"),
    (((x,), rows, (x[:3].int(),), 6), "a batch has another shape or dtype"),
    (((x,), rows, (torch.empty(2, 3).T,), 6), "a batch has another shape or dtype"),
    (((x.T,), rows[:2], (torch.empty(2, 6),), 2), "rows must be contiguous"),
    (((x,), rows, (x[:3],), 7), "the data had 7 rows and now have 6"),
    (((x, x), rows, (x[:3],), 6), "sources and outs differ in length"),
    (((x.numpy(),), rows, (x[:3],), 6), "expected a torch.Tensor, got numpy.ndarray"),
]
for arguments, text in REFUSED:
    before = fake.fake_launches()
    try:
        _core.gather(torch.Tensor, *arguments)
        raise AssertionError(text)
    except (TypeError, ValueError) as error:
        assert text in str(error), error
    assert fake.fake_launches() == before
fake.fake_fail_at.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_bool]
fake.fake_fail_at(2, 719, False)
try:
    _core.gather(torch.Tensor, (x,), rows, (torch.empty(3, 2),), 6)
    raise AssertionError("a launch that failed was not told")
except torch.AcceleratorError as error:
    assert "cudaErrorLaunchFailure" in str(error)
