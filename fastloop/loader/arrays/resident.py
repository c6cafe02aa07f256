"""The iterator over data on a CUDA device, or in host memory that the device reads. Indices are
sent to the device, and one kernel gathers the rows of every field of a batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import repeat
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastloop._core import Gatherer, HostRange, ImagePlan, SequenceColumn
from fastloop.base.nested import list_leaves
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.tensors import DTYPES
from fastloop.compat.torch_parts import SingleIter
from fastloop.data.columns import Column, Columns, NotCoveredError
from fastloop.data.samplers import Vector, as_vector, count_from_0
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.device.availability import fault_of, find_fault
from fastloop.loader.arrays.iterator import (
    Block,
    find_blocks,
    level_of_program,
    random_epoch,
    refuse_batches,
    skip_blocks,
)
from fastloop.loader.shared import LockedIter, Shared

_MOST_SENT = 1 << 16  # rows: an epoch's indices are sent in parts, not as one block
_MOST_IN_ARGUMENT = 640  # rows of a batch: FL_GATHER_OWN_ROWS


def _split(blocks: Iterator[Block]) -> Iterator[torch.Tensor]:
    """Yield blocks in parts that are sent at a time. A block is drawn with its first part."""
    for block in blocks:
        if isinstance(block, tuple):
            for first in range(block[0], sum(block), _MOST_SENT):
                yield torch.arange(first, min(first + _MOST_SENT, sum(block)), device="cpu")
        else:
            yield from torch.split(block, _MOST_SENT)


def _send_tensor(accelerator: Accelerator, here: torch.Tensor) -> Any:
    """Copy a tensor to the device. Later work of the current stream sees the copy."""
    return accelerator.move(here if accelerator.device.type == "cpu" else here.pin_memory())


def _send(numbers: Any, accelerator: Accelerator) -> Any:
    return _send_tensor(accelerator, torch.from_numpy(numbers))


def _new_rows(column: Column, device: torch.device, count: int) -> torch.Tensor:
    """Return a tensor for `count` rows of one column."""
    source = cast(torch.Tensor, column.source)
    return torch.empty((count, *source.shape[1:]), dtype=source.dtype, device=device)


def _new_tensor(column: Column, device: torch.device, count: int) -> torch.Tensor:
    """Return the tensor of one column in a batch of `count` rows."""
    plan = column.plan
    if not isinstance(plan, ImagePlan):
        return _new_rows(column, device, count)
    shape, steps = (count, *plan.out_shape), (math.prod(plan.out_shape), *plan.out_strides)
    return torch.empty_strided(shape, steps, dtype=getattr(torch, plan.out_dtype), device=device)


def runs_kernels(device: torch.device | None) -> bool:
    """Tell whether kernels gather batches on a device; if not, torch does. Warns once."""
    return not kernels_are_disabled() and not find_fault(device, "gathers batches")


def why_no_kernels(device: torch.device) -> str:
    return "FASTLOOP_DISABLE_CUDA" if kernels_are_disabled() else fault_of(device)


def check_resident(loader: DataLoader[Any], columns: Columns) -> None:
    """Raise NotCoveredError for a loader whose batches the device of the data does not gather."""
    where = f"the data are on {columns.device}"
    if loader.num_workers > 0:
        raise NotCoveredError(f"{where}, which gathers them with num_workers=0")
    if loader.pin_memory:
        raise NotCoveredError(f"{where}, and pin_memory is for data in host memory")
    has_sequences = any(isinstance(column.source, SequenceColumn) for column in columns.all)
    needs_kernels = has_sequences or any(column.plan for column in columns.all)
    if needs_kernels and not runs_kernels(columns.device):
        what = "sequences" if has_sequences else "a transform"
        raise NotCoveredError(f"{where}, which runs no kernel of {what}")


class ResidentIter(SingleIter, LockedIter):
    """An iterator over batches that their device gathers. Random numbers are drawn on the CPU, when
    torch would draw them. Nothing waits for the device.

    Args:
        columns: the columns, which one device gathers.
        accelerator: the device that the user wants batches on; None: the device of the data.
    """

    is_resident = True
    # For data in host memory, until a warning: the ranges that the device reads; the count of
    # fences and the versions of the data at the last take.
    _host_ranges: Sequence[HostRange] = ()
    _noted: tuple[int, list[int]] | None = None

    def __init__(
        self,
        loader: DataLoader[Any],
        columns: Columns,
        shared: Shared,
        accelerator: Accelerator | None,
    ) -> None:
        self._shared = shared
        self._begin_epoch(loader)
        super().__init__(loader)
        self._columns = columns
        self._tensors: tuple[Any, ...] = tuple(column.source for column in columns.all)
        self._kernel = columns.all[0].kernel
        self._accelerator = open_accelerator(cast(torch.device, columns.device))
        device = self._accelerator.device
        self._is_there = accelerator is not None and accelerator.device == device
        self._in_c = runs_kernels(device)
        # Rows that were read from the sampler, on the host and on the device. Batches have taken
        # the first `_taken` rows.
        self._rows_here, self._taken = np.empty(0, np.int64), 0
        self._length = 0  # the length of the data when the rows were read
        with self._making():
            self._stream: Any = self._accelerator.current_stream()
            self._gatherer = self._open_gatherer(device)
            self._rows = _send(self._rows_here, self._accelerator)
            self._sent = self._accelerator.record_event()  # after the rows and tables of images
        self._blocks: Iterator[torch.Tensor] | None = None
        blocks = find_blocks(self._index_sampler) if self._auto_collation else None
        if blocks is not None:
            self._sampler_iter = refuse_batches()
            self._blocks = _split(self._epoch.remaining(blocks, skip_blocks))

    def _open_gatherer(self, device: torch.device) -> Gatherer:
        columns, index = self._columns, device.index or 0
        fields = [each for each in columns.all if not isinstance(each.source, SequenceColumn)]
        self._has_sequences = len(fields) < len(self._tensors)

        # Rows in host memory are staged on the device before a kernel makes images of them.
        staged = [each for each in fields if each.plan] if columns.register is not None else []

        def make(count: int) -> list[torch.Tensor]:
            results = [_new_tensor(column, device, count) for column in fields]
            return results + [_new_rows(column, device, count) for column in staged]

        host_ranges: Any = repeat(None)
        if columns.register is not None:
            host_ranges = self._host_ranges = columns.register(index)
        self._plans: list[Any] = [column.plan for column in fields if column.plan]
        tables = [np.frombuffer(plan.values(), np.uint8) for plan in self._plans]
        self._tables = [_send(table, self._accelerator) for table in tables]
        pairs = zip(self._plans, self._tables, strict=True)
        given = (
            (column.source, host_range, column.plan and next(pairs))
            for column, host_range in zip(fields, host_ranges, strict=False)
        )
        sources: Any = tuple(
            each if isinstance(each, SequenceColumn) else next(given) for each in self._tensors
        )
        new: Callable[[int], list[torch.Tensor]] = make
        if self._kernel is not None:
            new, sources = self._kernel.new, (self._kernel.source,)

        # Maps of staged images say in two more numbers which rows of the image are read.
        lengths = [plan.map_length + (2 if staged else 0) for plan in self._plans]

        def new_maps(count: int) -> list[torch.Tensor]:
            how: Any = {"dtype": torch.int32, "device": device}
            maps = [torch.empty((count, length), **how) for length in lengths]
            return [*maps, torch.empty(count, dtype=torch.int64, device=device)]

        memory = (new if self._in_c else None, torch.empty_like, new_maps)
        empties = {
            number: partial(torch.empty, dtype=dtype, device=device)
            for number, dtype in DTYPES.items()
        }
        sequences = (partial(_send_tensor, self._accelerator), empties)
        return Gatherer(torch.Tensor, memory, columns.structure, sources, index, sequences)

    @property
    def is_on_device(self) -> bool:
        # Batches that torch's fetcher makes are on the device of the data.
        return self._is_there and (self._blocks is not None or self._columns.register is None)

    def _making(self) -> AbstractContextManager[Any]:
        """Return a context with the stream that makes batches. Reads of host memory overlap with
        the work that the loop has queued."""
        return self._accelerator.copy_stream() if self._columns.register else nullcontext()

    def _resolve(self, rows: Vector) -> Vector:
        """Return the rows of the data for indices of the dataset."""
        for taken in reversed(self._columns.maps):
            rows = taken[count_from_0(rows, len(taken))]
        length = min(map(len, self._tensors))
        is_rest = len(self._rows_here) > self._taken
        self._length = max(self._length, length) if is_rest else length
        rows = count_from_0(rows, length)
        if self._kernel is not None:
            rows = self._kernel.find(rows, random_epoch(self._columns.dataset, self._datasets))
        return np.require(rows, requirements="W")  # torch warns of arrays that are not writable

    def _find_stream(self) -> Any:
        """Return the current stream. Raises if no batch can be taken."""
        stream: Any = self._gatherer.stream()  # a handle, so the first batch also waits
        if stream is None:
            self._accelerator.check()
            stream = self._accelerator.current_stream()
        return stream

    def _follow_stream(self) -> None:
        """Let the current stream wait for the rows sent on an earlier stream. Raises if no batch
        can be taken."""
        stream = self._find_stream()
        if stream != self._stream:
            self._accelerator.wait_event(self._sent)
            for sent in (self._rows, *self._tables):
                self._accelerator.record_stream(sent)
            self._stream = stream

    def _set_rows(self, here: Vector, there: torch.Tensor | None, taken: int = 0) -> None:
        """Set the rows of the next batches; there: None if they travel in a kernel's argument."""
        self._rows_here, self._taken = here, taken
        self._rows = self._rows if there is None else there
        self._passes_rows = self._has_sequences or there is None
        self._gatherer.set_rows(there, self._length)

    def _fits_argument(self, rows: Vector) -> bool:
        is_made = self._in_c and self._kernel is None
        return is_made and len(rows) <= _MOST_IN_ARGUMENT and self._length < 1 << 31

    def _read_blocks(self, blocks: Iterator[torch.Tensor], count: int) -> None:
        """Read blocks, when torch would, until `count` rows remain or every block is read."""
        left, left_there = self._rows_here[self._taken :], self._rows[self._taken :]
        read: list[Vector] = []
        missing = count - len(left)
        while missing > 0 and (block := next(blocks, None)) is not None:
            read.append(block.numpy())
            missing -= len(read[-1])
        if read:
            found = self._resolve(np.concatenate(read))
            sent = _send(found, self._accelerator)
            if len(left):
                found, sent = np.concatenate((left, found)), torch.cat((left_there, sent))
            self._set_rows(found, sent)
            self._sent = self._accelerator.record_event()  # after torch.cat

    def _next_data(self) -> Any:
        if self._columns.register is None:
            return self._make()
        self._find_stream()
        if self._host_ranges:
            self._warn_of_change()
        with self._making():
            batch = self._make()
            made = self._accelerator.record_event()
        self._accelerator.wait_event(made)
        for _, leaf in list_leaves(batch):
            if isinstance(leaf, torch.Tensor):
                self._accelerator.record_stream(leaf)
        return batch

    def _warn_of_change(self) -> None:
        """Warn if the data changed in place while the device may have read them: since the last
        take, without a fence."""
        versions = [each._version for each in self._tensors if not each.is_inference()]
        fences = sum(host_range.fences for host_range in self._host_ranges)
        before, self._noted = self._noted, (fences, versions)
        if before is None or before[1] == versions or before[0] != fences:
            return
        self._host_ranges = ()
        warnings.warn(
            f"the data of the {type(self._dataset).__name__} were changed in place after batches "
            "were taken; the batches may hold old values or new ones, because the device reads the "
            "rows later (gather='device'): call fence() of the ArrayDataset before you change the "
            "data, or leave gather out",
            RuntimeWarning,
            stacklevel=level_of_program(),
        )

    def _make(self) -> Any:
        """Return the next batch, made on the current stream."""
        self._follow_stream()
        if self._blocks is None:
            indices = next(self._sampler_iter)
            vector, is_single = self._read_indices(indices)
            if vector is None or len(vector) == 0:
                return self._datasets.call(self._dataset_fetcher.fetch, indices)
            rows = self._resolve(vector)
            is_sent = not self._fits_argument(rows)
            self._set_rows(rows, _send(rows, self._accelerator) if is_sent else None, len(rows))
            return self._gather(0, len(rows), is_single)
        sampler: Any = self._index_sampler
        size, first = sampler.batch_size, self._taken
        if len(self._rows_here) - first < size:
            self._read_blocks(self._blocks, size)
            first = self._taken
        count = min(size, len(self._rows_here) - first)
        self._taken = first + count
        if count == 0 or (sampler.drop_last and count < size):
            raise StopIteration
        return self._gather(first, count, False)

    def _read_indices(self, indices: Any) -> tuple[Vector | None, bool]:
        """Return the item of the sampler as a vector, and whether it means a single sample. The
        vector is None if torch's fetcher makes the batch."""
        if self._auto_collation or type(indices) is list:
            return as_vector(indices), False
        # torch makes a single row of plain tensors on the device, as a view of the data.
        is_made = self._kernel or self._plans or self._columns.register
        return (as_vector([indices]), True) if is_made and type(indices) is int else (None, False)

    def _gather(self, first: int, count: int, is_single: bool) -> Any:
        """Return the batch of `count` rows that were read, from the row `first` on."""
        if self._kernel is not None and not self._in_c:
            made = self._kernel.gather(self._rows_here[first : first + count])
            return self._gatherer.arrange(made, is_single)
        epoch = random_epoch(self._columns.dataset, self._datasets) if self._plans else 0
        rows = self._rows_here[first : first + count] if self._passes_rows else None
        return self._gatherer.take(first, count, epoch, is_single, rows)
