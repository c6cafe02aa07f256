"""The epoch of a dataset's random numbers, and who reads which.

A dataset whose samples are random has one ``Epoch``, a number that all processes with the dataset
share. An iterator of a loader has numbers of its own (``IteratorEpochs``), which hold from its
beginning to its end: they are read where the iterator fetches samples.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, MutableSequence, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import Dataset

from fastloop.base.checks import read_int

EPOCHS = 2**32
_BLOCK = 1024  # epochs whose words share memory, and so one file descriptor

_T = TypeVar("_T")


def check_epoch(epoch: Any) -> int:
    """Return `epoch` as an int within the range of the random numbers' key."""
    return read_int("epoch", epoch, 0, EPOCHS - 1, "the number of epochs before it")


def _share(count: int) -> torch.Tensor:
    words = torch.zeros(count, dtype=torch.int64, device="cpu")
    words.share_memory_()  # type: ignore[no-untyped-call]
    return words


def _elements(words: torch.Tensor) -> MutableSequence[int]:
    """Return a view of the words whose elements take 50 ns to read."""
    return cast("MutableSequence[int]", memoryview(cast(Any, words.numpy())))


_words: list[torch.Tensor] = []  # shared, and not yet taken
os.register_at_fork(after_in_child=_words.clear)  # both processes would take the same ones


def _take_word() -> torch.Tensor:
    if not _words:
        _words.extend(_share(2 * _BLOCK).view(_BLOCK, 2).unbind(0))
    return _words.pop()


class Epoch:
    """A number that forked children share, and spawned ones that it is sent to. A deep copy or a
    plain pickle has a word of its own, which begins with the same numbers."""

    def __init__(self, numbers: Sequence[int] = (0, 0), word: torch.Tensor | None = None) -> None:
        self._word = _take_word() if word is None else word
        # The number, and whether set_epoch() has set it.
        self._numbers = _elements(self._word)
        if word is None:
            self._numbers[0], self._numbers[1] = numbers

    @property
    def value(self) -> int:
        """The epoch of the iterator that is fetching a sample on this thread. Outside of one, the
        epoch that set_epoch() has set, or that a loader began last."""
        held = _held.epochs
        number = None if held is None else held.number_of(self)
        return int(self._numbers[0]) if number is None else number

    @property
    def users(self) -> int | None:
        """The number that set_epoch() has set, or None."""
        return int(self._numbers[0]) if self._numbers[1] else None

    def explain(self) -> str:
        """Return a line that names the epoch and who has set it."""
        counted = "counted by fastloop's loaders; with torch's own, call set_epoch() for each"
        return f"epoch {self.value}, {counted if self.users is None else 'set by set_epoch()'}"

    def set(self, epoch: Any) -> None:
        """Set the number for the user; loaders no longer count it. Iterators that have begun stay
        in their epochs."""
        self._numbers[0] = check_epoch(epoch)
        self._numbers[1] = True

    def begin(self, epoch: int) -> None:
        """Note that a loader begins an epoch of this number."""
        if self.users is None:
            self._numbers[0] = epoch

    def __reduce__(self) -> tuple[type[Epoch], tuple[Sequence[int]]]:
        return Epoch, (tuple(self._numbers),)


ForkingPickler.register(Epoch, lambda epoch: (Epoch, ((), epoch._word)))


class IteratorEpochs:
    """The epochs of datasets for one iterator. Other datasets are in those of their words.

    Args:
        epochs: of the datasets.
        is_shared: worker processes see the numbers of their iterator's later epochs.
        words: the shared numbers, in a worker.
    """

    def __init__(
        self, epochs: Sequence[Epoch], is_shared: bool = False, words: torch.Tensor | None = None
    ) -> None:
        self.epochs = tuple(epochs)
        self._places = {epoch: i for i, epoch in enumerate(self.epochs)}
        if words is None and is_shared and self.epochs:
            words = _share(len(self.epochs))
        self._words = words
        self._numbers = [0] * len(self.epochs) if words is None else _elements(words)

    def begin(self, set_epochs: Sequence[int | None], random_epoch: int) -> None:
        """Note that the iterator begins an epoch.

        Args:
            set_epochs: the number that set_epoch() has set for each dataset, or None.
            random_epoch: the number for the others.
        """
        for i, (epoch, number) in enumerate(zip(self.epochs, set_epochs, strict=True)):
            # A sampler's epoch, which this may be, can be any number.
            self._numbers[i] = random_epoch % EPOCHS if number is None else number
            epoch.begin(self._numbers[i])

    def number_of(self, epoch: Epoch) -> int | None:
        """Return the iterator's number for the epoch of a dataset, or None if it has none."""
        place = self._places.get(epoch)
        return None if place is None else self._numbers[place]

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Return ``function(*args)``, with this thread in these epochs."""
        if not self.epochs:
            return function(*args)
        before, _held.epochs = _held.epochs, self
        try:
            return function(*args)
        finally:
            _held.epochs = before

    def wrap_init(self, init: Callable[[int], object] | None) -> Callable[[int], object] | None:
        """Return a worker_init_fn for worker processes, which have to be in these epochs: it enters
        them for good, and then calls `init`."""
        return partial(self._enter_worker, init) if self.epochs else init

    def _enter_worker(self, init: Callable[[int], object] | None, worker: int) -> None:
        _Held.epochs = self  # for all threads of the process
        _held.__dict__.clear()  # a fork in the middle of a fetch has left that fetch's here
        if init is not None:
            init(worker)

    def __reduce__(self) -> tuple[type[IteratorEpochs], tuple[Any, ...]]:
        # It must be in one pickle with the datasets, or it would be about others.
        return IteratorEpochs, (self.epochs, True, self._words)


NO_EPOCHS = IteratorEpochs(())  # of all iterators whose datasets have none


class _Held(threading.local):
    epochs: IteratorEpochs | None = None


_held = _Held()


class EpochDataset(Dataset[Any]):
    """Base of datasets whose samples are a function of index and epoch, of ``_epoch.value``.
    Loaders look for these, also within other datasets, and begin their epochs."""

    _epoch: Epoch | None = None  # None: the samples are the same in all epochs

    def _size_remedy(self) -> str:
        """Name the argument that stacks samples of several shapes; empty if all have one shape."""
        return ""

    def _has_own_samples(self, base: Any) -> bool:
        """Tell whether a subclass of ``base`` overrides ``__getitem__`` alone: the batches of
        ``base`` would lack what it does."""
        cls: Any = type(self)
        is_own = cls.__getitem__ is not base.__getitem__
        return is_own and cls.__getitems__ is base.__getitems__

    def _epoch_now(self) -> int:
        return 0 if self._epoch is None else self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random numbers, in all processes that have the dataset.

        Loaders of fastloop then no longer count epochs for it; iterators that have begun stay in
        the epoch they began with. Does nothing if no sample is random.
        """
        epoch = check_epoch(epoch)
        if self._epoch is not None:
            self._epoch.set(epoch)
