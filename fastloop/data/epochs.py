"""The epoch of a dataset's random numbers, and which code reads which epoch.

A dataset whose samples are random has one ``Epoch``: a number that all processes with the dataset
share. An iterator of a loader has its own numbers (``IteratorEpochs``), which are fixed from the
iterator's beginning to its end. Code that fetches samples for the iterator reads these numbers.
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

from fastloop.base.checks import look_up, read_int

EPOCHS = 2**32
_BLOCK = 1024  # epochs whose words share memory, and therefore one file descriptor

_T = TypeVar("_T")


def check_epoch(epoch: Any) -> int:
    """Return `epoch` as an int within the range of the random numbers' key."""
    return read_int("epoch", epoch, 0, EPOCHS - 1, "the number of epochs before it")


def _share(count: int) -> torch.Tensor:
    words = torch.zeros(count, dtype=torch.int64, device="cpu")
    words.share_memory_()  # type: ignore[no-untyped-call]
    return words


def _elements(words: torch.Tensor) -> MutableSequence[int]:
    """Return a view of the words with fast elements: reading one takes 50 ns."""
    return cast("MutableSequence[int]", memoryview(cast(Any, words.numpy())))


_blocks: list[torch.Tensor] = []  # shared words that are not taken yet


def _forget_blocks() -> None:
    """Give a forked child a list of its own, else both processes would take the same words."""
    global _blocks
    _blocks = []


os.register_at_fork(after_in_child=_forget_blocks)


def _take_word() -> torch.Tensor:
    blocks = _blocks  # the parent's, if a signal's handler forks meanwhile
    try:  # several threads may take words
        block = blocks.pop()
    except IndexError:
        block = _share(2 * _BLOCK).view(_BLOCK, 2)
    if len(block) > 1:
        blocks.append(block[1:])
    return block[0]


class Epoch:
    """A number that is shared with forked children, and with spawned ones that receive it. A deep
    copy or a plain pickle has its own word, which begins with the same number."""

    def __init__(self, numbers: Sequence[int] = (0, 0), word: torch.Tensor | None = None) -> None:
        self._word = _take_word() if word is None else word
        # The two numbers are the epoch, and whether set_epoch() has set it.
        self._numbers = _elements(self._word)
        if word is None:
            self._numbers[0], self._numbers[1] = numbers

    @property
    def value(self) -> int:
        """The epoch of the iterator that is fetching a sample on this thread. If no iterator is
        fetching, the epoch that set_epoch() has set, or that a loader began last."""
        held = _held.epochs
        number = None if held is None else held.number_of(self)
        return int(self._numbers[0]) if number is None else number

    @property
    def users(self) -> int | None:
        """The number that set_epoch() has set, or None."""
        return int(self._numbers[0]) if self._numbers[1] else None

    def explain(self) -> str:
        """Return a line that says the epoch and whether the user or a loader has set it."""
        counted = "counted by fastloop's loaders; with torch's own, call set_epoch() for each"
        return f"epoch {self.value}, {counted if self.users is None else 'set by set_epoch()'}"

    def set(self, epoch: Any) -> None:
        """Set the number for the user; loaders then stop counting it. Iterators that have begun
        stay in their epochs."""
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
    """The epochs of datasets for one iterator. Datasets outside the iterator have their own words.

    Args:
        epochs: the epochs of the datasets.
        is_shared: worker processes see the numbers of their iterator's later epochs.
        words: the shared numbers, in a worker.
    """

    def __init__(
        self, epochs: Sequence[Epoch], is_shared: bool = False, words: torch.Tensor | None = None
    ) -> None:
        self.epochs = tuple(epochs)
        self._indices = {epoch: i for i, epoch in enumerate(self.epochs)}
        if words is None and is_shared and self.epochs:
            words = _share(len(self.epochs))
        self._words = words
        self._numbers = [0] * len(self.epochs) if words is None else _elements(words)

    def begin(self, set_epochs: Sequence[int | None], random_epoch: int) -> None:
        """Note that the iterator begins an epoch.

        Args:
            set_epochs: the number that set_epoch() has set for each dataset, or None.
            random_epoch: the number for datasets without set_epoch().
        """
        self.enter(set_epochs, random_epoch)
        for epoch, number in zip(self.epochs, self._numbers, strict=True):
            epoch.begin(number)

    def enter(self, set_epochs: Sequence[int | None], random_epoch: int) -> None:
        """Take the numbers of an epoch, with the arguments of ``begin``; nothing else notices."""
        for i, number in enumerate(set_epochs[: len(self.epochs)]):
            # random_epoch may be a sampler's epoch, which can be any number.
            self._numbers[i] = random_epoch % EPOCHS if number is None else number

    def number_of(self, epoch: Epoch) -> int | None:
        """Return the iterator's number for the epoch of a dataset, or None."""
        index = self._indices.get(epoch)
        return None if index is None else self._numbers[index]

    def number_for(self, dataset: Any) -> int:
        """Return the iterator's number for a dataset; 0 if no sample of the dataset is random."""
        epoch = look_up(dataset, "_epoch")
        return (epoch and self.number_of(epoch)) or 0

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """Return ``function(*args)``, called with this iterator's epochs on this thread."""
        if not self.epochs:
            return function(*args)
        before, _held.epochs = _held.epochs, self
        try:
            return function(*args)
        finally:
            _held.epochs = before

    def wrap_init(self, init: Callable[[int], object] | None) -> Callable[[int], object] | None:
        """Return a worker_init_fn for worker processes: it sets these epochs for the whole life of
        the process, and then calls `init`."""
        return partial(self._enter_worker, init) if self.epochs else init

    def _enter_worker(self, init: Callable[[int], object] | None, worker: int) -> None:
        _Held.epochs = self  # for all threads of the process
        _held.__dict__.clear()  # drops the epochs of a fetch that a fork has interrupted
        if init is not None:
            init(worker)

    def __reduce__(self) -> tuple[type[IteratorEpochs], tuple[Any, ...]]:
        # One pickle must hold these epochs and the datasets; else the epochs would be copies.
        return IteratorEpochs, (self.epochs, True, self._words)


NO_EPOCHS = IteratorEpochs(())  # for iterators whose datasets have no epoch


class _Held(threading.local):
    epochs: IteratorEpochs | None = None


_held = _Held()


class EpochDataset(Dataset[Any]):
    """Base of datasets whose samples are a function of the index and of ``_epoch.value``. Loaders
    search for such datasets, also inside combined datasets, and begin their epochs."""

    _epoch: Epoch | None = None  # None: the samples are the same in all epochs
    _combined: Sequence[Any] = ()  # the datasets that this one combines
    # Why loaders must not shuffle; "": they may. Otherwise len() differs between epochs, too.
    _own_order = ""

    def _size_remedy(self) -> str:
        """Name the argument that stacks samples of several shapes, or return ""."""
        return ""

    def _has_own_samples(self, base: Any) -> bool:
        """Tell whether a subclass of ``base`` overrides ``__getitem__`` only. Batches of ``base``
        would then ignore the override."""
        cls: Any = type(self)
        is_own = cls.__getitem__ is not base.__getitem__
        return is_own and cls.__getitems__ is base.__getitems__

    def _epoch_now(self) -> int:
        return 0 if self._epoch is None else self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the random numbers, in all processes that have the dataset.

        fastloop's loaders then no longer count epochs for the dataset. Iterators that have begun
        stay in their epoch. If no sample is random, the call does nothing.
        """
        epoch = check_epoch(epoch)
        if self._epoch is not None:
            self._epoch.set(epoch)
