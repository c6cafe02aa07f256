"""The epoch of a dataset's random numbers, and who reads which.

A dataset whose samples are random has one ``Epoch``, a number that all processes with the dataset
share. An iterator of a loader has numbers of its own (``IteratorEpochs``), which hold from its
beginning to its end: they are read where the iterator fetches samples.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset

from fastloop.base.checks import read_int

EPOCHS = 2**32
_WORDS_OF_BLOCK = 1024

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


class _Block:
    """Shared memory for the words of 1024 datasets, so that these take one file descriptor."""

    def __init__(self, words: torch.Tensor) -> None:
        self.words = words  # int64 [words, 2]
        self.taken = 0
        self.process = os.getpid()  # after a fork both processes would take the same words

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # Plain pickles and deep copies get None, and so take a word of their own. Processes get
        # the block, as registered below.
        return type(None), ()


ForkingPickler.register(_Block, lambda block: (_Block, (block.words,)))
_lock = threading.Lock()
_block: _Block | None = None  # with words to take


def _take_word() -> tuple[_Block, int]:
    global _block
    with _lock:
        block = _block
        if block is None or block.taken == _WORDS_OF_BLOCK or block.process != os.getpid():
            block = _block = _Block(_share(2 * _WORDS_OF_BLOCK).view(_WORDS_OF_BLOCK, 2))
        block.taken += 1
        return block, block.taken - 1


class Epoch:
    """A number that forked children share, and spawned ones that it is sent to. A deep copy or a
    plain pickle has a word of its own, which begins with the same numbers."""

    def __init__(
        self, numbers: Sequence[int] = (0, 0), block: _Block | None = None, place: int = 0
    ) -> None:
        is_new = block is None
        self._block, self._place = _take_word() if block is None else (block, place)
        # The number, and whether set_epoch() has set it.
        self._numbers = _elements(self._block.words[self._place])
        if is_new:
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
        whose = "set by set_epoch()"
        if self.users is None:
            whose = "counted by fastloop's loaders; with torch's own, call set_epoch() for each"
        return f"epoch {self.value}, {whose}"

    def set(self, epoch: Any) -> None:
        """Set the number for the user; loaders no longer count it. Iterators that have begun stay
        in their epochs."""
        self._numbers[0] = check_epoch(epoch)
        self._numbers[1] = True

    def begin(self, epoch: int) -> None:
        """Note that a loader begins an epoch of this number."""
        if self.users is None:
            self._numbers[0] = check_epoch(epoch)

    def __reduce__(self) -> tuple[type[Epoch], tuple[Sequence[int], _Block, int]]:
        return Epoch, (tuple(self._numbers), self._block, self._place)


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

    def wrap_init(self, init: Callable[[int], object] | None) -> Callable[[int], object]:
        """Return a worker_init_fn that enters these epochs for good, and then calls `init`."""
        return partial(_begin_in_worker, self, init)

    def __reduce__(self) -> tuple[type[IteratorEpochs], tuple[Any, ...]]:
        # It must be in one pickle with the datasets, or it would be about others.
        return IteratorEpochs, (self.epochs, True, self._words)


class _Held(threading.local):
    epochs: IteratorEpochs | None = None


_held = _Held()


def _begin_in_worker(
    epochs: IteratorEpochs, init: Callable[[int], object] | None, worker: int
) -> None:
    _Held.epochs = epochs  # for all threads of the process
    _held.__dict__.clear()  # a fork in the middle of a fetch has left that fetch's here
    if init is not None:
        init(worker)


class EpochDataset(Dataset[Any]):
    """Base of datasets whose samples are a function of index and epoch, of ``_epoch.value``.
    Loaders look for these, also within other datasets, and begin their epochs."""

    _epoch: Epoch | None = None  # None: the samples are the same in all epochs

    def _size_remedy(self) -> str:
        """Name the argument that stacks samples of several shapes; empty if all have one shape."""
        return ""

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


def datasets_within(dataset: Any) -> Iterator[EpochDataset]:
    """Yield every EpochDataset that `dataset` is or holds in attributes, once each."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or not (isinstance(found, Dataset) or found is dataset):
            continue
        seen.add(id(found))
        if isinstance(found, EpochDataset):
            yield found
        elif hasattr(found, "__dict__"):  # a loader takes any object that has samples
            waiting.extend(_held_by(found))


def _held_by(dataset: Any) -> Iterator[Any]:
    for value in vars(dataset).values():
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        if not isinstance(value, list | tuple | dict):
            yield value
        # The first item tells whether it lists datasets: it may list millions of files.
        elif isinstance(next(iter(items), None), Dataset) or isinstance(
            dataset, ConcatDataset | StackDataset
        ):
            yield from items


def epochs_within(dataset: Any) -> list[Epoch]:
    """Return the epochs of the datasets within `dataset`, once each."""
    epochs = (found._epoch for found in datasets_within(dataset))
    return list(dict.fromkeys(epoch for epoch in epochs if epoch is not None))
