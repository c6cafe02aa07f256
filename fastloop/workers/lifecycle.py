"""The life of worker processes: how they start, whether they are alive, why one died, how they end.

``WorkerProcess`` is one process, ``WorkerPool`` holds those of one iterator. Neither knows what the
workers are asked for. Both are used by the thread that iterates, by the iterator's
finalizer, and by ``close()`` from any thread.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Sequence
from multiprocessing import forkserver, util
from multiprocessing import process as processes
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any

from fastloop._core import expect_fork, fork_ended, fork_expected
from fastloop.base.interrupts import has_met_interrupt, interrupts_held, is_interrupted
from fastloop.base.machine import describe_memory, explain_kill
from fastloop.workers.main_module import explain_early_end

# A parent that waits notices a dead worker after at most so many seconds.
CHECK_S = 0.05
# Seconds for workers to end by themselves, and then after SIGTERM.
_POLITE_S, _FIRM_S = 2.5, 1.0
# For the exit code of a worker that is gone: a server of forked processes tells it after that.
_CODE_S = 5.0


def is_exiting() -> bool:
    """Whether the process is at its end: multiprocessing ends all workers, or names of modules are
    gone."""
    ask = getattr(util, "is_exiting", None)
    return ask is None or bool(ask())


_all_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown_workers() -> None:
    for process in list(_all_workers):
        processes._children.discard(process)  # type: ignore[attr-defined]


@functools.cache
def _watch_forks() -> None:
    """At the exit of a process that the program forks, multiprocessing would end the workers of
    its parent."""
    os.register_at_fork(after_in_child=_disown_workers)


class WorkerProcess:
    """A process of the user's context. Ctrl-C does not reach it before it can end quietly."""

    def __init__(self, process: Any) -> None:
        _watch_forks()
        _all_workers.add(process)
        self._process = process
        self._fork_id = 0  # what _core calls it
        process.daemon = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def start_method(self) -> str:
        found: str | None = getattr(self._process, "_start_method", None)
        return found or multiprocessing.get_start_method()

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._start()
            return
        if self.start_method() == "forkserver":
            forkserver.ensure_running()  # it must not inherit the mask set below
        with interrupts_held():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self) -> None:
        self._fork_id = expect_fork()
        try:
            self._process.start()
        finally:
            fork_expected()

    def forget(self) -> None:
        """It has ended: memory of batches that it had inherited may be used again."""
        fork_ended(self._fork_id)

    def is_alive(self) -> bool:
        if not self._process.is_alive():
            return False
        try:
            os.kill(self._process.pid, 0)
        except ProcessLookupError:  # something else in this program has waited for it
            return False
        return True

    def has_ended(self) -> bool:
        """Whether the process itself is known to be gone. is_alive() may err: when the server of
        forked processes dies, multiprocessing takes all that it has forked for dead."""
        if self.is_alive():
            return False
        try:
            os.kill(self._process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def _is_unknown(self) -> bool:
        """Whether its server has yet to tell how it has ended: it has waited for it before that."""
        return self.start_method() == "forkserver" and self._process.exitcode is None

    def join(self, timeout: float) -> None:
        """Waits for the end of the process itself, and for the exit code of one that is a server's.

        multiprocessing waits for the worker's end of a pipe. A worker can close that long before
        it ends, and processes it has started can hold it open long after.
        """
        deadline = monotonic() + timeout
        while (self.is_alive() or self._is_unknown()) and (rest := deadline - monotonic()) > 0:
            if wait([self._process.sentinel], min(rest, CHECK_S)):
                sleep(min(rest, 0.001))


class WorkerPool:
    """The worker processes of one iterator, by number. A forked child does not own them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._workers: list[WorkerProcess] = []  # those that could not be started, too
        self._lock = threading.RLock()  # a successor starts, or stop() begins
        self._stopped = threading.Event()

    def add(self, process: Any) -> WorkerProcess:
        """A worker that is yet to be started."""
        worker = WorkerProcess(process)
        self._workers.append(worker)
        return worker

    def replace(self, number: int, process: Any) -> WorkerProcess | None:
        """Starts a process in the place of one that has ended. None where stop() was called. Where
        it raises, the dead one keeps its place. Call it with interrupts held."""
        with self._lock:
            if self._stopped.is_set():
                return None
            dead, successor = self._workers[number], WorkerProcess(process)
            self._workers[number] = successor  # before it starts: stop() is to find it
            try:
                successor.start()
            except BaseException:
                if successor.pid is None:
                    self._workers[number] = dead
                raise
            dead.forget()
            if not self._stopped.is_set():
                return successor
        self.stop()  # a signal handler has called it during the start
        return None

    def is_own(self) -> bool:
        """Whether this process has started them."""
        return self._pid == os.getpid()

    def are_all_alive(self) -> bool:
        return all(worker.is_alive() for worker in self._workers)

    def find_dead(self, is_active: Sequence[bool]) -> list[int]:
        """The numbers of dead workers, of those that are to be alive."""
        return [
            n for n, wanted in enumerate(is_active) if wanted and not self._workers[n].is_alive()
        ]

    def await_end(self, number: int) -> int | None:
        """The exit code of a worker that was found dead; None if something else has taken it.
        Raises TimeoutError if its process may not have ended."""
        worker = self._workers[number]
        worker.join(_CODE_S)
        if not worker.has_ended():
            raise TimeoutError
        code: int | None = worker.exitcode
        return code

    def _find_living(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.is_alive()]

    def explain_death(
        self, number: int, task: str, has_begun: bool, tells_memory: bool = False
    ) -> str:
        """What an error says of a dead worker, and what can be done about it.

        Args:
            task: what it was to make, as the end of a sentence; may be empty.
            has_begun: it has taken a task.
            tells_memory: for other causes than SIGKILL, too.
        """
        worker = self._workers[number]
        text = f"DataLoader worker (pid {worker.pid}) "
        worker.join(_CODE_S)
        code = worker.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"{-code}"
            text += f"is killed by signal: {name} ({signal.strsignal(-code)})"
        elif code is not None:
            text += f"exited unexpectedly with exit code {code}"
        else:
            text += "exited unexpectedly; something else in this program has taken its exit code"
        text += f"{task}. "
        if not has_begun and code is not None and code > 0:
            text += explain_early_end(worker.start_method())
        if code == -signal.SIGKILL:
            text += f"{explain_kill()}. "
        elif code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            text += "Run with num_workers=0 under python -X faulthandler to see where. "
        if tells_memory and code != -signal.SIGKILL:
            text += f"{describe_memory()}. "
        return text

    def await_interrupted(self, is_active: Sequence[bool]) -> bool:
        """After Ctrl-C in this process: whether it ends the workers, too, as at a terminal, where
        it reaches all. Pressed again, it ends them in any case. Call it with interrupts held."""
        begin = monotonic()
        while not self.find_dead(is_active) and not is_interrupted():
            is_reached = any(has_met_interrupt(worker.pid) for worker in self._workers)
            if monotonic() - begin > (_FIRM_S if is_reached else CHECK_S):
                return False
            sleep(0.002)
        return True

    def stop(self) -> None:
        """Ends all within some seconds, whatever they are doing. They know that they are to end."""
        with self._lock:
            self._stopped.set()
        try:
            self._join(_POLITE_S)
            for worker in self._find_living():
                worker.terminate()
            self._join(_FIRM_S)
        finally:
            for worker in self._find_living():
                worker.kill()
            self._join(_FIRM_S, is_patient=True)  # they end at once, and leave no zombies

    def _join(self, seconds: float, is_patient: bool = False) -> None:
        """Waits for all to end; no longer after Ctrl-C, unless it `is_patient`."""
        deadline = monotonic() + seconds
        for worker in self._find_living():
            while worker.is_alive() and (rest := deadline - monotonic()) > 0:
                if is_interrupted() and not is_patient:
                    return
                worker.join(min(rest, CHECK_S))

    def forget_ended(self) -> bool:
        """Whether all have ended; then memory that they had inherited may be used again."""
        if self._find_living():
            return False
        for worker in self._workers:
            worker.forget()
        return True

    def clear(self) -> None:
        """Lets go of the processes. multiprocessing runs Python when they are freed."""
        self._workers.clear()
