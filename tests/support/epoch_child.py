"""A process that tells the epoch of a dataset's transforms whenever it is asked."""

from typing import Any

from fastloop.data.epochs import Epoch


def answer(epoch: Epoch, asked: Any, told: Any) -> None:
    """Sets one at the end."""
    while asked.get():
        told.put(epoch.value)
    epoch.set(77)
    told.put(epoch.value)
