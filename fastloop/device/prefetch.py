"""Batches uploaded ahead of their turn, and one batch whose tensors keep their addresses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later
from fastloop.base.nested import Path, describe_path, list_leaves, map_leaves
from fastloop.base.ranges import named
from fastloop.base.tensors import (
    DTYPES,
    Place,
    is_plain,
    lay_out,
    outside_inference_mode,
    place_of,
    split_buffer,
)
from fastloop.base.threads import NextLock
from fastloop.device.accelerator import Accelerator
from fastloop.device.uploader import Sent, Uploader, can_move


class Prefetcher(FinalizerBase):
    """Reads batches from an iterator until `depth` are on their way, then hands out the oldest."""

    def __init__(
        self,
        source: Iterator[Any],
        accelerator: Accelerator,
        depth: int,
        uploader: Uploader,
        is_static: bool,
    ) -> None:
        self._source: Any = source
        self._accelerator = accelerator
        self._depth = depth
        self._uploader = uploader
        self._static_batch = StaticBatch(accelerator) if is_static else None
        self._ahead: deque[Sent | None] = deque()  # None: read and not sent, at most the last
        self._unsent: Any = None  # that batch
        self._pending_error: list[Exception] = []  # at most one, met while reading ahead
        self._next_lock = NextLock()
        self._begin()

    def _begin(self) -> None:
        self._accelerator.check()
        self._uploader.begin()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._accelerator.check()
        with self._next_lock.of_process():
            named("prefetch", self._fill)()
            if not self._ahead:
                raise self._pending_error.pop()
            sent = self._ahead[0]
            assert sent is not None
            batch = self._uploader.hand_out(sent)
            if self._static_batch is not None:
                batch = self._static_batch.fill(batch)
            self._ahead.popleft()
            return batch

    def _fill(self) -> None:
        while True:
            if self._ahead and self._ahead[-1] is None:
                try:
                    self._ahead[-1] = named("upload", self._uploader.send)(self._unsent)
                    self._unsent = None
                except Exception:
                    if len(self._ahead) == 1:
                        raise
                    return  # tried again when it is this batch's turn: memory may be free then
            if self._pending_error or len(self._ahead) == self._depth:
                return
            self._pull()

    def _pull(self) -> None:
        try:
            self._unsent = next(self._source)
            self._ahead.append(None)
        except StopIteration:
            # Another one: the frames of a traceback would keep this iterator, and its workers,
            # where a loop is left after the last batch.
            self._pending_error.append(StopIteration())
        except Exception as error:
            self._pending_error.append(error)

    def _drop(self) -> None:
        """Drop all that was read ahead."""
        self._unsent = None
        self._ahead.clear()
        self._pending_error.clear()
        self._uploader.finish()

    def close(self) -> None:
        """End here: drop the batches that were read ahead, and release the iterable."""
        self._drop()
        self._source = iter(())

    def _finalize(self) -> None:
        if hasattr(self, "_pending_error"):
            self._drop()

    _interrupt_later = staticmethod(interrupt_later)


class StaticBatch:
    """A batch whose tensors keep their addresses, for CUDA graphs; other batches are copied into
    it."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._places: dict[Path, Place] | None = None
        self._buffer: torch.Tensor
        self._tensors: dict[Path, torch.Tensor] = {}
        self._stream: Any = None

    def fill(self, batch: Any) -> Any:
        """Queue the copy on the current stream, after all work that uses the batch before."""
        accelerator = self._accelerator
        tensors = {path: leaf for path, leaf in list_leaves(batch) if self._takes(path, leaf)}
        places = {path: place_of(tensor) for path, tensor in tensors.items()}
        stream = accelerator.current_stream()
        if self._places is None:
            self._open(places)
            self._stream = stream
        elif places != self._places:
            raise ValueError(_explain(self._places, places))
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
        if not (is_tensor or can_move(leaf)):
            return False
        kind = f"{leaf.layout} on {leaf.device}" if is_tensor else "an object of its own"
        raise ValueError(
            f"static_buffers=True takes plain dense tensors, and {describe_path(path)} is a "
            f"{type(leaf).__name__} ({kind}); make plain tensors of it in collate_fn or "
            "device_transform"
        )


def _explain(before: dict[Path, Place], now: dict[Path, Place]) -> str:
    was, are = ({path: _describe(p) for path, p in places.items()} for places in (before, now))
    changes = [
        f"{describe_path(path)} was {was.get(path, 'absent')} and is {are.get(path, 'absent')}"
        for path in {**was, **are}
        if was.get(path) != are.get(path)
    ]
    return (
        f"static_buffers=True needs batches that are all alike: {'; '.join(changes)}; pass "
        "drop_last=True if it is the last one, pad it, or leave static_buffers out"
    )


def _describe(place: Place) -> str:
    return f"Place(dtype={DTYPES[place.dtype]}, shape={place.shape}, strides={place.strides})"
