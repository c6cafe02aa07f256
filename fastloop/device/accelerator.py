"""A device for uploads: a stream for copies, events, pinned memory and device memory.

``Accelerator`` is the only class that touches torch's streams. As in torch, its calls act on the
current stream: the user's stream, or inside ``copy_stream()`` the stream for copies. Only
``synchronize()`` makes the host wait. The thread that iterates uses an accelerator.
"""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastloop._core import open_stream
from fastloop.base.checks import make_message
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.tensors import sparse_parts
from fastloop.device.availability import fault_of


def _parts(tensor: Any) -> list[torch.Tensor]:
    """Return the dense tensors that hold a tensor's numbers, for every layout and subclass."""
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
def _open_stream(device: torch.device) -> tuple[int, int, int]:
    """Open the process's one stream for copies to a device. Memory of torch's allocators belongs to
    a stream: with a new stream, an epoch could not reuse the memory of the epoch before. On CUDA
    the stream is fastloop's own: torch hands out its streams in turn, also to the program."""
    stream: Any
    if device.type == "cuda" and not kernels_are_disabled() and not fault_of(device):
        external: Any = torch.cuda.ExternalStream
        stream = external(open_stream(device.index), device)
    else:
        stream = torch.Stream(device)
    return stream.stream_id, stream.device_index, stream.device_type


def allocate_pinned(size: int) -> torch.Tensor:
    """Return bytes of torch's caching host allocator, for copies to the current accelerator. The
    allocator does not reuse the bytes before all copies have read them."""
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


class Accelerator:
    """An accelerator and its stream for copies.

    Attributes:
        allocated: the bytes that ``allocate()`` has returned so far, for batches to copy into.
    """

    allocated = 0  # one thread at a time allocates

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # A torch.Stream object notes that it was entered, so each accelerator has its own object.
        self._copies = torch.Stream(*_open_stream(device))
        self._pid = os.getpid()

    def copy_stream(self) -> AbstractContextManager[Any]:
        """Return a context in which the stream for copies, and its device, are current."""
        return self._copies

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self.device)

    def record_event(self, stream: torch.Stream | None = None) -> torch.Event:
        """Return an event after all work queued on a stream, by default the current stream."""
        return (stream or self.current_stream()).record_event()

    def wait_event(self, event: torch.Event) -> None:
        """Let work that is queued on the current stream from now on begin after the event."""
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

    allocate_pinned = staticmethod(allocate_pinned)

    def allocate(self, size: int) -> torch.Tensor:
        """Return bytes on the device that belong to the current stream."""
        self.allocated += size
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def move(self, value: Any) -> Any:
        """Move a value by its own ``to()``."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device, non_blocking=True)
        if hasattr(value, "pin_memory"):
            return value.pin_memory().to(self.device, non_blocking=True)
        return value.to(self.device)

    def record_stream(self, value: Any) -> None:
        """Keep the memory of ``value`` after its death, until the current stream has done the work
        queued by then."""
        stream = self.current_stream()
        if not isinstance(value, torch.Tensor):
            value.record_stream(stream)
            return
        for part in _parts(value):
            if not part.is_cpu:
                part.record_stream(stream)

    def check(self) -> None:
        """Raise if no batch can be taken: in a forked child, and inside a capture."""
        if self._pid != os.getpid():
            torch.empty(0, device=self.device)  # raises torch's own error
        module = torch.get_device_module(self.device)
        if not hasattr(module, "is_current_stream_capturing"):
            return
        with module.device(self.device):  # the function asks the current device's stream
            is_capturing = module.is_current_stream_capturing()
        if is_capturing:
            raise RuntimeError(
                "a batch was asked for while a graph is being captured; take the batch before "
                "the capture (static_buffers=True keeps addresses for replays)"
            )


class HostAccelerator(Accelerator):
    """The CPU as a device: a copy is over when the call returns, and nothing is in a stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def copy_stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def _do_nothing(self, *_: Any) -> Any: ...

    current_stream: Any = _do_nothing
    record_event: Any = _do_nothing
    wait_event: Any = _do_nothing
    record_stream: Any = _do_nothing
    check: Any = _do_nothing

    def move(self, value: Any) -> Any:
        return value.to(self.device)


def open_accelerator(device: torch.device | str | int) -> Accelerator:
    """Open a device for uploads. Raise torch's own error if there is no such device.

    Args:
        device: as torch takes a device; without an index, the current device.
    """
    opened = torch.empty(0, device=device).device
    if opened.type == "cpu":
        return HostAccelerator(opened)
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or opened.type != accelerator.type:
        remedy = "or leave device out and move batches with batch.to(device)"
        rule = "the CPU or an accelerator that torch can copy to"
        raise ValueError(make_message("device", rule, device, remedy))
    return Accelerator(opened)
