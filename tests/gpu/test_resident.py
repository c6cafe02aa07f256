"""Loaders over data on a real device do as torch's loader does over the same data on the CPU: the
same batches, order and random states. The host does not wait for the device."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Subset, TensorDataset

from fastloop import (
    ArrayDataset,
    DataLoader,
    LengthBucketBatchSampler,
    PackCollate,
    PadCollate,
    RaggedArray,
    TokenDataset,
)
from fastloop import transforms as T
from fastloop.loader.arrays.resident import ResidentIter

N = 5000
DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool)
COLUMNS = [torch.randint(0, 2, (N, width)).to(d) for d in DTYPES for width in (1, 7, 96)]
DATASETS: dict[str, Any] = {
    "tensors": lambda columns: TensorDataset(*columns),
    "array": lambda columns: ArrayDataset(**{f"f{i}": each for i, each in enumerate(columns)}),
    "subset": lambda columns: Subset(TensorDataset(*columns), list(range(N - 1, 9, -3))),
}
SAMPLERS: dict[str, Any] = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True},
    "replaced": lambda data: {"sampler": RandomSampler(data, True, 3000)},
    "rank 1 of 3": lambda data: {"sampler": DistributedSampler(data, 3, 1)},
    "a user's": lambda data: {"batch_sampler": [[5, 1], [0], [-1, 7, 7]]},
}


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(5)
    found = []
    for _ in range(2):
        for batch in loader:
            parts = list(batch.values()) if isinstance(batch, dict) else batch
            found.append([part.cpu() for part in parts])
    return [*found, [torch.get_rng_state()]]


@pytest.mark.parametrize("kind", DATASETS)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("size", [1000, 4096])
def test_batches_are_torchs(kind: str, sampler: str, size: int) -> None:
    here = DATASETS[kind](COLUMNS)
    there = DATASETS[kind]([column.cuda() for column in COLUMNS])
    arguments = SAMPLERS[sampler](here)
    if "batch_sampler" not in arguments:
        arguments["batch_size"] = size
    loader = DataLoader(there, **arguments)
    assert type(iter(loader)) is ResidentIter
    assert_same(batches(loader), batches(TorchLoader(here, **arguments)))


CHAINS: dict[str, list[Any]] = {
    "cifar": [T.RandomCrop(28, 4), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, True)],
    "reflected": [T.RandomCrop(24, padding=6, padding_mode="reflect"), T.RandomVerticalFlip()],
    "erased": [T.ToDtype(torch.float16, True), T.RandomErasing(0.8, value=2), T.RandomErasing(0.5)],
    "resized crop": [
        T.RandomResizedCrop(48),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.half, True),
    ],
    "resized": [T.RandomCrop(30), T.Resize((20, 45), interpolation="bicubic"), T.Pad(2)],
    "colours": [
        T.RandomCrop(30, 2),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.2)], 0.8),
        T.RandomGrayscale(0.4),
        T.RandomEqualize(),
        T.ToDtype(torch.float32, True),
        T.RandomErasing(0.5, value=2),
    ],
    "large": [T.Pad(100), T.RandomCrop(200), T.ToDtype(torch.bfloat16, True)],
}


def test_lists_of_rows_without_a_batch_size() -> None:
    here, there = (TensorDataset(*columns) for columns in (COLUMNS, [c.cuda() for c in COLUMNS]))
    for size in (1, 900):
        sampler = BatchSampler(list(range(N - 1, -1, -1)), size, False)
        ours = DataLoader(there, batch_size=None, sampler=sampler)
        assert type(iter(ours)) is ResidentIter
        assert_same(batches(ours), batches(TorchLoader(here, batch_size=None, sampler=sampler)))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("out_layout", ["CHW", "HWC", "channels_last"])
def test_transforms_of_images_are_those_of_the_cpu(chain: str, out_layout: str) -> None:
    images = torch.randint(256, (N, 3, 32, 30), dtype=torch.uint8)
    transform = {"x": T.Compose(CHAINS[chain])}
    data = ArrayDataset(x=images, y=torch.arange(N), transform=transform, out_layout=out_layout)
    there = DataLoader(data.to("cuda"), 128, shuffle=True)
    assert_same(batches(there), batches(DataLoader(data, 128, shuffle=True)))
    assert there.stats().path == "array"


@pytest.mark.parametrize("chain", CHAINS)
def test_images_of_a_sampler_that_is_not_torchs(chain: str) -> None:
    """Up to 640 indices travel in the argument of the kernel that draws; more by a copy."""
    images = torch.randint(256, (N, 3, 32, 30), dtype=torch.uint8)
    data = ArrayDataset(images, torch.arange(N), transform=T.Compose(CHAINS[chain]))
    picked = torch.randint(N, (1281,)).tolist()
    sampler = [picked[:1], picked[:640], picked[:641], picked[641:], [0, N - 1, 0]]
    there = DataLoader(data.to("cuda"), batch_sampler=sampler)
    assert_same(batches(there), batches(DataLoader(data, batch_sampler=sampler)))


def test_single_images_are_those_of_the_cpu() -> None:
    images = torch.randint(256, (40, 3, 32, 30), dtype=torch.uint8)
    data = ArrayDataset(images, transform=T.Compose(CHAINS["cifar"]))
    loader = DataLoader(data.to("cuda"), batch_size=None)
    assert loader.stats().path == "array"
    assert_same(batches(loader), batches(DataLoader(data, batch_size=None)))


def test_a_dataset_that_was_moved() -> None:
    data = ArrayDataset(*COLUMNS)
    moved = data.to("cuda")
    assert_same(batches(DataLoader(moved, 64)), batches(TorchLoader(data, 64)))
    too_large = ArrayDataset(torch.empty(1, 1).expand(1 << 20, 1 << 20))
    with pytest.raises(MemoryError, match="must fit into the free memory"):
        too_large.to("cuda")


def windows(dtype: str, **options: Any) -> tuple[TokenDataset, TokenDataset]:
    """A dataset of tokens that all types of samples hold, and the same on the device."""
    limits = np.iinfo(dtype)
    low, high = max(limits.min, -(2**31) if limits.max < 2**31 else 0), min(limits.max, 2**31 - 1)
    values = np.random.default_rng(0).integers(low, high, 9000, dtype, endpoint=True)
    data = TokenDataset.from_buffers(values, np.array([0, 9000]), 65, seed=1, **options)
    there = data.to("cuda")
    for each in (data, there):
        each.set_epoch(1)
    return data, there


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": "same", "out_dtype": torch.int32},
        {"targets": None, "mode": "random"},
        {"mode": "jittered", "stride": 50, "out_dtype": torch.int32},
    ],
    ids=str,
)
def test_windows_of_tokens(dtype: str, options: dict[str, Any]) -> None:
    data, there = windows(dtype, **options)
    for size in (1, 33, 1000):
        loader = DataLoader(there, size, shuffle=True)
        assert type(iter(loader)) is ResidentIter
        assert_same(batches(loader), batches(TorchLoader(data, size, shuffle=True)))
    if options.get("targets", "shift") is not None:
        assert_same(batches(DataLoader(there, None)), batches(TorchLoader(data, None)))
    for index in (0, -1):
        ours, theirs = torch.stack(list(there[index])), torch.stack(list(data[index]))
        assert ours.is_cuda and torch.equal(ours.cpu(), theirs)


def test_windows_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    for dtype in ("uint16", "uint32", "int8"):
        data, there = windows(dtype)
        assert_same(batches(DataLoader(there, 33)), batches(TorchLoader(data, 33)))


def test_a_large_batch_of_windows() -> None:
    values = np.random.default_rng(2).integers(0, 65536, 4_000_000, np.uint16)
    data = TokenDataset.from_buffers(values, np.array([0, 4_000_000]), 4095).to("cuda")
    ((x, y), *_) = DataLoader(data, 900)
    rows = torch.from_numpy(values[: 900 * 4095 + 1].astype(np.int64))
    assert torch.equal(x.cpu().flatten(), rows[:-1]) and torch.equal(y.cpu().flatten(), rows[1:])


def test_a_pickle_of_tokens_there() -> None:
    data, there = windows("uint16")
    again = pickle.loads(pickle.dumps(there))
    assert again._tokens.is_cuda
    assert_same(batches(DataLoader(again, 33)), batches(TorchLoader(data, 33)))


# ---- sequences

LENGTHS = np.random.default_rng(3).integers(0, 300, 999)
COLLATES: dict[str, Any] = {
    "pad": PadCollate(),
    "left": PadCollate(1, "left", 64, 200, return_mask=True, return_lengths=True),
    "pack": PackCollate(),
    "rows": PackCollate(1024),
}
SEQUENCES = (*DTYPES, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32)


def sequences(dtype: torch.dtype) -> ArrayDataset:
    """Of random bits, which begin anywhere among their values."""
    first, second = (
        RaggedArray(values, np.append(0, np.cumsum(LENGTHS)) + begin)
        for begin, values in (
            (3, torch.randint(0, 2, (int(LENGTHS.sum()) + 9,)).to(dtype)),
            (0, torch.randint(-(2**15), 2**15, (int(LENGTHS.sum()),)).short()),
        )
    )
    return ArrayDataset(x=first, input_ids=second, y=torch.arange(len(LENGTHS)))


@pytest.mark.parametrize("dtype", SEQUENCES, ids=str)
@pytest.mark.parametrize("collate", COLLATES)
def test_sequences_are_those_of_the_cpu(collate: str, dtype: torch.dtype) -> None:
    here = sequences(dtype)
    there = here.to("cuda")
    for size in (1, 40, 2000):
        ours, theirs = (
            DataLoader(data, size, shuffle=True, collate_fn=COLLATES[collate])
            for data in (there, here)
        )
        assert type(iter(ours)) is ResidentIter
        assert_same(batches_here(ours), batches_here(theirs))


def batches_here(loader: Any) -> list[dict[str, Any]]:
    """The batches of an epoch on the CPU; numbers stay numbers."""
    torch.manual_seed(6)
    return [
        {key: part.cpu() if isinstance(part, torch.Tensor) else part for key, part in batch.items()}
        for batch in loader
    ]


def test_sequences_in_buckets_and_where_no_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sequences(torch.uint8)
    there = here.to("cuda")
    sampler = LengthBucketBatchSampler(LENGTHS, 33, seed=1)
    for disabled in ("0", "1"):
        monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", disabled)
        for collate in COLLATES.values():
            ours, theirs = (
                DataLoader(data, batch_sampler=sampler, collate_fn=collate)
                for data in (there, here)
            )
            assert_same(batches_here(ours), batches_here(theirs))
    row = there._fields[0][5]
    assert row.is_cuda and torch.equal(row.cpu(), here._fields[0][5])


def test_batches_of_several_streams() -> None:
    data = TensorDataset(torch.arange(N, device="cuda"))
    for replacement in (False, True):
        torch.manual_seed(1)
        expected = torch.cat(
            [batch for (batch,) in DataLoader(data, 90, sampler=RandomSampler(data, replacement))]
        )
        for _ in range(20):
            torch.manual_seed(1)
            found, streams = [], [torch.cuda.Stream() for _ in range(3)]
            iterator = iter(DataLoader(data, 90, sampler=RandomSampler(data, replacement)))
            for i in range(-(-N // 90)):
                with torch.cuda.stream(streams[i % 3]):
                    found.append(next(iterator)[0])
            torch.cuda.synchronize()
            assert torch.equal(torch.cat(found), expected)


def test_nothing_waits() -> None:
    """torch raises where the host would wait for the device."""
    data = TensorDataset(torch.randn(N, 100, device="cuda"), torch.arange(N, device="cuda"))
    loader = DataLoader(data, 512, shuffle=True)
    tokens = DataLoader(windows("uint16")[1], 50, shuffle=True)
    padded, packed = (
        DataLoader(sequences(torch.half).to("cuda"), 100, shuffle=True, collate_fn=COLLATES[name])
        for name in ("left", "rows")
    )
    list(loader), list(tokens), list(padded), list(packed)
    torch.cuda.set_sync_debug_mode("error")
    try:
        kept = [batch for _ in range(2) for batch in loader]
        kept += [batch for _ in range(2) for batch in tokens]
        kept += [tokens.dataset[i] for i in range(5)]
        kept += [*padded, *packed]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(kept) == 51


def test_static_buffers_and_transforms_of_the_loader() -> None:
    data = TensorDataset(torch.randn(N, 10, device="cuda"))
    loader = DataLoader(data, 500, device="cuda", static_buffers=True)
    addresses = {batch[0].data_ptr() for batch in loader}
    assert len(addresses) == 1
    doubled = DataLoader(data, 500, device="cuda", device_transform=lambda batch: [batch[0] * 2])
    for (batch,), (rows,) in zip(doubled, TorchLoader(data, 500), strict=True):
        assert torch.equal(batch, rows * 2)
