"""Samplers whose order is a function of (seed, epoch), so that an epoch can go on at any place
without computing the items before it: ``iter_from`` gives the rest.

Every rank computes the order of all ranks and takes its share, so no rank has more items than
another.
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

from fastloop._core import Permutation, bucket_steps
from fastloop.base.checks import look_up, read_int, read_optional_int, refuse_if
from fastloop.base.shown import repr_of
from fastloop.base.threads import on_this_thread
from fastloop.data.epochs import check_epoch

Vector = np.ndarray[Any, np.dtype[np.int64]]
Item = TypeVar("Item", covariant=True)
# [ranks, batch_size (0: none), batches] of each number of ranks that an epoch has had before.
Dealt = Sequence[Sequence[int]]

_BLOCK = 4096  # indices of a ShuffleSampler that are computed at once
_MOST = 2**62  # of indices, and of the length of a sample


def read_ranks(num_replicas: Any = None, rank: Any = None) -> tuple[int, int]:
    """Return number of ranks and rank: as given, else those of torch.distributed, else one rank."""
    is_running = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if is_running else 1
    if num_replicas is not None:
        world = read_int("num_replicas", num_replicas, 1)
    if rank is not None:
        return world, read_int("rank", rank, 0, world - 1, "pass num_replicas, too")
    if world > 1 and not is_running:
        raise ValueError(f"rank must be given with num_replicas={world}, got None")
    return world, dist.get_rank() if is_running else 0


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
        """Choose the epoch whose order the next ``iter()`` gives.

        Call it before each epoch, as for a DistributedSampler: nothing else counts epochs, so
        without it all epochs have the same order.

        Raises:
            ValueError: not in [0, 2**32).
        """
        self.epoch = check_epoch(epoch)

    def iter_from(self, first: int) -> Iterator[Item]:
        """Yield the items of ``iter()`` without the first ``first``, which are not computed."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self.iter_from(0)

    def _repr(self, *parts: object) -> str:
        ranks = f"rank {self.rank} of {self.num_replicas}" if self.num_replicas > 1 else ""
        return repr_of(self, *parts, f"seed={self.seed}", f"epoch={self.epoch}", ranks)

    def _check_first(self, first: int, count: int) -> None:
        fault = (
            f"epoch {self.epoch} of this {type(self).__name__} has {count} items and cannot begin"
        )
        remedy = "make the sampler with the arguments it was saved with"
        refuse_if(not 0 <= first <= count, f"{fault} after {first}; {remedy}")


class ShuffleSampler(EpochSampler[int]):
    """All indices of a dataset in random order, in memory that does not grow with their number.

    The order is a permutation computed from (seed, epoch) while it is read; up to 4096 indices are
    listed, and then all permutations are equally likely. Each rank takes every
    ``num_replicas``-th index; if the length does not divide evenly, the last ranks take some of the
    first indices again, as a DistributedSampler does. Call ``set_epoch(e)`` before each epoch.

    Args:
        length_or_dataset: the number of indices, or an object with a ``len()``.
        seed: from 0 to 2**64 - 1.
        num_replicas: number of ranks. Default: that of ``torch.distributed`` if initialised, else
            1.
        rank: of this process. Default: that of ``torch.distributed`` if initialised, else 0.

    Yields:
        int, from 0 to length - 1.

    Raises:
        TypeError: an argument of another type.
        ValueError: a number out of range; several ranks without ``rank`` or a process group.
    """

    def __init__(
        self,
        length_or_dataset: int | Sized,
        *,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        given: Any = length_or_dataset
        length = len(given) if hasattr(type(given), "__len__") else given
        self.length = read_int("length_or_dataset", length, 0, _MOST)

    def __repr__(self) -> str:
        return self._repr(f"{self.length:,} indices")

    def __len__(self) -> int:
        """The number of indices of one rank."""
        return -(-self.length // self.num_replicas)

    def blocks(self, first: int = 0, passed: int = 0) -> Iterator[torch.Tensor]:
        """Yield the indices as int64 tensors, without the first ``first``. The epoch is read when
        the first tensor is asked for, as in torch's samplers.

        Args: passed: other ranks have had so many indices of the order; these share the rest."""
        yield from self._cut(Permutation(self.length, self.seed, self.epoch), first, passed)

    def iter_from(self, first: int) -> Iterator[int]:
        self._check_first(first, len(self))
        permutation = Permutation(self.length, self.seed, self.epoch)
        return chain.from_iterable(block.tolist() for block in self._cut(permutation, first))

    def _cut(self, permutation: Permutation, first: int, passed: int = 0) -> Iterator[torch.Tensor]:
        count, offset = -(-(self.length - passed) // self.num_replicas), passed + self.rank
        # Every rank has all places but maybe the last.
        is_short = offset + (count - 1) * self.num_replicas >= self.length
        whole = count - is_short
        for begin in range(first, whole, _BLOCK):
            place = offset + begin * self.num_replicas
            size = min(_BLOCK, whole - begin)
            yield torch.from_numpy(permutation.block(place, size, self.num_replicas))
        if is_short and first < count:
            place = (offset + whole * self.num_replicas) % self.length
            yield torch.from_numpy(permutation.block(place, 1))


def _read_lengths(given: Any, max_tokens: int | None) -> Vector:
    """Return a copy as a contiguous vector."""
    given = look_up(given, "lengths", given)  # of a RaggedArray
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


class LengthBucketBatchSampler(EpochSampler[list[int]]):
    """Batches of samples of similar length, so that little of a padded batch is padding.

    The samples are shuffled and cut into mega-batches. Each mega-batch is sorted by length, longest
    first, and cut into steps; samples that do not fill a step go on to the next mega-batch. A step
    is one batch for every rank, of samples that are neighbours in length, so ranks have equal work
    and equally many batches. The step with the longest sample changes places with the first, so
    that a lack of memory shows at once. The order is a function of (seed, epoch) and the lengths:
    call ``set_epoch(e)`` before each epoch.

    The last step may be incomplete. ``drop_last=True`` drops it. Otherwise the ranks share it, and
    if its samples do not divide evenly, the longest of them come twice.

    Args:
        lengths: tokens of each sample, as they will be padded (so cut at ``max_length``): a
            sequence, ndarray or tensor of integers, or a ``RaggedArray``.
        batch_size: samples of a batch; the most that it has, if ``max_tokens`` is given as well.
        max_tokens: the most tokens of a padded batch: its samples times the longest of them.
        mega_batch_mult: about how many steps a mega-batch has; fewer if there would be fewer than
            four mega-batches.
        shuffle: False sorts all samples by length, the same in every epoch: for evaluation.
        seed: from 0 to 2**64 - 1.
        drop_last: whether an incomplete last step is left out.
        num_replicas: number of ranks. Default: that of ``torch.distributed`` if initialised, else
            1.
        rank: of this process. Default: that of ``torch.distributed`` if initialised, else 0.

    Yields:
        list[int]: the samples of a batch of this rank, longest first.

    Raises:
        TypeError: an argument of another type.
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
            raise ValueError("batch_size or max_tokens must be given, to say how large batches are")
        self.batch_size = read_optional_int("batch_size", batch_size, 1)
        self.max_tokens = read_optional_int("max_tokens", max_tokens, 1)
        self.mega_batch_mult = read_int("mega_batch_mult", mega_batch_mult, 1)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self._lengths = _read_lengths(lengths, self.max_tokens)
        # Of the last epoch, whole and after other ranks, with the settings from which they were
        # made, which users may change.
        self._steps: dict[bool, tuple[tuple[Any, ...], list[Vector]]] = {}

    @property
    def sampler(self) -> LengthBucketBatchSampler:
        """Itself: frameworks call ``batch_sampler.sampler.set_epoch()``."""
        return self

    @cached_property
    def fingerprint(self) -> str:
        """A text that differs if the batches of equal (seed, epoch) and ranks do."""
        return (
            f"{len(self._lengths)} samples of lengths {zlib.crc32(self._lengths.data):08x} by "
            f"{self.max_tokens} tokens and {self.mega_batch_mult} steps"
        )

    def __repr__(self) -> str:
        sizes = {"batch_size": self.batch_size, "max_tokens": self.max_tokens}
        given = [f"{name}={size}" for name, size in sizes.items() if size is not None]
        return self._repr(f"{len(self._lengths):,} samples", *given)

    def __len__(self) -> int:
        """The number of batches of one rank; with ``max_tokens`` it depends on the epoch."""
        return self.length_of(self.epoch)

    def length_of(self, epoch: int, dealt: Dealt = ()) -> int:
        """Return ``len()`` of this epoch, or of its rest after other ranks."""
        return len(self._steps_of(epoch, dealt))

    def iter_from(self, first: int, dealt: Dealt = ()) -> Iterator[list[int]]:
        steps = self._steps_of(self.epoch, dealt)
        self._check_first(first, len(steps))
        rest = islice(steps, first, None)
        return (step[self.rank :: self.num_replicas].tolist() for step in rest)

    # ---- the order

    def as_with(self, ranks: int, size: int) -> LengthBucketBatchSampler:
        """Return a copy for another number of ranks or another batch size; else this sampler."""
        if (ranks, size or None) == (self.num_replicas, self.batch_size):
            return self
        other = copy(self)
        other.num_replicas, other.batch_size = ranks, size or None
        return other

    def _steps_of(self, epoch: int, dealt: Dealt = ()) -> list[Vector]:
        """Return the samples of each step, longest first: one batch for every rank. Those that
        other ranks have had before are left out."""
        settings = (self.seed, self.shuffle, self.drop_last, self.batch_size, self.max_tokens)
        had = tuple(map(tuple, dealt))
        key = (epoch, had, self.num_replicas, self.mega_batch_mult, *settings)
        kept = self._steps.get(had != ())
        if kept is None or kept[0] != key:
            count = len(self._lengths)
            shuffled = np.arange(count)
            if self.shuffle:
                shuffled = Permutation(count, self.seed, epoch).block(0, count)
            is_left = np.ones(count, bool)
            for ranks, size, batches in had:
                for step in self.as_with(ranks, size)._make_steps(shuffled)[:batches]:
                    is_left[step] = False
                shuffled = shuffled[is_left[shuffled]]
            kept = key, self._make_steps(shuffled)
            of_epoch = {whose: one for whose, one in self._steps.items() if one[0][0] == epoch}
            self._steps = {**of_epoch, had != (): kept}
        return kept[1]

    def _make_steps(self, shuffled: Vector) -> list[Vector]:
        mega_steps = self.mega_batch_mult if self.shuffle else 0
        given = self.num_replicas, self.batch_size or 0, self.max_tokens or 0, mega_steps
        ranks, size, tokens, mega = (min(each, _MOST) for each in given)
        return bucket_steps(self._lengths, shuffled, ranks, size, tokens, mega, self.drop_last)
