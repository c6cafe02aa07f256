"""The iterator over data that lie on a CUDA device, or in host memory that it reads: indices are
sent there, and one kernel gathers the rows of all fields of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastloop._core import ImagePlan, Region, Windows, gather, gather_images
from fastloop.base.checks import check_value
from fastloop.base.nested import list_leaves
from fastloop.base.requirements import kernels_are_disabled
from fastloop.base.torch_parts import SingleIter
from fastloop.data.field import Array
from fastloop.data.samplers import Vector
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.device.availability import find_fault
from fastloop.loader.arrays.columns import Columns, as_vector, count_from_0
from fastloop.loader.arrays.iterator import (
    Block,
    find_blocks,
    random_epoch,
    refuse_batches,
    skip_blocks,
)
from fastloop.loader.shared import LockedIter, Shared


def _fill(structure: Any, outs: Iterator[torch.Tensor]) -> Any:
    """Return a batch of this structure (``Columns.structure``)."""
    if structure is None:
        return next(outs)
    if isinstance(structure, tuple):
        return [next(outs) if part is None else _fill(part, outs) for part in structure]
    return {key: _fill(part, outs) for key, part in structure.items()}


def runs_kernels(device: torch.device | None) -> bool:
    """Tell whether kernels gather batches on a device; else torch's operations do. Warns once."""
    return not kernels_are_disabled() and not find_fault(device, "gathers batches")


def _send(numbers: Array, accelerator: Accelerator) -> torch.Tensor:
    """Copy numbers to the device; work that the current stream does later sees them."""
    there = torch.from_numpy(np.require(numbers, requirements=["C", "W"]))
    if accelerator.device.type != "cpu":
        there = there.pin_memory()
    sent: torch.Tensor = accelerator.move(there)
    return sent


# Behind the other arguments of a gather: a tuple of the regions that its sources lie in; nothing
# where these are on the device.
Regions = tuple[tuple[Region, ...], ...]


class _Images:
    """Images of one column, which a kernel moves and casts as their plan says. Parameters are drawn
    on the CPU: where pixels come from is sent as a table for each batch."""

    def __init__(
        self, plan: ImagePlan, source: torch.Tensor, regions: Regions, accelerator: Accelerator
    ) -> None:
        self._plan, self._source, self._regions = plan, source, regions
        self._accelerator = accelerator
        self._dtype = getattr(torch, plan.out_dtype)
        self._steps = math.prod(plan.out_shape), *plan.out_strides
        self.values = _send(np.frombuffer(plan.values(), np.uint8), accelerator)

    def gather(self, rows: Vector, there: torch.Tensor, length: int, epoch: int) -> torch.Tensor:
        """Return a batch; `there` is `rows` on the device."""
        plan, count = self._plan, len(rows)
        maps = np.empty((count, plan.map_length), np.int32)
        plan.map(torch.from_numpy(rows), torch.from_numpy(maps), epoch)
        shape, kind = (count, *plan.out_shape), {"dtype": self._dtype, "device": there.device}
        out = torch.empty_strided(shape, self._steps, **kind)
        sent, given = _send(maps, self._accelerator), (plan, self._source, there, length)
        gather_images(torch.Tensor, *given, sent, self.values, out, *self._regions)
        return out


class ResidentIter(SingleIter, LockedIter):
    """An iterator over batches that their device gathers. Random numbers are drawn when torch draws
    them, on the CPU. Nothing waits for the device.

    Args:
        source: columns that one device gathers.
        accelerator: where the user wants batches; None: where the data are.
    """

    is_resident = True

    def __init__(
        self,
        loader: DataLoader[Any],
        source: Columns,
        shared: Shared,
        accelerator: Accelerator | None,
    ) -> None:
        self._shared = shared
        self._begin_epoch(loader)
        super().__init__(loader)
        self._source = source
        self._tensors: tuple[Any, ...] = tuple(column.source for column in source.all)
        windows = self._tensors[0]  # of tokens: rows are then where these begin
        self._windows = windows if isinstance(windows, Windows) else None
        self._length = 0  # of the data when indices were read
        self._accelerator = open_accelerator(cast(torch.device, source.device))
        device = self._accelerator.device
        self._is_there = accelerator is not None and accelerator.device == device
        fetched = source.dataset._register(device.index or 0) if source.is_fetched else ()
        self._fetched: tuple[Region, ...] = fetched
        self._in_c = runs_kernels(device)
        # Rows that were read from the sampler, here and on the device. Batches have the first.
        self._rows_here, self._taken = np.empty(0, np.int64), 0
        with self._making():
            self._stream = self._accelerator.current_stream()
            self._rows = _send(self._rows_here, self._accelerator)
            self._images = [
                _Images(
                    cast(ImagePlan, c.plan), self._tensors[i], self._regions(i), self._accelerator
                )
                if c.plan
                else None
                for i, c in enumerate(source.all)
            ]
            self._sent = self._accelerator.record_event()  # behind the rows and tables of images
        plain = [i for i, images in enumerate(self._images) if images is None]
        self._plain = tuple(self._tensors[i] for i in plain)
        self._plain_regions = self._regions(*plain)
        self._blocks: Iterator[Block] | None = None
        blocks = find_blocks(self._index_sampler) if self._auto_collation else None
        if blocks is not None:
            self._sampler_iter = refuse_batches()
            self._blocks = chain.from_iterable(self._epoch.remaining(blocks, skip_blocks))

    @property
    def is_on_device(self) -> bool:
        # Batches that torch's fetcher makes lie where the data do.
        return self._is_there and (self._blocks is not None or not self._fetched)

    def _making(self) -> AbstractContextManager[Any]:
        """Return a context with the stream that makes batches. Reads over the link overlap with
        what the loop has queued."""
        return self._accelerator.copy_stream() if self._fetched else nullcontext()

    def _regions(self, *places: int) -> Regions:
        """Return the regions of these columns."""
        return (tuple(self._fetched[i] for i in places),) if self._fetched else ()

    def _resolve(self, rows: Vector) -> Vector:
        """Return the rows of the data for indices of the dataset."""
        for taken in reversed(self._source.maps):
            rows = taken[count_from_0(rows, len(taken))]
        length = min(map(len, self._tensors))
        is_rest = len(self._rows_here) > self._taken
        self._length = max(self._length, length) if is_rest else length
        rows = count_from_0(rows, length)
        if self._windows is not None:
            epoch = random_epoch(self._source, self._datasets)
            rows = self._windows.starts(rows, epoch).numpy()
        return np.require(rows, requirements="W")  # torch warns of others

    def _follow_stream(self) -> None:
        """Let the current stream wait for what was sent on another."""
        stream = self._accelerator.current_stream()
        if stream != self._stream:
            self._accelerator.wait_event(self._sent)
            for sent in (self._rows, *(images.values for images in self._images if images)):
                self._accelerator.record_stream(sent)
            self._stream = stream

    def _take_rows(self, blocks: Iterator[Block], count: int) -> tuple[Vector, torch.Tensor]:
        """Return the next rows, `count` or all that are left, here and on the device. Blocks are
        read when torch would."""
        read: list[Vector] = []
        end = self._taken + count
        missing = end - len(self._rows_here)
        while missing > 0 and (block := next(blocks, None)) is not None:
            if isinstance(block, tuple):
                block = torch.arange(block[0], sum(block), device="cpu")
            read.append(block.numpy())
            missing -= len(read[-1])
        if read:
            found = self._resolve(np.concatenate(read))
            sent = _send(found, self._accelerator)
            left, left_there = self._rows_here[self._taken :], self._rows[self._taken :]
            self._rows = torch.cat((left_there, sent)) if len(left) else sent
            self._rows_here = np.concatenate((left, found)) if len(left) else found
            self._sent = self._accelerator.record_event()  # behind the cat
            self._taken, end = 0, count
        batch = slice(self._taken, end)
        self._taken = end
        return self._rows_here[batch], self._rows[batch]

    def _next_data(self) -> Any:
        self._accelerator.check()
        if not self._fetched:
            return self._make()
        with self._making():
            batch = self._make()
            made = self._accelerator.record_event()
        self._accelerator.wait_event(made)
        for _, leaf in list_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                self._accelerator.record_stream(leaf)
        return batch

    def _make(self) -> Any:
        """Return the next batch, made on the current stream."""
        self._follow_stream()
        if self._blocks is None:
            indices = next(self._sampler_iter)
            vector, is_single = self._read_indices(indices)
            if vector is None or len(vector) == 0:
                return self._datasets.call(self._dataset_fetcher.fetch, indices)
            rows = self._resolve(vector)
            outs = self._gather(rows, _send(rows, self._accelerator))
            return _fill(self._source.structure, (out[0] if is_single else out for out in outs))
        sampler: Any = self._index_sampler
        rows, there = self._take_rows(self._blocks, sampler.batch_size)
        if len(rows) == 0 or (sampler.drop_last and len(rows) < sampler.batch_size):
            raise StopIteration
        return _fill(self._source.structure, iter(self._gather(rows, there)))

    def _read_indices(self, indices: Any) -> tuple[Vector | None, bool]:
        """Return what the sampler yielded as a vector, and whether it is of a single sample; None
        for what torch's fetcher takes."""
        if self._auto_collation or type(indices) is list:
            return as_vector(indices), False
        # A single row of plain tensors there is a view of them.
        is_made = self._windows is not None or any((*self._images, self._fetched))
        return (as_vector([indices]), True) if is_made and type(indices) is int else (None, False)

    def _gather(self, rows: Vector, there: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the tensors of the batch of some rows; `there` is `rows` on the device."""
        if self._windows is not None:
            given = rows, there if self._in_c else None
            made: Sequence[torch.Tensor] = self._source.dataset._gather(*given)
            return made
        if not self._in_c:
            length = min(map(len, self._plain))
            what = "the number of rows of the data"
            check_value(what, length, length >= self._length, f"at least {self._length} still")
            return [each[there] for each in self._plain]  # index_select lacks some dtypes
        count, on = len(rows), self._accelerator.device
        outs = tuple(
            torch.empty((count, *each.shape[1:]), dtype=each.dtype, device=on)
            for each in self._plain
        )
        if outs:
            gather(torch.Tensor, self._plain, there, outs, self._length, *self._plain_regions)
        if len(outs) == len(self._images):
            return outs
        epoch, copied = random_epoch(self._source, self._datasets), iter(outs)
        return [
            images.gather(rows, there, self._length, epoch) if images else next(copied)
            for images in self._images
        ]
