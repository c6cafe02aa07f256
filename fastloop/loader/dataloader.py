"""DataLoader: torch's class with faster iterators behind it."""

from __future__ import annotations

import functools
import inspect
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.utils.data

from fastloop.base.torch_parts import call_as_torch, difference, new_arguments
from fastloop.data.stateful import has_place
from fastloop.loader.extras import Extras, value_for_reader
from fastloop.loader.iterators import iterate_anew, iterator_with
from fastloop.loader.resume.checkpoint import (
    load_state,
    refuse_state,
    save_state,
    state_of_unknown,
    warn_of_end,
)
from fastloop.loader.route import PATHS
from fastloop.loader.shared import CLOSED, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.data import Dataset, Sampler
    from torch.utils.data.dataloader import (
        _BaseDataLoaderIter,
        _collate_fn_t,
        _worker_init_fn_t,
    )
    from typing_extensions import Self

    from fastloop.loader.stats import LoaderStats

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


def _check_resume(every: Any, resume: Any) -> None:
    if type(every) is not int or every < 0:
        raise ValueError(
            f"snapshot_every_n_steps={every!r} is no count of batches; 1 sends a state of the "
            "dataset behind each, 0 behind none"
        )
    if resume not in (None, "skip"):
        raise ValueError(f"resume={resume!r} is not None or 'skip'")


def _check_worker_death(choice: Any, path: str) -> None:
    if choice not in ("raise", "restart"):
        raise ValueError(f"on_worker_death={choice!r} is not one of 'raise', 'restart'")
    if choice == "restart" and path == "torch":
        raise ValueError(
            "on_worker_death='restart' does not go with path='torch', whose workers are torch's "
            "own; use path='auto' or 'process'"
        )


def _check_budget(budget: Any) -> None:
    if budget is not None and (type(budget) is not int or budget <= 0):
        raise ValueError(
            f"memory_budget={budget!r} is no number of bytes; pass a positive int, or None for a "
            "quarter of the memory available"
        )


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """``torch.utils.data.DataLoader``, faster: same arguments, batches, order and random numbers.

    Takes every argument of torch's class, and

    Args:
        device: where batches are wanted, uploaded while the loop computes, with workers as soon
            as they are there. None leaves them in CPU memory. ``iter()`` raises torch's own error
            if there is no such device.
        path: ``"auto"`` takes the fastest path that covers the dataset; ``"array"`` demands C
            gathering of array data, ``"process"`` worker processes over shared memory,
            ``"thread"`` worker threads in this process, ``"sync"`` loading in this process
            (ValueError where one does not apply); ``"torch"`` demands torch's own iterators.
        prefetch_factor: besides torch's numbers ``"auto"``: 2 to begin with, one more each time
            that ``next()`` waits though the queue had been full, up to 16, within
            ``memory_budget``.
            Workers then ask the sampler earlier than torch's would. It stays at 2 on the array
            path, and is None without workers. ``stats().prefetch_factor`` tells.
        device_transform: is given each batch on ``device`` and returns the batch for the loop:
            conversion of uint8 images, say. It runs on the current stream, or on one of the
            loader's own; tensors it uses besides must be there before ``iter()``.
        static_buffers: on ``device`` the tensors of all batches have the same addresses, for CUDA
            graphs, and are valid until the next batch is taken. All batches must be alike.
        snapshot_every_n_steps: workers send the state of an ``IterableDataset`` that has
            ``state_dict()`` behind every n-th of their batches, 0: behind none; resuming reads the
            samples of the batches since again. Without workers, states are always exact.
        resume: ``"skip"`` lets ``load_state_dict()`` go on in the middle of an
            ``IterableDataset`` without ``state_dict()``: the samples of all batches yielded are
            read again and dropped. None: its epoch starts anew.
        on_worker_death: what happens when a worker process is killed by a signal (out of memory,
            say) or exits. ``"raise"``: torch's RuntimeError. ``"restart"``: a RuntimeWarning says
            how it died, at which batch, and what memory there is, and a new process takes its
            place: same number, same seed, ``worker_init_fn`` called. It loads the unfinished
            batches again, in their place. What the dead worker kept, how far its random
            generators were included, is gone. A batch at which two workers have died raises, as
            do workers that cannot start, and those of an IterableDataset without ``state_dict()``;
            with it, they go on behind the batches that have come. Exceptions of the dataset are
            none of this. Without worker processes there is nothing to restart;
            ValueError with ``path="torch"``.
        memory_budget: bytes that batches of worker processes, and those of array data in pinned
            memory, may take before the user has them. None: a quarter of the memory available at
            ``iter()``, within the limits of the cgroup. A single batch may always be larger, and
            what the user holds is not counted.

    With ``path="thread"`` (never chosen by itself) ``num_workers`` threads call the dataset,
    several at once: it must be safe in threads. Nothing is pickled or copied, so the dataset exists
    once and the first batch comes at once. It is for code that releases the interpreter lock:
    decoders, NumPy, I/O; ``stats()`` says how long threads waited for that lock.
    ``get_worker_info()`` is None in threads, global random generators are shared by all, and
    ``worker_init_fn`` is called in each thread. An ``IterableDataset`` takes ``num_workers=1``.

    With ``pin_memory=True`` and no ``device`` batches are CPU tensors in memory of torch's caching
    host allocator.

    On the array path (an ``ArrayDataset``, a ``TensorDataset`` or a ``Subset`` of one, default
    collate) ``num_workers`` counts C threads in this process instead of processes; the data must
    not be changed while they read ahead. Batches are ordinary tensors that own their memory.
    They cannot be resized and do not start out in shared memory; pickling and
    ``share_memory_()`` copy. ``stats()`` says which path runs and why. Tensors of batches from
    worker processes, and large ones made without workers, cannot be resized either.
    """

    # For subclasses whose __init__ does not call ours, or that set another default.
    memory_budget: int | None = None
    device: torch.device | str | int | None = None
    path: str = "auto"
    device_transform: Callable[[Any], Any] | None = None
    static_buffers: bool = False
    snapshot_every_n_steps: int = 1
    resume: str | None = None
    on_worker_death: str = "raise"

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
        snapshot_every_n_steps: int = 1,
        resume: str | None = None,
        on_worker_death: str = "raise",
        memory_budget: int | None = None,
        **others: Any,
    ) -> None:
        if path not in PATHS:
            raise ValueError(f"path={path!r} is not one of {', '.join(map(repr, PATHS))}")
        _check_resume(snapshot_every_n_steps, resume)
        _check_worker_death(on_worker_death, path)
        _check_device(device, device_transform, static_buffers)
        _check_budget(memory_budget)
        if memory_budget is not None:
            self.memory_budget = memory_budget
        wanted: Any = prefetch_factor
        if wanted == "auto":
            from fastloop.loader.workers.common import FIRST_DEPTH, AutoDepth

            prefetch_factor = AutoDepth(FIRST_DEPTH) if num_workers > 0 else None
        self.device = device
        self.path = path
        self.device_transform = device_transform
        self.static_buffers = static_buffers
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.resume = resume
        self.on_worker_death = on_worker_death
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
            **others,  # arguments of a later torch; TypeError for names that it does not know
        )

    @property
    def pin_memory_device(self) -> str:
        """torch's. accelerate is given one that brings our arguments into the loader it makes."""
        return value_for_reader(self, self.__dict__.get("pin_memory_device", ""))

    @pin_memory_device.setter
    def pin_memory_device(self, value: str) -> None:
        self.__dict__["pin_memory_device"] = value

    @property
    def _shared(self) -> Shared:
        """Made on first use: a subclass's __init__ need not call ours."""
        shared: Shared | None = self.__dict__.get("_shared")
        if shared is None:
            shared = self.__dict__.setdefault("_shared", Shared())  # the same for all threads
        return shared

    def __iter__(self) -> _BaseDataLoaderIter:
        warn_of_end(self, self._shared.position)
        iterator: _BaseDataLoaderIter | None = iterate_anew(self, super().__iter__)
        if iterator is None:  # persistent workers, and close() has come in between
            raise RuntimeError(CLOSED)
        self._shared.position.begin(iterator)
        return iterator

    def _get_iterator(self, *args: Any, **kwargs: Any) -> _BaseDataLoaderIter:
        """Makes an iterator. A later torch may pass arguments, which are for its own."""
        _check_worker_death(self.on_worker_death, self.path)  # attributes may have been assigned
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        shared = self._shared
        own = functools.partial(super()._get_iterator, *args, **kwargs)
        iterator = iterator_with(Extras.of(self), self, shared, own)
        shared.note_open(iterator)
        return iterator  # type: ignore[no-any-return]

    def check_worker_number_rationality(self) -> None:
        """torch's warning is about processes: threads that wait for I/O may be many."""
        if self.path != "thread":
            call_as_torch(super().check_worker_number_rationality)

    def state_dict(self) -> dict[str, Any]:
        """Where this loader stands, for ``load_state_dict()``: O(1), saves no sample.

        Counts the batches yielded by the iterator made last, never those read ahead. After the
        last batch, but before the loop has ended, the rest of the epoch is empty; once it has
        ended, the state is that of the next epoch before its first batch.

        The state holds numbers, strings and dicts only (``torch.load(weights_only=True)`` and
        JSON take it), with the same keys and types at all times, as
        ``torch.distributed.checkpoint`` wants them: epoch, batches yielded, what describes dataset
        and samplers, and the random states the epoch began with, or is to begin with. Costs no
        sync.

        A dataset with ``state_dict()`` and ``load_state_dict()``, or whose iterator has them, adds
        states of its own, as they are, from each worker. They belong to the batches yielded.
        Before workers have started this waits until they have. ``docs/streams.md`` has the keys.

        A state that cannot be resumed in the middle says why in ``"not_resumable"``: over an
        ``IterableDataset`` without a state, which alone knows where it stands; on the array path
        with ``in_order=False`` and several workers, or after ``batch_size`` was changed during the
        epoch, where a count does not say which samples came.

        Raises: what ``state_dict()`` of the dataset raised, or of its iterator; else nothing.
        """
        if difference("torch"):
            return state_of_unknown()
        return save_state(self, self._shared.position)

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        """Let the next ``iter()`` go on where the loader that gave ``state`` stood.

        It yields the exact next batch and loads no sample before it; later epochs follow as they
        would have. Workers, their number included, and ``path`` may differ. Generators passed to
        the loader or its sampler are set. torch's own is only borrowed to draw the epoch's order:
        restore it yourself (``torch.set_rng_state``) for later epochs to be the same. For an epoch
        that is yet to begin it is not, if you seed it, or draw from it, before ``iter()``. Not
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
        all, of another number of ranks too if what these yielded is a whole number of batches of
        those here. What is left of an epoch comes in that epoch's order even if ``set_epoch()`` is
        called with another number before ``iter()``; the epochs after it take what ``set_epoch()``
        says.
        So it is with a dataset's ``set_epoch()``, but that a number set before loading stays.

        States of a dataset are loaded into it by the next ``iter()``, or by workers as they start;
        what they raise comes from there, or from ``next()``. They need as many workers as they are
        from, or a dataset with ``reshard_state_dict(states, num_workers)``, which returns the
        states for another number: ``iter()`` raises otherwise, or with ``strict`` this. Persistent
        workers are replaced.

        Raises:
            TypeError: ``state`` or one of its parts has the wrong type.
            ValueError: it is damaged or none of this class's, or with ``strict`` does not fit.
            In each case nothing has changed.
        """
        if difference("torch"):
            refuse_state(strict)
            return
        load_state(self, self._shared.position, state, strict)
        if has_place(self.dataset):
            self._iterator = None  # persistent workers are where they are

    def stats(self) -> LoaderStats:
        """What this loader has done so far, and which path it takes now. Costs no sync."""
        from fastloop.loader.stats import stats_of

        return stats_of(self, self.path, self._shared)

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


def _signature() -> inspect.Signature:
    """Of `DataLoader.__init__`, with what a later torch adds by name: frameworks copy loaders by
    their arguments."""
    own = inspect.signature(DataLoader.__init__)
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, default in new_arguments().items():
        named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return own.replace(parameters=named)


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]
