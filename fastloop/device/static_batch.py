"""One batch whose tensors keep their addresses, for CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch

from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.base.tensors import (
    DTYPES,
    Place,
    is_plain,
    lay_out,
    outside_inference_mode,
    place_of,
    split_buffer,
)
from fastloop.device.accelerator import Accelerator
from fastloop.device.uploader import can_move


def _describe(place: Place | None) -> str:
    if place is None:
        return "absent"
    return f"Place(dtype={DTYPES[place.dtype]}, shape={place.shape}, strides={place.strides})"


class StaticBatch:
    """Others are copied into it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._places: dict[Path, Place] | None = None
        self._buffer: torch.Tensor
        self._tensors: dict[Path, torch.Tensor] = {}
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Queued on the current stream, after all that uses the batch before."""
        accelerator = self._accelerator
        tensors = {path: leaf for path, leaf in list_leaves(batch) if self._takes(path, leaf)}
        places = {path: place_of(tensor) for path, tensor in tensors.items()}
        stream = accelerator.current_stream()
        if self._places is None:
            self._open(places)
            self._stream = stream
        elif places != self._places:
            raise ValueError(self._explain(self._places, places))
        if stream != self._stream:
            accelerator.wait_event(accelerator.record_event(self._stream))
            accelerator.record_stream(self._buffer)
            self._stream = stream
        for path, tensor in tensors.items():
            accelerator.copy(self._tensors[path], tensor)
        return map_leaves(batch, lambda path, leaf: self._tensors.get(path, leaf))

    @outside_inference_mode
    def _open(self, places: dict[Path, Place]) -> None:
        laid_out, size = lay_out([*places.values()])
        self._buffer = self._accelerator.allocate(size)
        fixed = split_buffer(self._buffer, laid_out)
        self._tensors = dict(zip(places, fixed, strict=True))
        self._places = places

    def _takes(self, path: Path, leaf: Any) -> bool:
        is_tensor = isinstance(leaf, torch.Tensor)
        if is_tensor and is_plain(leaf) and self._accelerator.holds(leaf):
            return True
        if is_tensor or can_move(leaf):
            what = f"{leaf.layout} on {leaf.device}" if is_tensor else "an object of its own"
            raise ValueError(
                f"static_buffers=True takes plain dense tensors, and {describe_path(path)} is a "
                f"{type(leaf).__name__} ({what}); make plain tensors of it in collate_fn or "
                "device_transform"
            )
        return False

    def _explain(self, before: dict[Path, Place], now: dict[Path, Place]) -> str:
        changes = [
            f"{describe_path(path)} was {_describe(before.get(path))} and is "
            f"{_describe(now.get(path))}"
            for path in {**before, **now}
            if before.get(path) != now.get(path)
        ]
        return (
            f"static_buffers=True needs batches that are all alike: {'; '.join(changes)}; pass "
            "drop_last=True if it is the last one, pad it, or leave static_buffers out"
        )
