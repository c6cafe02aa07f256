"""DataLoader: torch's class with faster iterators."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, Sampler

from fastloop._core import usable_cpus
from fastloop.base.checks import (
    check_callable,
    check_type,
    check_value,
    look_up,
    make_message,
    read_choice,
    read_int,
    read_number,
)
from fastloop.base.shown import repr_of
from fastloop.compat.torch_parts import BaseIter, call_as_torch, new_arguments
from fastloop.data.columns import adapters, datasets_within
from fastloop.data.samplers import refuse_shuffle
from fastloop.loader.route import (
    PATHS,
    choose_route,
    fast_iterator,
    iterate_without_broken_workers,
)
from fastloop.loader.shared import CLOSED, FIRST_DEPTH, AutoDepth, Shared, is_keyed, shared_of

if TYPE_CHECKING:
    from torch.utils.data.dataloader import _collate_fn_t, _worker_init_fn_t
    from typing_extensions import Self

    from fastloop.loader.stats import LoaderStats

_T_co = TypeVar("_T_co", covariant=True)
_BUDGET = "or None: a quarter of the memory available"
_TIMEOUT = "timeout= raises if a batch takes too long"
_SNAPSHOTS = "1 sends a state of the dataset after every batch, 0 after none"


def _refuse_shuffles(dataset: Any, shuffle: object, sampler: Any) -> None:
    """Raise ValueError if a loader with these arguments would shuffle a dataset with an order of
    its own."""
    is_random = (
        type(sampler) is torch.utils.data.RandomSampler or look_up(sampler, "shuffle") is True
    )
    is_fixed = isinstance(sampler, torch.utils.data.DistributedSampler)
    for found in datasets_within(dataset) if shuffle or is_random or is_fixed else ():
        if shuffle or is_random:
            refuse_shuffle(found, True)
        elif look_up(found, "_repack"):
            rule = "a fastloop.ShuffleSampler(dataset, shuffle=False)"
            remedy = "len() differs between epochs, and a DistributedSampler keeps the first"
            got = type(sampler).__name__
            raise ValueError(
                make_message("sampler", rule, got, f"{remedy}; or make the rows with repack=False")
            )


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """``torch.utils.data.DataLoader``, faster: same arguments, batches, order and random numbers.

    The class takes every argument of torch's class and the arguments below, by keyword only:
    first the ones that choose how batches are loaded, then the device and the transforms, then
    resuming and the name. For example:

        loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers=4, device="cuda")

    Args:
        path: ``"auto"`` takes the fastest path that covers the dataset. ``"array"`` demands native
            gathering of array data, ``"process"`` worker processes over shared memory,
            ``"thread"`` worker threads in this process, ``"sync"`` loading in this process; if the
            path does not cover the loader, ``iter()`` raises a ValueError. ``"torch"`` demands
            torch's own iterators.
        prefetch_factor: torch's numbers, or ``"auto"``: starts at 2 and grows by one each time
            that ``next()`` waits although the queue had been full, up to 16. Workers then ask the
            sampler earlier than torch's workers would. "auto" stays at 2 on the array path, and is
            None without workers. ``stats().prefetch_factor`` has the present value.
        memory_budget: the bytes that batches may take before the user has them: batches of worker
            processes, and batches of array data in pinned memory. None: a quarter of the memory
            available at ``iter()``, within the limits of the cgroup. A single batch may always be
            larger, and batches that the user holds are not counted.
        on_worker_death: the answer to a worker process that is killed by a signal (perhaps because
            memory ran out) or exits. ``"raise"``: torch's RuntimeError. ``"restart"``: a new
            process with the same id and seed calls ``worker_init_fn`` and loads the unfinished
            batches again, in their order; a RuntimeWarning says how the worker died, at which
            batch, and how much memory there is. The state of the dead worker is lost, its random
            generators included. If two workers die at the same batch, or workers cannot start,
            the loader raises. If a worker of an IterableDataset dies, the stream continues after
            the last batch received if the dataset has ``state_dict()``, else the loader raises.
            Exceptions of the dataset are raised as ever. ValueError with ``path="torch"``.
        worker_timeout: with ``on_worker_death="restart"``, the seconds after which a worker process
            that answers nothing is ended and replaced; a RuntimeWarning shows the worker's Python
            stack. Give more than the slowest batch needs; a worker that starts has a minute more.
            Seconds outside ``next()`` do not count. If three workers hang at the same batch, the
            loader raises. 0: workers may take as long as they like.
        device: the device of the batches. Batches are uploaded while the loop computes; with
            workers each batch is uploaded as soon as it arrives. None leaves batches in CPU memory.
            If there is no such device, ``iter()`` raises torch's own error. Batches of 4 MiB and
            more are copied in slices, which has run on a simulated device only, not on a GPU yet.
        batch_transform: a function that takes each batch and returns a new one. For example,
            ``MixUp`` of ``fastloop.transforms`` draws its random numbers from the seed, the epoch
            and the number of the batch. The function runs in this process, before
            ``device_transform``; if there is a ``device``, on the device.
        device_transform: a function that takes each batch on ``device`` and returns the batch for
            the loop; for example, it may convert uint8 images. The function runs on the current
            stream, or on one of the loader's own; other tensors that it uses must exist before
            ``iter()``.
        static_buffers: every batch on ``device`` has its tensors at the same addresses, for CUDA
            graphs. The tensors are valid until the next batch is taken. All batches must be alike.
        transforms_on: where image transforms run when the loader uploads batches to a CUDA
            ``device``; bits and random numbers are the same. ``"auto"``: on the CPU, except for
            the last step, the cast, which a kernel does. ``"cpu"``: wholly on the CPU, and
            finished batches are uploaded. ``"device"``: threads only copy images, and after the
            upload kernels crop, pad, flip, resize, colour, erase and cast the images. ``iter()``
            raises a ValueError for operations that do more, for other paths, and for
            ``num_workers=0``. If no kernel can run, the CPU does the work, and ``stats().why``
            says so. Experimental: "device" has run on a simulated device only, not on a GPU yet.
        snapshot_every_n_steps: workers send the state of an ``IterableDataset`` that has
            ``state_dict()`` after every n-th of their batches; 0: after none. Resuming reads the
            samples of the batches since then again. Without workers, states are always exact.
        resume: ``"skip"`` lets ``load_state_dict()`` resume in the middle of an
            ``IterableDataset`` without ``state_dict()``: the samples of every batch yielded are
            read again and dropped. None: the epoch starts anew.
        epochs_ahead: 1: while the last batches of an epoch are handed out, idle workers make the
            first batches of the next epoch. Worker processes need ``persistent_workers=True``, and
            so do worker threads with a ``worker_init_fn``. If the program then does between the
            epochs what it did last time, the batches are there at ``iter()``; else they are
            dropped. Batches and random numbers are the same in both cases, unless reading
            a sample changes the dataset, or the program changes between epochs what workers read,
            for example a number in shared memory. ``stats()`` counts both cases.
        numa: where batches lie on a machine with several sockets. ``"auto"``: at the socket of the
            ``device``; on all sockets in turn if there is no device. A program that
            ``numactl`` has bound keeps its own rule. ``"off"``: Linux chooses. The batches are
            the same.
        name: the loader's name in updates and metrics of ``report()``, for example "train".

    With ``path="thread"`` (never chosen by itself) ``num_workers`` threads call the dataset,
    several at once, so the dataset must be thread-safe. Nothing is pickled or copied: the dataset
    exists once and the first batch comes at once. Use threads for code that releases the
    interpreter lock, for example decoders, NumPy and I/O; ``stats()`` says how long threads waited
    for that lock. ``get_worker_info()`` is None in threads, all threads share the global random
    generators, and ``worker_init_fn`` is called in each thread. An ``IterableDataset`` takes
    ``num_workers=1``.

    With ``pin_memory=True`` and no ``device`` batches are CPU tensors in memory of torch's caching
    host allocator.

    On the array path (an ``ArrayDataset``, a ``TensorDataset`` or a ``Subset`` of one, default
    collate) ``num_workers`` counts native threads in this process instead of processes. Do not
    change the data while the threads read ahead. An epoch reads the arrays that the dataset has at
    ``iter()``; an attribute that is assigned later (``dataset.tensors``) counts from the next epoch
    on. Batches are ordinary tensors that own their memory. They cannot be resized and do not start
    out in shared memory; pickling and ``share_memory_()`` copy. ``stats()`` says which path runs
    and why. Tensors of batches from worker processes, and large tensors made without workers,
    cannot be resized either.
    """

    # The defaults are for subclasses whose __init__ does not call this one or sets its own default.
    memory_budget: int | None = None
    device: torch.device | str | int | None = None
    path: str = "auto"
    device_transform: Callable[[Any], Any] | None = None
    batch_transform: Callable[[Any], Any] | None = None
    static_buffers: bool = False
    transforms_on: str = "auto"
    snapshot_every_n_steps: int = 1
    resume: str | None = None
    on_worker_death: str = "raise"
    name: str | None = None
    worker_timeout: float = 0
    epochs_ahead: int = 0
    numa: str = "auto"

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
        batch_transform: Callable[[Any], Any] | None = None,
        static_buffers: bool = False,
        transforms_on: str = "auto",
        snapshot_every_n_steps: int = 1,
        resume: str | None = None,
        on_worker_death: str = "raise",
        worker_timeout: float = 0,
        memory_budget: int | None = None,
        epochs_ahead: int = 0,
        numa: str = "auto",
        name: str | None = None,
        **others: Any,
    ) -> None:
        self.path = read_choice("path", path, PATHS)
        every = read_int("snapshot_every_n_steps", snapshot_every_n_steps, 0, remedy=_SNAPSHOTS)
        self.snapshot_every_n_steps = every
        self.resume = read_choice("resume", resume, (None, "skip"))
        self.device, self.device_transform = device, device_transform
        self.batch_transform = batch_transform
        self.static_buffers, self.on_worker_death = static_buffers, on_worker_death
        self.worker_timeout, self.transforms_on = worker_timeout, transforms_on
        self.epochs_ahead = read_int("epochs_ahead", epochs_ahead, 0, 1)
        self.numa = read_choice("numa", numa, ("auto", "off"))
        self._check_arguments()
        if device_transform is not None or batch_transform is not None:
            adapters().warn_of_lost_transforms()
        if memory_budget is not None:
            self.memory_budget = read_int("memory_budget", memory_budget, 1, remedy=_BUDGET)
        if name is not None:  # a subclass may have a property of that name
            check_type("name", name, isinstance(name, str), "a str", "or None")
            self.name = name
        wanted: Any = prefetch_factor
        workers: Any = num_workers
        if isinstance(workers, str) and workers == "auto":
            raise TypeError(
                "num_workers must be an int >= 0, got 'auto' (begin with one per CPU, so "
                f"{usable_cpus()}; fastloop.tune(loader) measures which is best)"
            )
        if wanted == "auto":
            prefetch_factor = AutoDepth(FIRST_DEPTH) if num_workers > 0 else None
        _refuse_shuffles(dataset, shuffle, sampler)
        data = dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn
        how = pin_memory, drop_last, timeout, worker_init_fn, multiprocessing_context, generator
        # `others` are arguments of a later torch, which raises TypeError for unknown names.
        others.update(in_order=in_order, persistent_workers=persistent_workers)
        others["pin_memory_device"] = pin_memory_device
        super().__init__(*data, *how, prefetch_factor=prefetch_factor, **others)

    def _own_arguments(self) -> dict[str, Any]:
        """Return the arguments that torch's class lacks and whose value is not the default."""
        now = {name: getattr(self, name) for name in _OWN}
        return {name: value for name, value in now.items() if value != _OWN[name]}

    def _check_arguments(self) -> None:
        """Check arguments against each other. The check runs again before each iter(), because
        attributes may have been assigned."""
        for name in ("device_transform", "batch_transform"):
            if (transform := getattr(self, name)) is not None:
                check_callable(name, transform, "a function of a batch")
        if self.device is not None:
            torch.device(self.device)  # raises torch's own error
        elif self.device_transform is not None or self.static_buffers:
            raise ValueError(
                "device_transform and static_buffers must come with a device, got device=None "
                "(pass device=)"
            )
        if self.transforms_on is not _OWN["transforms_on"]:
            read_choice("transforms_on", self.transforms_on, ("auto", "cpu", "device"))
        if self.on_worker_death is not _OWN["on_worker_death"]:
            choice = read_choice("on_worker_death", self.on_worker_death, ("raise", "restart"))
            if choice == "restart" and self.path == "torch":
                rule = "'raise' with path='torch'"
                raise ValueError(make_message("on_worker_death", rule, choice, "use path='auto'"))
        if self.worker_timeout is not _OWN["worker_timeout"]:
            read_number("worker_timeout", self.worker_timeout, 0)
            is_fine = self.worker_timeout == 0 or self.on_worker_death == "restart"
            rule = "0 without on_worker_death='restart'"
            check_value("worker_timeout", self.worker_timeout, is_fine, rule, _TIMEOUT)

    @property
    def _shared(self) -> Shared:
        """Batch memory and counts. They are made on first use, because the __init__ of a subclass
        may not call this class's."""
        shared: Shared | None = self.__dict__.get("_shared")
        # setdefault() gives all threads the same object.
        return shared or self.__dict__.setdefault("_shared", self._new_shared())

    def _new_shared(self, position: Any = None) -> Shared:
        return Shared(position, False if self.path == "torch" else None, self.numa)

    def __iter__(self) -> BaseIter:
        position = self._shared.position
        if position.start.yielded > 0:  # a loaded state
            from fastloop.loader.resume import saving

            saving.warn_of_end(position, self)
        iterate: Any = super().__iter__  # calls _get_iterator, or resets self._iterator
        has_iterator = look_up(self, "_iterator") is not None  # with persistent workers
        iterator: BaseIter | None = (
            iterate_without_broken_workers(self, iterate) if has_iterator else iterate()
        )
        if iterator is None:  # persistent workers, and close() has come in between
            raise RuntimeError(CLOSED)
        position.begin(iterator)
        return iterator

    def _get_iterator(self, *args: Any, **kwargs: Any) -> BaseIter:
        """Make an iterator, for torch's ``__iter__``. A later torch may pass arguments, which only
        torch's iterator takes."""
        self._check_arguments()
        if self.num_workers > 0:
            self.check_worker_number_rationality()
        shared = self._shared
        if shared.is_served is None and not is_keyed(self):
            shared.is_served = adapters().serve_fetches()
        if shared.position.has_cursor is None:
            shared.position.look_at(self.dataset)
        make_torch_iterator = functools.partial(super()._get_iterator, *args, **kwargs)
        make = functools.partial(
            fast_iterator, self, self.path, shared, make_torch_iterator=make_torch_iterator
        )
        if self.device is None and self.batch_transform is None:
            iterator: BaseIter = make()
        else:
            from fastloop.loader.device_iter import open_on_device

            iterator = open_on_device(self, make)
        shared.note_open(iterator)
        return iterator

    def check_worker_number_rationality(self) -> None:
        """Give torch's warning, which is about processes: threads that wait for I/O may be many."""
        if self.path != "thread":
            caller = (
                "__init__" if sys._getframe(1).f_code.co_name == "__init__" else "_get_iterator"
            )
            check, most = super().check_worker_number_rationality, len(os.sched_getaffinity(0))
            call_as_torch(f"DataLoader.{caller}", check, may_warn=self.num_workers > most)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this loader, for ``load_state_dict()``. O(1); saves no sample.

        The state counts the batches yielded by the iterator made last, never batches read ahead.
        After the last batch, but before the loop has ended, the rest of the epoch is empty; once
        the loop has ended, the state describes the next epoch before its first batch.

        The state holds numbers, strings, lists and dicts only (``torch.load(weights_only=True)``
        and JSON take them), with the same keys and types at all times, as
        ``torch.distributed.checkpoint`` needs: epoch, batches yielded, facts about dataset and
        samplers, and the random states that the epoch began with, or will begin with. Costs no
        sync.

        If a dataset or its iterator has ``state_dict()`` and ``load_state_dict()``, each worker
        adds the dataset's own state, unchanged. These states belong to the batches yielded. If
        workers have not started yet, this method waits for them. ``docs/internals/streams.md`` has
        the keys.

        If a state cannot be resumed in the middle of its epoch, ``"not_resumable"`` says why: an
        ``IterableDataset`` without a state cannot report its position; with ``in_order=False`` and
        several workers, or after ``batch_size`` was changed during the epoch, a count does not
        tell which samples came.

        Raises: what ``state_dict()`` of the dataset or of its iterator raised; else nothing.
        """
        from fastloop.loader.resume import saving

        return saving.save(self._shared.position, self)

    def load_state_dict(self, state: dict[str, Any], strict: bool = False) -> None:
        """Let the next ``iter()`` continue from the point at which ``state`` was saved.

        The iterator yields the exact next batch and loads no sample before that batch; later
        epochs follow as they would have. ``path``, the number of workers and the other arguments
        of workers may differ.

        Random numbers: generators that were passed to the loader or its sampler are set. torch's
        own generator is only borrowed to draw the epoch's order: restore that generator yourself
        (``torch.set_rng_state``) for later epochs to be the same. If you seed torch's generator or
        draw from it before ``iter()``, an epoch that has yet to begin is drawn from your numbers.
        Not restored: the random numbers of Python code in workers (transforms of an ArrayDataset
        follow from the epoch), and what a sampler of your own keeps or draws elsewhere. Such a
        sampler is iterated again from the start of the epoch.

        If this loader differs from the saved one (batch size, length, samplers, generators), the
        epoch starts anew, in a new order and with no generator set, and a UserWarning says why. If
        the state cannot be resumed in the middle, its epoch starts anew, with a RuntimeWarning.
        With ``strict=True`` both raise a ValueError.

        A state saved after the last batch but before the loop has ended is at the end of that
        epoch: the next ``iter()`` gives no batch and warns. Under Lightning the next ``iter()``
        begins the next epoch if Lightning counts the saved epoch as trained.

        A ``DistributedSampler`` is set to the epoch of the state. The state of one rank serves all
        ranks, and any number of ranks, with any ``batch_size``: what all ranks together have had is
        left out of the epoch's order, and the rest is dealt out anew
        (``docs/use/ranks-and-resuming.md``). The same holds for ``ShuffleSampler``,
        ``LengthBucketBatchSampler`` and ``CostBatchSampler``.

        The rest of an epoch comes in that epoch's order even if ``set_epoch()`` is called
        with a different number before ``iter()``; the epochs after the resumed one take the number
        of ``set_epoch()``. The same holds for a dataset's ``set_epoch()``, except that a number set
        before loading stays.

        The next ``iter()``, or workers as they start, load a dataset's states into the dataset, so
        errors of the states come from ``iter()`` or ``next()``. The states need the number of
        workers that they were saved with, or a dataset with ``reshard_state_dict(states,
        num_workers)``, which returns the states for a new number; else ``iter()`` raises, or with
        ``strict`` this method. Persistent workers are replaced.

        Raises:
            TypeError: ``state`` or one of its parts has the wrong type.
            ValueError: ``state`` is damaged or not from this class, or with ``strict`` does not
                fit. In each case nothing has changed.
        """
        from fastloop.loader.resume import saving

        saving.load(self._shared.position, self, state, strict)

    @staticmethod
    def join_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Join the states of all ranks, in their order, into one that any rank can load.

        Streams, and map-style datasets with a state of their own, need the joined state: if the
        number of ranks is the same, each rank loads its own part. For a new number of ranks
        ``reshard_state_dict`` of the dataset takes the states of every worker on every old rank
        and returns the states of every worker on the new ranks. Ranks are the ranks of
        ``torch.distributed``. Ranks of other loaders must have the same state, which is checked.
        The method sends nothing: gather the states first, for example by ``all_gather_object``.

        Raises:
            TypeError, ValueError: ``states`` must be a list of states of this version; or the ranks
            disagree about the position or the facts of the loader, and the text says in what.
        """
        from fastloop.loader.resume import saving

        return saving.join_states(states)

    def stats(self) -> LoaderStats:
        """Return what this loader has done so far, and the path that it takes now. No sync."""
        from fastloop.loader.stats import compute_stats

        return compute_stats(self, self.path, self._shared)

    def _keep_indices(self) -> None:
        """Keep the indices of the latest batches from the next ``iter()`` on: `keep_indices` of
        iterators tells them."""
        self._shared.keeps_indices = True

    def close(self) -> None:
        """End the threads or workers of every iterator and free unused batch memory.

        To iterate a closed iterator further is an error. Batches stay valid, and the loader can be
        iterated anew. The end of a ``with`` block closes the loader as well.
        """
        for iterator in [ref() for ref in self._shared.open]:
            getattr(iterator, "close", bool)()  # torch's have none
        self._iterator = None
        self._shared.trim()

    def __repr__(self) -> str:
        try:
            has_length = hasattr(type(self.dataset), "__len__")
            rows = f"{len(self.dataset):,} rows" if has_length else ""  # type: ignore[arg-type]
            batch = f"batch {self.batch_size}" if self.batch_size is not None else ""
            workers = f"{self.num_workers} worker{'s' * (self.num_workers > 1)}"
            path = choose_route(self, self.path, self._shared.changed).path
            kind = type(self.dataset).__name__
        except Exception:  # a subclass whose __init__ has not run yet, a dataset that raises
            return object.__repr__(self)
        return repr_of(self, kind, rows, batch, workers * bool(self.num_workers), f"path={path!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_position": self._shared.position.copy()}
        state.pop("_shared", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        position = state.pop("_position")
        self.__dict__.update(state)
        self.__dict__["_shared"] = self._new_shared(position)


def _signature() -> inspect.Signature:
    """Return the signature of ``DataLoader.__init__``, with the arguments that a later torch adds.
    Frameworks need it, because they copy loaders by their arguments."""
    own = inspect.signature(DataLoader.__init__)
    named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, default in new_arguments().items():
        named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return own.replace(parameters=named)


_OWN = {name: getattr(DataLoader, name) for name in DataLoader.__annotations__}
DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


def stats(loader: Any) -> LoaderStats:
    """Return the counts of any loader so far, and the path that the loader takes now. No sync.

    Args:
        loader: a ``fastloop.DataLoader``; a loader of torch's class, which ``fastloop.patch()``
            serves; or the loader that accelerate or Fabric has wrapped around one.

    Returns:
        The same as ``fastloop.DataLoader.stats()``. A loader that torch alone has iterated so far
        has ``path="torch"`` and counts of 0: torch counts nothing.

    Raises:
        TypeError: ``loader`` holds no torch DataLoader.
    """
    from fastloop.loader.stats import LoaderStats, compute_stats, unwrap

    found = unwrap(loader)
    if not isinstance(found, torch.utils.data.DataLoader):
        kind = type(loader).__qualname__
        raise TypeError(f"loader must be a DataLoader or a framework's wrapper, got a {kind}")
    if isinstance(found, DataLoader):
        return found.stats()
    if (shared := shared_of.get(found)) is not None:
        return compute_stats(found, "auto", shared)
    why = "fastloop has made no iterator of this loader; call fastloop.patch() before iter()"
    return LoaderStats("torch", why, 0, None, None, 0, 0.0, 0, 0)
