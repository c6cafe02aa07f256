"""The epoch of a dataset's random numbers: one word, shared by all processes with the dataset.

A plain attribute would never reach worker processes that are there already.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch.utils.data import Dataset

_EPOCHS = 2**32
_IS_USERS = 1  # the second element of the word: whether the user has set it


def check_epoch(epoch: Any) -> int:
    number = operator.index(epoch)
    if not 0 <= number < _EPOCHS:
        raise ValueError(f"epoch={number} is not in [0, 2**32); pass the count of epochs before it")
    return number


class Epoch:
    """Shared by forked children, and by spawned ones that it is sent to. A deep copy or a plain
    pickle has a word of its own. Every iter() of a loader may write it; readers take what is
    there."""

    def __init__(self, word: torch.Tensor | None = None) -> None:
        if word is None:
            word = torch.zeros(2, dtype=torch.int64, device="cpu")
        # torch's reductions for multiprocessing have sent a tensor that is shared already.
        if not word.is_shared():  # type: ignore[no-untyped-call]
            word.share_memory_()  # type: ignore[no-untyped-call]
        self._word = word
        # Reading an element of this takes 50 ns.
        self._numbers = memoryview(cast(Any, word.numpy()))

    @property
    def value(self) -> int:
        return int(self._numbers[0])

    @property
    def is_users(self) -> bool:
        """Whether the user has set it."""
        return bool(self._numbers[1] == _IS_USERS)

    def set(self, epoch: Any) -> None:
        """The user's choice, which loaders then leave alone."""
        self._numbers[0] = check_epoch(epoch)
        self._numbers[1] = _IS_USERS

    def begin(self, epoch: int) -> None:
        """A loader begins an epoch, the how manieth by its own count from 0."""
        if not self.is_users:
            self._numbers[0] = check_epoch(epoch)

    def __reduce__(self) -> tuple[type[Epoch], tuple[torch.Tensor]]:
        return Epoch, (self._word,)


class EpochDataset(Dataset[Any]):
    """A base of datasets whose samples are a function of index and epoch. Loaders find these, also
    within other datasets, and begin their epochs."""

    _epoch: Epoch | None = None  # None: the samples are the same in all epochs

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the random numbers from now on, in all processes that have the dataset.

        Loaders of fastloop then no longer count epochs for it. Where nothing is random, nothing.
        """
        epoch = check_epoch(epoch)
        if self._epoch is not None:
            self._epoch.set(epoch)
