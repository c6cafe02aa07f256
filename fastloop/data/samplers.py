"""Samplers whose order is a function of (seed, epoch), so that an epoch goes on at any place
without the items before it: ``iter_from`` gives the rest.

Every rank computes the order of all and takes its share, so no rank has more items than another.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from fastloop._core import Permutation
from fastloop.data.epochs import check_epoch

Vector = np.ndarray[Any, np.dtype[np.int64]]
Item = TypeVar("Item", covariant=True)

_BLOCK = 4096  # indices of a ShuffleSampler that are computed at once
_MEGA_BATCHES = 4  # at least so many, where there are batches enough


def check_int(name: str, value: Any, lowest: int, end: int = 2**63) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no integer; pass one from {lowest} on")
    if not lowest <= number < end:
        raise ValueError(f"{name}={number} is not in [{lowest}, {end}); pass an integer that is")
    return number


def _find_ranks(num_replicas: Any, rank: Any) -> tuple[int, int]:
    """As torch's DistributedSampler finds them; without a process group there is one rank."""
    is_running = dist.is_available() and dist.is_initialized()
    if num_replicas is None:
        num_replicas = dist.get_world_size() if is_running else 1
    world = check_int("num_replicas", num_replicas, 1)
    if rank is None:
        if world > 1 and not is_running:
            raise ValueError(
                f"num_replicas={world}, but torch.distributed is not initialised to say which of "
                "them this process is; pass rank="
            )
        rank = dist.get_rank() if is_running else 0
    number = check_int("rank", rank, 0)
    if number >= world:
        raise ValueError(
            f"rank={number} is not in [0, {world}); pass num_replicas, the number of processes, "
            "and each process's rank among them"
        )
    return world, number


class EpochSampler(Sampler[Item]):
    """A sampler that can begin anywhere.

    A ``fastloop.DataLoader`` calls ``iter_from`` to resume, unless a subclass has an ``__iter__``
    of its own.
    """

    def __init__(self, seed: int, num_replicas: int | None, rank: int | None) -> None:
        self.seed = check_int("seed", seed, 0, 2**64)
        self.num_replicas, self.rank = _find_ranks(num_replicas, rank)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Before ``iter()``: the order becomes that of this epoch. As in torch's
        DistributedSampler, nobody else counts epochs; without this all have the same order.

        Raises:
            ValueError: not in [0, 2**32).
        """
        self.epoch = check_epoch(epoch)

    def iter_from(self, first: int) -> Iterator[Item]:
        """What ``iter()`` yields, without the first ``first`` items, none of which is made."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self.iter_from(0)

    def _check_first(self, first: int, count: int) -> None:
        if not 0 <= first <= count:
            raise ValueError(
                f"epoch {self.epoch} of this {type(self).__name__} has {count} items, so none can "
                f"be left after {first}; make it as it was when these were counted"
            )


class ShuffleSampler(EpochSampler[int]):
    """All indices of a dataset in random order, in memory that does not grow with their number.

    The order is a permutation that is computed where it is read, from (seed, epoch); up to 4096
    indices are listed, and every permutation of them is as likely as every other. Ranks take
    every ``num_replicas``-th index of it; the last take some of its first where it does not divide
    evenly, as with torch's DistributedSampler. Call ``set_epoch(e)`` before each epoch.

    Args:
        length_or_dataset: how many indices, or what has a ``len()``.
        seed: from 0 to 2**64 - 1.
        num_replicas: number of ranks. Default: of ``torch.distributed`` where that is initialised,
            else 1.
        rank: of this process. Default: likewise, else 0.

    Yields:
        int, from 0 to length - 1.

    Raises:
        TypeError, ValueError: an argument that is none of these.
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
        is_sized = hasattr(length_or_dataset, "__len__")
        length = len(length_or_dataset) if is_sized else length_or_dataset  # type: ignore[arg-type]
        self.length = check_int("length_or_dataset", length, 0, 2**62)

    def __len__(self) -> int:
        """Of one rank."""
        return -(-self.length // self.num_replicas)

    def blocks(self, first: int = 0) -> Iterator[torch.Tensor]:
        """The indices as int64 tensors, without the first ``first``. As torch's samplers do, it
        reads the epoch when the first is asked for."""
        yield from self._cut(Permutation(self.length, self.seed, self.epoch), first)

    def iter_from(self, first: int) -> Iterator[int]:
        self._check_first(first, len(self))
        permutation = Permutation(self.length, self.seed, self.epoch)
        return chain.from_iterable(block.tolist() for block in self._cut(permutation, first))

    def _cut(self, permutation: Permutation, first: int) -> Iterator[torch.Tensor]:
        count = len(self)
        # All places but the last are there at every rank.
        is_short = self.rank + (count - 1) * self.num_replicas >= self.length
        whole = count - is_short
        for begin in range(first, whole, _BLOCK):
            place = self.rank + begin * self.num_replicas
            size = min(_BLOCK, whole - begin)
            yield torch.from_numpy(permutation.block(place, size, self.num_replicas))
        if is_short and first < count:
            place = (self.rank + whole * self.num_replicas) % self.length
            yield torch.from_numpy(permutation.block(place, 1))


@dataclass(frozen=True)
class _Plan:
    """The batches of one epoch, of all ranks. A step is one batch of every rank."""

    key: tuple[Any, ...]  # all that it depends on, and that may change
    order: Vector  # the samples of each step side by side, longest first
    begins: list[int]  # of each step, in `order`
    ends: list[int]


def _read_lengths(given: Any) -> Vector:
    """As a contiguous vector that nobody else writes to."""
    given = getattr(given, "lengths", given)  # of a RaggedArray
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    try:
        lengths = np.asarray(given)
    except ValueError:  # lists of different lengths
        lengths = np.empty((0, 0))
    if lengths.ndim != 1:
        raise ValueError(
            "lengths is no flat sequence; pass one number of tokens for each sample, as in "
            "[len(text) for text in texts]"
        )
    if lengths.dtype.kind not in "iu" and len(lengths) > 0:
        raise TypeError(f"lengths has dtype {lengths.dtype}, not integers; pass numbers of tokens")
    if len(lengths) > 0 and (lengths.min() < 0 or lengths.max() >= 2**62):
        at = int(np.flatnonzero((lengths < 0) | (lengths >= 2**62))[0])
        raise ValueError(f"lengths[{at}] is {lengths[at]}, which is no number of tokens")
    return lengths.astype(np.int64)


class LengthBucketBatchSampler(EpochSampler[list[int]]):
    """Batches of samples of similar length, so that little of a padded batch is padding.

    The samples are shuffled and cut into mega-batches; each is sorted by length, longest first, and
    cut into steps. A step is one batch for every rank, all of neighbours in length, so the ranks
    have as much work as each other, and equally many batches. The step with the longest sample
    changes places with the first, so memory that does not suffice is noticed at once. What fills no
    step at the end of a mega-batch goes on to the next. All of this is a function of (seed, epoch)
    and the lengths: call ``set_epoch(e)`` before each epoch.

    Of the last step, which may be incomplete, ``drop_last=True`` drops what is there. Otherwise it
    is shared out, and where it does not divide evenly by the ranks, some of its own samples, the
    longest, come twice.

    Args:
        lengths: tokens of each sample, as they will be padded (so cut at ``max_length``): a
            sequence, ndarray or tensor of integers, or a ``RaggedArray``.
        batch_size: samples of a batch; with ``max_tokens`` too, at most.
        max_tokens: a batch has as many samples as it can without the longest times their number
            being more than this.
        mega_batch_mult: steps of a mega-batch, about; fewer where that would make fewer than four
            mega-batches.
        shuffle: False sorts all samples by length, in every epoch the same: for evaluation.
        seed: from 0 to 2**64 - 1.
        drop_last: whether an incomplete last step is left out.
        num_replicas: number of ranks. Default: of ``torch.distributed`` where that is initialised,
            else 1.
        rank: of this process. Default: likewise, else 0.

    Yields:
        list[int]: the samples of a batch of this rank, longest first.

    Raises:
        TypeError, ValueError: an argument that is none of these; neither ``batch_size`` nor
            ``max_tokens``; a sample longer than ``max_tokens``, which is named.
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
            raise ValueError(
                "neither batch_size nor max_tokens says how large a batch is; pass one of them"
            )
        self.batch_size = None if batch_size is None else check_int("batch_size", batch_size, 1)
        self.max_tokens = None if max_tokens is None else check_int("max_tokens", max_tokens, 1)
        self.mega_batch_mult = check_int("mega_batch_mult", mega_batch_mult, 1)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self._lengths = _read_lengths(lengths)
        self._plan: _Plan | None = None
        if self.max_tokens is not None and self._lengths.max(initial=0) > self.max_tokens:
            at = int(np.argmax(self._lengths > self.max_tokens))
            raise ValueError(
                f"lengths[{at}] is {self._lengths[at]}, more than max_tokens={self.max_tokens}, so "
                "no batch can hold that sample; raise max_tokens, or truncate or leave out longer "
                "samples"
            )

    @property
    def sampler(self) -> LengthBucketBatchSampler:
        """Itself: frameworks call ``batch_sampler.sampler.set_epoch()``."""
        return self

    @cached_property
    def fingerprint(self) -> str:
        """Of what its batches depend on besides (seed, epoch) and the ranks."""
        return (
            f"{len(self._lengths)} samples of lengths {zlib.crc32(self._lengths.data):08x} by "
            f"{self.max_tokens} tokens and {self.mega_batch_mult} steps"
        )

    def __len__(self) -> int:
        """Batches of one rank in the epoch that is set: with ``max_tokens`` it depends on it."""
        return self.length_of(self.epoch)

    def length_of(self, epoch: int) -> int:
        """``len()`` in that epoch."""
        return len(self._plan_of(epoch).begins)

    def iter_from(self, first: int) -> Iterator[list[int]]:
        plan = self._plan_of(self.epoch)
        self._check_first(first, len(plan.begins))
        return self._batches(plan, first)

    def _batches(self, plan: _Plan, first: int) -> Iterator[list[int]]:
        for step in range(first, len(plan.begins)):
            mine = slice(plan.begins[step] + self.rank, plan.ends[step], self.num_replicas)
            yield plan.order[mine].tolist()

    # ---- the order

    def _samples_of_step(self, longest: int) -> int:
        """Of all ranks, where the longest sample of a batch has so many tokens."""
        sizes = [] if self.batch_size is None else [self.batch_size]
        if self.max_tokens is not None:
            sizes.append(self.max_tokens // max(longest, 1))
        return self.num_replicas * min(sizes)

    def _samples_of_mega_batch(self) -> int:
        count = max(len(self._lengths), 1)
        if not self.shuffle:
            return count
        step = self._samples_of_step(int(self._lengths.sum(dtype=float)) // count)
        return step * max(min(self.mega_batch_mult, count // (_MEGA_BATCHES * step)), 1)

    def _shuffled(self, epoch: int) -> Vector:
        count = len(self._lengths)
        if not self.shuffle:
            return np.arange(count)
        return Permutation(count, self.seed, epoch).block(0, count)

    def _plan_of(self, epoch: int) -> _Plan:
        settings = (self.seed, self.shuffle, self.drop_last, self.batch_size, self.max_tokens)
        key = (epoch, self.num_replicas, self.mega_batch_mult, *settings)
        plan = self._plan
        if plan is None or plan.key != key:
            plan = self._plan = self._make_plan(epoch, key)
        return plan

    def _make_plan(self, epoch: int, key: tuple[Any, ...]) -> _Plan:
        shuffled, size = self._shuffled(epoch), self._samples_of_mega_batch()
        parts: list[Vector] = []
        steps: list[int] = []  # samples of each
        left = shuffled[:0]
        for begin in range(0, len(shuffled), size):
            pool = np.concatenate((left, shuffled[begin : begin + size]))
            pool = pool[np.argsort(-self._lengths[pool], kind="stable")]
            used = self._cut_steps(pool, steps)
            parts.append(pool[:used])
            left = pool[used:]
        if len(left) > 0 and not self.drop_last:
            steps.append(-(-len(left) // self.num_replicas) * self.num_replicas)
            parts.append(np.resize(left, steps[-1]))
        order = np.concatenate(parts) if parts else left
        ends = list(accumulate(steps))
        begins = [0, *ends[:-1]][: len(ends)]
        if begins:
            at = int(np.argmax(self._lengths[order[begins]]))
            for places in (begins, ends):
                places[0], places[at] = places[at], places[0]
        return _Plan(key, order, begins, ends)

    def _cut_steps(self, pool: Vector, steps: list[int]) -> int:
        """Appends the sizes of the whole steps in these samples, longest first, to `steps`; says
        how many samples these are."""
        at = 0
        while at < len(pool):
            size = self._samples_of_step(int(self._lengths[pool[at]]))
            if at + size > len(pool):
                break
            steps.append(size)
            at += size
        return at
