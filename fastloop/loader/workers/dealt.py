"""Batches at the beginning of an epoch that all worker processes make together: each makes a part,
and the parent joins the parts. docs/internals/processes.md has the rules.

This is right only if no sample depends on the process that makes it, nor on the samples before.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from fastloop._core import Collate
from fastloop.compat.tensors import is_plain, outside_inference_mode
from fastloop.data.columns import adapters, below_subsets, is_default_collate, own

# Each of n workers makes a part of n batches, and the parent copies all of them: with more workers
# the copies take longer than the work that is shared.
_MOST_WORKERS = 8


def may_deal(loader: DataLoader[Any]) -> bool:
    """Tell whether worker processes may share the batches of a loader."""
    is_few = 1 < loader.num_workers <= _MOST_WORKERS
    if not (is_few and loader.in_order and loader._auto_collation):
        return False
    init, dataset = loader.worker_init_fn, below_subsets(loader.dataset)[0]
    if init is not None and not adapters().name_of_seeder(init):
        return False  # it may change the dataset of one worker
    is_keyed = own(dataset, "_is_keyed")  # of the exact class
    return bool(is_keyed and is_keyed(dataset) and is_default_collate(loader.collate_fn))


def cut(task: tuple[int, list[Any]], workers: int) -> list[tuple[int, list[Any], int, list[Any]]]:
    """Return the parts of a task, in the order of samples: (number, indices of the part, place of
    the part, indices of the whole batch)."""
    number, indices = task
    count = min(workers, len(indices))
    ends = [place * len(indices) // count for place in range(count + 1)]
    return [(number, indices[ends[i] : ends[i + 1]], i, indices) for i in range(count)]


class Parts(NamedTuple):
    """The parts of a batch, which all have arrived.

    Attributes:
        number: the batch's.
        columns: for each field of the batch the parts' tensors.
    """

    number: int
    columns: list[tuple[torch.Tensor, ...]]

    @outside_inference_mode
    def join(self, collate: Collate) -> Any:
        """Return the batch, in memory that the collate uses again: fresh memory would cost more
        than the copy."""
        rows = [chain.from_iterable(column) for column in self.columns]
        return collate(list(zip(*rows, strict=True)))


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
