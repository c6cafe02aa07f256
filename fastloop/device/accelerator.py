"""A device as an upload needs it: a stream for copies, events, pinned memory and device memory.

``Accelerator`` is the one place that touches torch's streams. Its calls act on the stream that is
current, as torch's do: on the user's, and inside ``copy_stream()`` on the stream for copies. None
makes the host wait, except ``synchronize()``. It is used from the thread that iterates.
"""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastloop.base.tensors import sparse_parts


def _parts(tensor: Any) -> list[torch.Tensor]:
    """The dense tensors that a tensor of any kind keeps its numbers in."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _parts(getattr(tensor, name))]
    if tensor.layout is torch.sparse_coo:
        return list(sparse_parts(tensor))
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]


@functools.cache
def _find_stream(device: torch.device) -> tuple[int, int, int]:
    """The one stream for copies to a device. Memory of torch's allocators belongs to a stream: on
    another stream an epoch would not find the memory of the epoch before."""
    stream = torch.Stream(device)
    return stream.stream_id, stream.device_index, stream.device_type


def allocate_pinned(size: int) -> torch.Tensor:
    """Memory of torch's caching host allocator, for copies to the current accelerator."""
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


class Accelerator:
    """An accelerator and its stream for copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Entering a torch.Stream is noted in the object, so each user has one.
        self._copies = torch.Stream(*_find_stream(device))
        self._pid = os.getpid()

    def copy_stream(self) -> AbstractContextManager[Any]:
        """A context in which the stream for copies, and its device, are current."""
        return self._copies

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def record_event(self, stream: torch.Stream | None = None) -> torch.Event:
        """An event after all that is queued on a stream; on the current one by default."""
        return (stream or self.current_stream()).record_event()

    def wait_event(self, event: torch.Event) -> None:
        """Work queued on the current stream from now on begins after the event."""
        self.current_stream().wait_event(event)

    def is_done(self, event: torch.Event) -> bool:
        return event.query()

    def synchronize(self, event: torch.Event) -> None:
        """SYNC: the host waits for the event."""
        if self._pid == os.getpid():
            event.synchronize()

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def allocate_pinned(self, size: int) -> torch.Tensor:
        """Bytes that are not reused before copies have read them."""
        return allocate_pinned(size)

    def allocate(self, size: int) -> torch.Tensor:
        """Bytes on the device that belong to the current stream."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def move(self, value: Any) -> Any:
        """Moves a value by its own ``to()``."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device, non_blocking=True)
        if hasattr(value, "pin_memory"):
            return value.pin_memory().to(self.device, non_blocking=True)
        return value.to(self.device)

    def record_stream(self, value: Any) -> None:
        """The memory of ``value`` is not reused before work is over that the current stream has
        when the value dies."""
        stream = self.current_stream()
        if not isinstance(value, torch.Tensor):
            value.record_stream(stream)
            return
        for part in _parts(value):
            if not part.is_cpu:
                part.record_stream(stream)

    def check(self) -> None:
        """Raises where no batch can be taken: in a forked child, and inside a capture."""
        if self._pid != os.getpid():
            torch.empty(0, device=self.device)  # raises what torch has to say about it
        module = torch.get_device_module(self.device)
        is_capturing = getattr(module, "is_current_stream_capturing", None)
        if is_capturing is None:
            return
        with module.device(self.device):  # else it is asked of the current device's stream
            is_captured = is_capturing()
        if is_captured:
            raise RuntimeError(
                "a batch was asked for while a graph is being captured; take it before the "
                "capture (static_buffers=True keeps the addresses for replays)"
            )


class HostAccelerator(Accelerator):
    """The CPU as a device: a copy is over when the call returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def current_stream(self) -> Any:
        return None

    def record_event(self, stream: Any = None) -> Any:
        return None

    def wait_event(self, event: Any) -> None:
        pass

    def move(self, value: Any) -> Any:
        return value.to(self.device)

    def record_stream(self, value: Any) -> None:
        pass

    def check(self) -> None:
        pass


def open_accelerator(device: torch.device | str | int) -> Accelerator:
    """The accelerator of a device. Raises torch's own error if there is no such device.

    Args:
        device: as torch takes it; without an index, the current one.
    """
    found = torch.empty(0, device=device).device
    if found.type == "cpu":
        return HostAccelerator(found)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or found.type != accelerator.type:
        raise ValueError(
            f"device={device!r} is neither the CPU nor an accelerator that torch can copy to; "
            "leave device out and move batches with batch.to(device)"
        )
    return Accelerator(found)
