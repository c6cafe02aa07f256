"""LoaderSource: the facts that a report keeps of one loader, also after the loader is gone.

A LoaderSource hides how each kind of iterator tells of its workers and ready batches, and which
datasets fastloop loads faster than more workers would.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from os import PathLike, fspath
from typing import Any

from fastloop.base.checks import look_up
from fastloop.base.machine import scheduled_ns
from fastloop.compat.torch_parts import MultiIter, difference
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.shared import PlainIter, SyncIter
from fastloop.loader.workers.processes import ProcessIter
from fastloop.loader.workers.threads import ThreadIter

_PATHS = {ArrayIter: "array", ProcessIter: "process", ThreadIter: "thread", SyncIter: "sync"}
_PATHS[PlainIter] = "sync"
# The batches that were ready when next() was called, or came before the batch whose turn it was:
# that batch; only later batches; none.
READY, OTHERS, NONE = "ready", "others", "none"
_Counts = tuple[tuple[int, ...], ...]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
_SHORT_NS = 100_000  # a mean wait below which nobody asks whether the loop had a CPU
TRANSFORMS = "fastloop.transforms, which are native, in place of torchvision's"


def find_remedy(dataset: Any) -> str:
    """Return the advice for a dataset that fastloop loads natively; "" if only workers, threads or
    a cache can help."""
    for _ in range(8):  # Subsets and the like, inside each other
        if hasattr(type(dataset), "_decodes_files"):  # an ImageFolder or a subclass
            return "" if dataset._cached is not None else "cache='u8:FOLDER' for the ImageFolder"
        parts = list(look_up(dataset, "__dict__", {}).values())
        if any(map(_names_images, parts)):
            return "fastloop.ImageFolder(root, cache='u8:FOLDER'), which decodes each image once"
        if any(type(part).__module__.startswith("torchvision.transforms") for part in parts):
            return TRANSFORMS
        inner = look_up(dataset, "datasets")
        dataset = inner[0] if type(inner) is list and inner else look_up(dataset, "dataset")
    return ""


def _names_images(part: Any) -> bool:
    """Tell whether `part` is a list of paths of images, or of tuples that begin with one."""
    first: Any = part[0] if type(part) in (list, tuple) and part else None
    first = first[0] if type(first) in (list, tuple) and first else first
    return issubclass(type(first), str | PathLike) and str(fspath(first)).lower().endswith(_IMAGES)


class LoaderSource:
    """Counts of one loader.

    Args:
        loader: a DataLoader, or an iterator whose loader is unknown. No reference is kept.

    Attributes:
        path: how batches are made, as in LoaderStats; "torch" for torch's iterators, "" before the
            first batch.
        trains: whether an optimizer has stepped on its batches.
        wait: ns in next().
        waits: the same without the first batch of each epoch, by READY, OTHERS and NONE.
        made: ns of making batches, as far as that was watched; the part in which the thread or
            process ran or wanted a CPU; the part in which it only wanted one.
        watched: ns in next(), as far as that was watched; and the part in which the loop's thread
            wanted a CPU and had none.
    """

    def __init__(self, loader: Any) -> None:
        dataset = look_up(loader, "dataset")
        self.name = type(loader if dataset is None else dataset).__name__
        with suppress(Exception):  # a stream has no length, and a user's __len__ may raise anything
            self.name += f" of {len(dataset):,}"
        self.num_workers = int(look_up(loader, "num_workers", look_up(loader, "_num_workers", 0)))
        self.path, self.trains, self.batches, self.wait = "", False, 0, 0
        self.waits = dict.fromkeys((READY, OTHERS, NONE), 0)
        self.remedy = find_remedy(dataset) or None
        self.made, self.watched = [0, 0, 0], [0, 0]
        self._last: list[int] | None = None  # `made` of workers, at the last look
        self._is_new = False  # its iterator, whose first batch is counted apart
        self._began = 0  # the time of begin_batch(), and the schedule of the loop's thread
        self._scheduled: tuple[int, int] | None = None
        self._iterator: Callable[[], Any] = lambda: None
        self._done: _Counts = ()  # counts of workers of iterators before this one
        self._now: _Counts = ()

    def uses(self, iterator: Any) -> bool:
        """Tell whether its counts come from this iterator."""
        return iterator is self._iterator()

    def use(self, iterator: Any) -> None:
        """Take counts from this iterator of the loader from now on."""
        if self.uses(iterator):
            return
        self._done, self._now, self._last = self.count_workers(), (), None
        self._iterator, self._is_new = weakref.ref(iterator), True
        names = (name for kind, name in _PATHS.items() if isinstance(iterator, kind))
        self.path = next(names, "torch")

    def begin_batch(self, now: int) -> None:
        """Look at the queue before next(): note how many batches came before their turn, and how
        many lie there at least."""
        self._early = self._queued = -1  # unknown
        iterator: Any = self._iterator()
        # The iterator may be closed, or have an unknown kind of queue.
        with suppress(AttributeError, NotImplementedError, OSError, RuntimeError, ValueError):
            if isinstance(iterator, ProcessIter):
                self._queued = sum(map(iterator._parent_end.has_replies, range(self.num_workers)))
            elif isinstance(iterator, MultiIter):
                self._queued = int(iterator._data_queue.qsize())
            if self._queued >= 0 and not difference("queue"):
                self._early = len(iterator._task_info) - iterator._tasks_outstanding
        # Loops whose batches come at once are spared the reading, which takes a microsecond.
        is_looking = not self._is_new and self.wait >= _SHORT_NS * self.batches
        self._began, self._is_new = now, False
        self._scheduled = scheduled_ns() if is_looking else None

    def end_batch(self, now: int, has_failed: bool) -> str:
        """Return, after next(), READY, OTHERS or NONE."""
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
        # The batches that left the queue meanwhile: this one, and later batches before their turn.
        came = len(iterator._task_info) - iterator._tasks_outstanding - self._early + 1
        if came <= self._queued:
            return READY
        return OTHERS if self._early > 0 or came > 1 else NONE

    def look(self) -> None:
        """Keep the present counts of its workers."""
        iterator = self._iterator()
        shared = getattr(iterator, "_shared", None)
        if shared is None or self.path not in ("process", "thread"):
            return
        self._now = shared.count_workers()[0]
        is_thread, workers = self.path == "thread", iterator._workers
        tasks = [f"self/task/{w.native_id}" if is_thread else str(w.pid) for w in workers]
        times = [scheduled_ns(task) for task in tasks]
        if None in times or not all(count[0] for count in self._now):
            return  # some have ended, or have made no batch yet
        ran, delayed = map(sum, zip(*filter(None, times), strict=True))
        now = [sum(count[1] for count in self._now), ran + delayed, delayed]
        if self._last is not None:
            self.note_made(*(b - a for a, b in zip(self._last, now, strict=True)))
        self._last = now

    def note_made(self, *ns: int) -> None:
        """Add to each number of `made`."""
        self.made = [a + b for a, b in zip(self.made, ns, strict=True)]

    def count_workers(self) -> _Counts:
        """Return (batches, ns at work, ns waiting) of each worker, for threads also the ns for the
        interpreter lock. Empty if unknown."""
        if not self._done or not self._now:
            return self._done or self._now
        pairs = zip(self._done, self._now, strict=False)
        return tuple(tuple(map(sum, zip(a, b, strict=True))) for a, b in pairs)
