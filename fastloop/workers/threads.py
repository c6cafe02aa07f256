"""Worker threads, which make batches in this process. docs/worker-threads.md has states and ends.

torch's own worker loop must not run in a thread: it seeds the process's random generators, sets
signal handlers and the number of torch's threads. The loop here does the rest of what it does.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple

from fastloop._core import Collate, lock_wait
from fastloop.base.next_lock import has_interpreter_lock
from fastloop.base.openmp import on_this_thread
from fastloop.base.torch_parts import DatasetKind, ExceptionWrapper, Resume, StreamEnd, pin_memory
from fastloop.data.collate import is_image_folder, lend, make_collate, may_borrow, open_collate
from fastloop.data.epochs import IteratorEpochs
from fastloop.data.stateful import DatasetReader
from fastloop.workers.task_errors import add_batch
from fastloop.workers.tasks import InitialState

# Seconds that are waited for threads to end: they do so after the sample they are at.
PATIENCE_S = 2.5
# The wait for the interpreter lock is measured after a batch, but not more often than this: to
# measure it takes some 60 us.
_PROBE_NS = 10_000_000


class CollateStock:
    """Collates that no thread has. They stay for the next epoch, because their batch memory does. A
    collate is one thread's at a time."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, Collate]] = []  # with the process they were made in

    def take(self) -> Collate:
        try:
            while True:
                pid, collate = self._idle.pop()
                if pid == os.getpid():  # a forked child may not use the memory of its parent's
                    return collate
        except IndexError:
            # Threads copy side by side already, so none shares its copies with others.
            return make_collate()

    def give(self, collate: Collate) -> None:
        self._idle.append((os.getpid(), collate))

    def trim(self) -> None:
        self._idle.clear()


class Requests(SimpleQueue[Any]):
    """The tasks of one thread; None is the last."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if isinstance(item, Resume):
            self._drop()
        super().put(item)

    def _drop(self) -> None:
        """What was asked for in the epoch before, and not begun."""
        try:
            while True:
                self.get_nowait()
        except Empty:
            pass


class Done:
    """The event that ends all work of an iterator. Without a lock, as finalizers set it."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class _StoppedError(Exception):
    """Nobody wants the batch any more. It is raised between two samples, where only torch's code
    and ours are on the stack."""


class _Indices:
    """The indices of a batch, as torch's fetchers take them, until the work is to end."""

    def __init__(self, indices: Any, is_done: Callable[[], bool]) -> None:
        self._indices = indices
        self._is_done = is_done

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        for index in self._indices:
            if self._is_done():
                raise _StoppedError
            yield index


class _Usage(NamedTuple):
    """What the calling thread has used since it began."""

    wall_ns: int
    cpu_ns: int
    sleeps: int  # how often it went to sleep of itself, for a lock or anything else

    @classmethod
    def now(cls) -> _Usage:
        usage = getrusage(RUSAGE_THREAD)
        cpu_ns = round((usage.ru_utime + usage.ru_stime) * 1e9)
        return cls(perf_counter_ns(), cpu_ns, usage.ru_nvcsw)


class WorkerThread(threading.Thread):
    """One thread that makes batches, in the place of a process.

    Args:
        arguments: of torch's worker loop, by name, without its queues.
        results: where (task, data) goes.
        done: set once nobody wants batches any more.
        epochs: of the datasets, for this iterator.
        stock: where collates come from and go back to.
        pin: the kind of accelerator that batches are pinned for, as torch's function takes it;
            None: they stay in ordinary memory.
        reader: of a dataset that can say where it stands. Batches, errors and ends then come as
            pairs: the second is the state after them, or None.
    """

    def __init__(
        self,
        arguments: dict[str, Any],
        *,
        results: SimpleQueue[Any],
        done: Done,
        epochs: IteratorEpochs,
        stock: CollateStock,
        pin: str | None,
        reader: DatasetReader | None,
    ) -> None:
        self.number: int = arguments["worker_id"]
        super().__init__(name=f"fastloop worker {self.number}", daemon=True)
        self.pid = os.getpid()  # as worker processes have, for who measures them
        self._epochs = epochs
        self._stock = stock
        self._pin = pin
        self._kind = arguments["dataset_kind"]
        self._requests = Requests()
        self.put = self._requests.put
        self._results = results
        self._done = done
        self._init_fn: Callable[[int], object] | None = arguments["init_fn"]
        self._collate: Collate | None = None
        dataset, collate_fn = arguments["dataset"], arguments["collate_fn"]
        auto_collation = arguments["auto_collation"]
        found = open_collate(collate_fn, stock.take) if auto_collation else None
        if found is not None:
            collate_fn, self._collate = found
            self._fallbacks_before = self._collate.fallbacks()
        is_lent = collate_fn is self._collate and may_borrow(dataset)
        self._lender = self._collate if is_lent else None
        self._reader = reader
        self._fault: ExceptionWrapper | None = None  # why nothing can be loaded
        if reader is not None and reader.is_stream:
            dataset = reader
        self._fetcher_args = (
            self._kind,
            dataset,
            auto_collation,
            collate_fn,
            arguments["drop_last"],
        )
        has_getitems = self._kind == DatasetKind.Map and bool(
            getattr(dataset, "__getitems__", None)
        )
        is_lazy = not has_getitems or is_image_folder(dataset)
        self._is_by_sample = auto_collation and is_lazy
        # Counts of this thread's, which others read.
        self.batches = self.busy_ns = self.wait_ns = self.lock_ns = 0
        self._lock_wait_ns = self._probed_ns = 0

    def fallbacks(self) -> dict[str, int]:
        """Leaves that torch's functions have collated, by reason."""
        if self._collate is None:
            return {}
        before = self._fallbacks_before
        return {r: n - before.get(r, 0) for r, n in self._collate.fallbacks().items()}

    # ---- the life of the thread

    def stop(self) -> None:
        """It is to end after the sample it is at. Any thread, and finalizers."""
        self._done.set()
        self._requests.put(None)

    def run(self) -> None:
        _running.add(self)
        try:
            # As in torch's workers: those of others would compute for the same cores.
            with on_this_thread():
                lend(self._lender)
                self._serve()
        finally:
            _running.discard(self)
            if self._collate is not None:
                self._stock.give(self._collate)

    def _serve(self) -> None:
        fetch = self._begin()
        is_over = False
        while True:
            begin_ns = perf_counter_ns()
            task = self._requests.get()
            self.wait_ns += perf_counter_ns() - begin_ns
            # An epoch that begins may have taken the last task out of the queue.
            if task is None or self._done.is_set():
                return
            if isinstance(task, InitialState):
                self._results.put((task, self._fault or self._dump()))
            elif isinstance(task, Resume):
                self._results.put((task, None))
                fetch, is_over = self._open_fetcher(), False
            elif not is_over:
                is_over = self._answer(fetch, *task)
            del task

    def _begin(self) -> Callable[[Any], Any]:
        try:
            if self._init_fn is not None:
                self._init_fn(self.number)
            if self._reader is not None and not self._reader.is_stream:
                self._reader.load_dataset()
        except BaseException:
            return self._failing(self._wrap_error())
        return self._open_fetcher()

    def _dump(self) -> bytes | None:
        return None if self._reader is None else self._reader.dump()

    def _open_fetcher(self) -> Callable[[Any], Any]:
        self._fault = None
        try:
            fetcher: Any = self._epochs.call(DatasetKind.create_fetcher, *self._fetcher_args)
        except BaseException:
            return self._failing(self._wrap_error())
        fetch: Callable[[Any], Any] = fetcher.fetch
        return fetch

    def _failing(self, error: ExceptionWrapper) -> Callable[[Any], Any]:
        """In the place of a fetch: nothing can be loaded because of this."""
        self._fault = error
        return lambda _: error

    # ---- batches

    def _answer(self, fetch: Callable[[Any], Any], number: int, indices: Any) -> bool:
        """Whether the dataset has no more."""
        before = _Usage.now()
        try:
            data = self._load(fetch, indices)
        except _StoppedError:
            return False  # whoever waits for it meets close()
        if isinstance(data, ExceptionWrapper):
            add_batch(data, number, indices)
        is_over = isinstance(data, StreamEnd)
        if self._reader is not None:
            data = data, self._reader.take_behind(data)
        self._results.put((number, data))
        self.batches += 1
        self._measure_lock()
        after = _Usage.now()
        busy_ns = after.wall_ns - before.wall_ns
        off_cpu_ns = max(busy_ns - (after.cpu_ns - before.cpu_ns), 0)
        self.busy_ns += busy_ns
        self.lock_ns += min(off_cpu_ns, self._lock_wait_ns * (after.sleeps - before.sleeps))
        return is_over

    def _measure_lock(self) -> None:
        if has_interpreter_lock() and perf_counter_ns() - self._probed_ns >= _PROBE_NS:
            self._lock_wait_ns = lock_wait()
            self._probed_ns = perf_counter_ns()

    def _load(self, fetch: Callable[[Any], Any], indices: Any) -> Any:
        try:
            wanted = _Indices(indices, self._done.is_set) if self._is_by_sample else indices
            data = self._epochs.call(fetch, wanted)
            if self._pin is not None and not isinstance(data, ExceptionWrapper):
                return pin_memory(data, self._pin)
            return data
        except _StoppedError:
            raise
        except BaseException as error:
            if isinstance(error, StopIteration) and self._kind == DatasetKind.Iterable:
                return StreamEnd(self.number)
            return self._wrap_error()

    def _wrap_error(self) -> ExceptionWrapper:
        """The error that is being handled, for the thread that iterates. What would end a process
        (SystemExit, say) ends neither this thread nor that one."""
        where = f"in DataLoader worker thread {self.number}"
        error: Any = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        if not issubclass(error.exc_type, Exception):
            name = error.exc_type.__qualname__
            error.exc_msg = f"{name}, which ends no thread but its batch\n{error.exc_msg}"
            error.exc_type = RuntimeError
        return error  # type: ignore[no-any-return]


_running: set[WorkerThread] = set()


def await_end(threads: Iterable[WorkerThread]) -> list[WorkerThread]:
    """Waits some seconds for threads that were stopped. Those that are still in code of the user's
    then, and cannot be ended: they end when that code returns."""
    here = threading.current_thread()  # one of them, if a finalizer runs there
    others = [t for t in threads if t is not here and t.ident is not None]
    deadline = monotonic() + PATIENCE_S
    for thread in others:
        thread.join(max(deadline - monotonic(), 0))
    return [thread for thread in others if thread.is_alive()]


@atexit.register
def _end_all() -> None:
    """While the interpreter is whole. To a thread that comes back later it would end in the middle
    of C++ code, which aborts the process."""
    threads = _running.copy()
    for thread in threads:
        thread.stop()
    await_end(threads)
