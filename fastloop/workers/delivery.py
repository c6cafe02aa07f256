"""Replies in the order in which the loop gets them, moved to their destination."""

from __future__ import annotations

from typing import Any

import torch

from fastloop._core import ParentEnd, Reply
from fastloop.base.tensors import outside_inference_mode
from fastloop.device.destinations import Destination
from fastloop.workers.batch_pickle import unpack


def _is_shortage(error: Exception) -> bool:
    """Whether there was no memory, but may be at the next call."""
    is_plain = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return is_plain or "out of memory" in str(error)


class Delivery:
    """Takes what an iterator gives and returns the batch at its destination. Missing memory may be
    there at the next call. One thread at a time, as the iterator's next() sees to."""

    def __init__(self, parent_end: ParentEnd, destination: Destination) -> None:
        self._parent_end = parent_end
        self._destination = destination
        self._pending: Any = None  # what the iterator gave and is not delivered yet
        self._delivered: list[Any] = []  # at most one, kept through what may interrupt
        self._is_taking = False
        self.is_on_device = destination.is_on_device
        self.check = destination.check  # raises where no batch can be taken

    @property
    def is_behind(self) -> bool:
        return self._pending is not None or len(self._delivered) > 0

    def put(self, data: Any) -> None:
        """What is to be handed out next: a reply, or a batch that came some other way."""
        self._pending = data

    def take(self, first: int) -> Any:
        """The batch; on a device, for the current stream. From now on those from number `first` on
        (-1: whichever come first) are copied when they arrive, as far as there is memory."""
        if self._is_taking:
            raise RuntimeError(
                "next() was called on this iterator from inside its own next(), by a signal handler"
            )
        self._is_taking = True
        try:
            if not self._delivered:
                self._delivered.append(self._deliver())
            self._pending = None
            self._parent_end.run_ahead(first)
            if not self._delivered:
                raise RuntimeError(
                    "the loader was closed, or iter() called on it, while next() took a batch"
                )
            return self._delivered.pop()
        finally:
            self._is_taking = False

    def _deliver(self) -> Any:
        pending = self._pending
        is_reply = type(pending) is Reply
        is_moved = is_reply and pending.upload > 0
        if is_moved:
            pending.deliver()  # whatever this raises, the next call tries it again
        try:
            if is_moved:
                return self._open(pending)
            return self._destination.send(unpack(pending) if is_reply else pending)
        except Exception as error:
            if not _is_shortage(error):
                self._pending = None
            raise

    @outside_inference_mode
    def _open(self, reply: Reply) -> Any:
        return self._destination.complete(unpack(reply, self._destination))

    def restart(self, first: int) -> None:
        """For a new epoch."""
        self.check()
        self.drop()
        self._parent_end.run_ahead(first)

    def end_epoch(self) -> None:
        """There are no more batches in this epoch."""
        self._parent_end.release_buffers()

    def drop(self) -> None:
        """SYNC if a copy still reads memory of the user's."""
        self._pending = None
        self._delivered.clear()
        self._destination.drop()
