"""Which epochs the datasets of a loader are in: where those are found, what number a loader's next
epoch has, and how a state tells what the user has set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, StackDataset

from fastloop.data.epochs import EPOCHS, Epoch, EpochDataset

_UNSET = "-"
_LISTS = (ConcatDataset, StackDataset)


def _held_by(dataset: Any) -> Iterator[Any]:
    """What may be datasets: attributes, and the items of those that list datasets, which the first
    item tells, because others may list millions of files."""
    for value in vars(dataset).values():
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        if not isinstance(value, list | tuple | dict):
            yield value
        elif isinstance(next(iter(items), None), Dataset) or isinstance(dataset, _LISTS):
            yield from items


def datasets_within(dataset: Any) -> Iterator[EpochDataset]:
    """Those of ours that wrappers hold, torch's and the user's; each once."""
    seen: set[int] = set()
    left = [dataset]
    while left:
        found = left.pop()
        if id(found) in seen or not (isinstance(found, Dataset) or found is dataset):
            continue
        seen.add(id(found))
        if isinstance(found, EpochDataset):
            yield found
        elif hasattr(found, "__dict__"):  # a loader takes any object that has samples
            left.extend(_held_by(found))


def epochs_within(dataset: Any) -> list[Epoch]:
    """The epochs of those, each once."""
    epochs = (found._epoch for found in datasets_within(dataset))
    return list(dict.fromkeys(epoch for epoch in epochs if epoch is not None))


def next_random_epoch(lowest: int, sampler: Any) -> int:
    """The number of a loader's next epoch: one more than that of its last one, or the sampler's
    epoch if that is larger.

    Args:
        lowest: one more than the last.
        sampler: with an epoch, or None.
    """
    return lowest if sampler is None else max(lowest, sampler.epoch)


def set_by_user(epochs: Sequence[Epoch]) -> str:
    """What set_epoch() has said, as a text of a state: a number or "-" for each dataset."""
    numbers = [epoch.users for epoch in epochs]
    return ",".join(_UNSET if number is None else str(number) for number in numbers)


def _parts(text: str) -> list[str]:
    return text.split(",") if text else []


def is_set_by_user(text: str) -> bool:
    """Whether a text is such a one."""
    return all(
        part == _UNSET
        or (part.isascii() and part.isdecimal() and len(part) <= 10 and int(part) < EPOCHS)
        for part in _parts(text)
    )


def is_about(text: str, epochs: Sequence[Epoch]) -> bool:
    """Whether a text has a part for each of these, as one of a loader of other datasets may not."""
    return len(_parts(text)) == len(epochs)


def numbers_of(text: str, random_epoch: int) -> list[int]:
    """The number of each dataset's epoch: the user's, or the loader's."""
    counted = random_epoch % EPOCHS  # a sampler's may be any number
    return [counted if part == _UNSET else int(part) for part in _parts(text)]


def restore_set(epochs: Sequence[Epoch], text: str) -> None:
    """What the user had set counts again, where he has set nothing else meanwhile."""
    if is_about(text, epochs):
        for epoch, part in zip(epochs, _parts(text), strict=True):
            if part != _UNSET and epoch.users is None:
                epoch.set(int(part))
