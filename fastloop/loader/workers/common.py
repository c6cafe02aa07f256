"""The order of batches over workers, processes or threads: which worker gets the next task, which
batch is next, and how an iterator ends.

``WorkerIter`` does the work of torch's iterator over worker processes (``torch_parts`` lists its
methods under "workers"), without its queues, its thread for pinning and its handler of SIGCHLD.
``WorkerIter`` is a subclass because frameworks ask ``isinstance``; from torch only the methods of
the base class of every iterator run.
"""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from collections import deque
from functools import partial
from itertools import chain, islice
from multiprocessing import util
from threading import Thread
from time import monotonic
from typing import Any

from torch.utils.data import DataLoader

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later, interrupts_held, raises_again
from fastloop.compat.torch_parts import ExceptionWrapper, MultiIter, StreamEnd
from fastloop.data.stateful import DatasetReader, is_stateful
from fastloop.loader.ahead import Forecast, open_forecast
from fastloop.loader.resume.recent import RECENT
from fastloop.loader.shared import CLOSED, FIRST_DEPTH, AutoDepth, LockedIter, Shared
from fastloop.loader.workers.batch_pickle import EPOCH, Order

# Arguments of torch's worker loop that an iterator has as attributes, with "_" before their names.
_ARGUMENTS = "dataset_kind dataset auto_collation collate_fn drop_last base_seed".split()
_ARGUMENTS += ["num_workers", "persistent_workers"]
# A parent that waits for batches notices a dead worker after this many seconds at most.
CHECK_S = 0.05
TAKEN_MEANWHILE = "the batch of this next() was taken meanwhile, by a next() inside it"


def is_exiting() -> bool:
    """Tell whether this process is ending. multiprocessing then ends all workers, and names of
    modules may be gone."""
    ask = getattr(util, "is_exiting", None)
    return ask is None or bool(ask())


def stack_above(thread: Thread, file: str) -> str | None:
    """Return the lines of a thread's stack in code that a file has called; None if the thread has
    ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return None
    stack = traceback.format_stack(frame)
    own = [number for number, line in enumerate(stack) if file in line]
    return "".join(stack[own[-1] + 1 :]).rstrip()


class WorkerIter(MultiIter, LockedIter):
    """An iterator over workers. Subclasses start the workers, send tasks, receive replies and end
    the workers.

    Attributes (names and meanings are torch's):
        _workers: the processes or threads.
        _task_info: for the number of each task that is not handed out: its worker, and the data if
            they have arrived before their turn.
        _tasks_outstanding: tasks whose data have not arrived.
        _send_idx, _rcvd_idx: the numbers of the next task to send, and to hand out.
        _workers_status: which workers still have work in this epoch.
    """

    _workers: Any
    _replaces_dead = False  # with on_worker_death="restart"
    _first = 0  # the number of this epoch's first task, a multiple of EPOCH
    # The indices of the next epoch's first batches. None: nobody has looked ahead in this epoch.
    _ahead: list[Any] | None = None
    _sent_ahead = 0  # how many of them have their task in _task_info
    _recent: list[Any]  # each epoch has a list of its own
    _is_asking = False  # the sampler is being asked for indices, and may call next()
    _has_begun = False  # every worker knows of this epoch

    def __init__(self, loader: DataLoader[Any], shared: Shared) -> None:
        self._pid = os.getpid()
        self._shared = shared
        self._workers = []
        wanted = loader.prefetch_factor
        self._depth: QueueDepth | None = None
        if isinstance(wanted, AutoDepth):  # begin with the depth of the previous iterator
            self._depth = QueueDepth(loader.num_workers, shared.depth or wanted)
        try:
            self._begin_epoch(loader)
            states = self._epoch.states
            # iter() waits for the first states of a stateful dataset. It raises if a worker could
            # not begin, and the loader has every state even if this iterator is dropped. If dead
            # workers may be replaced, next() receives the states.
            is_awaited = states is not None and not self._replaces_dead
            self._awaits_begin = is_awaited and is_stateful(loader.dataset)
            LockedIter.__init__(self, loader)  # in ResumableIter
            self._prefetch_factor: int = loader.prefetch_factor or 0
            self._in_order = loader.in_order
            if self._prefetch_factor <= 0:
                rule = "greater than 0 for MultiProcessingDataLoaderIter"
                raise AssertionError(f"prefetch_factor must be {rule}")
            self._shutdown = False
            fault = "the dataset keeps a state of its own" if states is not None else ""
            if self._datasets.epochs:
                fault = "the dataset has epochs, which worker threads and processes cannot mix"
            if not loader.persistent_workers:
                fault = fault or self._why_not_left(loader)
            self._forecast = open_forecast(loader, shared, fault)
            arguments = {name: getattr(self, f"_{name}") for name in _ARGUMENTS}
            arguments["init_fn"] = self._worker_init_fn = loader.worker_init_fn
            arguments["shared_seed"] = None  # for data pipes, which torch's own path loads
            for number in range(0 if self._takes_idle() else self._num_workers):
                reader = None if states is None else states.make_reader(number)
                self._start_worker({**arguments, "worker_id": number}, reader)
            self._reset(loader, first_iter=True)
            if self._awaits_begin:
                self.await_states()
                if self._fault is not None:
                    self._fault.reraise()  # type: ignore[no-untyped-call]
            shared.latest = weakref.ref(self)
        except BaseException:
            # The error may be Ctrl-C or come from the sampler. A traceback that the program keeps
            # must not keep the workers that have started.
            with interrupts_held():
                self._shutdown_workers()
            raise

    # ---- the methods of subclasses

    def _start_worker(self, arguments: dict[str, Any], reader: DatasetReader | None) -> None:
        """Start the next worker and add it to `_workers`, before it runs.

        Args:
            arguments: the arguments of torch's worker loop by name, without its queues.
            reader: reads a dataset that can report its position.
        """

    def _why_not_left(self, loader: DataLoader[Any]) -> str:
        """Return why the workers, which are not persistent, cannot be left to the loader's next
        iterator, or ""."""
        return "persistent_workers is not True"

    def _takes_idle(self) -> bool:
        """Take the workers that the loader's last iterator has left. Tell if there were any."""
        return False

    def _begin_replies(self, first_iter: bool, is_ahead: bool = False) -> None:
        """Begin an epoch, and drop what was not sent. `is_ahead`: the epoch was read ahead, so its
        tasks stay."""

    def _send(self, worker: int, task: Any) -> None:
        """Send an Order. None is a worker's last task."""

    def _prepare(self, worker: int, task: Any) -> partial[Any]:
        """Return the call that sends (number, indices). The call is native: between the moment when
        the task is sent and the return no handler of a signal runs."""
        raise NotImplementedError

    def _may_deal(self) -> bool:
        """Tell whether all workers may make samples of a batch together."""
        return False

    def _makers(self, number: int) -> list[int]:
        """Return the workers that still work on a batch."""
        return [self._task_info[number][0]]

    def _receive(self, timeout: float) -> tuple[Any, Any] | None:
        """Return a task of this epoch as `_get_data` does; None if no task has arrived within
        `timeout` seconds."""

    def _look_for_dead(self) -> tuple[Any, Any] | None:
        """Raise if no reply will come. Called after a wait in which no reply came."""

    def _explain_wait(self) -> str:
        """Return the end of an error's text: the worker that next() waits for, and its stack."""
        return ""

    def _can_resume(self) -> bool:
        """Tell whether these workers can begin a new epoch."""
        return all(worker.is_alive() for worker in self._workers)

    def _end_workers(self) -> None:
        """End every worker, and note the workers' counts."""

    # ---- forks

    def _is_own(self) -> bool:
        return self._pid == os.getpid()

    def _check_process(self) -> None:
        """Refuse to work in a forked child: the child has no threads, and the parent writes to the
        memory of batches from processes."""
        if not self._is_own():
            text = "this iterator belongs to the parent process"
            raise RuntimeError(f"{text}; call iter() on the loader in the child")

    # ---- the order of batches

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._next_lock.of_process():
            self._check_process()
            is_new = first_iter and not self._has_begun
            self._has_begun = False
            ahead, self._ahead = (self._ahead or [])[: self._sent_ahead], None
            self._sent_ahead = 0
            if self._forecast is not None:
                self._forecast.note_iter()
            self._recent = [(None, -1)] * RECENT
            if not ahead:
                self._forget(is_new)
            if self._depth is not None:
                self._depth.start_epoch()
                self._prefetch_factor = self._depth.value
            LockedIter._reset(self, loader, first_iter)
            is_hit = bool(ahead) and self._take_over(ahead)
            if not is_hit:
                self._order_epoch(is_new, "restore" if ahead else "")
            for _ in range(self._prefetch_factor * self._num_workers - is_hit * len(ahead)):
                self._try_put_index()
            self._has_begun = True

    def _forget(self, first_iter: bool) -> None:
        """Drop all tasks and replies, before an epoch begins."""
        self._arrived: deque[tuple[Any, Any]] = deque()  # replies that nobody has asked for yet
        # The reply that was received last, until its content is stored: the handler of a signal
        # may raise after any call, and next() then finds the reply here.
        self._unread: list[Any] = []
        # The same for the sampler's next indices, until their task has its place, and for the
        # calls that send tasks, by number.
        self._drawn: list[Any] = []
        self._unsent: dict[int, partial[None]] = {}
        self._awaited: set[int] = set()  # workers whose first state has not arrived
        self._fault: ExceptionWrapper | None = None  # a worker's, if it could not begin
        self._first = self._send_idx = self._rcvd_idx = self._tasks_outstanding = 0
        self._task_info: dict[int, tuple[Any, ...]] = {}
        self._workers_status = [True] * self._num_workers
        self._workers_num_tasks = [0] * self._num_workers
        self._begin_replies(first_iter)

    def _order_epoch(self, first_iter: bool, generators: str) -> None:
        """Tell the workers to begin an epoch, and wait until they know.

        Args: generators: the argument of Order.
        """
        workers, states = range(self._num_workers), self._epoch.states
        # A resumed epoch continues with the worker whose turn it was.
        self._turn = 0 if states is None else states.first_worker
        if not first_iter:
            for worker in workers:
                self._send(worker, Order(worker, generators=generators))
            answers = self._num_workers
            while answers > 0:
                answers -= isinstance(self._get_data()[0], Order)
                del self._unread[:]
        if states is not None and (states.wants_initial or self._awaits_begin):
            self._awaited.update(workers)
            for worker in workers:
                self._send(worker, Order(worker, states))

    def _get_data(self) -> tuple[Any, Any]:
        """Wait for a task. Return its number, or the order to begin an epoch, and its data."""
        begin = monotonic()
        wait_s = min(CHECK_S, self._timeout or CHECK_S)
        while True:
            self._check_process()
            is_here = self._arrived and not self._unread
            received = self._arrived[0] if is_here else self._receive(wait_s)
            if received is None:
                received = self._look_for_dead()
            if received is not None:
                return received
            if 0 < self._timeout <= monotonic() - begin:
                text = f"DataLoader timed out after {self._timeout} seconds"
                raise RuntimeError(text + self._explain_wait())

    def _next_data(self) -> Any:
        self._check_process()
        data = self._next_batch()
        if self._epoch.states is not None:
            data, state = data
            self._note_state(self._last_worker, state or None)
        return data

    def _next_batch(self) -> Any:
        """Return the next batch; if the dataset has states, with the state after the batch."""
        if self._depth is None:
            return self._take_next()
        before = self._shared.count()["waits"]
        data = self._take_next()
        self._depth.note(self._shared.count()["waits"] > before)
        grown = self._depth.value - self._prefetch_factor
        self._prefetch_factor = self._shared.depth = self._depth.value
        for _ in range(grown * self._num_workers):
            self._try_put_index()
        return data

    def _take_next(self) -> Any:
        """Return the batch whose turn it is; with in_order=False, the first batch to arrive."""
        while True:
            self._send_unsent()
            self._pass_ended()
            worker, *data = self._task_info[self._rcvd_idx]
            if data:
                del self._task_info[self._rcvd_idx]
                self._rcvd_idx += 1
                self._workers_num_tasks[worker] -= 1
                return self._process_data(data[0], worker)
            if self._shutdown or self._tasks_outstanding <= 0:
                if self._is_closed:
                    raise RuntimeError(CLOSED)
                text = "shutdown or no outstanding tasks when fetching next data"
                raise AssertionError(f"Invalid iterator state: {text}")
            received = self._get_data()
            number, arrived = received
            is_end = isinstance(arrived, StreamEnd)
            # No call stands between the next lines, so no handler of a signal can run there.
            if is_end:
                self._workers_status[arrived.worker_id] = False
            elif self._in_order:
                self._task_info[number] += (arrived,)
            else:
                worker = self._task_info[number][0]
                del self._task_info[number]
                self._rcvd_idx += number == self._rcvd_idx
                self._workers_num_tasks[worker] -= 1
            self._tasks_outstanding -= 1
            if self._arrived and self._arrived[0] is received:
                del self._arrived[0]
            else:
                del self._unread[:]
            if is_end:
                # The worker's share of a stream has ended. The remaining workers get its tasks.
                if not self._persistent_workers:
                    self._send(arrived.worker_id, None)
                self._try_put_index()
            elif not self._in_order:
                return self._process_data(arrived, worker)

    def _pass_ended(self) -> None:
        """Skip tasks of workers whose share of a stream has ended. Raise StopIteration if no task
        remains."""
        is_open = not (self._shutdown or self._is_closed or self._is_asking)
        if self._rcvd_idx == self._send_idx and is_open:
            self._try_put_index()  # handlers of signals may have interrupted it in next()
        while self._rcvd_idx < self._send_idx:
            info = self._task_info.get(self._rcvd_idx)
            if info is not None:
                if len(info) == 2 or self._workers_status[info[0]]:
                    return
                del self._task_info[self._rcvd_idx]
            self._rcvd_idx += 1
        if not self._persistent_workers:
            self._shutdown_workers()
        raise StopIteration

    def _process_data(self, data: Any, worker: int) -> Any:
        self._try_put_index()  # a sampler may call next() here
        self._last_worker = worker
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data

    def _try_put_index(self) -> None:
        """Send the sampler's next indices to a worker. What the handler of a signal interrupts, the
        next call continues."""
        if not self._drawn:
            self._is_asking = True
            try:  # in one call: the list has the indices before the call returns
                self._drawn.extend(map(next, (self._sampler_iter,)))
            finally:
                self._is_asking = False
        worker = self._choose_worker()
        if self._forecast is not None and not self._drawn:
            self._look_ahead(self._forecast)
        if worker is None or not self._drawn:
            return
        number = self._send_idx
        task = number, self._drawn[0]
        try:
            send = self._prepare(worker, task)
        except Exception:
            if raises_again(self._prepare, worker, task):  # pickle refuses the indices
                del self._drawn[:1]
            raise
        # No call stands between the next lines. A handler that called next() has sent the task.
        if number != self._send_idx:
            return
        self._unsent[number] = send
        self._task_info[number] = (worker,)
        self._recent[(number - self._first) % RECENT] = task[1], number - self._first
        self._workers_num_tasks[worker] += 1
        self._tasks_outstanding += 1
        self._send_idx += 1
        self._turn = worker + 1
        del self._drawn[0]
        self._send_noted(number)

    def _send_noted(self, number: int) -> None:
        """Send a task, unless a handler of a signal that called next() has sent it. In one call:
        the task leaves the dict before the call returns."""
        sends: Any = filter(None, map(self._unsent.get, (number,)))
        sent: Any = map(partial.__call__, sends)
        any(map(self._unsent.pop, (number,), sent))

    def _send_unsent(self) -> None:
        for number in tuple(self._unsent):
            self._send_noted(number)

    def _is_dealt(self, task: Any) -> bool:
        """Tell whether all workers make the samples of a batch: it is a worker's first one in an
        epoch, when no other batch is ready for the loop."""
        if isinstance(task, Order) or not 0 <= task[0] - self._first < self._num_workers:
            return False
        return self._num_workers > 1 and type(task[1]) is list and self._may_deal()

    def _choose_worker(self) -> int | None:
        """Return the next worker in turn that has work in this epoch; with in_order=False, a worker
        with fewer tasks under way than its part of the queue."""
        limit = self._prefetch_factor * self._num_workers
        for turn in range(self._turn, self._turn + self._num_workers):
            worker = turn % self._num_workers
            if self._workers_status[worker] and (
                self._in_order
                or self._workers_num_tasks[worker] < limit // sum(self._workers_status)
            ):
                return worker
        return None

    # ---- the next epoch, read ahead

    def _look_ahead(self, forecast: Forecast) -> None:
        """Send a task of the next epoch, because this epoch has no more."""
        if not self._has_begun or self._shutdown or self._is_closed:
            return
        workers = range(self._num_workers)
        if self._ahead is None:
            count = self._prefetch_factor * self._num_workers
            ahead = forecast.foresee(lambda batches: list(islice(batches, count))) or []
            orders = {
                ~worker: self._prepare(worker, Order(worker, generators="keep"))
                for worker in (workers if ahead else ())
            }
            # No call stands between the next lines. A handler may have looked ahead, by next().
            if self._ahead is None:
                self._unsent |= orders
                self._ahead = ahead
        if self._sent_ahead < len(self._ahead):
            worker = self._sent_ahead % self._num_workers
            number = self._first + EPOCH + self._sent_ahead
            send = self._prepare(worker, (number, self._ahead[self._sent_ahead]))
            # No call stands between the next lines. A handler may have sent the task, by next(), or
            # have left the workers to another iterator.
            if number != self._first + EPOCH + self._sent_ahead or self._shutdown:
                return
            self._unsent[number] = send
            self._task_info[number] = (worker,)
            self._tasks_outstanding += 1
            self._sent_ahead += 1
        self._send_unsent()

    def _take_over(self, ahead: list[Any]) -> bool:
        """Draw the epoch's first indices. If they are those of the tasks that were sent ahead, go
        on with these tasks, else drop all tasks."""
        from fastloop.loader.arrays.iterator import find_blocks

        drawn = list(islice(self._sampler_iter, len(ahead)))
        # The program may have replaced the sampler, whose items may then compare oddly, or the
        # indices of a sampler, for example a tensor by equal ints.
        is_hit = find_blocks(self._index_sampler) is not None and drawn == ahead
        is_hit = is_hit and {*map(type, chain(*drawn))} == {*map(type, chain(*ahead))}
        self._shared.add(ahead_hits=is_hit, ahead_drops=not is_hit)
        if not is_hit:
            self._forget(first_iter=False)
            self._drawn = drawn
            return False
        self._first = self._rcvd_idx = self._first + EPOCH
        self._send_idx, self._turn = self._first + len(ahead), len(ahead)
        self._task_info = {n: info for n, info in self._task_info.items() if self._is_of_epoch(n)}
        self._tasks_outstanding = sum(len(info) == 1 for info in self._task_info.values())
        self._begin_replies(first_iter=False, is_ahead=True)
        self._send_unsent()  # before later tasks, because a sample may draw random numbers
        return True

    def _is_of_epoch(self, number: int) -> bool:
        """Tell whether a task is one of this epoch, and not of the next one."""
        return 0 <= number - self._first < EPOCH

    # ---- states of the dataset

    def _note_initial(self, task: Order, state: Any) -> None:
        states: Any = self._epoch.states
        if states is None or task.states is not states:
            return
        self._awaited.discard(task.worker)
        if isinstance(state, ExceptionWrapper):
            self._fault = self._fault or state
        elif states.wants_initial:
            states.begin(task.worker, state)

    def await_states(self) -> None:
        """Wait until each worker has sent the state that it began with. The wait takes as long as
        workers take to start. Replies that arrive meanwhile are kept for next()."""
        with self._next_lock.of_process():
            while self._awaited and not self._shutdown and self._is_own():
                received = self._receive(CHECK_S)
                if received is not None:
                    self._arrived += (received,)
                    del self._unread[:]
                elif self._find_dead():
                    return  # next() reports the reason

    # ---- the end

    def _find_dead(self) -> list[int]:
        """Return the numbers of dead workers among those that still have work."""
        status, open_tasks = enumerate(self._workers_status), self._task_info.items()
        dead = [n for n, is_active in status if is_active and not self._workers[n].is_alive()]
        if self._sent_ahead == 0 or self._replaces_dead:
            return dead
        # Only the next epoch misses a worker that has died at a batch of that epoch.
        numbers = [n for n, info in open_tasks if len(info) == 1 and self._is_of_epoch(n)]
        owing = {*chain(*map(self._makers, numbers))}
        return [n for n in dead if n in owing]

    def is_broken(self) -> bool:
        """Tell whether a new epoch needs new workers: Ctrl-C has ended some workers, or came while
        workers were told of an epoch, or this process is a forked child of the workers' parent."""
        is_open = self._is_own() and self._has_begun and not (self._shutdown or self._is_closed)
        return not (is_open and self._can_resume())

    def close(self) -> None:
        LockedIter.close(self)
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        # At exit handlers of the process end the workers, and a forked child has none.
        if not (getattr(self, "_shutdown", True) or is_exiting() or not self._is_own()):
            self._end_workers()

    def _finalize(self) -> None:
        """End the workers, again if Ctrl-C came before SIGINT was held back. At the end of the
        process the names of this module may be gone."""
        self._keep_count()
        if not self._is_exiting():
            with interrupts_held(interrupt_later):
                self._shutdown_workers()
                # Drop the workers now, with SIGINT held, because their finalizers run Python. Keep
                # an empty list for finalizers that read it.
                self.__dict__.setdefault("_workers", []).clear()

    _is_exiting = staticmethod(is_exiting)

    __del__ = FinalizerBase.__del__  # else torch's own __del__ would come first


_DEEPEST = 16


class QueueDepth:
    """The number of batches that each worker is asked for ahead. ``docs/internals/tools.md`` has
    the rule.

    If the loop had to wait although, since the last change, a whole queue of batches had come
    without a wait, the depth grows by one: workers are fast enough on average, but their times are
    uneven. More depth would not help workers that are too slow.

    Args:
        workers: the number of workers.
        value: the first depth.
    """

    def __init__(self, workers: int, value: int = FIRST_DEPTH) -> None:
        self.value = value
        self._workers = workers
        self.start_epoch()

    def start_epoch(self) -> None:
        """Expect a wait, because the loop always waits for the first batch."""
        self._unwaited = 0
        self._was_full = False

    def note(self, has_waited: bool) -> None:
        """Note that the loop has taken a batch, and whether the loop had to wait for the batch."""
        if not has_waited:
            self._unwaited += 1
            self._was_full |= self._unwaited >= self.value * self._workers
            return
        self._unwaited = 0
        if self._was_full and self.value < _DEEPEST:
            self.value += 1
            self._was_full = False
