"""Trials of windows of tokens that go to a device, in a process of their own:
`python token_trials.py core.so trial`."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from upload_device import Device, FakeAccelerator, expect, fake
from upload_trials import each_way

from fastloop import DataLoader, TokenDataset
from fastloop.loader.route import fast_iterator


def token_loader(data: Any, workers: int, device: Device) -> tuple[Any, Any]:
    """A loader of batches of four windows, and an iterator for the device."""
    device.use(device.new_stream())
    accelerator: Any = FakeAccelerator(device)
    loader: Any = DataLoader(data, 4, num_workers=workers)
    iterator: Any = fast_iterator(loader, "array", loader._shared, accelerator)
    loader._shared.position.begin(iterator)
    return loader, iterator


def tokens_from_end_to_end() -> None:
    """Each batch is what the dataset makes of its rows; in place of x and y one row of narrow
    tokens was copied, where they are narrower."""
    # dtype of the tokens, options, and bytes of a row that travels; None: x and y travel.
    cases: list[tuple[str, dict[str, Any], int | None]] = [
        ("uint16", {}, 2 * 34),
        ("uint16", {"targets": "same"}, 2 * 33),
        ("uint16", {"targets": None, "out_dtype": torch.int32}, 2 * 33),
        ("uint16", {"return_docs": True, "eos_id": 3}, 2 * 34),
        ("uint8", {"out_dtype": torch.int32, "mode": "random"}, 34),
        ("int16", {"out_dtype": torch.int32}, 2 * 34),
        ("int8", {}, 34),
        ("uint32", {"out_dtype": torch.int32}, None),
        ("uint32", {}, 4 * 34),
        ("int32", {"vocab_size": 200}, 34),
        ("int64", {}, None),
        ("int64", {"vocab_size": 50_000}, 2 * 34),
        ("uint8", {"out_dtype": torch.uint16}, None),
    ]
    for dtype, options, row_bytes in cases:
        limits = np.iinfo(dtype)
        is_limited = "vocab_size" in options
        low, high = (0, 199) if is_limited else (limits.min, min(limits.max, 2**31 - 1))
        values = np.random.default_rng(0).integers(low, high, 1500, dtype, endpoint=True)
        data = TokenDataset.from_buffers(values, np.array([0, 1500]), 33, seed=1, **options)
        count, tensors = len(data), 1 if options.get("targets", "shift") is None else 2
        for workers, _ in each_way():
            if workers == 0:
                continue
            device = Device(1)
            loader, iterator = token_loader(data, workers, device)
            data.set_epoch(0)
            sent = 0
            for k, batch in enumerate(iterator):
                rows = range(4 * k, min(4 * k + 4, count))
                wanted = torch.utils.data.default_collate([data[i] for i in rows])
                pairs = zip(in_order(batch), in_order(wanted), strict=True)
                for i, (tensor, expected) in enumerate(pairs):
                    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
                    held = expected.numpy().tobytes()
                    fake.fake_launch_compare(device.stream, tensor.data_ptr(), held, len(held))
                    sent += padded(len(held)) if i >= tensors or row_bytes is None else 0
                sent += padded(len(rows) * (row_bytes or 0))
            assert k == (count - 1) // 4
            device.synchronize()
            assert loader.stats().bytes == sent, (dtype, options, loader.stats().bytes, sent)
            del iterator, batch, tensor
            loader.close()
            del loader
            device.close()


def padded(count: int) -> int:
    """Of a slot, for a tensor of so many bytes."""
    return -(-count // 64) * 64


def in_order(batch: Any) -> list[Any]:
    """Of a batch of windows its tensors."""
    if isinstance(batch, dict):
        return list(batch.values())
    return [batch] if isinstance(batch, torch.Tensor) else list(batch)


def tokens_that_cannot_be_had() -> None:
    """A token out of range, and a file that is cut, are errors of the batch, as on the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.bin")
        tokens = np.arange(1, 1501, dtype=np.uint16)
        for io, spoil, kind, text in (
            ("pread", 40, ValueError, "token 1400 must be in [0, 1400], got 1401"),
            ("mmap", 40, ValueError, "token 1400 must be in [0, 1400], got 1401"),
            ("pread", 2000, OSError, "byte 2000 cannot be read: the file has become shorter"),
            ("mmap", 2000, OSError, "byte 2000 cannot be read: the file has become shorter"),
        ):
            for workers, _ in each_way():
                if workers == 0:
                    continue
                tokens.tofile(path)
                vocab = 1401 if kind is ValueError else None
                data = TokenDataset(path, 33, dtype="uint16", io=io, vocab_size=vocab)
                if kind is OSError:
                    os.truncate(path, spoil)
                device = Device(1)
                loader, iterator = token_loader(data, workers, device)
                for _ in range(2):
                    device_batch = next(iterator)
                expect(kind, text, lambda iterator=iterator: list(iterator))
                device.synchronize()
                del iterator, device_batch
                loader.close()
                del loader
                device.close()


if __name__ == "__main__":
    globals()[sys.argv[2]]()
