"""Batches of an iterable or a loader on a device: ``prefetch``, and the last step of a loader with
``device=``. If batches are read ahead, a loader's state still counts the batches handed out only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch

from fastloop.base.checks import look_up, read_int
from fastloop.compat.torch_parts import BaseIter
from fastloop.data.columns import is_default_collate
from fastloop.device.accelerator import Accelerator, HostAccelerator, open_accelerator
from fastloop.device.upload import NoUpload, Prefetcher, Transform, Uploader


class LoaderPrefetcher(Prefetcher):
    """Prefetches from a loader's iterator. state_dict() counts the batches that were handed out,
    not the batches that were read ahead."""

    def _begin(self) -> None:
        super()._begin()
        # torch's own iterators have no epoch.
        self._epoch: Any = getattr(self._source, "_epoch", None) or SimpleNamespace(states=None)
        self._epoch.iterator = weakref.ref(self)
        if self._epoch.states is not None:
            self._epoch.states.read_ahead()

    @property
    def _num_yielded(self) -> int:
        return int(self._source._num_yielded) - len(self._ahead)

    def await_states(self) -> None:
        self._source.await_states()

    def _pull(self) -> None:
        super()._pull()
        if self._pending_error:
            self._epoch.is_over = False  # the user has not reached the end yet

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self._epoch.is_over = True
            raise

    def _drop(self) -> None:
        if hasattr(self._source, "_keep_count"):
            self._source._num_yielded = self._num_yielded
            self._source._keep_count()
        super()._drop()

    def close(self) -> None:
        source = self._source
        super().close()
        if isinstance(source, BaseIter):
            self._epoch.iterator = weakref.ref(source)
            self._epoch = SimpleNamespace(states=None)


class DeviceIter(LoaderPrefetcher, BaseIter):  # type: ignore[override]
    """Uploads the batches of a loader's iterator, which does everything else.

    Args:
        source: the iterator. If its ``is_on_device`` is true, batches are only transformed, or
            copied to fixed addresses.
        accelerator: None leaves batches where they are.
    """

    def __init__(
        self,
        source: Any,
        accelerator: Accelerator | None,
        transform: Transform | None,
        is_static: bool,
    ) -> None:
        is_there = accelerator is None or getattr(source, "is_on_device", False)
        accelerator = accelerator or HostAccelerator(torch.device("cpu"))
        # Without workers the dataset is read, and draws its numbers, in the loop's own time.
        depth = 2 if getattr(source, "_num_workers", 0) > 0 and not is_there else 1
        uploader = NoUpload(transform) if is_there else Uploader(accelerator, transform)
        super().__init__(source, accelerator, depth, uploader, is_static)
        # Batches are pinned here, unless torch's thread pins them.
        if not hasattr(source, "_pin_memory_thread"):
            source._pin_memory = False

    def __getattr__(self, name: str) -> Any:
        if name == "_source":
            raise AttributeError(name)
        return getattr(self._source, name)

    def _reset(self, *args: Any) -> None:
        """Begin a new epoch of persistent workers."""
        self._drop()
        self._source._reset(*args)
        self._begin()

    def close(self) -> None:
        self._drop()
        getattr(self._source, "close", bool)()  # torch's own iterators have no close()


def open_on_device(loader: Any, make_iterator: Callable[[Accelerator | None], Any]) -> Any:
    """Return an iterator over the batches of a ``fastloop.DataLoader`` on its device, transformed.

    Args:
        make_iterator: makes the loader's iterator; its batches may be on this device already.
    """
    device, transform = loader.device, loader.device_transform
    is_static, batch_transform = loader.static_buffers, loader.batch_transform
    is_unchanged = transform is None and not is_static
    accelerator = None
    if device is not None and not (is_unchanged and torch.device(device).type == "cpu"):
        accelerator = open_accelerator(device)
    iterator = make_iterator(accelerator)
    if accelerator is None and device is not None and getattr(iterator, "is_resident", False):
        accelerator = open_accelerator(device)  # the CPU, but the data are on a CUDA device
    if batch_transform is not None:
        # Only the loader holds a batch that torch's collate has made.
        may_overwrite = loader._auto_collation and is_default_collate(loader.collate_fn)
        transform = join_transforms(iterator, batch_transform, may_overwrite, transform)
        return DeviceIter(iterator, accelerator, transform, is_static)
    if accelerator is None or (is_unchanged and getattr(iterator, "is_on_device", False)):
        return iterator
    return DeviceIter(iterator, accelerator, transform, is_static)


def join_transforms(
    source: Any, first: Transform, is_ours: bool, then: Transform | None
) -> Transform:
    """Return a transform of an iterator's batches that calls `first` and `then`.

    Args:
        source: the iterator. Its epoch and the number of each batch are passed to `first`.
        is_ours: whether `first` may overwrite images of batches.
    """
    keyed = look_up(first, "apply_keyed")

    def apply(batch: Any) -> Any:
        if keyed is None:
            batch = first(batch)
        else:
            epoch = getattr(source, "_epoch", None)
            number = 0 if epoch is None else epoch.state.random_epoch
            batch = keyed(batch, number, source._num_yielded - 1, is_ours)
        return batch if then is None else then(batch)

    return apply


def prefetch(
    iterable: Iterable[Any],
    device: torch.device | str | int,
    depth: int = 2,
    *,
    device_transform: Transform | None = None,
    static_buffers: bool = False,
) -> Prefetcher:
    """Return an iterator that uploads the batches of any iterable while the loop computes.

    Args:
        iterable: yields tensors, or dicts, lists, tuples and dataclasses of tensors, nested.
            Tensors arrive with their dtype, shape and strides. Tensors that are on the device
            already are passed on, and so are objects without tensors.
        device: as torch takes it.
        depth: the number of batches under way when one is handed out, including that batch. With
            ``depth=1`` nothing is read ahead.
        device_transform: takes each batch on the device, on the stream that copies, and returns
            the batch to hand out. Other tensors that the function uses must exist before.
        static_buffers: the tensors have the same addresses in every batch, for CUDA graphs, and
            are valid until the next batch is taken. All batches must be alike.

    The current stream waits for a batch when the batch is handed out; the host never waits. Errors
    of ``iterable`` come in their turn. If an upload raises (``torch.OutOfMemoryError``), the next
    ``next()`` tries the same batch again. ``close()`` drops the batches that were read ahead. If
    ``iterable`` is a fastloop loader, its ``state_dict()`` does not count batches read ahead.

    Raises:
        TypeError, ValueError: ``depth`` is not an int >= 1, or ``device`` is neither the CPU nor an
            accelerator that torch can copy to.
    """
    read_int("depth", depth, 1, remedy="it counts the batch that is handed out")
    accelerator = open_accelerator(device)
    uploader = Uploader(accelerator, device_transform)
    source = iter(iterable)
    is_loaders = issubclass(type(source), BaseIter) and not isinstance(source, LoaderPrefetcher)
    kind = LoaderPrefetcher if is_loaders else Prefetcher
    return kind(source, accelerator, depth, uploader, static_buffers)
