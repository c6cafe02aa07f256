"""Worker threads of this process, and the iterator over them. docs/internals/worker-threads.md has
states and ends; ``common.py`` orders the batches.

torch's own worker loop must not run in a thread: the loop seeds the process's random generators and
sets signal handlers and the number of torch's threads. The loop here does the remaining work.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count, repeat
from operator import sub
from queue import Empty, SimpleQueue
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, perf_counter_ns
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop._core import Collate, lock_wait
from fastloop.base.checks import look_up
from fastloop.base.threads import has_interpreter_lock, on_this_thread
from fastloop.compat.torch_parts import DatasetKind, ExceptionWrapper, StreamEnd, pin_memory
from fastloop.data.collate import Collation, fetch, lend, make_collate
from fastloop.data.columns import below_subsets, own
from fastloop.data.stateful import DatasetReader
from fastloop.loader.shared import CLOSED, Shared, WorkerCounts, is_pinned_by_torch, nobody
from fastloop.loader.workers.batch_pickle import Order, add_batch, describe_task
from fastloop.loader.workers.common import TAKEN_MEANWHILE, WorkerIter, stack_above

# The seconds to wait for threads to end. A thread ends after its present sample.
PATIENCE_S = 2.5
# The wait for the interpreter lock is measured after a batch, but not more often than this:
# measuring takes about 60 us.
_PROBE_NS = 10_000_000


def _take_collate(stock: list[Collate]) -> Collate:
    """Return an idle collate, whose batch memory is used again. One thread at a time uses it."""
    with suppress(IndexError):
        return stock.pop()
    return make_collate()  # without helpers for copies: threads copy side by side


class _StoppedError(Exception):
    """Nobody wants the batch any more. The error is raised between two samples, so the dataset has
    no code on the stack."""


class _Indices:
    """The indices of a batch for torch's fetcher. They raise _StoppedError once work must end."""

    def __init__(self, indices: Any, team: SimpleNamespace) -> None:
        self._indices = indices
        self._team = team

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Any]:
        for index in self._indices:
            if self._team.is_done:
                raise _StoppedError
            yield index


class _DealtBatch:
    """A batch at the beginning of an epoch, whose samples all threads make, so that the batch comes
    as soon as a later one. The threads get it in the order of batches, before their own tasks.

    No thread waits for another: the thread that comes last collates. torch's fetcher then reads the
    samples from this object, as from a dataset.

    Args:
        collation: makes the batch, and lends its memory to the samples; None: samples lie beside
            the batch.
    """

    def __init__(
        self, task: tuple[int, list[Any]], owner: int, dataset: Any, collation: Collation | None
    ) -> None:
        self.task, self.owner, self._dataset = task, owner, dataset
        self.collation = collation
        self._lock = threading.Lock()
        self._rows: torch.Tensor | None = None  # the memory of the batch
        self._left = deque(enumerate(task[1]))  # places and indices that nobody has taken
        # One for each sample and one for the owner, whose worker_init_fn may have failed.
        self._open = deque(range(len(task[1]), -1, -1))
        self._samples: dict[int, tuple[Any, list[BaseException]]] = {}
        self._places = count()

    def end_part(self) -> bool:
        """Tell whether all parts have ended with this one."""
        return self._open.popleft() == 0

    def help(self, team: SimpleNamespace) -> bool:
        """Make samples until all have been taken. Tell whether the last part has ended here."""
        is_last = False
        while not team.is_done:
            try:
                place, index = self._left.popleft()
            except IndexError:
                return is_last
            self._samples[place] = self._make(place, index)
            is_last = self.end_part()
        return False

    def _make(self, place: int, index: Any) -> tuple[Any, list[BaseException]]:
        try:
            if self.collation is None:
                return self._dataset[index], []
            lend(_Place(self, place))
            return self._dataset.__getitems__([index])[0], []
        except BaseException as error:  # raised when the batch is fetched
            return None, [error]

    def rows(self, like: torch.Tensor) -> torch.Tensor:
        """Return the memory of the batch, with a row for each sample."""
        with self._lock:
            if self._rows is None:
                assert self.collation is not None and self.collation.lender is not None
                self._rows = self.collation.lender.block(like, len(self.task[1]))
            return self._rows

    def __getitem__(self, _: Any) -> Any:
        """Return the next sample: torch's fetcher asks for each index in turn."""
        sample, errors = self._samples.pop(next(self._places))
        if errors:
            # Errors refer to frames, and frames to what they see: no cycle must keep the samples.
            self._samples.clear()
            raise errors.pop()
        return sample


class _Place:
    """The place of a sample in the memory of a dealt batch, for ``lend``."""

    def __init__(self, dealt: _DealtBatch, number: int) -> None:
        self.dealt, self.number = dealt, number

    def block(self, like: torch.Tensor, count: int) -> torch.Tensor:
        """Return memory for `count` tensors: the sample's place, if that fits."""
        rows = self.dealt.rows(like)
        fits = count == 1 and like.dtype == rows.dtype and like.shape == rows.shape[1:]
        return rows[self.number : self.number + 1] if fits else like.new_empty(count, *like.shape)


def _usage() -> tuple[int, int, int]:
    """Return the clock and the calling thread's CPU time, in ns, and how often the thread went to
    sleep voluntarily, for a lock or any other reason."""
    usage = getrusage(RUSAGE_THREAD)
    cpu_ns = round((usage.ru_utime + usage.ru_stime) * 1e9)
    return perf_counter_ns(), cpu_ns, usage.ru_nvcsw


class WorkerThread(threading.Thread):
    """A thread that makes batches instead of a worker process.

    Args:
        arguments: the arguments of torch's worker loop by name, without its queues.
        team: the objects that the threads of an iterator share. The team is not the iterator,
            which must die with the user's last reference to it.
            `results` takes (task, data);
            `is_done` tells that nobody wants batches any more: a plain attribute, because
            finalizers set it and may interrupt code that holds a lock;
            `epochs` are the epochs of the datasets in this iterator;
            `is_served` is the loader's;
            `stock` has the idle collates;
            `pin` is the kind of accelerator for which torch's function pins batches, or None.
        reader: reads a dataset that can report its position. Batches, errors and ends then come as
            pairs: the second item is the state after the first, or None.
    """

    def __init__(
        self, arguments: dict[str, Any], team: SimpleNamespace, reader: DatasetReader | None
    ) -> None:
        self.number: int = arguments["worker_id"]
        self._owner = self.number  # of the batch that this thread answers
        super().__init__(name=f"fastloop worker {self.number}", daemon=True)
        self.pid = os.getpid()  # worker processes have a pid, which measuring code reads
        self._team, self._reader = team, reader
        self.requests: SimpleQueue[Any] = SimpleQueue()  # tasks; None is the last task
        self._init_fn: Callable[[int], object] | None = arguments["init_fn"]
        dataset, is_batched = arguments["dataset"], arguments["auto_collation"]
        take = partial(_take_collate, team.stock)
        self.collation = Collation(dataset, arguments["collate_fn"], is_batched, take)
        self._fault: ExceptionWrapper | None = None  # the reason why nothing can be loaded
        if reader is not None and reader.is_stream:
            dataset = reader
        self._kind = arguments["dataset_kind"]
        how = is_batched, self.collation.function, arguments["drop_last"]
        self._fetcher_args = self._kind, dataset, *how
        has_getitems = self._kind == DatasetKind.Map and look_up(dataset, "__getitems__")
        # True if the fetcher takes one index, loads its sample, and then takes the next index.
        self._is_by_sample = is_batched and bool(not has_getitems or own(dataset, "_decodes_files"))
        # True if any thread may make a sample of this thread's batch.
        inner = below_subsets(dataset)[0]  # Subsets ask for batches if their dataset has a method
        makes_batches = look_up(inner, "__getitems__") and not own(inner, "_decodes_files")
        self.may_deal = is_batched and self._kind == DatasetKind.Map and reader is None
        self.may_deal &= not makes_batches
        # Only this thread writes the counts.
        self.batches = self.busy_ns = self.wait_ns = self.lock_ns = 0
        self._lock_wait_ns = self._probed_ns = 0
        self.task: tuple[int, Any] | None = None  # the batch that is being made

    # ---- the life of the thread

    def put(self, task: Any) -> None:
        """Add a task. An order to begin an epoch first drops tasks of the previous epoch that have
        not begun. Any thread may call this."""
        if isinstance(task, Order) and task.states is None:
            with suppress(Empty):
                while True:
                    self.requests.get_nowait()
        self.requests.put(task)

    def stop(self) -> None:
        """Ask the thread to end after its present sample. Any thread or finalizer may call this."""
        self._team.is_done = True
        self.requests.put(None)

    def run(self) -> None:
        _running.add(self)
        try:
            # The same as in torch's workers: more OpenMP threads would compete for the same cores.
            with on_this_thread():
                lend(self.collation.lender)
                fetch.is_served = self._team.is_served
                self._serve()
        finally:
            _running.discard(self)
            if self.collation.core is not None:
                self._team.stock.append(self.collation.core)

    def _serve(self) -> None:
        fetch, is_over = self._open_fetcher(is_first=True), False
        while True:
            begin_ns = perf_counter_ns()
            task = self.requests.get()
            self.wait_ns += perf_counter_ns() - begin_ns
            # An epoch that begins may have taken the last task out of the queue.
            if task is None or self._team.is_done:
                return
            if isinstance(task, Order) and task.states is None:
                self._team.results.put((task, None))
                fetch, is_over = self._open_fetcher(), False
            elif isinstance(task, Order):
                state = self._reader.dump() if self._reader is not None else None
                self._team.results.put((task, self._fault or state))
            elif isinstance(task, _DealtBatch):
                self._serve_dealt(fetch, task)
            elif not is_over:
                self.task = task
                is_over = self._answer(fetch, *task)
            self.task = task = None

    def _serve_dealt(self, fetch: Callable[[Any], Any], dealt: _DealtBatch) -> None:
        self.task, begin_ns, is_last = dealt.task, perf_counter_ns(), False
        if self._fault is None:
            lend(None)  # this thread's own collate has no part in the batch
            is_last = self._team.epochs.call(dealt.help, self._team)
            lend(self.collation.lender)
            self.busy_ns += perf_counter_ns() - begin_ns
        if dealt.owner == self.number:
            is_last = self._fault is not None or dealt.end_part() or is_last
        if is_last:
            if self._fault is None:
                kind, _, is_batched, collate, drop_last = self._fetcher_args
                collate = collate if dealt.collation is None else dealt.collation.function
                how = is_batched, collate, drop_last
                fetch = DatasetKind.create_fetcher(kind, dealt, *how).fetch
            self._owner = dealt.owner
            self._answer(fetch, *dealt.task)
            self._owner = self.number

    def _open_fetcher(self, is_first: bool = False) -> Callable[[Any], Any]:
        """Begin an epoch. Return a function that loads a batch, or returns the reason why not."""
        self._fault = None
        try:
            if is_first and self._init_fn is not None:
                self._init_fn(self.number)
            if is_first and self._reader is not None and not self._reader.is_stream:
                self._reader.load_dataset()
            fetcher: Any = self._team.epochs.call(DatasetKind.create_fetcher, *self._fetcher_args)
            fetch: Callable[[Any], Any] = fetcher.fetch
        except BaseException:
            self._fault = error = self._wrap_error()
            return lambda _: error
        return fetch

    # ---- batches

    def _answer(self, fetch: Callable[[Any], Any], number: int, indices: Any) -> bool:
        """Make one batch. Tell whether the dataset has ended."""
        before = _usage()
        try:
            data = self._load(fetch, indices)
        except _StoppedError:
            return False  # the iterator is closed, so no thread waits for the batch
        if isinstance(data, ExceptionWrapper) and data is not self._fault:
            add_batch(data, number, indices)
        is_over = isinstance(data, StreamEnd)
        if self._reader is not None:
            data = data, self._reader.state_after(data)
        self._team.results.put((number, data))
        self.batches += 1
        if has_interpreter_lock() and perf_counter_ns() - self._probed_ns >= _PROBE_NS:
            self._lock_wait_ns = lock_wait()
            self._probed_ns = perf_counter_ns()
        busy_ns, cpu_ns, sleeps = (now - then for now, then in zip(_usage(), before, strict=True))
        self.busy_ns += busy_ns
        self.lock_ns += min(max(busy_ns - cpu_ns, 0), self._lock_wait_ns * sleeps)
        return is_over

    def _load(self, fetch: Callable[[Any], Any], indices: Any) -> Any:
        try:
            wanted = _Indices(indices, self._team) if self._is_by_sample else indices
            data = self._team.epochs.call(fetch, wanted)
            if self._team.pin is not None and not isinstance(data, ExceptionWrapper):
                return pin_memory(data, self._team.pin)
            return data
        except _StoppedError:
            raise
        except BaseException as error:
            if isinstance(error, StopIteration) and self._kind == DatasetKind.Iterable:
                return StreamEnd(self.number)
            return self._wrap_error()

    def _wrap_error(self) -> ExceptionWrapper:
        """Return the error that is being handled, for the thread that iterates. SystemExit and
        similar errors would end a process; here they end neither thread."""
        where = f"in DataLoader worker thread {self._owner}"
        error: Any = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        if not issubclass(error.exc_type, Exception):
            name = error.exc_type.__qualname__
            error.exc_msg = f"{name}, which ends no thread but its batch\n{error.exc_msg}"
            error.exc_type = RuntimeError
        return error  # type: ignore[no-any-return]


_running: set[WorkerThread] = set()


def await_end(threads: Iterable[WorkerThread]) -> list[WorkerThread]:
    """Wait some seconds for threads that were stopped. Return the threads that still run code of
    the dataset. Nothing can end such a thread before that code returns."""
    here = threading.current_thread()  # one of these threads, if a finalizer runs there
    others = [t for t in threads if t is not here and t.ident is not None]
    deadline = monotonic() + PATIENCE_S
    for thread in others:
        thread.join(max(deadline - monotonic(), 0))
    return [thread for thread in others if thread.is_alive()]


@atexit.register
def _end_all() -> None:
    """End all threads while the interpreter is whole. If a thread returned later, the interpreter
    would end it in the middle of C++ code, which aborts the process."""
    threads = _running.copy()
    for thread in threads:
        thread.stop()
    await_end(threads)


# ---- the iterator


# What makes the batches of an iterator, and what its threads have and do.
_SAME = "_dataset", "_collate_fn", "_index_sampler"
_LEFT = [*_SAME, "_pid", "_num_workers", "_has_begun", "_forecast", "_ahead", "_sent_ahead"]
_LEFT += "_team _data_queue _collations _arrived _unread _drawn _unsent _awaited _fault".split()
_LEFT += "_first _send_idx _rcvd_idx _tasks_outstanding _task_info _workers_status".split()
_LEFT += "_workers_num_tasks _counted".split()


class ThreadIter(WorkerIter):
    """An iterator over worker threads."""

    def __init__(self, loader: DataLoader[Any], shared: Shared, accelerator: object = None) -> None:
        # If several threads read a dataset, nobody knows the position after a batch.
        self._has_states = loader.num_workers == 1
        pin: str | None = None
        if accelerator is None and is_pinned_by_torch(loader):  # uploads pin memory themselves
            current = torch.accelerator.current_accelerator()
            pin = current.type if current is not None else None
        self._data_queue: Any = SimpleQueue()
        self._team = SimpleNamespace(results=self._data_queue, is_done=False, pin=pin, epochs=None)
        self._team.is_served = shared.is_served
        self._team.stock = shared.collates.setdefault(os.getpid(), [])
        self._waited_ns = 0  # the time waited since the last reply
        self._collations: dict[int, Collation] = {}  # of dealt batches, by thread
        self._counted: WorkerCounts = (), {}  # the threads' counts when they were left last
        if isinstance(before := shared.latest(), ThreadIter):
            before._leave()  # the program may hold an iterator without asking for its end
        self._idle: Any = vars(shared).pop("idle", None)  # in one call, for threads
        super().__init__(loader, shared)

    def _start_worker(self, arguments: dict[str, Any], reader: DatasetReader | None) -> None:
        self._team.epochs = self._datasets
        thread = WorkerThread(arguments, self._team, reader)
        self._workers.append(thread)
        thread.start()

    def _send(self, worker: int, task: Any) -> None:
        self._workers[worker].put(task)

    def _prepare(self, worker: int, task: Any) -> partial[Any]:
        threads = self._workers
        if not self._is_dealt(task):
            return partial(threads[worker].requests.put, task)
        dealt = _DealtBatch(task, worker, self._dataset, self._open_collation(worker))
        # In one call, as `_prepare` demands: put() returns None, so any() calls each.
        return partial(any, map(SimpleQueue.put, [t.requests for t in threads], repeat(dealt)))

    def _open_collation(self, worker: int) -> Collation | None:
        """Return what makes a thread's dealt batches if samples are written into the batch: the
        thread's own collate may already make a later batch."""
        if worker not in self._collations and self._workers[worker].collation.lender is not None:
            take = partial(_take_collate, self._team.stock)
            self._collations[worker] = Collation(self._dataset, self._collate_fn, True, take)
        return self._collations.get(worker)

    def _may_deal(self) -> bool:
        thread: WorkerThread = self._workers[0]
        return thread.may_deal

    def count(self) -> WorkerCounts:
        counts, fallbacks = self._count_all()
        earlier, known = self._counted
        pairs = zip(counts, earlier or repeat((0,) * 4), strict=False)
        counts = tuple(tuple(map(sub, *pair)) for pair in pairs)
        return counts, dict(Counter(fallbacks) - Counter(known))

    def _count_all(self) -> WorkerCounts:
        """Return the counts of the threads since they started."""
        collations = [thread.collation for thread in self._workers] + [*self._collations.values()]
        each = (Counter(collation.fallbacks.count()[1]) for collation in collations)
        fallbacks: Counter[str] = sum(each, Counter())
        counts = [(t.batches, t.busy_ns, t.wait_ns, t.lock_ns) for t in self._workers]
        return tuple(counts), dict(fallbacks)

    # ---- threads that are left to the next iterator

    def _why_not_left(self, loader: DataLoader[Any]) -> str:
        return "" if loader.worker_init_fn is None else "worker_init_fn runs as each epoch begins"

    def _has_ended(self) -> bool:
        is_open = self._has_begun and not (self._shutdown or self._is_closed)
        is_over = is_open and self._ahead is not None and self._rcvd_idx == self._send_idx
        return is_over and not self._persistent_workers and self._is_own()

    def _leave(self) -> bool:
        """Leave the threads to the loader's next iterator if no batch of this epoch is left. Tell
        whether they were left. Until then an iterator without a loader owns the threads."""
        if not self._has_ended():  # else a next() may wait, with the lock
            return False
        with self._next_lock.of_process():
            if not self._has_ended():
                return False
            idle, shared = ThreadIter.__new__(ThreadIter), self._shared
            # Shared will refer to the idle iterator, which must die with Shared.
            vars(idle).update(_is_closed=True, _shutdown=True, _shared=SimpleNamespace())
            shared.last_count, counted = self.count(), self._count_all()
            if self._move_to(idle):
                idle._counted = counted
                shared.idle = idle
            if shared.latest() is self:
                shared.latest = nobody  # what the threads do from here on is the next iterator's
            if self._is_closed:  # meanwhile, by another thread
                shared.idle = None
            return True

    def _move_to(self, other: ThreadIter) -> bool:
        """Give the threads and their tasks to another iterator. Tell whether they were there to
        give."""
        state = {name: vars(self)[name] for name in _LEFT}
        state.update(_workers=[*self._workers], _shutdown=False)
        # No call stands between the next lines. A handler of a signal may have left the threads, by
        # next(), and have begun the next epoch with them, by iter().
        if self._shutdown:
            return False
        other.__dict__ |= state
        self._shutdown = True
        self._forget(first_iter=False)
        return True

    def _takes_idle(self) -> bool:
        idle, self._idle = self._idle, None
        if type(idle) is not ThreadIter:
            return False
        is_same = all(getattr(self, name) is getattr(idle, name) for name in _SAME)
        how = [(it._pid, it._num_workers, it._team.pin, it._team.is_served) for it in (self, idle)]
        fits = is_same and how[0] == how[1] and idle._can_resume()
        depth = self._prefetch_factor if self._depth is None else self._depth.value
        # If more batches are under way, torch's sampler would have drawn fewer indices by now.
        fits = fits and idle._sent_ahead <= depth * self._num_workers
        if self._forecast is None or not fits:
            self._shared.add(ahead_drops=self._forecast is not None and idle._sent_ahead > 0)
            return False
        counted = self._forecast.shared  # a finalizer may have left the threads: a dead reference
        idle._move_to(self)
        self._forecast.shared = counted
        return True

    # ---- batches

    def _receive(self, timeout: float) -> tuple[Any, Any] | None:
        while True:
            begin_ns = perf_counter_ns()
            is_there = not self._data_queue.empty()
            try:
                if not self._unread:  # in one call: the list has the reply before the call returns
                    self._unread.extend(map(self._data_queue.get, (True,), (timeout,)))
            except Empty:
                return None
            finally:
                if not is_there:
                    self._waited_ns += perf_counter_ns() - begin_ns
            if self._waited_ns > 0:
                self._shared.add(waits=1, wait_ns=self._waited_ns)
                self._waited_ns = 0
            received = self._read(*self._unread[0])
            if received is not None:
                return received
            del self._unread[:]
            timeout = 0

    def _read(self, task: Any, data: Any) -> tuple[Any, Any] | None:
        """Return (task, data) as `_get_data` does; None if next() does not want the reply."""
        states = self._epoch.states
        if isinstance(task, Order) and task.states is not None:
            self._note_initial(task, data)
            return None
        if isinstance(task, Order):
            return None if task.generators == "keep" else (task, data)
        if task not in self._task_info:
            return None  # from the previous epoch
        if states is None:
            return task, data
        data, state = data
        if isinstance(data, StreamEnd):
            states.end(0, state)
        elif not isinstance(data, ExceptionWrapper):
            states.receive(0)
            data = data, state
        return task, data

    def _explain_wait(self) -> str:
        info = self._task_info.get(self._rcvd_idx)
        # Of a batch that is dealt to all threads, any may be the one that hangs in its sample.
        threads = [t for t in self._workers if t.task and t.task[0] == self._rcvd_idx]
        threads += [t for t in self._workers if (t.number == info[0] if info else t.task)]
        stacks = [(t, stack) for t in threads if (stack := stack_above(t, __file__)) is not None]
        if not stacks:
            return ""
        thread, stack = min(stacks, key=lambda found: not found[1])  # the first one with any lines
        text = f": worker thread {thread.number} has not answered{describe_task(thread.task)}"
        return f"{text}. Its Python stack, most recent call last:\n{stack}"

    def _look_for_dead(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        for number in self._find_dead():
            raise RuntimeError(f"DataLoader worker thread {number} ended unexpectedly")
        if self._tasks_outstanding <= 0 and self._has_begun and not self._awaited:
            raise RuntimeError(TAKEN_MEANWHILE)

    # ---- the end

    def _can_resume(self) -> bool:
        return not self._team.is_done and super()._can_resume()

    def _shutdown_workers(self) -> None:
        if not self._leave():
            super()._shutdown_workers()

    def _end_workers(self) -> None:
        for thread in self._workers:
            thread.stop()
        self._shutdown = True  # set last: if Ctrl-C comes before, the finalizer tries again
        stuck = await_end(self._workers)
        for thread in stuck:
            frame = sys._current_frames().get(thread.ident or 0)
            line = "" if frame is None else f" ({frame.f_code.co_filename}, line {frame.f_lineno})"
            text = f"worker thread {thread.number} is still in code of the dataset{line}, "
            text += f"{PATIENCE_S} s after its iterator was closed; it ends when that code returns"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._shared.last_count = self.count()
        if not stuck:  # the memory is used again in the next epoch
            self._team.stock += [each.core for each in self._collations.values()]
