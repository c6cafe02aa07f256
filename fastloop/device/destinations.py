"""Destinations of batches that do not stay in the loader's CPU memory: an accelerator, pinned
memory that the user gets, or pinned memory on the way to an accelerator.

The core asks a destination for memory (``allocate``), copies a whole batch there, and asks once for
the batch's tensors (``split``). docs/internals/cuda.md says which thread does this and when.
``send`` moves batches that the core cannot copy as a whole, for example objects that hold tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fastloop._core import is_small_part
from fastloop.compat.tensors import Slot, extent, outside_inference_mode, split_buffer
from fastloop.compat.torch_parts import ExceptionWrapper, pin_memory
from fastloop.device.accelerator import Accelerator, allocate_pinned
from fastloop.device.upload import Uploader


class Destination:
    """Memory that `allocate` gives. One thread at a time uses a destination."""

    index = -1  # the CUDA device that the core copies to; -1: the memory is the host's
    is_on_device = False  # batches are handed out on a device
    force_contiguous = False  # tensors with gaps are copied without the gaps
    keep_aliases = True  # a tensor that is twice in a batch stays one tensor

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate

    def check(self) -> None:
        """Raise if no batch can be taken."""

    @outside_inference_mode
    def allocate(self, size: int) -> Tensor:
        """Return a buffer of `size` bytes. A buffer on a device belongs to the current stream."""
        return self._allocate(size)

    def split(self, buffer: Tensor, slots: Iterable[Slot], is_other_stream: bool) -> list[Tensor]:
        """Return the tensors of a batch. No two share a version counter.

        Args:
            buffer: holds the batch.
            slots: the tensors' offsets, shapes, strides and dtypes in the buffer.
            is_other_stream: the buffer was allocated for a stream that is not the current stream.
        """
        return split_buffer(buffer, slots)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a copy with the same strides, as torch pins."""
        begin, end = extent(tensor)
        if begin == end:
            return tensor
        copy = torch.empty(0, dtype=tensor.dtype, device="cpu")
        storage = self.allocate(end - begin).untyped_storage()
        copy.set_(storage, 0, tensor.shape, tensor.stride())
        return copy.copy_(tensor)

    def complete(self, batch: Any) -> Any:
        """Finish a batch after `split` has made its tensors."""
        return batch

    def send(self, batch: Any) -> Any:
        """Move a batch that is not in this destination's memory."""
        return batch

    def drop(self) -> None:
        """Forget copies under way. SYNC if a copy still reads the user's memory."""


class DeviceMemory(Destination):
    """Memory on an accelerator."""

    is_on_device = True
    force_contiguous = True

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__(accelerator.allocate)
        self.index = accelerator.device.index
        self._accelerator = accelerator
        self._uploader = Uploader(accelerator, None)

    def check(self) -> None:
        self._accelerator.check()

    def split(self, buffer: Tensor, slots: Iterable[Slot], is_other_stream: bool) -> list[Tensor]:
        if is_other_stream:
            self._accelerator.record_stream(buffer)
        return split_buffer(buffer, slots)

    def copy(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def send(self, batch: Any) -> Any:
        return self._uploader.hand_out(self._uploader.send(batch))

    def drop(self) -> None:
        self._uploader.finish()


def _fix_size(memory: Tensor) -> Tensor:
    """Forbid resizing of tensors in this CPU memory: torch does not move memory that NumPy
    shares."""
    memory.numpy()
    return memory


class PinnedMemory(Destination):
    """Memory of torch's caching host allocator, as in torch's own loader."""

    keep_aliases = False

    def __init__(self) -> None:
        super().__init__(lambda size: _fix_size(allocate_pinned(size)))
        accelerator: Any = torch.accelerator.current_accelerator()
        self._device: str = accelerator.type

    @outside_inference_mode
    def split(self, buffer: Tensor, slots: Iterable[Slot], is_other_stream: bool) -> list[Tensor]:
        tensors = split_buffer(buffer, slots)
        # If a program keeps a small tensor, for example the labels, the whole batch must not stay.
        return [
            self.copy(tensor) if is_small_part(tensor.nbytes, buffer.nbytes) else tensor
            for tensor in tensors
        ]

    @torch.inference_mode(False)  # as in torch's thread for pinning
    def send(self, batch: Any) -> Any:
        try:
            return pin_memory(batch, self._device)
        except Exception:
            index = torch.accelerator.current_device_index()
            thread = f"in pin memory thread for device {index}"
            error = ExceptionWrapper(where=thread)  # type: ignore[no-untyped-call]
        return error.reraise()  # type: ignore[no-untyped-call]

    # torch's function pins the rest of the batch: it passes pinned tensors on, makes containers
    # anew, and lets objects pin themselves.
    complete = send


def find_destination(
    accelerator: Accelerator | None, copies_in_c: bool, is_pinned: bool
) -> Destination | None:
    """Choose the destination of a loader's batches; None: they stay in the loader's CPU memory.

    Args:
        accelerator: the loader's device; None: the CPU.
        copies_in_c: the core copies to the accelerator. If not, batches go on from pinned memory.
        is_pinned: the user has asked for pinned memory.
    """
    if accelerator is None:
        return PinnedMemory() if is_pinned else None
    if copies_in_c:
        return DeviceMemory(accelerator)
    return Destination(accelerator.allocate_pinned) if accelerator.device.type != "cpu" else None
