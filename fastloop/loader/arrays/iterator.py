"""The array path: the columns of one loader and their table, torch's samplers as blocks of indices,
and torch's base iterator over batches that threads gather from the table.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate, chain, count, filterfalse, tee
from operator import itemgetter, methodcaller
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader

from fastloop._core import ArrayLoader, BatchPool, ImagePlan, SequenceColumn, Table
from fastloop.base.checks import look_up
from fastloop.base.threads import count_alone
from fastloop.compat import torch_parts
from fastloop.compat.moves import tensors_in, watch
from fastloop.compat.ranges import named, tools
from fastloop.compat.torch_parts import MapFetcher, Methods, difference, pin_memory
from fastloop.data.columns import (
    Column,
    Columns,
    NotCoveredError,
    Request,
    below_subsets,
    columns_of,
    find_collate,
    gathers,
    is_default_collate,
    rows_of,
)
from fastloop.data.epochs import IteratorEpochs
from fastloop.data.samplers import ORDERS, ShuffleSampler, as_vector, distributed_order, permutation
from fastloop.loader.resume.epoch import LoaderEpoch, ResumableIter, blocks_after
from fastloop.loader.shared import Shared

_BLOCKS, _BATCHES, _SINGLES, _LISTS = range(4)  # the kinds of indices for ArrayLoader.restart()


# ---- the columns of one loader

_LONGEST = 2**31 - 1  # the bytes of the longest row that a device gathers


def _columns_of_batches(dataset: Any, request: Request) -> tuple[Columns, str]:
    """Return the columns of the batches that the collate function makes, and its name."""
    collate_fn, default = request.collate_fn, torch_parts.default_collate
    is_default = collate_fn is (default if request.is_batched else torch_parts.default_convert)
    answer = None if is_default or not request.is_batched else find_collate(collate_fn)
    # PadCollate and PackCollate use torch's default collate for fields without sequences.
    is_torchs = is_default_collate(default) or not request.is_batched
    if not (is_torchs and (is_default or answer is not None)):
        why = "collate_fn is not torch's default, or its registry was extended"
        raise NotCoveredError(difference("collate") or why)
    if answer is None:
        return columns_of(dataset, request), "default collate"
    if "__getitems__" in look_up(dataset, "__dict__", ()):
        raise NotCoveredError(f"a {type(dataset).__name__} has a __getitems__ of its own")
    name = look_up(collate_fn, "__name__", type(collate_fn).__name__)
    return answer(collate_fn, dataset, request), name


def open_columns(dataset: Any, request: Request, pin_storages: bool) -> Columns:
    """Return the columns of a loader's dataset with their table. Raises NotCoveredError.

    Args:
        dataset: any dataset.
        pin_storages: threads will read ahead, so storages of tensors are marked as not resizable.
    """
    name = type(dataset).__name__
    dataset, subsets = below_subsets(dataset)
    maps = tuple(map(rows_of, subsets))
    try:
        columns, how = _columns_of_batches(dataset, request)
        columns.dataset = dataset
        if not (request.is_batched or request.is_asked):
            for column in columns.all:
                if column.has_gaps:
                    what = f"single samples of {column.name} have strides, which torch keeps"
                    raise NotCoveredError(what)
        if columns.device is None and (device := _find_device(columns)) is not None:
            columns.device, columns.kind = device, f"tensors on {device}"
        columns.why = f"{name} of {columns.kind}, {how}{columns.note}"
        if columns.device is None:
            fields = tuple(map(methodcaller("for_table", pin_storages), columns.all))
            columns.table = Table(torch.Tensor, fields)
            watch(columns.table)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    if columns.original is not None:
        columns.original.check(columns)
    if columns.within is not None and not _are_within(columns.within, dataset, request, subsets):
        raise NotCoveredError("an index may be no plain int, negative, or beyond the dataset")
    columns.maps += maps
    return columns


def _are_within(length: int, dataset: Any, request: Request, subsets: list[Any]) -> bool:
    """Tell whether all indices that reach a dataset of this length are ints in [0, length)."""
    sampler: Any = request.sampler
    given = subsets[0].indices if subsets else look_up(sampler, "indices")
    if given is None and type(sampler) is torch_data.WeightedRandomSampler:
        return len(sampler.weights) <= length
    if given is None:
        return any(look_up(sampler, name) is dataset for name in ("data_source", "dataset"))
    is_vector = type(given) is np.ndarray and given.dtype == np.int64
    is_list = type(given) in (list, tuple) and {int} >= set(map(type, given))
    rows = as_vector(given) if is_vector or is_list or type(given) is range else None
    if rows is None or len(rows) == 0:
        return rows is not None
    return int(rows.min()) >= 0 and int(rows.max()) < length


def _find_device(columns: Columns) -> torch.device | None:
    """Return the device that holds the data; None: host memory. Raises NotCoveredError."""
    found: dict[torch.device, str] = {}  # each device with the name of its first column
    for column in columns.all:
        source, device = column.source, torch.device("cpu")
        if isinstance(source, tuple):
            for array, _, _ in source:
                if isinstance(array, torch.Tensor) and gathers(array.device):
                    raise NotCoveredError(
                        f"{column.name} is on {array.device}, within a combined dataset"
                    )
        values = source.sources[0] if isinstance(source, SequenceColumn) else source
        if isinstance(values, torch.Tensor):
            device = values.device
        found.setdefault(device, column.name)
    resident = list(filter(gathers, found))
    if not resident:
        return None
    on = resident[0]
    if len(found) > 1:
        names = ", ".join(f"{name} is on {device}" for device, name in found.items())
        raise NotCoveredError(f"the data lie on several devices: {names}")
    for column in columns.all:
        if fault := _why_not_gathered(column):
            raise NotCoveredError(f"{column.name} is on {on}, and {fault}")
    return on


def _why_not_gathered(column: Column) -> str:
    """Return why a device does not gather the rows of a column in its memory, or ""."""
    source: Any = column.source
    plan, is_sequence = column.plan, isinstance(source, SequenceColumn)
    row = (source.sources[0] if is_sequence else source)[:1]
    if plan is not None and not (isinstance(plan, ImagePlan) and plan.map_length > 0):
        return "its transform computes pixels"
    if not row.is_contiguous():
        return "its rows are not contiguous"
    if row.nbytes > _LONGEST:
        return f"a row takes {row.nbytes:,} bytes"
    if is_sequence and row.itemsize > 8:
        return f"its sequences are of {row.dtype}"
    return ""


# ---- torch's samplers as blocks of int64 indices: the same numbers, drawn at the same moments

# A block is a tensor or, for consecutive indices, a pair (first, count). A block is drawn when the
# first batch that needs the block is asked for: torch's samplers are generators and draw then.
Block = torch.Tensor | tuple[int, int]


def _sequential(sampler: Any) -> Iterator[Block]:
    yield 0, len(sampler.data_source)


def _random(sampler: Any) -> Iterator[Block]:
    n = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Block:
        how: Any = {"dtype": torch.int64, "generator": generator}
        return torch.randint(high=n, size=(count,), **how).cpu()

    # The length of the dataset may change within an epoch, and is asked when torch asks.
    if sampler.replacement:
        yield from (draw(32) for _ in range(sampler.num_samples // 32))
        yield draw(sampler.num_samples % 32)
        return
    yield from (permutation(n, generator) for _ in range(sampler.num_samples // n))
    yield permutation(n, generator)[: sampler.num_samples % n]


def _subset(sampler: Any) -> Iterator[Block]:
    indices = torch.from_numpy(as_vector(sampler.indices))
    yield indices[permutation(len(indices), sampler.generator)]


def _weighted(sampler: Any) -> Iterator[Block]:
    how = sampler.weights, sampler.num_samples, sampler.replacement
    yield torch.multinomial(*how, generator=sampler.generator).cpu()


def _distributed(sampler: Any) -> Iterator[Block]:
    indices, total = distributed_order(sampler), sampler.total_size
    n = len(indices)
    if not sampler.drop_last:
        indices = indices.repeat(max(1, math.ceil(total / max(1, n))))
    if sampler.drop_last or n <= total:
        indices = indices[:total]
    if (count := len(indices)) != total:
        raise AssertionError(f"Number of indices ({count}) does not match total_size ({total})")
    yield indices[sampler.rank : total : sampler.num_replicas].contiguous()


_MAKERS: dict[type, Callable[[Any], Iterator[Block]]] = {
    torch_data.SequentialSampler: _sequential,
    torch_data.RandomSampler: _random,
    torch_data.SubsetRandomSampler: _subset,
    torch_data.WeightedRandomSampler: _weighted,
    torch_data.DistributedSampler: _distributed,
    **dict.fromkeys(ORDERS, ShuffleSampler.blocks),
}
_ITERS = Methods(*((cls, "__iter__") for cls in (torch_data.BatchSampler, *_MAKERS)))


def yields_ints(sampler: Any) -> bool:
    """Tell whether fastloop knows a sampler's exact type and the sampler yields integers only."""
    has_indices = type(sampler) is torch_data.SubsetRandomSampler
    return type(sampler) in _MAKERS and not (has_indices and as_vector(sampler.indices) is None)


def find_blocks(index_sampler: Any) -> Iterator[Block] | None:
    """Return the blocks of a plain ``BatchSampler`` over a sampler that fastloop knows.

    None for any other sampler, which is then iterated in Python. Nothing is drawn before the first
    block.
    """
    if type(index_sampler) is not torch_data.BatchSampler or _ITERS.find_replaced():
        return None
    sampler = index_sampler.sampler
    return _MAKERS[type(sampler)](sampler) if yields_ints(sampler) else None


def within(datasets: IteratorEpochs, blocks: Iterator[Block]) -> Iterator[Block]:
    """Return blocks that are drawn in these epochs: the length of a dataset may differ between
    epochs."""
    return iter(partial(datasets.call, next, blocks, None), None)


def rest_of_block(block: Block, rows: int) -> Block:
    """Return a block without its first rows."""
    if isinstance(block, tuple):
        first, count = block
        return first + rows, count - rows
    return block[rows:]


def random_epoch(dataset: Any, datasets: IteratorEpochs) -> int:
    """Return the epoch of a dataset's random numbers. `datasets` has the epochs of the iterator."""
    return datasets.number_for(dataset) if datasets.epochs else 0


def skip_blocks(epoch: LoaderEpoch, blocks: Iterator[Block]) -> Iterator[Block]:
    """Return the blocks of a sampler without the rows of the batches that were yielded. The blocks
    that hold only those rows are drawn now."""
    rows = epoch.skipped * epoch.sampler.batch_size
    sampler = epoch.sampler.sampler
    if epoch.state.dealt:
        return blocks_after(sampler, epoch.state.dealt, rows)
    if type(sampler) in ORDERS:
        rest: Iterator[Block] = sampler.blocks(rows)
        return rest
    for block in blocks:
        count = block[1] if isinstance(block, tuple) else len(block)
        if rows < count:
            return chain((rest_of_block(block, rows),), blocks)
        rows -= count
        if rows == 0:
            break
    return blocks


# ---- the iterator


class ArrayConfig(NamedTuple):
    """The way an ArrayLoader makes batches of a table. The core reads the fields in this order.

    Attributes:
        structure: the containers around the outputs of a batch; see ``Columns``.
        maps: int64 vectors of nested subsets, innermost first.
        fetch: called with an item of the sampler that does not consist of plain integers, and with
            an index out of bounds, for which it raises the dataset's error. None: fastloop raises
            an IndexError.
        wrap: called with a batch; returns the batch that is handed out.
        timeout: seconds that ``next()`` may wait; 0: no limit.
        budget: bytes of pinned memory that batches may take before they are handed out; a single
            batch may always be larger.
    """

    structure: Any
    maps: tuple[Any, ...] = ()
    fetch: Callable[[Any], Any] | None = None
    wrap: Callable[[Any], Any] | None = None
    workers: int = 0
    prefetch: int = 1
    in_order: bool = True
    persistent: bool = False
    timeout: float = 0
    destination: Any = None
    budget: int = sys.maxsize


def make_batch(columns: Columns, rows: list[int]) -> Any:
    """Return the batch that the core makes of these rows."""
    config = ArrayConfig(columns.structure, columns.maps, wrap=columns.wrap)
    loader = ArrayLoader(columns.table, BatchPool(columns.table.outputs), config)
    loader.restart(iter([rows]), _BATCHES, None, 0)
    return next(loader)


def refuse_batches() -> Iterator[Any]:
    """Stand in for the sampler's iterator if the core takes batches from whole blocks. Indices that
    a program took from the sampler's iterator would be missing in the epoch."""
    yield from ()
    raise RuntimeError(
        "_sampler_iter of an iterator on the array path gives no batches, because the sampler is "
        "read in blocks; pass path='torch' to the loader, or use load_state_dict() to skip"
    )


def level_of_program() -> int:
    """Return the stacklevel for a warning of the caller that names the line of the program, outside
    fastloop and torch."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("fastloop.", "torch.")):
        level, frame = level + 1, frame.f_back
    return level + 1


class ArrayIter(ResumableIter):
    """An iterator over batches that threads gather. Random numbers are drawn when torch draws them:
    the base seed in ``__init__``, the permutation when the first index is needed."""

    _shared: Shared
    _workers = ()  # torch's name for the worker processes
    _make_loader: Any = ArrayLoader
    # A batch that next() did not return, because its warning was raised as an error.
    _kept: tuple[Any, ...] = ()

    def __init__(
        self,
        loader: DataLoader[Any],
        columns: Columns,
        shared: Shared,
        accelerator: Any,
        is_live: bool = False,
    ) -> None:
        """Args: is_live: read the data when gathering, even if changed, for ``path="array"``."""
        self._shared = shared
        self._begin_epoch(loader)
        super().__init__(loader)
        if self._num_workers == 0 and self._timeout != 0:
            raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
        self._columns = columns
        self._transforms_on = look_up(loader, "transforms_on", "auto")
        self._prefetch_factor = loader.prefetch_factor
        # In torch a single worker keeps the order as well; here the loop's thread helps the worker.
        self._in_order = loader.in_order or self._num_workers == 1
        self._fetches_singles = columns.gives_views and self._num_workers == 0 and not is_live
        self._versions: dict[torch.Tensor, int] = {}
        if self._num_workers > 0 and not is_live:
            # Processes would see changes of shared tensors; torch counts no changes of inference
            # tensors.
            for tensor in tensors_in(columns.table):
                if not (tensor.is_inference() or tensor.is_shared()):  # type: ignore[no-untyped-call]
                    self._versions[tensor] = tensor._version
        self._budget = sys.maxsize
        if accelerator is not None or self._pin_memory:
            self._destination = shared.open_array_destination(
                accelerator, self._pin_memory, self._num_workers, columns.table.outputs
            )
            # The budget is for pinned memory. Without workers no batch is made before its use.
            if self._destination is not None and self._num_workers > 0:
                self._budget = shared.read_budget(loader)
        self._pin_memory = self._pin_memory and accelerator is None
        self._open_array_loader()
        # torch's iterator with workers ends its __init__ with a _reset, and so asks the sampler
        # for an iterator twice; a sampler that draws in __iter__ draws twice.
        if self._num_workers > 0:
            self._reset(loader, first_iter=True)
        else:
            self._restart()

    def _open_array_loader(self) -> None:
        columns, destination = self._columns, self._destination
        fetcher = MapFetcher(self._dataset, self._auto_collation, self._collate_fn, self._drop_last)
        if self._num_workers == 0:
            self._dataset_fetcher = fetcher  # torch's name, which other programs read
        device = destination.index if destination is not None else -1
        table = columns.table
        if device >= 0 and self._transforms_on != "cpu":
            # Until the upload images stay uint8 and tokens stay narrow: the device casts them.
            table = table.for_device(self._transforms_on == "device")
            watch(table)
        self._shared.transforms_run = device, table is not columns.table, self._transforms_on
        self._is_closed = False
        config = ArrayConfig(
            columns.structure,
            columns.maps,
            fetch=partial(self._datasets.call, fetcher.fetch),
            wrap=columns.wrap,
            workers=self._num_workers,
            prefetch=self._prefetch_factor or 1,
            in_order=self._in_order,
            persistent=self._persistent_workers,
            timeout=self._timeout,
            destination=destination,
            budget=self._budget,
        )
        pool = self._shared.memory(False, columns.table.outputs, device)
        self._array_loader: Any = self._make_loader(table, pool, config)

    def _restart(self) -> None:
        if self._destination is not None:
            self._destination.check()
        self._array_loader.restart(
            *self._open_indices(), random_epoch(self._columns.dataset, self._datasets)
        )

    def _open_indices(self) -> tuple[Iterator[Any], int, Any]:
        """Return the first arguments of ``ArrayLoader.restart``. The third is None unless the
        sampler is read in blocks."""
        sampler = self._index_sampler
        blocks = find_blocks(sampler) if self._auto_collation else None
        is_noted = self._shared.keeps_indices
        recent: Any = deque(maxlen=0)
        self._recent = recent
        if is_noted:
            recent = self._keep_recent(None if blocks is None else sampler)
        numbered: Any
        if blocks is not None:
            self._sampler_iter = refuse_batches()
            rest: Any = self._epoch.remaining(blocks, skip_blocks)
            if self._datasets.epochs:
                rest = within(self._datasets, rest)
            if not is_noted:
                return rest, _BLOCKS, sampler
            rest, others = tee(rest)
            # A pair has no block after it, so nobody asks for its size.
            firsts = accumulate(map(torch.Tensor.numel, others), initial=0)
            numbered, kind, sampler = zip(rest, firsts, strict=False), _BLOCKS, self._watch
        else:
            singles = _LISTS if self._fetches_singles else _SINGLES
            kind = _BATCHES if self._auto_collation else singles
            if not is_noted:
                return self._sampler_iter, kind, None
            numbered, sampler = zip(self._sampler_iter, count(), strict=False), None
        # Native iterators note an item, so no handler of a signal comes before the use of the item.
        return map(itemgetter(0), filterfalse(recent.append, numbered)), kind, sampler

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if not first_iter:
            self._warn_of_change()  # first, because a warning that raises must change nothing
        super()._reset(loader, first_iter)
        # A loader closes at the end of an epoch unless it is persistent. A forked child needs a
        # loader of its own.
        is_usable = self._persistent_workers and not self._is_closed and self._array_loader.is_own()
        if not first_iter and not is_usable:
            self._open_array_loader()
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
            "and worker processes would keep the values of iter() (for the present data pass "
            "fastloop.DataLoader(path='array'))",
            RuntimeWarning,
            stacklevel=level_of_program(),
        )

    def _goes_on_in_child(self) -> bool:
        """Continue in a forked child after the last batch of the parent's iterator. torch's
        iterator without workers does the same."""
        is_here = self._array_loader.is_own() or self._is_closed
        if is_here or self._num_workers > 0 or self._destination is not None:
            return False
        source, block, left, kind, batch_sampler = self._array_loader.rest()
        if block is not None:
            count = block[1] if isinstance(block, tuple) else len(block)
            source = chain((rest_of_block(block, count - left),), source)
        self._open_array_loader()
        self._array_loader.restart(
            source, kind, batch_sampler, random_epoch(self._columns.dataset, self._datasets)
        )
        return True

    def _goes_on(self) -> bool:
        """Begin with the batches of this epoch that are not the array loader's. False: there are
        none."""
        return False

    def _next_data(self) -> Any:
        """Return a batch for torch's ``__next__``, which runs under a profiler or with
        ``pin_memory``."""
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
            if self._goes_on():
                return self.__next__()
            self._epoch.is_over = True
            raise
        except RuntimeError:
            if not self._goes_on_in_child():
                raise
            return self.__next__()
        if self._versions:
            try:
                self._warn_of_change()
            except RuntimeWarning:  # warnings are errors, so the next next() gives this batch
                self._kept = (data,)
                self._num_yielded -= 1
                raise
        return data

    def close(self) -> None:
        self._is_closed, self._kept = True, ()
        self._array_loader.close()

    _shutdown_workers = close  # torch's name for close(), which frameworks call
