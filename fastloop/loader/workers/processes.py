"""The iterator over worker processes, which owns the processes and a channel.

``common.py`` orders the batches. The channel carries tasks and replies through shared memory, in
the form of ``batch_pickle.py``. ``child.py`` runs in a worker; ``lifecycle.py`` has the life of one
worker. This module connects the four: the meaning of replies, dead workers, Ctrl-C, the end.
"""

from __future__ import annotations

import operator
import os
import pickle
import threading
import warnings
from collections import Counter
from functools import partial
from time import monotonic, sleep
from typing import Any

import torch.multiprocessing
from torch.utils.data import DataLoader

from fastloop._core import ParentEnd, Reply
from fastloop.base.checks import look_up
from fastloop.base.interrupts import (
    has_met_interrupt,
    interrupts_held,
    is_interrupted,
    raises_again,
)
from fastloop.compat.tensors import outside_inference_mode
from fastloop.compat.torch_parts import DatasetKind, ExceptionWrapper, StreamEnd
from fastloop.data.stateful import DatasetReader
from fastloop.loader.shared import CLOSED, Shared, WorkerCounts
from fastloop.loader.workers import batch_pickle
from fastloop.loader.workers.batch_pickle import Order, unpack
from fastloop.loader.workers.common import CHECK_S, TAKEN_MEANWHILE, WorkerIter, is_exiting
from fastloop.loader.workers.dealt import DealtBatches, Parts
from fastloop.loader.workers.lifecycle import (
    FIRM_S,
    LAST_S,
    POLITE_S,
    DatasetTransfer,
    SharedFile,
    WorkerProcess,
    end_workers,
    living,
)

# With on_worker_death="restart": a worker that dies this often in a row before its first batch is
# not replaced. If a process exits there, its successor will exit as well; random kills may hit
# several young processes.
_MOST_EXITS, _MOST_KILLS = 2, 10
# The loader raises after so many deaths at one batch, and after so many workers have hung there or,
# in a row, before a first batch.
_MOST_DEATHS, _MOST_HANGS = 2, 3
# A worker that has not begun its first batch may take so many seconds more than worker_timeout.
_START_S = 60.0
# The seconds after which a parent that receives batches looks for dead workers again.
_LOOK_S = 1.0
_STREAM = (
    "its samples come from an IterableDataset without state_dict(), so its position is lost; give "
    "the dataset state_dict() and load_state_dict(), or pass a map-style dataset"
)


class NoSuccessorError(Exception):
    """A dead worker gets no successor. The text is the reason, as a part of a sentence."""


class ProcessIter(WorkerIter):
    """An iterator over worker processes and a channel in shared memory."""

    _in_processes = True
    _workers: list[WorkerProcess]

    def __init__(self, loader: DataLoader[Any], shared: Shared, accelerator: Any = None) -> None:
        # torch's worker loop imports numpy.random. Without this import every worker would import
        # it, and Ctrl-C in the middle would leave extension modules half initialised.
        with interrupts_held():
            import numpy.random  # noqa: F401
        memory, destination, budget = shared.open_worker_memory(loader, accelerator)
        self._destination = destination
        self._pending: Any = None  # the next reply or batch, until it is delivered
        self._delivered: list[Any] = []  # at most one, kept through interrupts
        self._is_taking = False
        self._replaces_dead = look_up(loader, "on_worker_death", "raise") == "restart"
        # By batch of this epoch, or by batch and part: deaths of its workers.
        self._deadly: Counter[tuple[Any, ...]] = Counter()
        self._early: Counter[int] = Counter()  # by worker: deaths in a row before a batch
        self._last_words: dict[int, str] = {}  # the texts on dead workers without a successor
        self._next_look = 0.0
        hang_s = look_up(loader, "worker_timeout", 0) if self._replaces_dead else 0
        self._hang_s: float = hang_s  # 0: workers may take as long as they like
        # By worker: the progress seen last, and the seconds since then, as far as next() waited.
        self._seen: dict[int, tuple[Any, float]] = {}
        self._last_look = 0.0
        self._wants_stacks = loader.timeout > 0 or self._hang_s > 0
        self._stacks = -1  # the file to which workers write their stacks when they are asked
        # The length of a worker's queue of requests: a power of two, with room for the requests of
        # two epochs. If a worker gets more, as when some workers have ended, the rest waits here.
        length = 1 << (2 * operator.index(loader.prefetch_factor or 1) + 15).bit_length()
        sizes = loader.num_workers, length, budget
        others = destination, self._replaces_dead
        self._parent_end = ParentEnd(memory, torch.Tensor, *sizes, *others)
        self._context: Any = loader.multiprocessing_context or torch.multiprocessing
        self._file = SharedFile()
        self._transfers: list[DatasetTransfer] = []
        self._dealt = DealtBatches(loader, self._parent_end)
        self._lock = threading.RLock()  # held while a successor starts or the workers are stopped
        self._stopped = threading.Event()
        super().__init__(loader, shared)

    def count(self) -> WorkerCounts:
        return self._parent_end.count()

    def _start_worker(self, arguments: dict[str, Any], reader: DatasetReader | None) -> None:
        arguments["init_fn"] = self._datasets.wrap_init(arguments["init_fn"])
        arguments["dataset"] = reader or arguments["dataset"]
        if self._wants_stacks and self._stacks < 0:
            self._stacks = os.memfd_create("fastloop stacks", os.MFD_CLOEXEC)
        address = self._parent_end.address()
        self._transfers.append(DatasetTransfer(arguments, address, self._file, self._stacks))
        process = self._make_process(arguments["worker_id"])
        self._workers.append(process)  # even a process that cannot be started
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker Process. "
                "This might be because the worker Process arguments are not picklable. "
                "Python 3.14+ changed the multiprocessing start method in non-Mac POSIX platforms "
                "to 'forkserver', which requires the worker Process arguments to be picklable. "
                "You can also try multiprocessing.set_start_method('fork').",
                stacklevel=2,
            )
            raise

    def _make_process(self, worker: int) -> WorkerProcess:
        how = self._parent_end.has_destination, self._shared.is_served
        return WorkerProcess(self._context, self._transfers[worker], *how)

    def _begin_replies(self, first_iter: bool, is_ahead: bool = False) -> None:
        if first_iter and not self._replaces_dead:
            self._close_file()
        if not is_ahead:
            self._parent_end.start_epoch()
        self._ends: list[tuple[Any, Any, bytes | None]] = []  # ends of workers that owed a batch
        self._newest = [-1] * self._num_workers  # for each worker: its last task answered
        # Workers that have yet to answer the order to begin this epoch.
        self._resuming = set(range(0 if first_iter or is_ahead else self._num_workers))
        self._deadly.clear()
        self._dealt.clear()
        if self._destination is not None:
            self._destination.check()
            self._drop_next()
            self._parent_end.run_ahead(self._first if self._in_order else -1)

    def _send(self, worker: int, task: Any) -> None:
        if task is None:
            self._parent_end.end(worker)
        else:
            self._prepare(worker, task)()

    def _may_deal(self) -> bool:
        return self._dealt.may_deal

    def _prepare(self, worker: int, task: Any) -> partial[Any]:
        if not self._is_dealt(task) or len(task[1]) < 2:
            return self._prepare_whole(worker, task)
        return self._dealt.prepare(*task)

    def _prepare_whole(self, worker: int, task: Any) -> partial[None]:
        return partial(self._parent_end.submit, worker, batch_pickle.pickle_task(task), task)

    def _makers(self, number: int) -> list[int]:
        """Worker n makes the part at place n."""
        return self._dealt.missing(number) or super()._makers(number)

    def _find_makers(self) -> set[int]:
        """Return the workers that the next batch waits for."""
        is_sent = self._rcvd_idx in self._task_info
        return set(self._makers(self._rcvd_idx) if is_sent else ())

    # ---- batches

    def _next_batch(self) -> Any:
        try:
            if self._destination is None:
                return super()._next_batch()
            self._destination.check()
            if self._pending is None and not self._delivered:
                self._pending = super()._next_batch()
            return self._take_delivered(self._destination)
        except StopIteration:
            self._parent_end.release_buffers()
            raise
        except RuntimeError:
            if self._parent_end.is_overwritten:
                self._shutdown_workers()  # the memory that they share cannot be trusted
            raise

    def _take_delivered(self, destination: Any) -> Any:
        """Return the next batch; on a device, for the current stream. If memory is missing, the
        next call tries the same batch again. Later batches are copied when they arrive, as far as
        there is memory."""
        if self._is_taking:
            raise RuntimeError("next() was called on this iterator from inside its own next()")
        self._is_taking = True
        try:
            if not self._delivered:
                self._delivered.append(self._deliver(self._pending, destination))
            self._pending = None
            self._parent_end.run_ahead(self._rcvd_idx if self._in_order else -1)
            if not self._delivered:
                raise RuntimeError("the loader was closed or begun anew inside next()")
            return self._delivered.pop()
        finally:
            self._is_taking = False

    @outside_inference_mode
    def _deliver(self, pending: Any, destination: Any) -> Any:
        is_moved = type(pending) is Reply and pending.upload > 0
        if is_moved:
            pending.deliver()  # if this raises, the next call tries again
        try:
            if is_moved:
                return destination.complete(unpack(pending, destination))
            return destination.send(unpack(pending) if type(pending) is Reply else pending)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if "out of memory" not in str(error):
                self._pending = None
            raise

    def _drop_next(self) -> None:
        """Drop a batch that was not taken. SYNC if a copy still reads the user's memory."""
        self._pending = None
        self._delivered.clear()
        if self._destination is not None:
            self._destination.drop()

    def _process_data(self, data: Any, worker: int) -> Any:
        data = super()._process_data(data, worker)
        if type(data) is Parts:
            self._dealt.parts.pop(data.number, None)
            self._dealt.stacks.pop(data.number, None)
            return data.join(self._shared.collate_here())
        if self._destination is None and type(data) is Reply:
            return unpack(data)
        return data

    def _get_data(self) -> tuple[Any, Any]:
        try:
            if self._replaces_dead and monotonic() > self._next_look:
                # With in_order=False the batches of living workers would hide a death.
                self._next_look = monotonic() + _LOOK_S
                gone = self._find_dead() + (self._find_hung() if self._hang_s > 0 else [])
                self._replace([n for n in gone if not self._parent_end.has_replies(n)])
            return super()._get_data()
        except KeyboardInterrupt:
            # A traceback that the program keeps must not keep the remaining workers alive.
            with interrupts_held():
                if self._await_interrupted():
                    self._shutdown_workers()
            raise

    def _await_interrupted(self) -> bool:
        """Tell whether Ctrl-C, which this process has received, also ends the workers, as a
        terminal sends it to every process. A second Ctrl-C ends the workers in any case. Call this
        with interrupts held."""
        begin = monotonic()
        # A worker that this process has ended because it hung has not met Ctrl-C.
        while all(map(self._is_hung, self._find_dead())) and not is_interrupted():
            is_reached = any(has_met_interrupt(worker.pid) for worker in self._workers)
            if monotonic() - begin > (FIRM_S if is_reached else CHECK_S):
                return False
            sleep(0.002)
        return True

    def _receive(self, timeout: float) -> tuple[Any, Any] | None:
        while True:
            for end in () if self._unread else self._ends:
                worker = end[1].worker_id
                if self._workers_status[worker] and not self._parent_end.owes(worker):
                    return self._finish(*end)
            if not self._unread:  # in one call, so the reply is in the list before the call returns
                self._unread.extend(filter(None, map(self._parent_end.receive, (timeout,))))
            if not self._unread:
                return None
            received = self._read(*self._unread[0])
            if received is not None:
                return received
            del self._unread[:]
            timeout = 0

    def _read(self, task: Any, reply: Reply) -> tuple[Any, Any] | None:
        """Return (task, data) as `_get_data` does; None if next() does not want the reply."""
        states = self._epoch.states
        if isinstance(task, Order) and task.states is not None:
            self._note_initial(task, self._unpack_object(reply))
            return None
        if isinstance(task, Order):
            self._resuming.discard(task.worker)
            return None if task.generators == "keep" else (task, unpack(reply))
        number, indices, *part = task
        if number not in self._task_info:
            return None  # from the previous epoch
        if part:
            return self._read_part(number, part[0], part[1], reply)
        worker = self._task_info[number][0]
        self._newest[worker] = max(self._newest[worker], number)
        if reply.kind != batch_pickle.OBJECT:
            if states is not None:
                states.receive(worker)
            return number, reply
        data, state = self._unpack_object(reply), None
        if states is not None and isinstance(data, tuple):
            data, state = data[0], data[1] or None
        if isinstance(data, ExceptionWrapper) and not hasattr(data, "is_of_init"):
            batch_pickle.add_batch(data, number, indices)
        if not isinstance(data, StreamEnd):
            return number, data
        if not self._parent_end.owes(worker):
            return self._finish(number, data, state)
        self._ends.append((number, data, state))
        return None

    def _read_part(
        self, number: int, place: int, indices: list[Any], reply: Reply
    ) -> tuple[Any, Any] | None:
        """Note a part. Return (number, data) if it was the last one. If the parts do not go
        together, ask for the whole batch: the worker then raises the error."""
        if len(self._task_info[number]) > 1:
            return None  # a worker that had no part in the batch
        found = self._dealt.receive(number, place, reply, self._unpack_object)
        if not found:
            return None
        if isinstance(found, Parts):
            return number, found
        self._dealt.stacks.pop(number, None)
        send = self._prepare_whole(self._task_info[number][0], (number, indices))
        # No call stands between the next lines.
        self._unsent[number] = send
        self._dealt.parts[number] = []
        self._send_noted(number)
        return None

    def _unpack_object(self, reply: Reply) -> Any:
        try:
            return unpack(reply)
        except Exception:
            if self._parent_end.is_overwritten or not raises_again(unpack, reply):
                raise
            # For example, this process does not have the class of the error.
            where = "while reading what a DataLoader worker process has sent"
            return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]

    def _finish(self, number: int, end: StreamEnd, state: bytes | None) -> tuple[Any, Any]:
        """Cancel the other tasks of a worker whose share of a stream has ended."""
        if self._epoch.states is not None:
            self._epoch.states.end(end.worker_id, state)
        self._parent_end.cancel(end.worker_id, is_gone=False)
        return number, end

    # ---- workers that die

    def _can_resume(self) -> bool:
        """Tell whether all workers live, or dead workers get successors when needed."""
        dead = [n for n, worker in enumerate(self._workers) if not worker.is_alive()]
        if not dead or not self._replaces_dead or self._last_words:
            return not dead
        states = self._epoch.states
        is_map = self._dataset_kind == DatasetKind.Map
        return is_map or (states is not None and all(map(states.can_succeed, dead)))

    def _look_for_dead(self) -> tuple[Any, Any] | None:
        if self._parent_end.is_closed():
            raise RuntimeError(CLOSED)
        dead = self._find_dead() + (self._find_hung() if self._hang_s > 0 else [])
        # is_exiting() is asked after the search: if multiprocessing had ended a worker, it is true.
        if is_exiting() and threading.current_thread().daemon:
            return None  # the interpreter will soon end this thread as well
        # Every reply that dead workers have sent can be received now.
        received = self._receive(0) if dead else None
        if received is not None:
            return received
        if lost := self._replace(dead):
            # A dead worker's batch may have arrived and wait for earlier batches of living workers.
            is_next = not self._find_makers().isdisjoint(lost)
            is_here = any(len(info) == 2 and info[0] in lost for info in self._task_info.values())
            if is_next or not is_here:
                for number in lost:
                    self._send(number, None)
                    self._workers_status[number] = False
                raise RuntimeError("\n".join(self._last_words[number] for number in lost))
        if self._parent_end.is_idle():
            raise RuntimeError(TAKEN_MEANWHILE)
        return None

    def _replace(self, dead: list[int]) -> list[int]:
        """Start successors of dead workers whose replies have all been received. Return the numbers
        of workers without a successor. Their requests are cancelled to free memory for the rest."""
        for number in dead:
            if number in self._last_words:
                continue
            text, stack = self._explain_death(number)
            try:
                self._start_successor(number)
            except NoSuccessorError as why:
                if self._replaces_dead:
                    text += f" It is not replaced: {why}."
                self._last_words[number] = text + stack
                self._parent_end.cancel(number, is_gone=not self._workers[number].exists())
                continue
            self._shared.add(restarts=1)
            text += " A new process takes its place and loads its unfinished batches again."
            warnings.warn(text + stack, RuntimeWarning, stacklevel=2)
        return [number for number in dead if number in self._last_words]

    def _start_successor(self, number: int) -> None:
        if not self._replaces_dead:
            raise NoSuccessorError
        dead, is_hung = self._workers[number], self._is_hung(number)
        if is_hung:
            dead.kill()
            dead.join(LAST_S)
        reader = self._open_reader(number)
        if dead.is_alive() or dead.exists():
            why = "SIGKILL does not end it" if is_hung else "its fork server has died"
            raise NoSuccessorError(f"its process may not have ended: {why}")
        self._count_death(number, dead.exitcode, is_hung)
        with interrupts_held():
            try:
                if self._parent_end.restart(number):
                    self._replace_process(number, reader)
            except Exception as error:
                if not self._parent_end.is_closed():
                    text = f"no process could be started ({type(error).__name__}: {error})"
                    raise NoSuccessorError(text) from error
        if self._workers[number] is dead or self._parent_end.is_closed():
            raise RuntimeError(CLOSED)

    def _replace_process(self, number: int, reader: DatasetReader | None) -> None:
        """Start a process in the place of a worker that has ended, unless workers are stopped. If
        the start raises, the dead worker stays in the list. Call this with interrupts held."""
        with self._lock:
            if self._stopped.is_set():
                return
            if reader is not None:
                self._transfers[number].contents[0]["dataset"] = reader
            dead, successor = self._workers[number], self._make_process(number)
            self._workers[number] = successor  # before its start, so that _stop() finds it
            try:
                successor.start()
            except BaseException:
                if successor.pid is None:
                    self._workers[number] = dead
                raise
            dead.forget()
            self._seen.pop(number, None)
            if not self._stopped.is_set():
                return
        self._stop()  # a signal handler has called it during the start

    def _count_death(self, number: int, code: int | None, is_hung: bool) -> None:
        """Count a death. Raise NoSuccessorError if no process may replace the dead worker."""
        taken, task = self._parent_end.begun(number)
        if taken == 0 or isinstance(task, Order):
            self._early[number] += 1
            times = self._early[number]
            most = _MOST_EXITS if code is not None and code >= 0 else _MOST_KILLS
            if times >= (_MOST_HANGS if is_hung else most):
                fault = f"worker {number} has died {times} times in a row"
                raise NoSuccessorError(f"{fault} before it could begin a batch")
            return
        self._early[number] = 0
        if task is None or task[0] not in self._task_info:
            return  # from the previous epoch, so nobody waits for the batch
        batch = task[:3:2]  # (number,), or with the place of a part
        self._deadly[batch] += 1
        times = self._deadly[batch]
        if times >= (_MOST_HANGS if is_hung else _MOST_DEATHS):
            many, end = ("three", "hung or died") if is_hung else ("two", "died")
            text = f"{many} workers have {end} while they loaded batch"
            raise NoSuccessorError(f"{text} {task[0] % batch_pickle.EPOCH}")

    def _open_reader(self, number: int) -> DatasetReader | None:
        """Return a reader that continues at the position of a dead worker's dataset; None if the
        dataset has no state. Raise NoSuccessorError if a stream's position is unknown."""
        states, is_map, reader = self._epoch.states, self._dataset_kind == DatasetKind.Map, None
        if states is not None:
            first = self._parent_end.first_task(number)
            if not is_map and isinstance(first, tuple) and first[0] < self._newest[number]:
                raise NoSuccessorError(f"batch {first[0]} was too large, and later ones came")
            try:
                reader = states.make_successor(number, is_resuming=number in self._resuming)
            except Exception as error:  # the user's state_dict() may raise
                text = f"its position is unknown ({type(error).__name__}: {error})"
                raise NoSuccessorError(text) from error
        if reader is None and not is_map:
            raise NoSuccessorError(_STREAM)
        return reader

    def _find_hung(self) -> list[int]:
        """Return the numbers of workers that have hung for too long and still live."""
        self._note_progress()
        hung = [n for n in self._seen if self._workers_status[n] and self._is_hung(n)]
        return [number for number in hung if self._workers[number].is_alive()]

    def _is_hung(self, number: int) -> bool:
        progress, seconds = self._seen.get(number, (None, 0.0))
        is_starting = progress is not None and progress[0] == 0
        return 0 < self._hang_s < seconds - _START_S * is_starting

    def _note_progress(self) -> None:
        """Add the time since the last look to the clocks of workers without progress. A look counts
        at most `_LOOK_S`: before that, the loop was not in next(), or the program was stopped."""
        now = monotonic()
        passed_s, self._last_look = min(now - self._last_look, _LOOK_S), now
        for number in range(self._num_workers):
            progress = self._parent_end.progress(number)
            before, seconds = self._seen.get(number, (None, 0.0))
            is_same = progress is not None and progress == before
            self._seen[number] = progress, seconds + passed_s if is_same else 0.0

    def _explain_wait(self) -> str:
        worker = min(self._find_makers() or self._resuming, default=0)
        process, task = self._workers[worker], self._explain_task(worker)
        text = f": worker {worker} (pid {process.pid}) has not answered{task}."
        return text + process.explain_stack(self._stacks)

    def _explain_death(self, number: int) -> tuple[str, str]:
        """Return the text on a dead worker, and its last sentence: the stack of a hung worker."""
        process, task = self._workers[number], self._explain_task(number)
        if not self._is_hung(number):
            return process.explain_death(task, self._replaces_dead), ""
        seconds = f"{self._seen[number][1]:.1f} seconds"
        text = f"DataLoader worker (pid {process.pid}) has not answered for {seconds}{task}."
        return text, process.explain_stack(self._stacks)

    def _explain_task(self, number: int) -> str:
        _, first = self._parent_end.begun(number)
        if not isinstance(first, tuple):
            first = self._parent_end.first_task(number)
        return batch_pickle.describe_task(first)

    # ---- the end

    def _end_workers(self) -> None:
        self._shared.last_count = self.count()
        try:
            self._parent_end.close()  # asks the workers to end
            self._stop()
        finally:
            with interrupts_held():
                self._shutdown = True
                self._parent_end.start_epoch()
                self._task_info = {}
                self._dealt.clear()
                self._drop_next()
                self._close_file()
                if self._stacks >= 0:
                    os.close(self._stacks)
                    self._stacks = -1
                if not living(self._workers):
                    for worker in self._workers:
                        worker.forget()
                    self._parent_end.release()

    def _close_file(self) -> None:
        """Free the arguments of workers, because no worker will start any more."""
        self._transfers.clear()
        self._file.close()

    def _stop(self) -> None:
        """End all workers within a few seconds, whatever they are doing."""
        with self._lock:
            self._stopped.set()
        end_workers(self._workers, POLITE_S)
