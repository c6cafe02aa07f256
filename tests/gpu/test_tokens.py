"""Windows of tokens that become batches on a real device: the bits of the CPU on every path, and
which of them travel narrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import TorchLoader, assert_same
from token_writers import some_tokens, write_llmc

from fastloop import DataLoader, TokenDataset
from fastloop.loader.route import choose_route

PATHS = [("array", 0), ("array", 2), ("sync", 0), ("process", 2), ("torch", 0), ("torch", 2)]
T, BATCH = 100, 7
TOKENS = 9000


def buffers(dtype: str, **options: Any) -> TokenDataset:
    limits, is_limited = np.iinfo(dtype), "vocab_size" in options
    low, high = (0, options["vocab_size"] - 1) if is_limited else (limits.min, limits.max)
    values = np.random.default_rng(0).integers(low, high, TOKENS, dtype, endpoint=True)
    return TokenDataset.from_buffers(values, np.array([0, TOKENS]), T, seed=1, **options)


def travels_narrow(data: TokenDataset) -> bool:
    """Whether the loader's threads fill its batches with narrow tokens."""
    table = choose_route(DataLoader(data), "auto", "").columns.table
    return table.for_device() is not table


def on_host(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: on_host(value) for key, value in batch.items()}
    if isinstance(batch, torch.Tensor):
        assert batch.is_cuda
        return batch.cpu()
    return [on_host(value) for value in batch]


def assert_epochs(data: TokenDataset, path: str, workers: int, **kwargs: Any) -> None:
    loader = DataLoader(data, BATCH, num_workers=workers, path=path, device="cuda", **kwargs)
    for epoch in range(2):
        data.set_epoch(epoch)
        ours = [on_host(batch) for batch in loader]
        data.set_epoch(epoch)
        assert_same(ours, list(TorchLoader(data, BATCH)))


@pytest.mark.parametrize(("path", "workers"), PATHS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": "same"},
        {"targets": None, "out_dtype": torch.int32},
        {"mode": "random", "out_dtype": torch.int32},
        {"return_docs": True, "eos_id": 3, "vocab_size": 50},
    ],
    ids=str,
)
def test_batches_have_the_bits_of_the_cpu(path: str, workers: int, options: dict[str, Any]) -> None:
    data = buffers("uint16", **options)
    assert travels_narrow(data)
    assert_epochs(data, path, workers)


@pytest.mark.parametrize(
    ("dtype", "options", "is_narrow"),
    [
        ("uint8", {}, True),
        ("uint8", {"out_dtype": torch.int32}, True),
        ("int8", {}, True),
        ("int16", {"out_dtype": torch.int32}, True),
        ("uint32", {}, True),
        ("int32", {}, True),
        ("int32", {"out_dtype": torch.int32}, False),
        ("int64", {}, False),
        ("int64", {"vocab_size": 50_257}, True),
        ("uint16", {"out_dtype": torch.uint16}, False),
    ],
)
def test_every_type(dtype: str, options: dict[str, Any], is_narrow: bool) -> None:
    data = buffers(dtype, **options)
    assert travels_narrow(data) is is_narrow
    assert_epochs(data, "array", 2)


def test_files_of_two_types(tmp_path: Path) -> None:
    narrow, wide = some_tokens(3000), np.arange(60_000, 63_000, dtype=np.uint32)
    paths = [write_llmc(tmp_path / "a.bin", narrow), write_llmc(tmp_path / "b.bin", wide)]
    data = TokenDataset(paths, T)
    assert travels_narrow(data)
    assert_epochs(data, "array", 2)


@pytest.mark.parametrize("length", [1, 2, 3, 1023, 4096])
def test_windows_of_any_length(length: int) -> None:
    values = np.random.default_rng(1).integers(0, 65536, 50_000, np.uint16)
    data = TokenDataset.from_buffers(values, np.array([0, 50_000]), length, stride=777)
    assert_epochs(data, "array", 2)


def test_a_large_batch() -> None:
    """Threads of the kernel make many packs each."""
    values = np.random.default_rng(2).integers(0, 65536, 4_000_000, np.uint16)
    data = TokenDataset.from_buffers(values, np.array([0, 4_000_000]), 4095)
    loader = DataLoader(data, 900, num_workers=4, device="cuda")
    ((x, y), *_) = loader
    rows = torch.from_numpy(values[: 900 * 4095 + 1].astype(np.int64))
    assert torch.equal(x.cpu().flatten(), rows[:-1])
    assert torch.equal(y.cpu().flatten(), rows[1:])


def test_without_our_uploads_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", "1")
    assert_epochs(buffers("uint16"), "array", 2)


def test_the_host_never_waits(no_sync: None) -> None:
    for _ in range(2):
        for x, _ in DataLoader(buffers("uint16"), BATCH, num_workers=2, device="cuda"):
            torch.cuda._sleep(1_000_000)
            x.add_(1)


def test_late_kernels_read_their_own_batches() -> None:
    """The device is far behind, batches die at once, and their memory goes round."""
    data = buffers("uint16")
    sums = []
    for _ in range(3):
        for x, y in DataLoader(data, BATCH, num_workers=2, device="cuda"):
            torch.cuda._sleep(5_000_000)
            sums.append((x - 2 * y).sum())
            del x, y
    wanted = [(x - 2 * y).sum() for x, y in TorchLoader(data, BATCH)] * 3
    assert [s.item() for s in sums] == [w.item() for w in wanted]


def batches_of(data: TokenDataset) -> Iterator[Any]:
    return iter(DataLoader(data, BATCH, num_workers=2, device="cuda"))


def test_a_token_out_of_range_names_its_place() -> None:
    values = np.zeros(TOKENS, np.uint16)
    values[5000] = 300
    data = TokenDataset.from_buffers(values, np.array([0, TOKENS]), T, vocab_size=256)
    with pytest.raises(ValueError, match=r"token 5000 must be in .*, got 300"):
        list(batches_of(data))


def test_narrow_tokens_go_over_the_link() -> None:
    data = buffers("uint16")
    with DataLoader(data, BATCH, num_workers=2, device="cuda") as loader:
        batches = list(loader)
        sent = loader.stats().bytes
    assert sent <= len(data) * 2 * (T + 1) + 64 * len(batches)
