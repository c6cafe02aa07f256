"""The answer of ``stats()``: a loader's path and why, and the counts of its iterators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from fastloop.base.checks import is_read_ahead, look_up
from fastloop.base.shown import repr_html
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.data.columns import Columns, own
from fastloop.device.upload import loading_iterator
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.route import choose_route
from fastloop.loader.shared import LockedIter, PlainIter, Shared, SyncIter, TorchProcessIter

# The attributes in which frameworks keep a loader that they have wrapped.
_WRAPPED = ("base_dataloader", "dataloader", "_dataloader")


@dataclass(frozen=True)
class WorkerStats:
    """Counts of one worker process or thread.

    Attributes:
        batches: batches that the worker has built.
        seconds_busy: seconds from a request to its answer: loading, collating, packing.
        seconds_waiting: seconds without a request.
        seconds_waiting_for_lock: the part of ``seconds_busy`` in which a thread was ready to run
            Python but a different thread held the interpreter lock. The number is an estimate:
            after a batch (every 10 ms at most) the thread gives the lock up for a moment and
            measures the time until it has the lock again. That time is multiplied by the number of
            sleeps that the kernel counted during the batch; the product is at most the time that
            the thread was not on a CPU. If the number is near 0, more threads load more. If it is
            most of ``seconds_busy``, the dataset is Python that holds the lock, and
            ``path="process"`` is faster. None for processes, which have one lock each.
    """

    batches: int
    seconds_busy: float
    seconds_waiting: float
    seconds_waiting_for_lock: float | None = None


@dataclass(frozen=True)
class LoaderStats:
    """Counts since the loader was made, over all of its iterators.

    Attributes:
        path: how batches are made now: ``"array"`` (native gathering, no Python per sample),
            ``"process"`` (worker processes over shared memory), ``"thread"`` (worker threads),
            ``"sync"`` (in this process) or ``"torch"``.
        why: why the loader takes that path; where transforms run, if batches go to a device; and
            why torch uploads batches to a CUDA device, if fastloop's own uploads do not work.
        batches: batches given to the user, or uploaded ahead for the loop.
        samples: samples in the batches. None on every path but ``"array"``: they are not counted.
        bytes: bytes of the batches' memory, alignment included; None on the thread, sync and torch
            paths.
        waits: how many batches ``next()`` had to wait for. Without workers ``next()`` waits for
            every batch. On the process path replies of persistent workers to ``iter()`` count as
            well, and a batch that came out of order counts separately.
        seconds_waited: seconds blocked in these waits only. With workers a wait ends when the batch
            has arrived. Work on a batch that has arrived is left out: opening, unpickling (except
            on the torch path), pinning, uploading. For the array path's threads, a batch that the
            loop fills itself instead of waiting counts. Without workers a wait is the whole making
            of the batch, with sampler, dataset and collate; on the array path only the gathering.
        slots_lent: blocks of batch memory whose tensors are alive now.
        slots_replaced: blocks made because the user held more batches than usual.
        restarts: dead worker processes that were replaced (``on_worker_death="restart"``).
        ahead_hits: epochs that began with batches that were read ahead (``epochs_ahead=1``).
        ahead_drops: epochs that were foreseen wrongly, so the batches read ahead were dropped.
        prefetch_factor: batches that each worker is asked for ahead; with ``"auto"``, now.
        workers: on the process and thread paths, the counts of each worker of the latest iterator.
            The counts of a process include the replies that have been taken so far, and its batches
            leave out the first ones of an epoch if all processes make parts of them.
        fallbacks: leaves of batches that torch's own functions collated, by reason, in the latest
            iterator.
    """

    path: str
    why: str
    batches: int
    samples: int | None
    bytes: int | None
    waits: int
    seconds_waited: float
    slots_lent: int
    slots_replaced: int
    restarts: int = 0
    ahead_hits: int = 0
    ahead_drops: int = 0
    prefetch_factor: int | None = None
    workers: tuple[WorkerStats, ...] = ()
    fallbacks: dict[str, int] = field(default_factory=dict)

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        parts = [f"LoaderStats(path={self.path!r}: {self.why}", f"{self.batches:,} batches"]
        if self.samples is not None:
            parts[-1] += f", {self.samples:,} samples"
        if self.bytes is not None:
            parts[-1] += f", {self.bytes / 1e6:,.1f} MB"
        parts.append(f"waited {self.waits:,} times, {self.seconds_waited:.3f} s")
        parts.append(f"slots: {self.slots_lent} lent, {self.slots_replaced} replaced")
        if self.restarts > 0:
            parts.append(f"{self.restarts:,} workers replaced after their death")
        parts += map(repr, self.workers)
        if self.ahead_hits + self.ahead_drops > 0:
            parts.append(f"read ahead: {self.ahead_hits:,} epochs, {self.ahead_drops:,} dropped")
        if self.fallbacks:
            parts.append(f"fallbacks to torch's collate: {self.fallbacks}")
        return "; ".join(parts) + ")"


def compute_stats(loader: Any, path: str, shared: Shared) -> LoaderStats:
    """Return the counts of a loader whose iterators take ``path`` and ``shared``."""
    route = choose_route(loader, path, shared.changed)
    count = shared.count()
    workers, fallbacks = shared.count_workers()
    transforms = "" if route.columns is None else _describe_transforms(route.columns, shared)
    fault = f"; torch uploads: {shared.fault}" if shared.fault else ""
    is_missing = shared.not_ahead and is_read_ahead(loader)
    ahead = f"; no epoch is read ahead: {shared.not_ahead}" if is_missing else ""
    return LoaderStats(
        path=route.path,
        why=f"{route.why}{transforms}{fault}{ahead}",
        batches=count["batches"],
        samples=count["samples"] if route.path == "array" else None,
        bytes=count["bytes"] if route.path in ("array", "process") else None,
        waits=count["waits"],
        seconds_waited=count["wait_ns"] / 1e9,
        slots_lent=count["lent"],
        slots_replaced=count["replaced"],
        restarts=count["restarts"],
        ahead_hits=count["ahead_hits"],
        ahead_drops=count["ahead_drops"],
        prefetch_factor=shared.depth or loader.prefetch_factor,
        workers=tuple(WorkerStats(n, *(ns / 1e9 for ns in times)) for n, *times in workers),
        fallbacks=fallbacks,
    )


def _describe_transforms(columns: Columns, shared: Shared) -> str:
    """Say where transforms run, for ``stats().why``; "" without transforms or a device."""
    if not any(column.plan for column in columns.all):
        return ""
    device, is_split, transforms_on = shared.transforms_run
    if device >= 0 and is_split:
        what = "transforms" if transforms_on == "device" else "the transforms' last step"
        return f"; {what} by a kernel on cuda:{device}"
    if transforms_on != "device":
        return "; transforms on the CPU" if device >= 0 else ""
    disabled = "FASTLOOP_DISABLE_CUDA is set" if kernels_are_disabled() else ""
    reason = shared.fault or disabled or "the device runs no kernel of fastloop"
    return f"; transforms on the CPU, because {reason}"


# Reasons that follow from how batches are made.
_PLAIN = "the dataset is a ", "collate_fn is not torch's default", "samples of "


def describe_iterator(loader: DataLoader[Any], iterator: Any, why: str) -> str:
    """Name the loader's dataset, how its batches are made, and why no threads make them."""
    iterator = loading_iterator(iterator)
    is_stand_in = bool(own(iterator._dataset, "_is_stand_in"))
    if isinstance(iterator, ArrayIter):
        how = "gathered by threads"
    elif isinstance(iterator, PlainIter | SyncIter):
        # Other seams count what they do inside the program's function.
        who = "fastloop" if iterator.is_collated else "the program's function"
        how = f"in this process, collated by {who}"
    else:
        how = f"{loader.num_workers} worker process{'es' * (loader.num_workers != 1)}"
        is_torchs = isinstance(iterator, TorchProcessIter) or not isinstance(iterator, LockedIter)
        how += ", torch's own" * is_torchs
    how += ", samples by fastloop" * is_stand_in
    if why and not isinstance(iterator, ArrayIter) and not why.startswith(_PLAIN):
        how += f" ({why})"
    return f"{type(loader.dataset).__name__}: {how}"


def unwrap(loader: Any) -> Any:
    """Return the loader of torch's class, or of a subclass, inside the wrappers of frameworks; if
    there is none, return the innermost object."""
    # type() and not isinstance(): accelerate's wrappers fake `__class__`.
    while not issubclass(type(loader), DataLoader):
        inside = (look_up(loader, "__dict__", {}).get(name) for name in _WRAPPED)
        found = next((value for value in inside if value is not None), None)
        if found is None:
            break
        loader = found
    return loader
