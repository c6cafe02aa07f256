"""The indices of the latest batches of an epoch, for messages that name samples.

An iterator that keeps them appends each item of its sampler, with a number, to a ``Recent``. If
anything makes the indices doubtful, nobody is named."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any

# Items of a sampler, each with its number. A block of rows has the number of its first row.
Recent = MutableSequence[tuple[Any, int]]
RECENT = 64  # batches


class SizeWatch:
    """Stands for a BatchSampler where native code cuts blocks into batches, and notes whether
    batches of the epoch have different sizes.

    Attributes:
        size: the first size.
        has_changed: whether any later read has found a different size.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler, self.size, self.has_changed = sampler, sampler.batch_size, False

    @property
    def drop_last(self) -> Any:
        return self._sampler.drop_last

    @property
    def batch_size(self) -> Any:
        size = self._sampler.batch_size
        self.has_changed = self.has_changed or size != self.size
        return size


def find_item(recent: Recent, number: int) -> Any:
    """Return the item of this number. None if the item is gone, or if the sampler has yielded the
    same list again: the list may hold the indices of a later batch."""
    item = next((item for item, other in recent if other == number), None)
    is_again = type(item) is list and sum(other is item for other, _ in recent) > 1
    return None if is_again else item


def find_rows(recent: Recent, watch: SizeWatch, number: int) -> list[int] | None:
    """Return the rows of a batch that is cut from blocks. None if rows are gone, or if the size of
    batches has changed."""
    rows: list[int] = []
    for block, first in recent:
        begin = number * watch.size + len(rows) - first
        if begin < 0 or len(rows) >= watch.size:
            break
        part: Any = range(block[0], sum(block)) if isinstance(block, tuple) else block
        rows += map(int, part[begin : begin + watch.size - len(rows)])
    return rows if rows and not watch.has_changed else None
