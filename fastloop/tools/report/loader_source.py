"""LoaderSource: what a report knows of one loader, and goes on knowing when the loader is gone."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from fastloop.base.torch_parts import MultiIter, difference
from fastloop.device.prefetch import Prefetcher
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.plain.torch_iters import SyncIter
from fastloop.loader.workers.processes import ProcessIter
from fastloop.loader.workers.threads import ThreadIter
from fastloop.tools.report.process_usage import runnable_ns
from fastloop.tools.report.remedies import find_remedy

_PATHS = {ArrayIter: "array", ProcessIter: "process", ThreadIter: "thread", SyncIter: "sync"}
_NO_WORKERS: tuple[tuple[int, ...], ...] = ()
# What was there when next() was called, or came before the batch that it gave: this batch; only
# others, whose turn it was not; none.
READY, OTHERS, NONE = "ready", "others", "none"


def find_inner(iterator: Any) -> Any:
    """The iterator that loads, below those that upload."""
    while isinstance(iterator, Prefetcher):
        iterator = iterator._source
    return iterator


def find_path(iterator: Any) -> str:
    """How batches are made, as in LoaderStats; "torch" for iterators that are not ours."""
    return next((name for kind, name in _PATHS.items() if isinstance(iterator, kind)), "torch")


def _describe(loader: Any) -> str:
    dataset = getattr(loader, "dataset", None)
    name = type(dataset).__name__ if dataset is not None else type(loader).__name__
    try:
        return f"{name} of {len(dataset):,}"  # type: ignore[arg-type]
    except Exception:  # a stream has no length, and lengths of users' may raise anything
        return name


class LoaderSource:
    """Counts of one loader.

    Args:
        loader: a DataLoader, or an iterator whose loader is not known. It is not kept.
    """

    def __init__(self, loader: Any) -> None:
        self.name = _describe(loader)
        self.workers = int(getattr(loader, "num_workers", getattr(loader, "_num_workers", 0)))
        self.batch_size = getattr(loader, "batch_size", None)
        self.path = ""  # how batches are made; "" before the first
        self.trains = False  # an optimizer has stepped on its batches
        self.batches = 0
        self.wait = 0  # ns in next()
        self.waits = dict.fromkeys((READY, OTHERS, NONE), 0)  # of it, without first batches
        self.remedy = find_remedy(getattr(loader, "dataset", None))
        self.made = [0, 0]  # ns in which batches were made and looked at, of them not waiting
        self._last: tuple[int, int] | None = None  # the same of workers, at the latest look
        self._ready = [0, 0]  # how often a number of ready batches was known, and their sum
        self._iterator: Callable[[], Any] = lambda: None
        self._done = _NO_WORKERS  # counts of workers of iterators before this one
        self._now = _NO_WORKERS

    def use(self, iterator: Any) -> None:
        """Batches come from this iterator of a DataLoader from now on."""
        if iterator is self._iterator():
            return
        self._done, self._now = _add(self._done, self._now), _NO_WORKERS
        self._last = None
        self._iterator = weakref.ref(iterator)
        self.path = find_path(iterator)

    def count_ready(self) -> tuple[int, int]:
        """Before next(): batches that have come before their turn, and others that lie there, at
        least; -1: nobody knows."""
        iterator: Any = self._iterator()
        try:
            if isinstance(iterator, MultiIter) and not difference("queue"):
                early = len(iterator._task_info) - iterator._tasks_outstanding
                if isinstance(iterator, ProcessIter):
                    return early, sum(map(iterator._parent_end.has_replies, range(self.workers)))
                return early, int(iterator._data_queue.qsize())
        except (AttributeError, NotImplementedError, OSError, RuntimeError, ValueError):
            pass  # it is closed, or another kind of queue
        return -1, -1

    def find_turn(self, early: int, queued: int) -> str:
        """After next(): READY, OTHERS or NONE.

        Args:
            early, queued: what ``count_ready()`` has said before.
        """
        iterator: Any = self._iterator()
        if early < 0 or iterator is None:
            return NONE
        if not iterator._in_order:
            return READY if queued > 0 else NONE
        # Those that were taken from the queue meanwhile: this one, and others before their turn.
        came = len(iterator._task_info) - iterator._tasks_outstanding - early + 1
        if came <= queued:
            return READY
        return OTHERS if early > 0 or came > 1 else NONE

    def note_batch(self, ready: int, turn: str, wait: int) -> None:
        """One has come, after so many ns; -1: it was the first. `ready` lay there."""
        self.batches += 1
        if wait >= 0:
            self.waits[turn] += wait
        if ready >= 0:
            self._ready[0] += 1
            self._ready[1] += ready

    def mean_ready(self) -> float | None:
        return self._ready[1] / self._ready[0] if self._ready[0] else None

    def look(self) -> None:
        """Keeps what its workers have done so far."""
        iterator = self._iterator()
        shared = getattr(iterator, "_shared", None)
        if shared is None or self.path not in ("process", "thread"):
            return
        self._now = shared.count_workers()[0]
        ran = _runnable_ns(iterator, self.path == "thread")
        if None in ran or not all(count[0] for count in self._now):
            return  # some have ended, or are yet to start
        now = sum(count[1] for count in self._now), sum(ns or 0 for ns in ran)
        if self._last is not None:
            self.note_made(now[0] - self._last[0], now[1] - self._last[1])
        self._last = now

    def note_made(self, ns: int, ran: int) -> None:
        """Batches were made for so long, and that long the thread had or wanted a CPU."""
        self.made = [self.made[0] + ns, self.made[1] + ran]

    def count_workers(self) -> tuple[tuple[int, ...], ...]:
        """(batches, ns at work, ns waiting) of each, for threads the ns for the lock, too. Empty
        where nobody knows."""
        return _add(self._done, self._now)


def _runnable_ns(iterator: Any, are_threads: bool) -> list[int | None]:
    """Of each worker."""
    if are_threads:
        return [runnable_ns(f"self/task/{thread.native_id}") for thread in iterator._workers]
    return [runnable_ns(str(worker.pid)) for worker in iterator._workers]


def _add(
    before: tuple[tuple[int, ...], ...], now: tuple[tuple[int, ...], ...]
) -> tuple[tuple[int, ...], ...]:
    if not before or not now:
        return before or now
    return tuple(tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(before, now, strict=False))
