"""Batches of equal cost, so that no rank waits for another: ``CostBatchSampler``.

An epoch's order is cut into windows. A window is planned as a whole when its first batch is asked
for, and depends on no window before it. Every rank plans the batches of all ranks.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import chain
from typing import Any

import numpy as np
import torch

from fastloop._core import Permutation, balance_window
from fastloop.base.checks import (
    are_numbers,
    check_type,
    look_up,
    make_message,
    read_int,
    read_number,
    refuse_if,
)
from fastloop.data.samplers import Dealt, RankedBatchSampler, Vector, read_lengths

Costs = np.ndarray[Any, np.dtype[np.float64]]
Cost = tuple[float, float] | Callable[[Vector], Any] | Any
# Where the window's samples begin and end in the epoch's order, and the samples. The end tells
# windows apart: the first window may also have samples from before its begin.
Window = tuple[int, int, Vector]
Plan = tuple[Vector, Vector, Vector]
Settings = tuple[Any, ...]

_MOST_TOKENS = 2**52
_MOST = 2**31 - 1  # the largest window, and the largest number of batches of a rank in a step
_STEPS = 64  # of packed rows in a window, at most
_EPOCHS = 64  # epochs whose number of batches is kept
_PLANS = 4  # windows whose plans are kept
_NONE: Vector = np.empty(0, np.int64)
_NUMBERS = 2**62  # an order of so many indices serves as a table of random numbers


def _check_costs(found: Any, count: int) -> Costs:
    """Return costs as a contiguous vector, without -0.

    Raises: TypeError or ValueError, which name the cost."""
    found = np.asarray(found.detach().cpu() if isinstance(found, torch.Tensor) else found)
    if found.dtype.kind not in "iuf" or found.shape != (count,):
        rule = f"a vector with a number for each of the {count} samples"
        got = f"shape {found.shape} of {found.dtype}"
        remedy = "or (a, b) for a cost of a*n + b*n*n, or a function of lengths"
        raise TypeError(f"cost must be {rule}, got {got} ({remedy})")
    costs: Costs = found.astype(np.float64) + 0.0
    for at in np.flatnonzero(~np.isfinite(costs) | (costs < 0))[:1]:
        raise ValueError(f"cost[{at}] must be finite and >= 0, got {costs[at]}")
    return costs


def _start_of(dealt: Dealt) -> Sequence[int]:
    """Return where windows begin in an epoch's order, and the number of batches before."""
    return dealt[0] if dealt and len(dealt[0]) == 2 else (0, 0)


def _keep(kept: dict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


class _Samples:
    """Samples whose lengths and costs are known from the beginning."""

    packed: Any = None

    def __init__(self, lengths: Any, max_tokens: int, cost: Cost) -> None:
        self.lengths = n = read_lengths(lengths, max_tokens)
        if isinstance(cost, tuple):
            with np.errstate(over="ignore"):
                cost = cost[0] * n.astype(np.float64) + cost[1] * n.astype(np.float64) ** 2
        self.costs = _check_costs(cost(n.copy()) if callable(cost) else cost, len(n))
        is_free = len(n) > 0 and not self.costs.any()
        refuse_if(is_free, "cost must be above 0 for a sample, got 0 for all samples")
        self.facts = f"lengths and costs {zlib.crc32(self.costs.data, zlib.crc32(n.data)):08x}"

    def __len__(self) -> int:
        return len(self.lengths)

    def measure(self, samples: Vector) -> tuple[Vector, Costs]:
        """Return the lengths and the costs of samples."""
        return self.lengths[samples], self.costs[samples]


class _PackedRows:
    """The rows of a PackedDataset in its epoch, which have one length. Their costs are asked for
    by the window, because each row is found by packing the rows around it."""

    def __init__(self, packed: Any, max_tokens: int, cost: Cost) -> None:
        rule = "(a, b) for a cost of a*n + b*n*n, or a function of lengths"
        check_type("cost", cost, isinstance(cost, tuple) or callable(cost), rule)
        read_int("max_tokens", max_tokens, packed.seq_len, remedy="rows have so many tokens")
        self.packed, self._cost = packed, cost
        self.facts = f"{packed.seq_len} tokens of cost {'?' if callable(cost) else cost}"

    def __len__(self) -> int:
        return len(self.packed)

    def measure(self, samples: Vector) -> tuple[Vector, Costs]:
        """Return the lengths and the costs of rows."""
        first, count = int(samples.min()), int(np.ptp(samples)) + 1
        costs = _check_costs(self.packed.row_costs(first, count, self._cost), count)
        return np.full(len(samples), self.packed.seq_len), costs[samples - first]


class CostBatchSampler(RankedBatchSampler):
    """Batches of samples to be packed without padding, which cost the same on all ranks.

    The cost of a sample of n tokens is a·n + b·n² (attention), or what you have measured. The
    samples are shuffled and cut into windows. In a window, a sample that costs much more than
    others gets a step in which the samples of all batches add up to its cost. The other samples go,
    the most expensive first, each into the batch that costs least (LPT), and batches of similar
    cost are a step. The most expensive step of a window comes first, the others in random order.
    The order is a function of (seed, epoch), lengths and costs: call ``set_epoch(e)`` before each
    epoch.

    Batches have unequal numbers of tokens, so the mean of their mean losses is wrong. Give
    ``stepper.micro(weight=...)`` the number of tokens that have a target, for example ``(labels !=
    -100).sum()`` of a ``PackCollate``: the gradient is then the same as on one rank. Let a schedule
    of the learning rate count tokens, because steps have unequal numbers of tokens as well.

    All ranks have equally many batches, and none is empty. If too few samples are left for the last
    step of an epoch, ranks may have fewer than ``accumulate`` batches in it, and up to R - 1 of the
    cheapest samples come twice; ``drop_last=True`` leaves the step out.

    For example, ``CostBatchSampler(ragged.lengths, max_tokens=65_536)``.

    Args:
        lengths: the number of tokens in each sample: a sequence, ndarray or tensor of integers, or
            a ``RaggedArray``. For packed rows, whose costs differ by their documents, a
            ``PackedDataset``: its rows keep near to its order, in windows of 64 steps at most.
        max_tokens: the largest number of tokens in a batch. Choose at least twice the longest
            sample: only then can many short samples cost as much as a long one.
        cost: (a, b) for a·n + b·n² (the default is about that of a model of 7 billion parameters),
            a vector with a number for each sample, or a function that returns this vector for an
            array of lengths. ``PackedDataset.row_costs()`` adds up the costs of documents.
        window: the number of samples that are planned together; the last window of an epoch may
            have almost twice as many. Larger windows, of ten steps and more, balance better.
        accumulate: the number of batches that each rank has in a step: the stepper's.
        shuffle: False takes the samples in order, with the same batches in each epoch: for
            evaluation.
        drop_last: whether an incomplete last step is left out.
        seed: from 0 to 2**64 - 1.
        num_replicas: the number of ranks. Default: the number in ``torch.distributed`` if
            initialised, else 1.
        rank: this process's rank. Default: the rank in ``torch.distributed`` if initialised, else
            0.

    Yields:
        list[int]: the samples of one batch for this rank, the most expensive first.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: a number out of range; a cost that is negative, infinite or NaN, or 0 for all
            samples; a sample longer than ``max_tokens``; fewer samples than ranks; several ranks
            without ``rank`` or a process group.
    """

    batch_size = None
    has_windows = True
    max_tokens: int

    def __init__(
        self,
        lengths: Any,
        max_tokens: int,
        *,
        cost: Cost = (1.0, 1 / 24_576),
        window: int = 16_384,
        accumulate: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(seed, num_replicas, rank)
        self.max_tokens = read_int("max_tokens", max_tokens, 1, _MOST_TOKENS)
        self.window = read_int("window", window, 1, _MOST)
        self.accumulate = read_int("accumulate", accumulate, 1, _MOST)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        if isinstance(cost, tuple):
            rule = "(a, b) for a cost of a*n + b*n*n, a function of lengths, or a vector"
            refuse_if(not are_numbers(cost, 2), make_message("cost", rule, cost))
            cost = tuple(read_number(f"cost[{i}]", each, 0) for i, each in enumerate(cost))
        source = _PackedRows if callable(look_up(lengths, "row_costs")) else _Samples
        self._source = source(lengths, self.max_tokens, cost)
        if self._source.packed is None:  # counting packed rows may take long
            self._count_samples()
        # By the settings of an epoch: its batches; and the windows that an iteration has begun, as
        # the batches before the window and the begin of the window's samples.
        self._totals: dict[Settings, int] = {}
        self._begun: dict[Settings, list[tuple[int, int]]] = {}
        self._plans: dict[tuple[Settings, int], Plan] = {}

    def _count_samples(self) -> int:
        ranks, count = self.num_replicas, len(self._source)
        text = f"lengths must have a sample for each of {ranks} ranks, got {count} samples"
        refuse_if(count < ranks, text)
        return count

    @property
    def fingerprint(self) -> str:
        return f"{self._source.facts} by {self.max_tokens} tokens in windows of {self.window}"

    def __repr__(self) -> str:
        step = f"accumulate={self.accumulate}" if self.accumulate > 1 else ""
        count = f"{len(self._source):,} samples"
        return self._repr(count, f"max_tokens={self.max_tokens}", step)

    def explain(self) -> str:
        """Return a text about the first window of the epoch: the slowest rank's cost beside the
        mean rank's, and how full of tokens the batches are."""
        _, end, samples = next(self._windows(self.epoch))
        order, bounds, steps = self._plan(self.epoch, end, samples)
        if len(order) == 0:
            return "the first window has no whole step"
        lengths, costs = self._source.measure(order)
        sums = np.add.reduceat(costs, bounds[:-1])[steps]
        sums = np.add.reduceat(sums, np.arange(0, len(sums), self.accumulate))
        ratio = sums.max(1).sum() / sums.mean(1).sum()
        full = lengths.sum() / (steps.size * self.max_tokens)
        return (
            f"the first window: {len(costs):,} samples in {len(sums):,} steps of "
            f"{self.num_replicas} ranks with {self.accumulate} batches each\n"
            f"the slowest rank costs {ratio:.4f} times the mean rank\n"
            f"batches have {full:.1%} of {self.max_tokens:,} tokens"
        )

    def as_with(self, ranks: int, size: int) -> CostBatchSampler:
        made = copy(self)
        made.num_replicas, made.accumulate = ranks, max(size, 1)
        return made

    def _settings(self, epoch: int, dealt: Dealt) -> Settings:
        """Return all that the batches of an epoch depend on."""
        rows = None if (packed := self._source.packed) is None else packed._epoch_now()
        had = tuple(map(tuple, dealt))
        shape = self.num_replicas, self.accumulate, self.max_tokens, self.window
        return had, rows, epoch, self.seed, self.shuffle, self.drop_last, *shape

    def length_of(self, epoch: int, dealt: Dealt = ()) -> int:
        key = self._settings(epoch, dealt)
        if (total := self._totals.get(key)) is None:
            total = _start_of(dealt)[1]
            for before, plan in self._planned(epoch, dealt):
                total = before + len(plan[2])
            _keep(self._totals, key, total, _EPOCHS)
        return total

    def has_batch(self, number: int, epoch: int, dealt: Dealt) -> bool:
        made = copy(self)
        made.epoch, made.rank = epoch, 0
        return next(made.iter_from(number, dealt), None) is not None

    def shorten(self, dealt: list[list[int]], epoch: int, first: int) -> list[list[int]]:
        begun = self._begun.get(self._settings(epoch, dealt), [])
        at = bisect_left(begun, (first, 0))  # Lightning may count a batch less
        return [[*begun[at - 1][::-1]]] if at > 0 else dealt

    def iter_from(self, first: int, dealt: Dealt = ()) -> Iterator[list[int]]:
        windows, count = self._planned(self.epoch, dealt), _start_of(dealt)[1]
        if first == count:  # nothing is planned before the first next()
            return self._batches_from(first, windows)
        self._check_first(first - count, max(first - count, 0))  # raises if it is before `dealt`
        for before, plan in windows:
            count = before + len(plan[2])
            if first <= count:
                return self._batches_from(first, chain([(before, plan)], windows))
        self._check_first(first, count)
        return iter(())

    def _batches_from(self, first: int, windows: Iterator[tuple[int, Plan]]) -> Iterator[list[int]]:
        for before, (order, bounds, steps) in windows:
            for i in steps[max(first - before, 0) :, self.rank]:
                yield order[bounds[i] : bounds[i + 1]].tolist()

    # ---- windows and their plans

    def _windows(self, epoch: int, dealt: Dealt = ()) -> Iterator[Window]:
        """Yield the windows of an epoch, without the samples that were dealt before. The first
        window has the rest of the window in which earlier ranks have stopped. A last window that
        would be short belongs to the window before it."""
        count, step, rest = self._count_samples(), self.num_replicas * self.accumulate, _NONE
        end = _start_of(dealt)[0]
        if dealt and len(dealt[-1]) == 3:
            *before, (ranks, size, batches) = dealt
            others = self.as_with(ranks, size)
            for _, end, samples in others._windows(epoch, before):
                order, bounds, steps = others._plan_of(epoch, before, end, samples)
                is_had = np.isin(np.arange(steps.size), steps[:batches])
                had = order[np.repeat(is_had, np.diff(bounds))]
                rest = samples[~np.isin(samples, had)]
                batches -= len(steps)
                if batches <= 0:
                    break
        packed, size = self._source.packed, self.window
        if packed is not None:  # rows that are packed together are read together
            size = min(size, _STEPS * step * (self.max_tokens // packed.seq_len))
        size = -(-max(size, 1) // step) * step  # then only the last window has an incomplete step
        while end < count or len(rest) > 0:
            begin, end = end, end + max(size, -(-len(rest) // step) * step) - len(rest)
            end = end if count - end >= size else count
            own = np.arange(begin, end)
            if self.shuffle and packed is None:
                own = Permutation(count, self.seed, epoch).block(begin, end - begin)
            yield begin, end, np.concatenate([rest, own])
            rest = _NONE

    def _planned(self, epoch: int, dealt: Dealt) -> Iterator[tuple[int, Plan]]:
        """Yield the plans of an epoch's windows, and the number of batches before each. Windows
        after the first depend on their begin alone, which is noted."""
        before = _start_of(dealt)[1]
        key = self._settings(epoch, dealt)
        if key not in self._begun:
            _keep(self._begun, key, [], _EPOCHS)
        begun = self._begun[key]
        for number, (begin, end, samples) in enumerate(self._windows(epoch, dealt)):
            at = bisect_left(begun, (before, begin))
            if number > 0 and begun[at : at + 1] != [(before, begin)]:
                begun.insert(at, (before, begin))
            plan = self._plan_of(epoch, dealt, end, samples)
            yield before, plan
            before += len(plan[2])

    def _plan_of(self, epoch: int, dealt: Dealt, end: int, samples: Vector) -> Plan:
        """Return the plan of a window, which is kept for a while."""
        parts = [[_start_of(dealt)[0], 0], *(part for part in dealt if len(part) == 3)]
        key = self._settings(epoch, parts), end
        if (plan := self._plans.get(key)) is None:
            plan = self._plan(epoch, end, samples)
            _keep(self._plans, key, plan, _PLANS)
        return plan

    def _plan(self, epoch: int, end: int, samples: Vector) -> Plan:
        """Return the samples of a window's batches, the bounds of the batches, and a table of their
        numbers: a column for each rank, one batch below the other."""
        ranks, size = self.num_replicas, self.accumulate
        lengths, costs = self._source.measure(samples)
        read_int("max_tokens", self.max_tokens, int(lengths.max(initial=1)), _MOST_TOKENS)
        order, bounds = np.zeros((2, len(samples) + ranks + 1), np.int64)
        limits: Any = ranks, size, self.max_tokens, self.drop_last
        count = balance_window(lengths, costs, order, bounds[1:], *limits)
        bounds = bounds[: count + 1]
        order = order[: bounds[-1]]
        # A step with samples that come twice is the last of the epoch, or later ranks would have
        # more of such samples.
        steps = (count - max(0, len(order) - len(samples))) // (ranks * size)
        key = int(Permutation(_NUMBERS, self.seed, epoch * self.shuffle).block(end, 1)[0])
        sequence = Permutation(steps, key, 0).block(0, steps)
        if steps > 0:
            each = np.add.reduceat(costs[order], bounds[:-1])[: steps * ranks * size]
            is_first = sequence == each.reshape(steps, -1).max(1).argmax()
            sequence = np.append(sequence[is_first], sequence[~is_first])
        rows = np.arange(count // ranks)
        rows[: steps * size] = (sequence[:, None] * size + np.arange(size)).ravel()
        turns = Permutation(_NUMBERS, key, 1).block(0, len(rows))[:, None] + np.arange(ranks)
        return samples[order], bounds, rows[:, None] * ranks + turns % ranks
