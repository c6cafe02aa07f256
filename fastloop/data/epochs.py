"""The epoch of a dataset's random numbers, and who reads which.

A dataset whose samples are random has one word, shared by all processes with the dataset; 1024
words share a descriptor. An iterator of a loader has
numbers of its own, which hold from its begin to its end: they are read where it fetches samples.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, MutableSequence, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import Dataset

EPOCHS = 2**32
_IS_USERS = 1  # the second element of the word: whether the user has set it

_T = TypeVar("_T")


def check_epoch(epoch: Any) -> int:
    try:
        number = operator.index(epoch)
    except TypeError:
        raise TypeError(
            f"epoch={epoch!r} is no integer; pass the count of epochs before it"
        ) from None
    if not 0 <= number < EPOCHS:
        raise ValueError(f"epoch={number} is not in [0, 2**32); pass the count of epochs before it")
    return number


def _share(count: int) -> torch.Tensor:
    words = torch.zeros(count, dtype=torch.int64, device="cpu")
    words.share_memory_()  # type: ignore[no-untyped-call]
    return words


def _elements(words: torch.Tensor) -> MutableSequence[int]:
    """Reading one of these takes 50 ns."""
    return cast("MutableSequence[int]", memoryview(cast(Any, words.numpy())))


class _Block:
    """Shared memory for the words of several datasets. It lives as long as one of them."""

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words  # int64 [words, 2]
        self.taken = 0
        self.process = os.getpid()  # after a fork two processes would take the same words

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """In a plain pickle and a deep copy. Processes get the block as below."""
        return _without_block, ()


def _without_block() -> None:
    return None


ForkingPickler.register(_Block, lambda block: (_Block, (block.words,)))
_WORDS_OF_BLOCK = 1024
_lock = threading.Lock()
_block: _Block | None = None  # with words to take


def _take_word() -> tuple[_Block, int]:
    global _block
    with _lock:
        block = _block
        if block is None or block.taken == len(block.words) or block.process != os.getpid():
            block = _block = _Block(_share(2 * _WORDS_OF_BLOCK).view(_WORDS_OF_BLOCK, 2))
        block.taken += 1
        return block, block.taken - 1


class Epoch:
    """Shared by forked children, and by spawned ones that it is sent to. A deep copy or a plain
    pickle has a word of its own, with the numbers given here."""

    def __init__(
        self, numbers: Sequence[int] = (0, 0), block: _Block | None = None, place: int = 0
    ) -> None:
        is_new = block is None
        self._block, self._place = _take_word() if block is None else (block, place)
        self._numbers = _elements(self._block.words[self._place])
        if is_new:
            self._numbers[0], self._numbers[1] = numbers

    @property
    def value(self) -> int:
        """That of the iterator which is fetching a sample. Outside of one the word: what the user
        has set, or the number of the epoch that a loader began last."""
        held = _held.epochs
        number = None if held is None else held.find(self)
        return int(self._numbers[0]) if number is None else number

    @property
    def users(self) -> int | None:
        """What the user has set."""
        return int(self._numbers[0]) if self._numbers[1] == _IS_USERS else None

    def explain(self) -> str:
        """The epoch and who has set it, for people."""
        whose = "set by set_epoch()"
        if self.users is None:
            whose = "counted by fastloop's loaders; with torch's own, call set_epoch() for each"
        return f"epoch {self.value}, {whose}"

    def set(self, epoch: Any) -> None:
        """The user's choice, which loaders then leave alone. Iterators that have begun, too."""
        self._numbers[0] = check_epoch(epoch)
        self._numbers[1] = _IS_USERS

    def begin(self, epoch: int) -> None:
        """A loader begins an epoch of this number."""
        if self.users is None:
            self._numbers[0] = check_epoch(epoch)

    def __reduce__(self) -> tuple[type[Epoch], tuple[Sequence[int], _Block, int]]:
        return Epoch, (tuple(self._numbers), self._block, self._place)


class IteratorEpochs:
    """The epochs of datasets for one iterator. Other datasets are in those of their words.

    Args:
        epochs: of the datasets.
        is_shared: worker processes are to see the numbers of their iterator's later epochs.
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

    def begin(self, numbers: Sequence[int]) -> None:
        """The iterator begins an epoch.

        Args:
            numbers: of the epochs, in their order.
        """
        for i, (epoch, number) in enumerate(zip(self.epochs, numbers, strict=True)):
            self._numbers[i] = number
            epoch.begin(number)

    def find(self, epoch: Epoch) -> int | None:
        place = self._places.get(epoch)
        return None if place is None else self._numbers[place]

    def call(self, function: Callable[..., _T], *args: Any) -> _T:
        """``function(*args)``, in which this thread is in these epochs."""
        if not self.epochs:
            return function(*args)
        before, _held.epochs = _held.epochs, self
        try:
            return function(*args)
        finally:
            _held.epochs = before

    def hold_in_process(self) -> None:
        """From now on all threads of this process, a worker's, are in these epochs."""
        _Held.epochs = self
        _held.__dict__.clear()  # a fork in the middle of a fetch has left that fetch's here

    def __reduce__(self) -> tuple[type[IteratorEpochs], tuple[Any, ...]]:
        """Goes with the datasets in one pickle, or it would be about others."""
        return IteratorEpochs, (self.epochs, True, self._words)


class _Held(threading.local):
    epochs: IteratorEpochs | None = None


_held = _Held()


class EpochsInWorker:
    """A worker_init_fn: the worker process is in its iterator's epochs.

    Args:
        epochs: the iterator's, shared.
        init: the user's worker_init_fn, which is called then.
    """

    def __init__(self, epochs: IteratorEpochs, init: Callable[[int], object] | None) -> None:
        self._epochs = epochs
        self._init = init

    def __call__(self, worker: int) -> None:
        self._epochs.hold_in_process()
        if self._init is not None:
            self._init(worker)


class EpochDataset(Dataset[Any]):
    """A base of datasets whose samples are a function of index and epoch: of ``_epoch.value``.
    Loaders find these, also within other datasets, and begin their epochs."""

    _epoch: Epoch | None = None  # None: the samples are the same in all epochs

    def _size_remedy(self) -> str:
        """What stacks samples of several shapes; empty if none has another."""
        return ""

    def _epoch_now(self) -> int:
        return 0 if self._epoch is None else self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the random numbers from now on, in all processes that have the dataset.

        Loaders of fastloop then no longer count epochs for it; their iterators that have begun
        stay in the epoch they began with. Where nothing is random, nothing.
        """
        epoch = check_epoch(epoch)
        if self._epoch is not None:
            self._epoch.set(epoch)
