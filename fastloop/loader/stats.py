"""The counts of a loader, as a small value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from fastloop.base.shown import repr_html
from fastloop.loader.iterators import choose_route, unwrap
from fastloop.loader.shared import Shared, shared_of


@dataclass(frozen=True)
class WorkerStats:
    """Counts of one worker process or thread.

    Attributes:
        batches: batches it has built.
        seconds_busy: seconds from a request to its answer: loading, collating, packing.
        seconds_waiting: seconds it had nothing to do.
        seconds_waiting_for_lock: of those busy, the seconds that a thread was ready to run Python
            but another held the interpreter lock. An estimate: after a batch (every 10 ms at most)
            the thread gives the lock up for a moment and measures how long it takes to get it
            back; that times the number of sleeps that the kernel has counted while it made the
            batch, and at most the time it was not on a CPU then. Near 0, more threads load more.
            If it is most of ``seconds_busy``, the dataset is Python that holds the lock, and
            ``path="process"`` is faster. None for processes, each of which has a lock of its own.
    """

    batches: int
    seconds_busy: float
    seconds_waiting: float
    seconds_waiting_for_lock: float | None = None


@dataclass(frozen=True)
class LoaderStats:
    """Counts since the loader was made, over all of its iterators.

    Attributes:
        path: how batches are made now: ``"array"`` (C, no Python per sample), ``"process"``
            (worker processes over shared memory), ``"thread"`` (worker threads), ``"sync"`` (in
            this process) or ``"torch"``.
        why: why that path; and why torch uploads batches to a CUDA device, where it does so
            because fastloop's own uploads do not work there.
        batches: batches given to the user, or uploaded ahead for the loop.
        samples: samples in them; None where they are not counted: all paths but ``"array"``.
        bytes: bytes of their memory, alignment included; None on the thread, sync and torch paths.
        waits: how many batches ``next()`` had to wait for. Without workers that is every one; on
            the process path replies of persistent workers to ``iter()`` count as well, and a
            batch that came out of order counts by itself.
        seconds_waited: seconds blocked in that, and no others. With workers (threads on the array
            path, which also makes what it would wait for): until the batch has arrived. It
            leaves out what is done with a batch that is there: opening, unpickling (but on the
            torch path), pinning, uploading. Without workers: all of the making of the batch,
            sampler, dataset and collate included, but on the array path only the gathering.
        slots_lent: blocks of batch memory whose tensors are alive now.
        slots_replaced: blocks made because more than usual were held by the user.
        restarts: dead worker processes that were replaced (``on_worker_death="restart"``).
        prefetch_factor: batches each worker is asked for ahead; with ``"auto"``, now.
        workers: on the process and thread paths, of each worker of the latest iterator; of a
            process as far as its replies have been taken.
        fallbacks: leaves of batches that torch's own functions collated, by reason, by the latest
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
    prefetch_factor: int | None = None
    workers: tuple[WorkerStats, ...] = ()
    fallbacks: dict[str, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return repr_html(self)

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
        if self.fallbacks:
            parts.append(f"fallbacks to torch's collate: {self.fallbacks}")
        return "; ".join(parts) + ")"


def stats(loader: Any) -> LoaderStats:
    """Return the counts of any loader so far, and the path that it takes now. Costs no sync.

    Args:
        loader: a ``fastloop.DataLoader``; a loader of torch's class, which ``fastloop.patch()``
            serves; or a loader that accelerate or Fabric has made of one.

    Returns:
        As ``fastloop.DataLoader.stats()``. A loader that torch alone has iterated so far has
        ``path="torch"`` and counts of 0: torch counts nothing.

    Raises:
        TypeError: ``loader`` holds no torch DataLoader.
    """
    found = unwrap(loader)
    if not isinstance(found, DataLoader):
        kind = type(loader).__qualname__
        raise TypeError(f"loader must be a DataLoader or a framework's wrapper, got a {kind}")
    if isinstance(getattr(found, "_shared", None), Shared):
        return found.stats()  # type: ignore[attr-defined, no-any-return]
    if (shared := shared_of.get(found)) is not None:
        return compute_stats(found, "auto", shared)
    why = "fastloop has made no iterator of this loader; call fastloop.patch() before iter()"
    return LoaderStats("torch", why, 0, None, None, 0, 0.0, 0, 0)


def compute_stats(loader: DataLoader[Any], path: str, shared: Shared) -> LoaderStats:
    """Return the counts of a loader whose iterators are given ``path`` and ``shared``."""
    route = choose_route(loader, path, shared.changed)
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
        restarts=count["restarts"],
        prefetch_factor=shared.depth or loader.prefetch_factor,
        workers=tuple(WorkerStats(n, *(ns / 1e9 for ns in times)) for n, *times in workers),
        fallbacks=fallbacks,
    )
