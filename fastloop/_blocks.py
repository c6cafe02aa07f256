"""What the array path's uploads ask of torch: blocks of device memory, and tensors over them.

The copies are queued in C, by the threads that fill a batch (docs/cuda.md).
"""

from __future__ import annotations

import math

import torch

from fastloop import _core
from fastloop._array import torch_dtype
from fastloop._device import Link
from fastloop._route import Source
from fastloop._torch import kernels_are_disabled


class Blocks:
    """Device memory of one iterator's batches."""

    def __init__(self, link: Link, source: Source) -> None:
        self.index = link.device.index
        self._rows = [(torch_dtype(c), tuple(c.shape[1:])) for c in source.columns]
        self._link = link
        self.check = link.check  # raises where no batch can be taken

    def new(self, size: int) -> torch.Tensor:
        """So many bytes, which belong to the current stream."""
        return self._link.empty(size)

    def split(
        self,
        block: torch.Tensor,
        offsets: tuple[int, ...],
        lead: tuple[int, ...],
        is_elsewhere: bool,
    ) -> list[torch.Tensor]:
        """The fields of a batch. is_elsewhere: another stream is current than was for `new`."""
        if is_elsewhere:
            self._link.lend(block)
        fields = []
        for offset, (dtype, row) in zip(offsets, self._rows, strict=True):
            shape = (*lead, *row)
            end = offset + math.prod(shape) * dtype.itemsize
            # Each with a version of its own: writing to one spoils no graph that saved another.
            fields.append(block[offset:end].view(dtype).view(shape).data)
        return fields


def has_uploads(link: Link) -> bool:
    """Whether C can upload to the device: fastloop's CUDA half runs on it."""
    if link.device.type != "cuda" or kernels_are_disabled():
        return False
    try:
        _core.check_cuda(link.device.index)
    except RuntimeError:
        return False
    return True
