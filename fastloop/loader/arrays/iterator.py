"""The iterator of the array path: torch's base iterator over batches that C gathers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop._core import ArrayLoader, BatchPool
from fastloop.base.checks import look_up
from fastloop.base.machine import budget_of
from fastloop.base.threads import count_alone
from fastloop.compat.moves import tensors_in, watch
from fastloop.compat.ranges import named, tools
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.torch_parts import MapFetcher, pin_memory
from fastloop.data.columns import Columns
from fastloop.data.epochs import EpochDataset
from fastloop.data.samplers import ShuffleSampler
from fastloop.device.accelerator import Accelerator
from fastloop.device.destinations import Destination, find_destination
from fastloop.loader.arrays.blocks import Block, find_blocks, rest_of_block
from fastloop.loader.resume.position import LoaderEpoch, ResumableIter
from fastloop.loader.resume.ranks import blocks_after
from fastloop.loader.shared import Shared

_BLOCKS, _BATCHES, _SINGLES, _LISTS = range(4)  # what ArrayLoader.restart() is given


def random_epoch(source: Columns, datasets: Any) -> int:
    """Return the epoch of the random transforms of a dataset; `datasets` are the iterator's."""
    epoch = source.dataset._epoch if isinstance(source.dataset, EpochDataset) else None
    return (epoch and datasets.number_of(epoch)) or 0


def skip_blocks(epoch: LoaderEpoch, blocks: Iterator[Block]) -> Iterator[Block]:
    """Return the blocks of a sampler without the rows of the batches that were yielded. Draws the
    blocks that hold those now."""
    rows = epoch.skipped * epoch.sampler.batch_size
    sampler = epoch.sampler.sampler
    if epoch.state.dealt:
        return blocks_after(sampler, epoch.state.dealt, rows)
    if type(sampler) is ShuffleSampler:
        return sampler.blocks(rows)
    for block in blocks:
        count = block[1] if isinstance(block, tuple) else len(block)
        if rows < count:
            return chain((rest_of_block(block, rows),), blocks)
        rows -= count
        if rows == 0:
            break
    return blocks


# ---- the iterator


def make_batch(columns: Columns, rows: list[int]) -> Any:
    """Return the batch that C makes of these rows."""
    loader = ArrayLoader(
        table=columns.table, pool=BatchPool(columns.table.outputs), fetch=None,
        structure=columns.structure, maps=columns.maps, workers=0, prefetch=1, in_order=True,
        persistent=False, timeout=0, wrap=columns.wrap,
    )  # fmt: skip
    loader.restart(iter([rows]), _BATCHES, None, 0)
    return next(loader)


def refuse_batches() -> Iterator[Any]:
    """Stand in for the sampler's iterator where C cuts batches out of whole blocks: indices that a
    program took from it would be missing in the epoch."""
    yield from ()
    raise RuntimeError(
        "_sampler_iter of an iterator on the array path gives no batches, because the sampler is "
        "read in blocks; pass path='torch' to the loader, or use load_state_dict() to skip"
    )


def _level_of_program() -> int:
    """Return the stacklevel that names, in a warning of the caller, the line outside fastloop and
    torch."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("fastloop.", "torch.")):
        level, frame = level + 1, frame.f_back
    return level + 1


class ArrayIter(ResumableIter):
    """An iterator over batches that C gathers. Random numbers are drawn when torch draws them: the
    base seed in ``__init__``, the permutation when the first index is needed."""

    _shared: Shared
    _workers = ()  # torch's name for the worker processes
    _kept: tuple[Any, ...] = ()  # the batch that came with a warning that is an error

    def __init__(
        self,
        loader: DataLoader[Any],
        source: Columns,
        shared: Shared,
        accelerator: Accelerator | None,
        is_live: bool = False,
    ) -> None:
        """Args: is_live: read the data when gathering, changed or not; ``path="array"`` asks so."""
        self._shared = shared
        self._begin_epoch(loader)
        super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._source = source
        self._transforms_on = look_up(loader, "transforms_on", "auto")
        self._prefetch_factor = loader.prefetch_factor
        # A single worker keeps the order in torch, too; here the consumer helps it.
        self._in_order = loader.in_order or self._num_workers == 1
        self._fetches_singles = source.gives_views and self._num_workers == 0 and not is_live
        self._versions: dict[torch.Tensor, int] = {}
        if self._num_workers > 0 and not is_live:
            # Workers see changes of shared tensors; torch counts none of inference tensors.
            for tensor in tensors_in(source.table):
                if not (tensor.is_inference() or tensor.is_shared()):  # type: ignore[no-untyped-call]
                    self._versions[tensor] = tensor._version
        self._destination = self._open_destination(accelerator)
        # The budget is one of pinned memory; without workers no batch is made ahead of its use.
        is_ahead = self._destination is not None and self._num_workers > 0
        if is_ahead:
            shared.budget = budget_of(loader, shared.budget)
        self._budget = shared.budget if is_ahead else sys.maxsize
        self._pin_memory = self._pin_memory and accelerator is None
        self._open_loader()
        # torch's iterator with workers ends its __init__ with a _reset, and so asks the sampler
        # for an iterator twice; samplers that draw in __iter__ can tell.
        if self._num_workers > 0:
            self._reset(loader, first_iter=True)
        else:
            self._restart()

    def _open_destination(self, accelerator: Accelerator | None) -> Destination | None:
        """Return where batches arrive; None: in the loader's own CPU memory."""
        # Without workers a copy by C would wait for all that the loop has queued.
        if accelerator is None or self._num_workers == 0:
            return find_destination(accelerator, False, self._pin_memory)
        fields = self._source.table.outputs
        return self._shared.open_destination(accelerator, self._pin_memory, False, fields)[1]

    def _open_loader(self) -> None:
        source, destination = self._source, self._destination
        fetcher = MapFetcher(self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        if self._num_workers == 0:
            self._dataset_fetcher = fetcher  # by torch's name, for others
        device = destination.index if destination is not None else -1
        table = source.table
        if device >= 0 and self._transforms_on != "cpu":
            # Where C uploads, images stay bytes and tokens stay narrow: the device casts them.
            table = table.for_device(self._transforms_on == "device")
            watch(table)
        self._shared.place = self._name_place(device, table is not source.table)
        self._is_closed = False
        self._array_loader = ArrayLoader(
            table=table,
            pool=self._shared.memory(False, source.table.outputs, device),
            fetch=partial(self._datasets.call, fetcher.fetch),
            structure=source.structure,
            maps=source.maps,
            workers=self._num_workers,
            prefetch=self._prefetch_factor or 1,
            in_order=self._in_order,
            persistent=self._persistent_workers,
            timeout=self._timeout,
            destination=destination,
            budget=self._budget,
            wrap=source.wrap,
        )

    def _name_place(self, device: int, is_cut: bool) -> str:
        """Return where transforms run, for ``stats().why``; "" without transforms or a device."""
        if not any(column.plan for column in self._source.all):
            return ""
        if device >= 0 and is_cut:
            what = "transforms" if self._transforms_on == "device" else "the transforms' last step"
            return f"; {what} by a kernel on cuda:{device}"
        if self._transforms_on != "device":
            return "; transforms on the CPU" if device >= 0 else ""
        disabled = "FASTLOOP_DISABLE_CUDA is set" if kernels_are_disabled() else ""
        reason = self._shared.fault or disabled or "the device runs no kernel of fastloop"
        return f"; transforms on the CPU, because {reason}"

    @property
    def _random_epoch(self) -> int:
        return random_epoch(self._source, self._datasets)

    def _restart(self) -> None:
        if self._destination is not None:
            self._destination.check()
        self._array_loader.restart(*self._open_indices(), self._random_epoch)

    def _open_indices(self) -> tuple[Iterator[Any], int, Any]:
        """Return the first arguments of ``ArrayLoader.restart``."""
        sampler = self._index_sampler
        blocks = find_blocks(sampler) if self._auto_collation else None
        if blocks is not None:
            self._sampler_iter = refuse_batches()
            remaining = self._epoch.remaining(blocks, skip_blocks)
            return chain.from_iterable(remaining), _BLOCKS, sampler
        singles = _LISTS if self._fetches_singles else _SINGLES
        return self._sampler_iter, _BATCHES if self._auto_collation else singles, None

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        self._warn_of_change()  # first: as an error it must leave everything as it was
        super()._reset(loader, first_iter)
        # At the end of an epoch it closes, unless it is persistent; a forked child has none.
        is_usable = self._persistent_workers and not self._is_closed and self._array_loader.is_own()
        if not first_iter and not is_usable:
            self._open_loader()
        self._kept = ()
        self._restart()

    def _warn_of_change(self) -> None:
        """Warn if torch has counted a change in place of the data since the workers began."""
        if all(tensor._version == version for tensor, version in self._versions.items()):
            return
        self._versions = {}
        name = type(self._dataset).__name__
        changed = f"the data of the {name} were changed in place while workers loaded them"
        if not self._persistent_workers:
            self._shared.changed = changed  # process workers load the next epochs
        warnings.warn(
            f"{changed}; batches may hold old values or new ones: threads gather from the data, "
            "where worker processes would keep those of iter(). "
            "fastloop.DataLoader(path='array') asks for the present data",
            RuntimeWarning,
            stacklevel=_level_of_program(),
        )

    def _goes_on_in_child(self) -> bool:
        """Go on in a forked child where the parent's iterator stood, as torch's does without
        workers."""
        is_here = self._array_loader.is_own() or self._is_closed
        if is_here or self._num_workers > 0 or self._destination is not None:
            return False
        source, block, left, kind, batch_sampler = self._array_loader.rest()
        if block is not None:
            count = block[1] if isinstance(block, tuple) else len(block)
            source = chain((rest_of_block(block, count - left),), source)
        self._open_loader()
        self._array_loader.restart(source, kind, batch_sampler, self._random_epoch)
        return True

    def _next_data(self) -> Any:
        data = next(self._array_loader)
        return pin_memory(data) if self._pin_memory else data

    @count_alone
    def __next__(self) -> Any:
        if self._destination is not None:
            self._destination.check()
        if self._kept:
            (data,), self._kept = self._kept, ()
            self._num_yielded += 1
            return data
        try:
            if tools._is_profiler_enabled:
                data = named("next", super().__next__)()
            elif self._pin_memory:
                data = super().__next__()
            else:
                data = next(self._array_loader)
                self._num_yielded += 1
        except StopIteration:
            self._epoch.is_over = True
            raise
        except RuntimeError:
            if not self._goes_on_in_child():
                raise
            return self.__next__()
        if self._versions:
            try:
                self._warn_of_change()
            except RuntimeWarning:  # warnings are errors: the next next() gives this batch
                self._kept = (data,)
                self._num_yielded -= 1
                raise
        return data

    def close(self) -> None:
        self._is_closed, self._kept = True, ()
        self._array_loader.close()

    _shutdown_workers = close  # torch's name for it, which frameworks call
