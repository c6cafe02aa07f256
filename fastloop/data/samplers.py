"""Samplers with an order that is a function of (seed, epoch). An epoch can resume at any item
without computing the items before: ``iter_from`` gives the rest.

Every rank computes the order of all ranks and takes its share, so all ranks have equally many
items.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence, Sized
from copy import copy
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from fastloop._core import Permutation, bucket_steps, int64_array
from fastloop.base.checks import (
    look_up,
    make_message,
    read_choice,
    read_int,
    read_optional_int,
    refuse_if,
)
from fastloop.base.shown import repr_of
from fastloop.base.threads import on_this_thread
from fastloop.data.epochs import check_epoch

Vector = np.ndarray[Any, np.dtype[np.int64]]
Item = TypeVar("Item", covariant=True)
# [ranks, batch_size (0: none), batches] for each number of ranks that an epoch has had before. A
# CostBatchSampler may put [begin, batches] first: a window begins at sample `begin` of the order,
# after so many batches, and the other parts count from this window on.
Dealt = Sequence[Sequence[int]]

_BLOCK = 4096  # indices that a ShuffleSampler computes at once
_MOST = 2**62  # the largest number of indices, and the largest length of a sample

# uint8 and bool are absent, because torch takes tensors of these dtypes as masks.
_INDEX_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def as_vector(indices: Any) -> Vector | None:
    """Return a sequence of plain integers as a contiguous int64 vector; None for anything else.

    A tensor is copied, because its memory may move."""
    if type(indices) is range:
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    if type(indices) in (list, tuple):
        return int64_array(indices, torch.Tensor)
    if type(indices) is torch.Tensor and indices.dtype in _INDEX_DTYPES:
        has_memory = indices.layout is torch.strided and indices.is_cpu and not indices.is_neg()
        indices = np.array(indices.numpy()) if has_memory else None
    if type(indices) is not np.ndarray or indices.ndim != 1:
        return None
    is_integer = indices.dtype.kind in "iu" and indices.dtype != np.uint64
    return np.ascontiguousarray(indices, dtype=np.int64) if is_integer else None


def count_from_0(rows: Vector, length: int) -> Vector:
    """Return indices of `length` rows. Negative indices count from the end, as in torch.

    Raises:
        IndexError: an index is out of range. The text is torch's.
    """
    if len(rows) == 0:
        return rows
    low, high = int(rows.min()), int(rows.max())
    if not -length <= low <= high < length:
        index = low if low < -length else high
        raise IndexError(f"index {index} is out of bounds for dimension 0 with size {length}")
    return rows if low >= 0 else np.where(rows < 0, rows + length, rows)


def read_ranks(num_replicas: Any = None, rank: Any = None) -> tuple[int, int]:
    """Return the number of ranks and the rank: as given, else torch.distributed's, else 1 and 0."""
    is_running = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if is_running else 1
    if num_replicas is not None:
        world = read_int("num_replicas", num_replicas, 1)
    if rank is not None:
        return world, read_int("rank", rank, 0, world - 1, "pass num_replicas as well")
    if world > 1 and not is_running:
        raise ValueError(f"rank must be given with num_replicas={world}, got None")
    return world, dist.get_rank() if is_running else 0


def refuse_shuffle(dataset: Any, shuffle: object) -> None:
    """Raise ValueError if the order of a dataset with an order of its own would be shuffled."""
    remedy = look_up(dataset, "_own_order")
    refuse_if(shuffle and remedy, make_message("shuffle", "False", True, str(remedy)))


# ---- the orders that torch's samplers draw


def permutation(n: int, generator: Any) -> torch.Tensor:
    """Return ``torch.randperm(n)`` on the CPU."""
    with on_this_thread():
        return torch.randperm(n, generator=generator).cpu()


def distributed_order(sampler: Any) -> torch.Tensor:
    """Return the order of all ranks of a DistributedSampler, without padding."""
    if not sampler.shuffle:
        return torch.arange(len(sampler.dataset), device="cpu")
    generator = torch.Generator().manual_seed(sampler.seed + sampler.epoch)
    return permutation(len(sampler.dataset), generator)


# ---- samplers of this package


class EpochSampler(Sampler[Item]):
    """A sampler that can begin anywhere.

    A ``fastloop.DataLoader`` calls ``iter_from`` to resume, unless a subclass defines ``__iter__``.
    """

    def __init__(self, seed: int, num_replicas: int | None, rank: int | None) -> None:
        self.seed = read_int("seed", seed, 0, 2**64 - 1)
        self.num_replicas, self.rank = read_ranks(num_replicas, rank)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``.

        Call ``set_epoch`` before each epoch, as for a DistributedSampler: a sampler does not count
        epochs, so without the call all epochs have the same order.

        Raises:
            ValueError: epoch is not in [0, 2**32).
        """
        self.epoch = check_epoch(epoch)

    def iter_from(self, first: int) -> Iterator[Item]:
        """Yield the items of ``iter()`` from the item ``first`` on. Earlier items are not
        computed."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self.iter_from(0)

    def _repr(self, *parts: object) -> str:
        ranks = f"rank {self.rank} of {self.num_replicas}" if self.num_replicas > 1 else ""
        return repr_of(self, *parts, f"seed={self.seed}", f"epoch={self.epoch}", ranks)

    def _check_first(self, first: int, count: int) -> None:
        if not 0 <= first <= count:
            raise ValueError(
                f"epoch {self.epoch} of this {type(self).__name__} has {count} items and cannot "
                f"begin after {first}; make the sampler with the arguments of the saved run"
            )


class _InOrder:
    """The indices in order, with the method of a ``Permutation``."""

    def block(self, first: int, count: int, step: int = 1) -> Vector:
        return np.arange(first, first + count * step, step)


class _BlockOrder:
    """An order that shuffles blocks of neighbours, and the indices of each group of open blocks.

    A group depends on its number alone, so an epoch can begin anywhere. The last block may be
    short: a group that the epoch chooses has this block besides its own.
    """

    def __init__(self, length: int, block: int, open_blocks: int, seed: int, epoch: int) -> None:
        self._block, self._open = block, open_blocks
        self._whole, self._rest = divmod(length, block)
        self._blocks = Permutation(self._whole, seed, epoch)
        # An order of 2**62 indices serves as a table of random numbers.
        self._seed, number = map(int, Permutation(_MOST, seed, epoch).block(0, 2))
        self._with_rest = number % max(1, -(-self._whole // open_blocks))
        self._group: tuple[int, Permutation, Vector] | None = None  # the last one, with its number

    def _begin_of(self, group: int) -> int:
        return group * self._open * self._block + self._rest * (group > self._with_rest)

    def _find(self, position: int) -> tuple[int, Permutation, Vector]:
        """Return the number of a position's group, the order of its indices, and its blocks."""
        group = min(position // (self._open * self._block), self._with_rest)
        if position >= self._begin_of(group + 1):
            group = (position - self._rest) // (self._open * self._block)
        if self._group is None or self._group[0] != group:
            first = group * self._open
            own = self._blocks.block(first, min(self._open, self._whole - first))
            count, has_rest = len(own) * self._block, group == self._with_rest
            order = Permutation(count + self._rest * has_rest, self._seed, group)
            self._group = group, order, np.append(own, self._whole) if has_rest else own
        return self._group

    def block(self, first: int, count: int, step: int = 1) -> Vector:
        parts = []
        while count > 0:
            group, order, blocks = self._find(first)
            size = min(count, -(-(self._begin_of(group + 1) - first) // step))
            at = order.block(first - self._begin_of(group), size, step)
            parts.append(blocks[at // self._block] * self._block + at % self._block)
            first, count = first + size * step, count - size
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class ShuffleSampler(EpochSampler[int]):
    """All indices of a dataset in random order, in an amount of memory that does not grow.

    The order is a permutation computed from (seed, epoch) during the iteration. Up to 4096 indices
    are shuffled as a list, and then all permutations are equally likely. With ``shuffle=False`` the
    order is 0, 1, 2 and so on. The ranks deal the order out, see ``deal``. If the length does not
    divide evenly, the last ranks repeat some of the first indices, as a DistributedSampler does.
    Call ``set_epoch(e)`` before each epoch.

    Args:
        length_or_dataset: the number of indices, or an object with a ``len()``.
        seed: from 0 to 2**64 - 1.
        num_replicas: the number of ranks. Default: the number in ``torch.distributed`` if
            initialised, else 1.
        rank: this process's rank. Default: the rank in ``torch.distributed`` if initialised, else
            0.
        shuffle: False for indices in order, for example of a dataset that shuffles by itself.
        deal: ``"stride"``: of R ranks each takes every R-th index. ``"runs"``: of each global batch
            of R times ``batch_size`` indices, each rank takes ``batch_size`` neighbours. All ranks
            together have the same indices in each step either way.
        batch_size: for ``"runs"``, the batch size of the loader. A ``fastloop.DataLoader`` tells
            its own to the sampler; for torch's loader pass the number.

    Yields:
        int, from 0 to length - 1.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a number out of range; several ranks without ``rank`` or a process group; at
            ``iter()``, ``deal="runs"`` without a batch size.
    """

    def __init__(
        self,
        length_or_dataset: int | Sized,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        deal: str = "stride",
        batch_size: int | None = None,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        given: Any = length_or_dataset
        self.shuffle = bool(shuffle)
        refuse_shuffle(given, self.shuffle)
        # The length of a dataset with an order of its own differs, and may take long to find.
        self._dataset = given if look_up(given, "_own_order") else None
        if self._dataset is None:
            length = len(given) if hasattr(type(given), "__len__") else given
            self._length = read_int("length_or_dataset", length, 0, _MOST)
        self.deal = read_choice("deal", deal, ("stride", "runs"))
        self._given = self._run = read_optional_int("batch_size", batch_size, 1, _MOST)

    @property
    def length(self) -> int:
        """The number of indices of all ranks, in this epoch of the dataset."""
        return self._length if self._dataset is None else len(self._dataset)

    def expect_batches(self, batch_size: int | None) -> None:
        """Note the batch size of the loader that begins an epoch, for ``deal="runs"``.

        Raises:
            ValueError: the sampler was made for a different batch size.
        """
        if batch_size is not None:
            text = f"batch_size must be the sampler's, {self._given}, got {batch_size}"
            refuse_if(self.deal == "runs" and self._given not in (None, batch_size), text)
            self._run = batch_size

    def __repr__(self) -> str:
        return self._repr(f"{self.length:,} indices")

    def __len__(self) -> int:
        """The number of indices for one rank."""
        return -(-self.length // self.num_replicas)

    def _order(self) -> Permutation | _InOrder | _BlockOrder:
        """Return the order of all ranks in this epoch."""
        return Permutation(self.length, self.seed, self.epoch) if self.shuffle else _InOrder()

    def blocks(self, first: int = 0, passed: int = 0) -> Iterator[torch.Tensor]:
        """Yield the indices as int64 tensors, from index ``first`` of this rank on. As in torch's
        samplers, the epoch is read when the first tensor is asked for.

        Args: passed: an earlier set of ranks has had this many indices; the ranks share the
            rest."""
        order = self._order()
        for cut in self._cuts(first, passed):
            yield torch.from_numpy(order.block(*cut))

    def iter_from(self, first: int) -> Iterator[int]:
        self._check_first(first, len(self))
        order, cuts = self._order(), self._cuts(first)
        return chain.from_iterable(order.block(*cut).tolist() for cut in cuts)

    def _cuts(self, first: int, passed: int = 0) -> Iterator[tuple[int, int, int]]:
        """Yield (first position, count, step) of each block of this rank, in the order of all."""
        count, ranks = -(-(self.length - passed) // self.num_replicas), self.num_replicas
        begin, step = passed + self.rank, ranks  # of the positions that are left at `at`
        at = 0
        if self.deal == "runs":
            remedy = "pass the loader's batch_size, or load with a fastloop.DataLoader"
            text = f"batch_size must be given with deal='runs', got None ({remedy})"
            refuse_if(self._run is None, text)
            run: Any = self._run
            whole = (self.length - passed) // (run * ranks)  # steps
            for number in range(first // run, whole):
                had = max(0, first - number * run)
                yield passed + (number * ranks + self.rank) * run + had, run - had, 1
            # Of an incomplete last step each rank takes an equal run.
            at, step = whole * run, 1
            begin = passed + at * ranks + self.rank * (count - at)
        first = max(first - at, 0)
        count -= at
        # The rest of this rank may go on beyond the end of the order: at its beginning again.
        inside = min(count, max(0, -(-(self.length - begin) // step)))
        for at in range(first, inside, _BLOCK):
            yield begin + at * step, min(_BLOCK, inside - at), step
        for at in range(max(first, inside), count):
            yield (begin + at * step) % self.length, 1, 1


class BlockShuffleSampler(ShuffleSampler):
    """All indices of a dataset in an order that a disk reads well: blocks of neighbours are
    shuffled, and so are the indices of the blocks that are open at a time.

    Take a ``ShuffleSampler`` for data in memory or on an SSD with samples of 16 KB and more: its
    order is uniform. A ``BlockShuffleSampler`` reads ``block * open_blocks`` indices of one region
    after another, so each block is read once and then kept by the system's cache. If neighbours are
    alike, for example if the samples are sorted by class, its batches are less mixed. State, ranks
    and resuming are as with a ``ShuffleSampler``.

    Args:
        length_or_dataset: and all arguments by name that are not below: a ``ShuffleSampler``'s.
        block: the number of neighbours in a block.
        open_blocks: the number of blocks whose indices are shuffled together.

    Yields:
        int, from 0 to length - 1.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a number out of range, and a ShuffleSampler's errors.
    """

    def __init__(
        self,
        length_or_dataset: int | Sized,
        block: int = 16,
        open_blocks: int = 1024,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        deal: str = "stride",
        batch_size: int | None = None,
    ) -> None:
        ranks: Any = {"num_replicas": num_replicas, "rank": rank}
        super().__init__(length_or_dataset, seed=seed, **ranks, deal=deal, batch_size=batch_size)
        self.block = read_int("block", block, 1, _MOST)
        self.open_blocks = read_int("open_blocks", open_blocks, 1, _MOST)

    def __repr__(self) -> str:
        return self._repr(f"{self.length:,} indices in blocks of {self.block}")

    def _order(self) -> _BlockOrder:
        return _BlockOrder(self.length, self.block, self.open_blocks, self.seed, self.epoch)


# The samplers whose ranks share one order of indices; a subclass of a program may yield anything.
ORDERS = (ShuffleSampler, BlockShuffleSampler)


def read_lengths(given: Any, max_tokens: int | None) -> Vector:
    """Return a copy of lengths as a contiguous vector.

    Raises: TypeError or ValueError, which name the lengths, and max_tokens if one is longer."""
    given = look_up(given, "lengths", given)  # a RaggedArray has this attribute
    lengths = np.asarray(given.detach().cpu() if isinstance(given, torch.Tensor) else given)
    if lengths.ndim != 1:
        remedy = "pass [len(text) for text in texts]"
        raise ValueError(f"lengths must be a vector, got shape {lengths.shape} ({remedy})")
    if lengths.dtype.kind not in "iu" and len(lengths) > 0:
        raise TypeError(f"lengths must be integers, got dtype {lengths.dtype}")
    most = max_tokens or _MOST
    remedy = "raise max_tokens, or truncate or leave out such samples" if max_tokens else ""
    for at in np.flatnonzero((lengths < 0) | (lengths > most))[:1]:
        read_int(f"lengths[{at}]", int(lengths[at]), 0, most, remedy)
    return lengths.astype(np.int64)


class RankedBatchSampler(EpochSampler[list[int]]):
    """A sampler whose batches depend on the number of ranks. For other ranks, what was dealt before
    is computed again, and the rest of the epoch is divided into new batches. Its ``fingerprint`` is
    a text that differs if the batches for the same (seed, epoch) and ranks differ."""

    max_tokens: int | None
    has_windows = False  # shorten() names a window

    @property
    def sampler(self) -> RankedBatchSampler:
        """The sampler itself: frameworks call ``batch_sampler.sampler.set_epoch()``."""
        return self

    def __len__(self) -> int:
        """The number of batches for one rank. A limit of tokens makes it depend on the epoch."""
        return self.length_of(self.epoch)

    def length_of(self, epoch: int, dealt: Dealt = ()) -> int:
        """Return the number of batches in an epoch, less the batches that were dealt before."""
        raise NotImplementedError

    def iter_from(self, first: int, dealt: Dealt = ()) -> Iterator[list[int]]:
        raise NotImplementedError

    def has_batch(self, number: int, epoch: int, dealt: Dealt) -> bool:
        """Tell whether an epoch has so many batches and one more.

        Raises: ValueError: the epoch has fewer than `number` batches."""
        count = self.length_of(epoch, dealt)
        self._check_first(number, count)
        return number < count

    def shorten(self, dealt: list[list[int]], epoch: int, first: int) -> list[list[int]]:
        """Return what says the same as `dealt` after `first` batches, and is found sooner."""
        return dealt

    def as_with(self, ranks: int, size: int) -> RankedBatchSampler:
        """Return a sampler with this number of ranks, and this ``batch_size`` (0: None) or
        ``accumulate``: this sampler, or a copy."""
        raise NotImplementedError


def is_planned(sampler: Any) -> bool:
    """Tell whether this is one of the package's RankedBatchSamplers: a subclass of a program may
    yield anything."""
    return type(sampler).__base__ is RankedBatchSampler


class LengthBucketBatchSampler(RankedBatchSampler):
    """Batches of samples with similar lengths, so that padded batches have little padding.

    The samples are shuffled and split into mega-batches. Each mega-batch is sorted by length,
    longest first, and split into steps; samples that do not fill a step go on to the next
    mega-batch. A step is one batch for every rank, with samples that are neighbours in length, so
    ranks have equal work and equally many batches. The step with the longest sample comes first, so
    that a lack of memory shows at once. The order is a function of (seed, epoch) and the lengths:
    call ``set_epoch(e)`` before each epoch.

    The last step may be incomplete. ``drop_last=True`` drops this step. Otherwise the ranks share
    the step, and if its samples do not divide evenly, the longest samples come twice.

    For example, ``LengthBucketBatchSampler(ragged.lengths, max_tokens=8192)``.

    Args:
        lengths: the number of tokens in each sample, as padded (so truncated at ``max_length``): a
            sequence, ndarray or tensor of integers, or a ``RaggedArray``.
        batch_size: the number of samples in a batch; with ``max_tokens``, the largest number.
        max_tokens: the largest number of tokens in a padded batch: its number of samples times its
            longest sample.
        mega_batch_mult: the approximate number of steps in a mega-batch. If there would be fewer
            than four mega-batches, a mega-batch has fewer steps.
        shuffle: False sorts all samples by length, the same in every epoch: for evaluation.
        seed: from 0 to 2**64 - 1.
        drop_last: whether an incomplete last step is left out.
        num_replicas: the number of ranks. Default: the number in ``torch.distributed`` if
            initialised, else 1.
        rank: this process's rank. Default: the rank in ``torch.distributed`` if initialised, else
            0.

    Yields:
        list[int]: the samples of one batch for this rank, longest first.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a number out of range; neither ``batch_size`` nor ``max_tokens``; a sample
            longer than ``max_tokens``; several ranks without ``rank`` or a process group.
    """

    def __init__(
        self,
        lengths: Any,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        *,
        mega_batch_mult: int = 50,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        if batch_size is None and max_tokens is None:
            raise ValueError("batch_size or max_tokens must be given, got None for both")
        self.batch_size = read_optional_int("batch_size", batch_size, 1)
        self.max_tokens = read_optional_int("max_tokens", max_tokens, 1)
        self.mega_batch_mult = read_int("mega_batch_mult", mega_batch_mult, 1)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self._lengths = read_lengths(lengths, self.max_tokens)
        # The last epoch's steps with their settings, because users may change the settings. By
        # whether an earlier set of ranks has had a part of the epoch.
        self._steps: dict[bool, tuple[tuple[Any, ...], list[Vector]]] = {}

    @cached_property
    def fingerprint(self) -> str:
        return (
            f"{len(self._lengths)} samples of lengths {zlib.crc32(self._lengths.data):08x} by "
            f"{self.max_tokens} tokens and {self.mega_batch_mult} steps"
        )

    def __repr__(self) -> str:
        sizes = {"batch_size": self.batch_size, "max_tokens": self.max_tokens}
        given = [f"{name}={size}" for name, size in sizes.items() if size is not None]
        return self._repr(f"{len(self._lengths):,} samples", *given)

    def length_of(self, epoch: int, dealt: Dealt = ()) -> int:
        return len(self._steps_of(epoch, dealt))

    def iter_from(self, first: int, dealt: Dealt = ()) -> Iterator[list[int]]:
        steps = self._steps_of(self.epoch, dealt)
        self._check_first(first, len(steps))
        rest = islice(steps, first, None)
        return (step[self.rank :: self.num_replicas].tolist() for step in rest)

    # ---- the order

    def as_with(self, ranks: int, size: int) -> LengthBucketBatchSampler:
        if (ranks, size or None) == (self.num_replicas, self.batch_size):
            return self
        made = copy(self)
        made.num_replicas, made.batch_size = ranks, size or None
        return made

    def _steps_of(self, epoch: int, dealt: Dealt = ()) -> list[Vector]:
        """Return the samples of each step, longest first: one batch for every rank. Samples that
        were dealt before are left out."""
        settings = (self.seed, self.shuffle, self.drop_last, self.batch_size, self.max_tokens)
        had = tuple(map(tuple, dealt))
        key = (epoch, had, self.num_replicas, self.mega_batch_mult, *settings)
        kept = self._steps.get(had != ())
        if kept is None or kept[0] != key:
            count = len(self._lengths)
            shuffled = np.arange(count)
            if self.shuffle:
                shuffled = Permutation(count, self.seed, epoch).block(0, count)
            remains = np.ones(count, bool)
            for ranks, size, batches in had:
                for step in self.as_with(ranks, size)._make_steps(shuffled)[:batches]:
                    remains[step] = False
                shuffled = shuffled[remains[shuffled]]
            kept = key, self._make_steps(shuffled)
            of_epoch = {part: each for part, each in self._steps.items() if each[0][0] == epoch}
            self._steps = {**of_epoch, had != (): kept}
        return kept[1]

    def _make_steps(self, shuffled: Vector) -> list[Vector]:
        mega_steps = self.mega_batch_mult if self.shuffle else 0
        given = self.num_replicas, self.batch_size or 0, self.max_tokens or 0, mega_steps
        ranks, size, tokens, mega = (min(each, _MOST) for each in given)
        return bucket_steps(self._lengths, shuffled, ranks, size, tokens, mega, self.drop_last)
