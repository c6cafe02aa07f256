"""Which batches of an epoch are left, where they come in another order than the sampler's.

With ``in_order=False`` a slow batch is overtaken. ``Left`` is what an epoch goes on with: the
numbers of batches that were overtaken, and the number from which on none was asked for. A state has
that as a text, "3,8,9": batches 3 and 8, and all from 9 on; "" where it is all behind those that
were yielded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple


class Left(NamedTuple):
    overtaken: tuple[int, ...]  # ascending
    first: int  # all from here on are left, too

    def number(self, place: int) -> int:
        """Of the batch at a place in the order in which these are asked for."""
        count = len(self.overtaken)
        return self.overtaken[place] if place < count else self.first + place - count

    def behind(self, place: int) -> Left:
        """What is left when those before a place have come."""
        count = len(self.overtaken)
        return Left(self.overtaken[place:], self.number(max(place, count)))

    def take_overtaken(self, items: Iterator[Any]) -> tuple[list[Any], int]:
        """Takes the items of all batches before the first: those that were overtaken, and how many
        there were in all."""
        wanted, found, passed = set(self.overtaken), [], 0
        for passed, item in enumerate(islice(items, self.first), 1):
            if passed - 1 in wanted:
                found.append(item)
        return found, passed


def write_left(left: Left, yielded: int) -> str:
    if left == Left((), yielded):
        return ""
    return ",".join(map(str, (*left.overtaken, left.first)))


def read_left(text: str, yielded: int) -> Left:
    """Raises ValueError if that is no such text."""
    if text == "":
        return Left((), yielded)
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 19 for part in parts):
        raise ValueError("it is no list of numbers")
    *overtaken, first = map(int, parts)
    numbers = [*overtaken, first]
    if any(a >= b for a, b in pairwise(numbers)):
        raise ValueError("its numbers do not ascend")
    if first - len(overtaken) < yielded:
        raise ValueError(f"that leaves fewer than the {yielded} batches yielded")
    return Left(tuple(overtaken), first)


class LeftBatches:
    """Of one epoch, as far as its batches are the user's.

    Args:
        begin: what was left when its iterator began.
        yielded: how many batches were the user's then.
    """

    def __init__(self, begin: Left, yielded: int) -> None:
        self.begin = begin
        self._yielded = yielded
        self._last: Left | None = None  # behind the last batch that is the user's
        self._ahead: deque[tuple[int, Left]] = deque()

    def note(self, number: int, under_way: Iterable[int], sent: int) -> None:
        """A batch that may have overtaken others is handed out.

        Args:
            number: of batches handed out in this epoch, this one included.
            under_way: places of those that were asked for and have not come.
            sent: how many were asked for.
        """
        places = sorted(under_way)
        left = Left(tuple(map(self.begin.number, places)), self.begin.number(sent))
        self._ahead.append((number, left))

    def is_known(self, yielded: int) -> bool:
        """Whether batches were noted, if any have come."""
        return self._last is not None or len(self._ahead) > 0 or yielded == self._yielded

    def after(self, yielded: int) -> Left:
        while self._ahead and self._ahead[0][0] <= yielded:
            self._last = self._ahead.popleft()[1]
        return self._last or self.begin.behind(yielded - self._yielded)
