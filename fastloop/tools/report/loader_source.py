"""LoaderSource: the facts about a loader that a report keeps, also after the loader is gone.

A LoaderSource hides how each kind of iterator counts workers and ready batches, and which datasets
fastloop loads faster than more workers would.
"""

from __future__ import annotations

import os
import sys
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from multiprocessing.connection import wait
from os import PathLike, fspath
from types import FrameType
from typing import Any

from fastloop.base.checks import look_up
from fastloop.base.machine import anonymous_bytes, scheduled_ns
from fastloop.compat.torch_parts import MultiIter, difference
from fastloop.device.accelerator import Accelerator
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.shared import PlainIter, SyncIter
from fastloop.loader.workers.processes import ProcessIter
from fastloop.loader.workers.threads import ThreadIter
from fastloop.tools.text import size

_PATHS = {ArrayIter: "array", ProcessIter: "process", ThreadIter: "thread", SyncIter: "sync"}
_PATHS[PlainIter] = "sync"
# When next() was called, the batch that was due was ready (READY), or only later batches were ready
# or came first (OTHERS), or no batch was ready (NONE).
READY, OTHERS, NONE = "ready", "others", "none"
# Bounds of waits in ns: the counts are of waits up to each bound, and of longer waits.
WAITS_NS = tuple(10**power for power in range(5, 11))
_Counts = tuple[tuple[int, ...], ...]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_SHORT_NS = 100_000  # if the mean wait is shorter, the report does not check the loop's CPU time
_LONG = 50_000  # the report does not look for copies of shorter lists
_MUCH_GROWTH = 32 << 20  # bytes; buffers of a worker may take less
TRANSFORMS = "fastloop.transforms, which are native, in place of torchvision's"


def find_remedy(dataset: Any) -> str:
    """Return the advice for a dataset that fastloop can load natively; "" if only workers, threads
    or a cache can help."""
    for one in _unwrap(dataset):
        if hasattr(type(one), "_decodes_files"):  # an ImageFolder, a TarDataset, or a subclass
            return str(one._cache_remedy)
        parts = list(look_up(one, "__dict__", {}).values())
        if any(map(_names_images, parts)):
            return "fastloop.ImageFolder(root, cache='u8:FOLDER'), which decodes each image once"
        if any(type(part).__module__.startswith("torchvision.transforms") for part in parts):
            return TRANSFORMS
    return ""


def find_long_list(dataset: Any) -> str:
    """Return the name and the length of the longest list of objects in a dataset; "" without a list
    that is worth a hint."""
    found = {"the dataset": dataset}
    for one in _unwrap(dataset):
        found.update(look_up(one, "__dict__", {}))
    lists = {name: len(part) for name, part in found.items() if type(part) in (list, tuple, dict)}
    name = max(lists, key=lambda name: lists[name], default="")
    return f"{name} ({lists[name]:,} objects)" if lists.get(name, 0) >= _LONG else ""


def _unwrap(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and its nested datasets: for example, a Subset of a ConcatDataset."""
    for _ in range(8):
        yield dataset
        inner = look_up(dataset, "datasets")
        dataset = inner[0] if type(inner) is list and inner else look_up(dataset, "dataset")


def _names_images(part: Any) -> bool:
    """Tell whether `part` is a list of image paths, or a list of tuples that begin with a path."""
    first: Any = part[0] if type(part) in (list, tuple) and part else None
    first = first[0] if type(first) in (list, tuple) and first else first
    return issubclass(type(first), str | PathLike) and str(fspath(first)).lower().endswith(_IMAGES)


def _find_line() -> str:
    """Return the line of the program's own file on the stack, for example " train.py:12"; "" if the
    file is not there."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "__main__":
        frame = frame.f_back
    if frame is None:
        return ""
    return f" {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


class LoaderSource:
    """The counts of one loader.

    Args:
        loader: a DataLoader, or an iterator whose loader is unknown. No reference is kept.

    Attributes:
        name: the dataset's class and length, for the reader of the report.
        path: how batches are made, as in LoaderStats; "torch" for torch's iterators, "" before the
            first batch.
        trains: whether an optimizer has stepped on the loader's batches.
        batches: the number of batches.
        label: the loader's own name; without one, the dataset's class and the line of the program
            that called iter().
        wait: ns in next().
        queued: the batches in the queue at begin_batch(); -1 if unknown.
        first_batch: ns in iter() and in next() of the first batch of each epoch.
        waits: ns in next() without the first batch of each epoch, by READY, OTHERS and NONE.
        counts: the number of these waits by the same keys, and by WAITS_NS.
        remedy: the advice of `find_remedy()`; None if there is none.
        grown: the most bytes by which the first worker process has grown since its first look. 0
            without a long list.
        made: three times in ns, as far as making batches was watched: the time to make batches;
            the part in which the thread or process ran or waited for a CPU; the part in which it
            waited for a CPU.
        watched: two times in ns, as far as next() was watched: the time in next(); the part in
            which the loop's thread waited for a CPU.
    """

    def __init__(self, loader: Any) -> None:
        dataset = look_up(loader, "dataset")
        self.name = type(loader if dataset is None else dataset).__name__
        with suppress(Exception):  # a stream has no length, and a user's __len__ may raise anything
            self.name += f" of {len(dataset):,}"
        self.num_workers = int(look_up(loader, "num_workers", look_up(loader, "_num_workers", 0)))
        name = look_up(loader, "name")
        label = name if isinstance(name, str) else self.name.partition(" ")[0] + _find_line()
        self.label = label.encode(errors="replace").decode()  # half a surrogate is no UTF-8
        self.path, self.trains, self.batches, self.wait, self.first_batch = "", False, 0, 0, 0
        self.waits = dict.fromkeys((READY, OTHERS, NONE), 0)
        self.counts = {found: [0] * (len(WAITS_NS) + 1) for found in self.waits}
        self.remedy = find_remedy(dataset) or None
        self.grown, self._long_list = 0, find_long_list(dataset)
        self.made, self.watched = [0, 0, 0], [0, 0]
        self._last: list[int] | None = None  # the workers' times at the last look
        self._is_new = False  # whether the iterator has given no batch; the first counts apart
        self._began = 0  # the time of begin_batch()
        self._scheduled: tuple[int, int] | None = None  # the loop's CPU times at begin_batch()
        self.queued, self._has_queue = -1, False
        self._iterator: Callable[[], Any] = lambda: None
        self._shared: Callable[[], Any] = lambda: None  # of the latest iterator of fastloop
        # Samples and restarts of Shared: since the first use(), and at that time.
        self._counts = self._base = 0, 0
        self._accelerators: set[Accelerator] = set()  # of the latest iterator
        self._uploaded = 0  # bytes that earlier iterators have uploaded
        self._done: _Counts = ()  # the workers' counts of earlier iterators
        self._now: _Counts = ()  # the workers' counts of the present iterator

    def uses(self, iterator: Any) -> bool:
        """Tell whether the counts come from this iterator."""
        return iterator is self._iterator()

    def use(self, iterator: Any) -> None:
        """Take counts from this iterator of the loader from now on."""
        if self.uses(iterator):
            return
        self._done, self._now, self._last = self.count_workers(), (), None
        self._iterator, self._is_new = weakref.ref(iterator), True
        self._looks, self._first_bytes = 0, 0  # at the memory of the first worker
        self._has_queue = isinstance(iterator, ProcessIter | MultiIter)
        shared = getattr(iterator, "_shared", None)
        if shared is not None and shared is not self._shared():
            (samples, restarts, _), now = self.count_shared(), shared.count()
            self._base = now["samples"] - samples, now["restarts"] - restarts
            self._shared = weakref.ref(shared)
        names = (name for kind, name in _PATHS.items() if isinstance(iterator, kind))
        self.path = next(names, "torch")

    def use_uploads(self, iterator: Any) -> None:
        """Count the bytes that this iterator, or the iterator below it, uploads from now on."""
        places = iterator, look_up(iterator, "_destination")  # torch's iterators have neither
        parts = [look_up(place, "_accelerator") for place in places]
        found = {part for part in parts if isinstance(part, Accelerator)}
        if found != self._accelerators:
            self._uploaded, self._accelerators = self.count_uploaded(), found

    def count_uploaded(self) -> int:
        """Return the bytes that the loader's iterators have uploaded."""
        return self._uploaded + sum(one.allocated for one in self._accelerators)

    def note_wait(self, found: str, ns: int) -> None:
        """Count a wait in next()."""
        self.waits[found] += ns
        self.counts[found][bisect_left(WAITS_NS, ns)] += 1

    def begin_batch(self, now: int) -> bool:
        """Look at the queue before next(): note how many batches came before their turn, and the
        least number of batches in the queue. Return whether there is nothing to look at: neither
        here nor in end_batch()."""
        self._early = self.queued = -1  # unknown
        if self._has_queue:
            self._look_at_queue(self._iterator())
        # Reading the CPU times takes a microsecond, so loops that hardly wait do not read them.
        is_new, self._is_new = self._is_new, False
        is_looking = not is_new and self.wait >= _SHORT_NS * self.batches
        self._began = now
        self._scheduled = scheduled_ns() if is_looking else None
        return not (is_new or is_looking or self._has_queue)

    def _look_at_queue(self, iterator: Any) -> None:
        # The iterator may be closed or have an unknown kind of queue, so errors mean "unknown".
        with suppress(AttributeError, NotImplementedError, OSError, RuntimeError, ValueError):
            if isinstance(iterator, ProcessIter):
                self.queued = sum(map(iterator._parent_end.has_replies, range(self.num_workers)))
            elif isinstance(iterator, MultiIter):
                self.queued = int(iterator._data_queue.qsize())
            if self.queued >= 0 and not difference("queue"):
                self._early = len(iterator._task_info) - iterator._tasks_outstanding

    def end_batch(self, now: int, has_failed: bool) -> str:
        """Count what next() took. Return READY, OTHERS or NONE."""
        iterator: Any = self._iterator()
        before, after = self._scheduled, scheduled_ns() if self._scheduled else None
        if has_failed:
            self.look()
        elif before is not None and after is not None:
            took, delayed = now - self._began, after[1] - before[1]
            self.watched = [self.watched[0] + took, self.watched[1] + delayed]
            if self.num_workers == 0:
                self.note_made(took, sum(after) - sum(before), delayed)
        if self._early < 0 or iterator is None or has_failed:
            return NONE
        # The batches that left the queue during next(): the due batch, and later batches.
        came = len(iterator._task_info) - iterator._tasks_outstanding - self._early + 1
        if came <= self.queued:
            return READY
        return OTHERS if self._early > 0 or came > 1 else NONE

    def look(self) -> None:
        """Read and keep the counts of the workers."""
        iterator = self._iterator()
        shared = getattr(iterator, "_shared", None)
        if shared is None or self.path not in ("process", "thread"):
            return
        self._now = shared.count_workers()[0]
        is_thread, workers = self.path == "thread", iterator._workers
        if self._long_list and not is_thread and len(workers) > 1 and self._now[0][0]:
            self._look_at_memory(workers[0].pid)
        tasks = [f"self/task/{w.native_id}" if is_thread else str(w.pid) for w in workers]
        times = [scheduled_ns(task) for task in tasks]
        if None in times or not all(count[0] for count in self._now):
            return  # some workers have ended, or have made no batch yet
        ran, delayed = map(sum, zip(*filter(None, times), strict=True))
        now = [sum(count[1] for count in self._now), ran + delayed, delayed]
        if self._last is not None:
            self.note_made(*(b - a for a, b in zip(self._last, now, strict=True)))
        self._last = now

    def _look_at_memory(self, worker: int) -> None:
        """Note by how much a worker has grown. The 1st, 4th, 16th, ... look reads the memory."""
        self._looks += 1
        if self._looks & (self._looks - 1) or self._looks.bit_length() % 2 == 0:
            return
        now = anonymous_bytes(worker) or 0
        self._first_bytes = self._first_bytes or now
        self.grown = max(self.grown, now - self._first_bytes)

    def explain_growth(self) -> str | None:
        """Return what makes workers grow, and the remedy; None if they do not grow."""
        if self.grown < _MUCH_GROWTH:
            return None
        text = f"a worker grew by {size(self.grown)}: most likely each worker copies"
        return f"{text} {self._long_list} page by page; keep it as a fastloop.SharedList"

    def copy(self) -> LoaderSource:
        """Return a source with the counts until now."""
        new = copy(self)
        new.waits = {**self.waits}
        return new

    def subtract(self, before: LoaderSource) -> None:
        """Take off the counts of `before`, an earlier copy."""
        self.batches, self.wait = self.batches - before.batches, self.wait - before.wait
        self.waits = {found: ns - before.waits[found] for found, ns in self.waits.items()}
        self.made, self.watched = (
            [b - a for a, b in zip(old, new, strict=True)]
            for old, new in ((before.made, self.made), (before.watched, self.watched))
        )
        if len(old := before.count_workers()) == len(new := self.count_workers()):
            pairs = zip(old, new, strict=True)
            self._done = tuple(tuple(b - a for a, b in zip(*pair, strict=True)) for pair in pairs)
            self._now = ()

    def count_shared(self) -> tuple[int, int, int | None]:
        """Return the samples and restarts of the loader's Shared since the report has seen the
        loader, and the blocks of batch memory whose tensors are alive; None if unknown."""
        if (shared := self._shared()) is None:
            return *self._counts, None
        now, (samples, restarts) = shared.count(), self._base
        self._counts = now["samples"] - samples, now["restarts"] - restarts
        return *self._counts, now["lent"]

    def count_alive(self) -> int | None:
        """Return the number of workers that are alive; None if unknown."""
        iterator = self._iterator()
        workers = list(getattr(iterator, "_workers", ()))
        if self.path == "array":  # its threads do not die
            return self.num_workers if iterator is not None else 0
        if self.path == "thread":
            return len([worker for worker in workers if worker.is_alive()])
        # is_alive() would take an ended process from torch's own watch, so the pipes are asked.
        with suppress(AttributeError, OSError, ValueError):
            return len(workers) - len(wait([worker.sentinel for worker in workers], 0))
        return None

    def note_made(self, *ns: int) -> None:
        """Add to each number of `made`."""
        self.made = [a + b for a, b in zip(self.made, ns, strict=True)]

    def count_workers(self) -> _Counts:
        """Return (batches, ns at work, ns waiting) for each worker. For threads a fourth number is
        the ns of waiting for the interpreter lock. Empty if unknown."""
        if not self._done or not self._now:
            return self._done or self._now
        pairs = zip(self._done, self._now, strict=False)
        return tuple(tuple(map(sum, zip(a, b, strict=True))) for a, b in pairs)
