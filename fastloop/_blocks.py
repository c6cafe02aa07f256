"""What the array path asks of torch where batches are not to stay in slots: blocks of memory, and
tensors over them.

On a device the copies are queued in C, by the threads that fill a batch; in pinned memory they
gather it in its place (docs/cuda.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fastloop import _core
from fastloop._array import torch_dtype
from fastloop._device import Link
from fastloop._route import Source
from fastloop._torch import kernels_are_disabled


class PinnedBlocks:
    """Pinned memory for one iterator's batches."""

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
        fields = []
        for offset, (dtype, row) in zip(offsets, self._rows, strict=True):
            shape = (*lead, *row)
            end = offset + math.prod(shape) * dtype.itemsize
            # Each with a version of its own: writing to one spoils no graph that saved another.
            fields.append(block[offset:end].view(dtype).view(shape).data)
        return fields


class DeviceBlocks(PinnedBlocks):
    """Memory on the device at the other end of a link."""

    def __init__(self, source: Source, link: Link) -> None:
        super().__init__(source, link.empty)
        self.index = link.device.index
        self._link = link

    def check(self) -> None:
        self._link.check()

    def split(
        self,
        block: torch.Tensor,
        offsets: tuple[int, ...],
        lead: tuple[int, ...],
        is_elsewhere: bool,
    ) -> list[torch.Tensor]:
        if is_elsewhere:
            self._link.lend(block)
        return super().split(block, offsets, lead, is_elsewhere)


def has_uploads(link: Link) -> bool:
    """Whether C can upload to the device: fastloop's CUDA half runs on it."""
    if link.device.type != "cuda" or kernels_are_disabled():
        return False
    try:
        _core.check_cuda(link.device.index)
    except RuntimeError:
        return False
    return True
