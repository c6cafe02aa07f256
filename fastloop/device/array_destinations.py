"""What the array path asks of torch where batches are not to stay in slots: blocks of memory, and
tensors over them.

On a device the copies are queued in C, by the threads that fill a batch; in pinned memory they
gather it in its place (docs/cuda.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fastloop.data.arrays import torch_dtype
from fastloop.device.accelerator import Accelerator, allocate_pinned
from fastloop.loader.route import Source

# A field so small that is so small a part of its batch gets pinned memory of its own.
_SMALL_FIELD, _SMALL_PART = 64 * 1024, 8


def is_small_part(tensor: torch.Tensor, block: torch.Tensor) -> bool:
    """Whether somebody who keeps the tensor (labels, say) should not keep the whole batch."""
    return tensor.nbytes <= _SMALL_FIELD and tensor.nbytes <= block.nbytes // _SMALL_PART


def fix_size(memory: torch.Tensor) -> torch.Tensor:
    """From now on tensors that share this CPU memory cannot be resized: torch sees to it that what
    NumPy shares stays where it is."""
    memory.numpy()
    return memory


class Blocks:
    """Memory of one iterator's batches; pinned memory, say, from where they go on."""

    index = -1  # of the device

    def __init__(self, source: Source, allocate: Callable[[int], torch.Tensor]) -> None:
        self._rows = [(torch_dtype(c), tuple(c.shape[1:])) for c in source.columns]
        self._allocate = allocate

    def check(self) -> None:
        """Raises where no batch can be taken."""

    # Tensors of a mode of inference could not be used outside of it.
    @torch.inference_mode(False)
    def new(self, size: int) -> torch.Tensor:
        """So many bytes; on a device, of the current stream."""
        return self._allocate(size)

    @torch.inference_mode(False)
    def split(
        self,
        block: torch.Tensor,
        offsets: tuple[int, ...],
        lead: tuple[int, ...],
        is_elsewhere: bool,
    ) -> list[torch.Tensor]:
        """The fields of a batch. is_elsewhere: another stream is current than was for `new`."""
        if is_elsewhere:
            self._lend(block)
        fields = []
        for offset, (dtype, row) in zip(offsets, self._rows, strict=True):
            shape = (*lead, *row)
            end = offset + math.prod(shape) * dtype.itemsize
            # Each with a version of its own: writing to one spoils no graph that saved another.
            field = block[offset:end].view(dtype).view(shape).data
            fields.append(self._give(field, block))
        return fields

    def _lend(self, block: torch.Tensor) -> None:
        """The current stream uses the block from now on."""

    def _give(self, field: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        """What the user gets of a field."""
        return field


class PinnedBlocks(Blocks):
    """Pinned memory that the user gets."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, lambda size: fix_size(allocate_pinned(size)))

    def _give(self, field: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        if not is_small_part(field, block):
            return field
        copy = self._allocate(max(field.nbytes, 1))[: field.nbytes]
        return copy.view(field.dtype).view(field.shape).copy_(field)


class DeviceBlocks(Blocks):
    """Memory on the device at the other end of a link."""

    def __init__(self, source: Source, link: Accelerator) -> None:
        super().__init__(source, link.allocate)
        self.index = link.device.index
        self._link = link

    def check(self) -> None:
        self._link.check()

    def _lend(self, block: torch.Tensor) -> None:
        self._link.record_stream(block)
