"""Replies in the order in which the loop gets them, moved to their destination."""

from __future__ import annotations

from typing import Any

import torch

from fastloop._core import ParentEnd, Reply
from fastloop.base.tensors import outside_inference_mode
from fastloop.device.destinations import Destination
from fastloop.workers.batch_pickle import unpack


class Delivery:
    """Delivers batches to their destination, one at a time. If memory is missing, the next call
    tries the same batch again. One thread at a time, under the lock of the iterator's next()."""

    def __init__(self, parent_end: ParentEnd, destination: Destination) -> None:
        self.destination = destination
        self._parent_end = parent_end
        self._pending: Any = None  # the iterator's next reply or batch, until it is delivered
        self._delivered: list[Any] = []  # at most one, kept through interrupts
        self._is_taking = False

    @property
    def is_behind(self) -> bool:
        return self._pending is not None or len(self._delivered) > 0

    def put(self, data: Any) -> None:
        """Set the next batch: a reply, or a batch that came some other way."""
        self._pending = data

    def take(self, first: int) -> Any:
        """Return the batch; on a device, for the current stream. From now on batches from number
        `first` on (-1: the first to come) are copied when they arrive, as far as there is memory.
        """
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
        is_moved = type(pending) is Reply and pending.upload > 0
        if is_moved:
            pending.deliver()  # if this raises, the next call tries it again
        try:
            if is_moved:
                return self._open(pending)
            batch = unpack(pending) if type(pending) is Reply else pending
            return self.destination.send(batch)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if "out of memory" not in str(error):
                self._pending = None
            raise

    @outside_inference_mode
    def _open(self, reply: Reply) -> Any:
        return self.destination.complete(unpack(reply, self.destination))

    def restart(self, first: int) -> None:
        """Begin an epoch."""
        self.destination.check()
        self.drop()
        self._parent_end.run_ahead(first)

    def drop(self) -> None:
        """Drop a batch that was not taken. SYNC if a copy still reads the user's memory."""
        self._pending = None
        self._delivered.clear()
        self.destination.drop()
