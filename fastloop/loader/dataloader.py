"""DataLoader: torch's class with faster iterators behind it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.utils.data

from fastloop.device.accelerator import open_accelerator
from fastloop.device.prefetch import DeviceIter
from fastloop.loader.checkpoint import load_state, save_state, warn_of_end
from fastloop.loader.iterators import fast_iterator
from fastloop.loader.route import PATHS, find_route
from fastloop.loader.shared import Shared
from fastloop.loader.stats import LoaderStats, WorkerStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.data import Dataset, Sampler
    from torch.utils.data.dataloader import (
        _BaseDataLoaderIter,
        _collate_fn_t,
        _worker_init_fn_t,
    )
    from typing_extensions import Self

_T_co = TypeVar("_T_co", covariant=True)


def _check_device(device: Any, transform: Any, is_static: bool) -> None:
    if transform is not None and not callable(transform):
        raise TypeError(
            f"device_transform is a {type(transform).__name__}; pass a function of a batch"
        )
    if device is not None:
        torch.device(device)  # raises what torch has to say about it
    elif transform is not None or is_static:
        raise ValueError("device_transform and static_buffers need a device; pass device=, too")


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """``torch.utils.data.DataLoader``, faster: same arguments, batches, order and random numbers.

    Takes every argument of torch's class, and

    Args:
        device: where batches are wanted, uploaded while the loop computes, with workers as soon
            as they are there. None leaves them in CPU memory. ``iter()`` raises torch's own error
            if there is no such device.
        path: ``"auto"`` takes the fastest path that covers the dataset; ``"array"`` demands C
            gathering of array data, ``"process"`` worker processes over shared memory, ``"sync"``
            loading in this process (ValueError where one does not apply); ``"torch"`` demands
            torch's own iterators.
        device_transform: is given each batch on ``device`` and returns the batch for the loop:
            conversion of uint8 images, say. It runs on the current stream, or on one of the
            loader's own; tensors it uses besides must be there before ``iter()``.
        static_buffers: on ``device`` the tensors of all batches have the same addresses, for CUDA
            graphs, and are valid until the next batch is taken. All batches must be alike.

    With ``pin_memory=True`` and no ``device`` batches are CPU tensors in memory of torch's caching
    host allocator.

    On the array path (an ``ArrayDataset``, a ``TensorDataset`` or a ``Subset`` of one, default
    collate) ``num_workers`` counts C threads in this process instead of processes; the data must
    not be changed while they read ahead. Batches are ordinary tensors that own their memory.
    They cannot be resized and do not start out in shared memory; pickling and
    ``share_memory_()`` copy. ``stats()`` says which path runs and why. Tensors of batches from
    worker processes, and large ones made without workers, cannot be resized either.
    """

    #: Bytes that batches of worker processes, and those of array data in pinned memory, may take
    #: before the user has them. None: a quarter of the memory available at ``iter()``, within the
    #: limits of the cgroup. A single batch may always be larger, and what the user holds is not
    #: counted.
    memory_budget: int | None = None

    # For subclasses whose __init__ does not call ours.
    device: torch.device | str | int | None = None
    path: str = "auto"
    device_transform: Callable[[Any], Any] | None = None
    static_buffers: bool = False

    def __init__(  # type: ignore[no-untyped-def]
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler | Iterable | None = None,  # type: ignore[type-arg]
        batch_sampler: Sampler[list] | Iterable[list] | None = None,  # type: ignore[type-arg]
        num_workers: int = 0,
        collate_fn: _collate_fn_t | None = None,  # type: ignore[type-arg]
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: _worker_init_fn_t | None = None,
        multiprocessing_context=None,
        generator=None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: torch.device | str | int | None = None,
        path: str = "auto",
        device_transform: Callable[[Any], Any] | None = None,
        static_buffers: bool = False,
    ) -> None:
        if path not in PATHS:
            raise ValueError(f"path={path!r} is not one of {', '.join(map(repr, PATHS))}")
        _check_device(device, device_transform, static_buffers)
        self.device = device
        self.path = path
        self.device_transform = device_transform
        self.static_buffers = static_buffers
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )

    @property
    def _shared(self) -> Shared:
        """Made on first use: a subclass's __init__ need not call ours."""
        shared: Shared | None = self.__dict__.get("_shared")
        if shared is None:
            shared = self.__dict__.setdefault("_shared", Shared())  # the same for all threads
        return shared

    def __iter__(self) -> _BaseDataLoaderIter:
        warn_of_end(self, self._shared.position)
        self._drop_broken_workers()
        try:
            iterator = super().__iter__()
        except RuntimeError:
            if not self._drop_broken_workers():  # they were still alive above, but dying
                raise
            iterator = super().__iter__()
        self._shared.position.begin(iterator)
        return iterator

    def _get_iterator(self) -> _BaseDataLoaderIter:
        is_plain = self.device_transform is None and not self.static_buffers
        accelerator = None
        if self.device is not None and not (is_plain and torch.device(self.device).type == "cpu"):
            accelerator = open_accelerator(self.device)
        shared = self._shared
        iterator = fast_iterator(self, self.path, shared, accelerator)
        if accelerator is not None and not (is_plain and getattr(iterator, "is_on_device", False)):
            iterator = DeviceIter(iterator, accelerator, self.device_transform, self.static_buffers)
        shared.note_open(iterator)
        return iterator

    def _drop_broken_workers(self) -> bool:
        iterator: Any = self._iterator
        if not getattr(iterator, "is_broken", bool)():
            return False
        iterator.close()
        self._iterator = None
        return True

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands, for ``load_state_dict()``: O(1), saves no sample.

        Counts the batches yielded by the iterator made last, never those read ahead. After the
        last batch, but before the loop has ended, the rest of the epoch is empty; once it has
        ended, the state is that of the next epoch before its first batch.

        The state holds numbers, strings and dicts only (``torch.load(weights_only=True)`` and
        JSON take it), with the same keys and types at all times, as
        ``torch.distributed.checkpoint`` wants them: epoch, batches yielded, what describes dataset
        and samplers, and the random states the sampler began the epoch with. Costs no sync.

        Raises nothing. A state that cannot be resumed in the middle says why in
        ``"not_resumable"``: over an ``IterableDataset``, which alone knows where it stands; with
        ``in_order=False`` and several workers, or after ``batch_size`` was changed during the
        epoch, where a count does not say which samples came.
        """
        return save_state(self, self._shared.position)

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        """Let the next ``iter()`` go on where the loader that gave ``state`` stood.

        It yields the exact next batch and loads no sample before it; later epochs follow as they
        would have. Workers, their number included, and ``path`` may differ. Generators passed to
        the loader or its sampler are set. torch's own is only borrowed to draw the epoch's order
        again: restore it yourself (``torch.set_rng_state``) for later epochs to be the same. Not
        restored: what Python draws in workers (random numbers of an ArrayDataset's transforms
        follow from the epoch), and whatever else a sampler of yours keeps or draws from. Such a
        sampler is iterated again from the start of the epoch.

        Where this loader differs (batch size, length, samplers, generators), the epoch starts
        anew, in a new order and with no generator set; where the state cannot be resumed in the
        middle, it starts anew. A warning says why; with ``strict=True`` it is a ValueError.

        A state saved after the last batch but before the loop has ended stands at the end of that
        epoch: the next ``iter()`` gives no batch, and says so in a warning. Under Lightning it
        begins the next epoch if Lightning counts that one as trained.

        A ``DistributedSampler`` is set to the epoch of the state; the state of one rank serves
        all. What is left of an epoch comes in that epoch's order even if ``set_epoch()`` is called
        with another number before ``iter()``; the epochs after it take what ``set_epoch()`` says.
        So it is with a dataset's ``set_epoch()``, but that a number set before loading stays.

        Raises:
            TypeError: ``state`` or one of its parts has the wrong type.
            ValueError: it is damaged or none of this class's, or with ``strict`` does not fit.
            In each case nothing has changed.
        """
        load_state(self, self._shared.position, state, strict)

    def stats(self) -> LoaderStats:
        """What this loader has done so far, and which path it takes now. Costs no sync."""
        route = find_route(self, self.path)
        shared = self._shared
        count = shared.count()
        workers, fallbacks = shared.count_workers()
        return LoaderStats(
            path=route.path,
            why=f"{route.why}; torch uploads: {shared.fault}" if shared.fault else route.why,
            batches=count["batches"],
            samples=count["samples"] if route.path == "array" else None,
            bytes=count["bytes"] if route.path in ("array", "process") else None,
            waits=count["waits"],
            seconds_waited=count["wait_ns"] / 1e9,
            slots_lent=count["lent"],
            slots_replaced=count["replaced"],
            workers=tuple(WorkerStats(n, busy / 1e9, wait / 1e9) for n, busy, wait in workers),
            fallbacks=fallbacks,
        )

    def close(self) -> None:
        """End the threads or workers of all iterators and give unused batch memory back.

        Iterating one of them further is an error. Batches stay valid, and the loader can be
        iterated anew. Also done at the end of a ``with`` block.
        """
        for iterator in [ref() for ref in self._shared.open]:
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        self._iterator = None
        self._shared.trim()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_shared", None)
        state["_position"] = self._shared.position.copy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        shared = Shared(state.pop("_position"))
        self.__dict__.update(state, _shared=shared)
