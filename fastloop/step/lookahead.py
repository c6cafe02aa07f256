"""A loader of which one knows, at each batch, whether it is the last.

Sized loaders are counted: reading ahead would change random numbers, the loader's state and the
moment of its errors. Others are read one batch ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_NOTHING: Any = object()


class Lookahead:
    """An iterator over a loader that can say whether another batch follows."""

    def __init__(self, loader: Iterable[Any]) -> None:
        try:
            total = len(loader)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError, AttributeError):
            total = None
        self._iterator: Iterator[Any] = iter(loader)
        # A resumed loader begins in the middle of its epoch: torch's iterators count from there.
        begun = getattr(self._iterator, "_num_yielded", 0)
        self.left = None if total is None else total - begun  # batches to come; None: not known
        self._held: Any = _NOTHING  # read ahead
        self._error: BaseException | None = None  # met while reading ahead
        # For ranks of a parallel job:
        self.is_announced = False  # the others know that this loop has another window
        self.unequal = (
            ""  # what every rank's loop is to raise: they have unequal numbers of windows
        )

    def has_more(self) -> bool:
        """Whether `take` gives a batch, or an error of the loader."""
        if self.left is not None:
            return self.left > 0
        if self._held is _NOTHING and self._error is None:
            try:
                self._held = next(self._iterator)
            except BaseException as error:
                self._error = error
        return not isinstance(self._error, StopIteration)

    def take(self) -> Any:
        """The next batch; raises StopIteration at the end."""
        if self.left is not None:
            batch = next(self._iterator)
            # More than its length said: the length of an IterableDataset is a guess.
            self.left = self.left - 1 if self.left > 0 else None
            return batch
        if not self.has_more() or self._error is not None:
            error, self._error = self._error, StopIteration()
            assert error is not None
            raise error
        batch, self._held = self._held, _NOTHING
        return batch
