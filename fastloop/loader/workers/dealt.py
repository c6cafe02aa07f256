"""Batches at the beginning of an epoch that all worker processes make together: each makes a part.
docs/internals/processes.md has the rules.

Workers claim rows of the batch in shared memory and write them there. If the batch goes on to a
device, each makes a fixed part, and the parent joins the parts.

This is right only if no sample depends on the process that makes it, nor on the samples before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from fastloop._core import Collate, ParentEnd, Reply
from fastloop.compat.tensors import is_plain, outside_inference_mode
from fastloop.data.columns import adapters, below_subsets
from fastloop.loader.shared import is_keyed
from fastloop.loader.workers.batch_pickle import pickle_task

# Each of n workers makes a part of n batches, and the parent copies all of them: with more workers
# the copies take longer than the work that is shared.
_MOST_WORKERS = 8


def may_deal(loader: DataLoader[Any]) -> bool:
    """Tell whether worker processes may share the batches of a loader."""
    is_few = 1 < loader.num_workers <= _MOST_WORKERS
    if not (is_few and loader.in_order and loader._auto_collation):
        return False
    init = loader.worker_init_fn
    if init is not None and not adapters().name_of_seeder(init):
        return False  # it may change the dataset of one worker
    return is_keyed(loader)


def cut(task: tuple[int, list[Any]], workers: int) -> list[tuple[int, list[Any], int, list[Any]]]:
    """Return the parts of a task, in the order of samples: (number, indices of the part, place of
    the part, indices of the whole batch)."""
    number, indices = task
    count = min(workers, len(indices))
    ends = [place * len(indices) // count for place in range(count + 1)]
    return [(number, indices[ends[i] : ends[i + 1]], i, indices) for i in range(count)]


def find_like(loader: DataLoader[Any]) -> torch.Tensor | None:
    """Return a tensor like every sample's first field, if a dataset that is dealt knows one."""
    dataset = below_subsets(loader.dataset)[0]
    find = getattr(type(dataset), "_like", None)
    like: torch.Tensor | None = None if find is None else find(dataset)
    return like if like is not None and like.numel() > 0 else None


class Parts(NamedTuple):
    """The parts of a batch, which all have arrived.

    Attributes:
        number: the batch's.
        columns: for each field of the batch the parts' tensors, in the order of samples.
        stack: the first field, if the parts lie there side by side; it has no column then.
    """

    number: int
    columns: list[tuple[torch.Tensor, ...]]
    stack: torch.Tensor | None = None

    @outside_inference_mode
    def join(self, collate: Collate) -> Any:
        """Return the batch, in memory that the collate uses again: fresh memory would cost more
        than the copy."""
        if self.stack is not None:
            return [self.stack, *map(torch.cat, self.columns)]
        rows = [chain.from_iterable(column) for column in self.columns]
        return collate(list(zip(*rows, strict=True)))


def find_rows(stack: torch.Tensor, made: list[Any]) -> list[tuple[torch.Tensor, ...]] | None:
    """Return the columns of ``Parts`` beside a stack, from what workers have noted (``child.py``).
    None: a row has not been made, or not as foreseen."""
    if any(type(each) is not list for each in made):
        return None
    end, fields = 0, []
    for first, dtype, shape, others in sorted(chain(*made), key=itemgetter(0)):
        if first != end or dtype != stack.dtype or shape[1:] != stack.shape[1:]:
            return None
        end += shape[0]
        fields.append(others)
    return find_columns(fields) if end == len(stack) else None


def find_columns(parts: list[Any]) -> list[tuple[torch.Tensor, ...]] | None:
    """Return the columns of ``Parts``. None: a part is an error, or one's samples are unlike those
    of another one, so the whole batch is an error."""
    if any(type(part) is not list or len(part) != len(parts[0]) for part in parts):
        return None
    columns = list(zip(*parts, strict=True))
    tensors = chain(*columns)
    if any(type(each) is not torch.Tensor or not is_plain(each) for each in tensors):
        return None
    forms = [{(each.dtype, each.shape[1:]) for each in column} for column in columns]
    return columns if all(len(form) == 1 for form in forms) else None


class DealtBatches:
    """The dealt batches of an iterator: their requests, and the replies until all are there.

    Attributes:
        may_deal: whether batches may be dealt.
        parts: by number of a batch, for each worker its reply, or None if the worker has yet to
            answer. An empty list: one worker makes the whole batch after all.
        stacks: by number, the memory in which workers write the first field side by side.
    """

    def __init__(self, loader: DataLoader[Any], parent_end: ParentEnd) -> None:
        self.may_deal = may_deal(loader)
        self._parent_end, self._workers = parent_end, loader.num_workers
        # A tensor like each sample's first field, if workers may write these fields side by side.
        is_shared = self.may_deal and not parent_end.has_destination
        self._like = find_like(loader) if is_shared else None
        self.clear()

    def clear(self) -> None:
        self.parts: dict[int, list[Reply | None]] = {}
        self.stacks: dict[int, torch.Tensor] = {}

    def missing(self, number: int) -> list[int]:
        """Return the workers that still have to answer. Worker n makes the part at place n."""
        return [n for n, part in enumerate(self.parts.get(number, ())) if part is None]

    def prepare(self, number: int, indices: list[Any]) -> partial[bool]:
        """Return the call that sends a batch to all workers, as ``WorkerIter._prepare`` does. It is
        one native call: submit() returns None, so any() calls each."""
        if self._like is not None:
            return self._prepare_rows(number, indices, self._like)
        tasks = cut((number, indices), self._workers)
        # A worker knows a part by its negative number.
        pickled = [pickle_task((~place, part)) for _, part, place, _ in tasks]
        self.parts[number] = [None] * len(tasks)
        return partial(any, map(self._parent_end.submit, range(len(tasks)), pickled, tasks))

    @outside_inference_mode
    def _prepare_rows(self, number: int, indices: list[Any], like: torch.Tensor) -> partial[bool]:
        workers = range(self._workers)
        stack, marks, offset = self._parent_end.stage(like, len(indices))
        pickled = [pickle_task((number, indices, (offset, like.nbytes, 2 * len(workers))))]
        # The marks keep the memory as long as a worker may write to it.
        tasks = [(number, indices, place, indices, marks) for place in workers]
        self.stacks[number], self.parts[number] = stack, [None] * len(workers)
        return partial(any, map(self._parent_end.submit, workers, pickled * len(workers), tasks))

    def receive(
        self, number: int, place: int, reply: Reply, unpack: Callable[[Reply], Any]
    ) -> Parts | bool:
        """Note a reply. Return the batch if all parts are there; False: some are missing; True: the
        parts do not go together, so that the whole batch must be asked for."""
        parts, stack = self.parts[number], self.stacks.get(number)
        if not parts:
            return False  # a signal's handler has raised after the worker was asked
        parts[place] = reply
        is_open = bool(self.missing(number))
        if is_open and stack is None:
            return False
        made = [unpack(part) for part in parts if part is not None]
        columns = find_columns(made) if stack is None else find_rows(stack, made)
        if columns is not None:
            return Parts(number, columns, stack)
        if None in made and not is_open:
            self._like = None  # rows lie elsewhere, and would again
        return not is_open
