"""Batches uploaded ahead of their turn: ``prefetch`` for iterables, ``DeviceIter`` for loaders."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later
from fastloop.base.ranges import named
from fastloop.base.threads import NextLock
from fastloop.base.torch_parts import BaseIter
from fastloop.device.accelerator import Accelerator, open_accelerator
from fastloop.device.static_batch import StaticBatch
from fastloop.device.uploader import NoUpload, Sent, Transform, Uploader


class _Entry:
    """A batch that was read, and then sent."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.sent: Sent | None = None

    def send(self, uploader: Uploader | NoUpload) -> None:
        self.sent = named("upload", uploader.send)(self.batch)
        self.batch = None


class Prefetcher(FinalizerBase):
    """Reads batches from an iterator until `depth` are on their way, then hands out the oldest."""

    def __init__(
        self,
        source: Iterator[Any],
        accelerator: Accelerator,
        depth: int,
        uploader: Uploader | NoUpload,
        is_static: bool,
    ) -> None:
        self._source: Any = source
        self._accelerator = accelerator
        self._depth = depth
        self._uploader = uploader
        self._static_batch = StaticBatch(accelerator) if is_static else None
        self._ahead: deque[_Entry] = deque()
        self._pending_error: list[Exception] = []  # at most one, met while reading ahead
        self._next_lock = NextLock()
        self._begin()

    def _begin(self) -> None:
        self._accelerator.check()
        self._uploader.begin()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._accelerator.check()
        with self._next_lock.of_process():
            named("prefetch", self._fill)()
            if not self._ahead:
                raise self._pending_error.pop()
            sent = self._ahead[0].sent
            assert sent is not None
            batch = self._uploader.hand_out(sent)
            if self._static_batch is not None:
                batch = self._static_batch.fill(batch)
            self._ahead.popleft()
            return batch

    def _fill(self) -> None:
        while True:
            if self._ahead and self._ahead[-1].sent is None:
                try:
                    self._ahead[-1].send(self._uploader)
                except Exception:
                    if len(self._ahead) == 1:
                        raise
                    return  # tried again when it is this batch's turn: memory may be free then
            if self._pending_error or len(self._ahead) == self._depth:
                return
            self._pull()

    def _pull(self) -> None:
        try:
            self._ahead.append(_Entry(next(self._source)))
        except StopIteration:
            # Another one: the frames of a traceback would keep this iterator, and its workers,
            # where a loop is left after the last batch.
            self._pending_error.append(StopIteration())
        except Exception as error:
            self._pending_error.append(error)

    def _drop(self) -> None:
        """Lets go of all that was read ahead."""
        self._ahead.clear()
        self._pending_error.clear()
        self._uploader.finish()

    def close(self) -> None:
        """End here: what was read ahead is dropped, and the iterable is let go of."""
        self._drop()
        self._source = iter(())

    def _finalize(self) -> None:
        if hasattr(self, "_pending_error"):
            self._drop()

    _interrupt_later = staticmethod(interrupt_later)


class LoaderPrefetcher(Prefetcher):
    """Over an iterator of a loader of ours, which is to count what the user has, not what was read
    ahead."""

    _is_let_go = False  # the iterator

    def _begin(self) -> None:
        super()._begin()
        epoch = self._epoch
        epoch.iterator = weakref.ref(self)
        if epoch.states is not None:
            epoch.states.read_ahead()

    @property
    def _epoch(self) -> Any:
        return self._source._epoch

    @property
    def _num_yielded(self) -> int:
        """To the user."""
        return int(self._source._num_yielded) - len(self._ahead)

    def await_states(self) -> None:
        self._source.await_states()

    def _pull(self) -> None:
        super()._pull()
        if self._pending_error and not self._is_let_go:
            self._epoch.is_over = False  # not before the user has met it

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            if not self._is_let_go:
                self._epoch.is_over = True
            raise

    def _drop(self) -> None:
        if not self._is_let_go:
            self._source._num_yielded = self._num_yielded
            self._source._keep_count()
        super()._drop()

    def close(self) -> None:
        if not self._is_let_go:
            self._drop()
            self._epoch.iterator = weakref.ref(self._source)
            self._is_let_go = True
        super().close()


class DeviceIter(LoaderPrefetcher, BaseIter):  # type: ignore[override]
    """The iterator of a loader with ``device=``: seeds, samplers, workers and state are those of
    the iterator below. What is on the device already is only transformed, or put at its fixed
    addresses."""

    def __init__(
        self,
        source: BaseIter,
        accelerator: Accelerator,
        transform: Transform | None,
        is_static: bool,
    ) -> None:
        is_there = getattr(source, "is_on_device", False)
        # Without workers the dataset is read in the loop's own time, and draws its numbers there.
        depth = 2 if source._num_workers > 0 and not is_there else 1
        uploader = NoUpload(transform) if is_there else Uploader(accelerator, transform)
        super().__init__(source, accelerator, depth, uploader, is_static)
        # torch's thread pins for it: then batches are uploaded from where they are.
        if not hasattr(source, "_pin_memory_thread"):
            source._pin_memory = False

    def __getattr__(self, name: str) -> Any:
        if name == "_source":
            raise AttributeError(name)
        return getattr(self._source, name)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._drop()
        self._source._reset(loader, first_iter)
        self._begin()

    def close(self) -> None:
        self._drop()
        self._source.close()


class TorchDeviceIter(Prefetcher):
    """Over torch's own iterator, where fastloop does not know torch's iterators."""

    def __init__(
        self,
        source: Any,
        accelerator: Accelerator,
        transform: Transform | None,
        is_static: bool,
    ) -> None:
        super().__init__(source, accelerator, 2, Uploader(accelerator, transform), is_static)

    def __getattr__(self, name: str) -> Any:
        if name == "_source":
            raise AttributeError(name)
        return getattr(self._source, name)

    def _reset(self, *loader: Any) -> None:
        """A new epoch of persistent workers."""
        self._drop()
        self._source._reset(*loader)
        self._begin()


def prefetch(
    iterable: Iterable[Any],
    device: torch.device | str | int,
    depth: int = 2,
    *,
    device_transform: Transform | None = None,
    static_buffers: bool = False,
) -> Prefetcher:
    """An iterator over the batches of any iterable, on a device, uploaded while the user computes.

    Args:
        iterable: of tensors, or of dicts, lists, tuples and dataclasses of them, nested. Tensors
            arrive with their dtype, shape and strides; what is on the device already is passed
            on, and what has no tensors is left as it is.
        device: as torch takes it.
        depth: batches under way when one is handed out, that one included. 1 reads nothing ahead.
        device_transform: is given each batch on the device, on the stream that copies, and
            returns the batch to be handed out. Tensors it uses besides must be there before.
        static_buffers: the tensors have the same addresses in every batch, for CUDA graphs, and
            are valid until the next batch is taken. All batches must be alike.

    The current stream waits for a batch when it is handed out, the host never does. Errors of
    ``iterable`` come in their turn. If an upload raises (``torch.OutOfMemoryError``), the next
    ``next()`` tries the same batch again. ``close()`` drops what was read ahead. ``state_dict()``
    of a loader of ours, given as ``iterable``, does not count that.
    """
    if depth < 1:
        raise ValueError(f"depth={depth} must be at least 1: the batch that is handed out")
    accelerator = open_accelerator(device)
    uploader = Uploader(accelerator, device_transform)
    source = iter(iterable)
    is_ours = hasattr(source, "_epoch") and not isinstance(source, LoaderPrefetcher)
    kind = LoaderPrefetcher if is_ours else Prefetcher
    return kind(source, accelerator, depth, uploader, static_buffers)
