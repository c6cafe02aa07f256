"""The life of a worker process: how it starts and receives its dataset, whether it is alive, and
the reason of its death.

``WorkerProcess`` does not know the tasks of workers. It is used by the thread that iterates, by the
iterator's finalizer, and by ``close()`` on any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import mmap
import multiprocessing
import os
import pickle
import re
import signal
import warnings
import weakref
from collections.abc import Container, Iterable, Sequence
from itertools import takewhile
from multiprocessing import forkserver, reduction, util
from multiprocessing import process as processes
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch

from fastloop._core import expect_fork, fork_ended, fork_expected
from fastloop.base.interrupts import interrupts_held, is_interrupted
from fastloop.base.machine import describe_memory, explain_kill, read_text
from fastloop.compat.torch_parts import before_workers, forms_of
from fastloop.loader.workers.child import STACK_SIGNAL, run_worker

# Seconds to wait for the exit code of a dead worker: a fork server reports it after the death.
_CODE_S = 5.0
# Seconds for workers to end by themselves, then after SIGTERM, then after SIGKILL: the kernel frees
# much memory slowly.
POLITE_S, FIRM_S, LAST_S = 2.5, 1.0, 5.0
_JOIN_S = 0.05  # between two looks for Ctrl-C while they end
# Seconds to wait for the stack of a worker, and between two looks.
_STACK_S, _STACK_LOOK_S = 1.0, 0.05
_IN_LOOP = " in _worker_loop", " in run_worker"  # below them a stack is the same in every worker

_LARGE = 1 << 20  # arrays of this many bytes or more are sent outside the pickle
_PAGE = mmap.ALLOCATIONGRANULARITY

FileRange = tuple[int, int]  # in a SharedFile: offset, bytes

_workers: weakref.WeakSet[Any] = weakref.WeakSet()


def _disown_workers(pids: Container[int] | None = None) -> None:
    """Let multiprocessing forget workers, which it would end and wait for when this process exits:
    those with these pids, or all in a process that the program forks."""
    for process in list(_workers):
        if pids is None or process.pid in pids:
            processes._children.discard(process)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_disown_workers)


def _exists(process: Any) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_alive(process: Any) -> bool:
    # _exists() is asked because the program's own code may have waited for the process.
    return process.is_alive() and _exists(process)


class WorkerProcess:
    """A process of the user's context. Ctrl-C reaches it only when it can end quietly."""

    def __init__(
        self, context: Any, transfer: DatasetTransfer, has_destination: bool, is_served: bool
    ) -> None:
        # A thread that blocks Ctrl-C starts workers that block Ctrl-C as well.
        is_blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        args = transfer, os.getpid(), not is_blocked, has_destination, is_served, forms_of
        process = context.Process(target=run_worker, args=args)
        _workers.add(process)
        self._process = process
        self._fork_id = 0  # the number of this fork in _core
        method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
        self._has_server = method == "forkserver"
        process.daemon = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def start(self) -> None:
        for find_out in before_workers:
            find_out()
        if self._has_server:
            forkserver.ensure_running()  # the server must not inherit the mask set below
        with interrupts_held():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start(self) -> None:
        _expect_exit(os.getpid())
        self._fork_id = expect_fork()
        try:
            self._process.start()
        finally:
            fork_expected()

    def forget(self) -> None:
        """Release the batch memory that this process, which has ended, had inherited."""
        fork_ended(self._fork_id)

    def exists(self) -> bool:
        """Tell whether the system has the process. is_alive() errs when a fork server dies."""
        return _exists(self._process)

    def is_alive(self) -> bool:
        return _is_alive(self._process)

    def join(self, timeout: float) -> None:
        """Wait for the end of the process, and for its exit code from a fork server.

        multiprocessing waits for the worker's end of a pipe. A worker can close its end long before
        the worker ends, and processes that a worker has started can hold the end open long after.
        """
        deadline = monotonic() + timeout
        while self.is_alive() or (self._has_server and self._process.exitcode is None):
            if (rest := deadline - monotonic()) <= 0:
                return
            sleep(min(rest, 0.001))

    def explain_stack(self, file: int) -> str:
        """Return the last sentence of an error: the Python stack of the process's main thread.

        Args:
            file: the descriptor of the file to which the process writes its stack.
        """
        text, deadline = "", monotonic() + _STACK_S
        with contextlib.suppress(OSError):  # the process has ended, or the iterator is closed
            begin = os.fstat(file).st_size
            os.kill(self.pid, STACK_SIGNAL)
            before = None
            while monotonic() < deadline and (not text.count("\n  ") or text != before):
                sleep(_STACK_LOOK_S)
                before, text = text, os.pread(file, 1 << 16, begin).decode(errors="replace")
        frames = list(takewhile(lambda line: not line.endswith(_IN_LOOP), text.split("\n")[1:]))
        if frames:
            return "\n".join([" The worker's Python stack, most recent call first:", *frames])
        state = re.search(r"State:\s*(.+)", read_text(Path(f"/proc/{self.pid}/status")))
        return f" The worker gives no Python stack; its state is {state[1] if state else 'unknown'}"

    def explain_death(self, task: str, tells_memory: bool) -> str:
        """Return an error's text about this worker's death, with a remedy.

        Args:
            task: what the worker was to make, as the end of a sentence; may be empty.
            tells_memory: describe the memory for any cause; else for SIGKILL only.
        """
        self.join(_CODE_S)
        code, remedy = self.exitcode, f"{describe_memory()}. " if tells_memory else ""
        if code is None:
            end = "exited unexpectedly; something else in this program has taken its exit code"
        elif code >= 0:
            end = f"exited unexpectedly with exit code {code}"
        else:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"{-code}"
            end = f"is killed by signal: {name} ({signal.strsignal(-code)})"
        if code == -signal.SIGKILL:
            remedy = f"{explain_kill()}. "
        elif code in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT):
            remedy = "Run with num_workers=0 under python -X faulthandler to see where. " + remedy
        return f"DataLoader worker (pid {self.pid}) {end}{task}. {remedy}".rstrip()


# ---- the end


def living(workers: Iterable[Any]) -> list[Any]:
    return [worker for worker in workers if _is_alive(worker)]


def _join(workers: Iterable[Any], seconds: float, is_patient: bool = False) -> None:
    """Wait for all workers to end. After Ctrl-C stop waiting, unless `is_patient`."""
    deadline = monotonic() + seconds
    for worker in living(workers):
        while _is_alive(worker) and (rest := deadline - monotonic()) > 0:
            if is_interrupted() and not is_patient:
                return
            worker.join(min(rest, _JOIN_S))


def end_workers(workers: Sequence[Any], polite_s: float) -> None:
    """End all workers within a few seconds, whatever they are doing. A process that the kernel does
    not let go of is left alone, with a warning."""
    try:
        _join(workers, polite_s)
        for worker in living(workers):
            worker.terminate()
        _join(workers, FIRM_S)
    finally:
        for worker in living(workers):
            worker.kill()
        _join(workers, LAST_S, is_patient=True)  # they end at once and must not become zombies
        if stuck := [worker.pid for worker in living(workers)]:
            _disown_workers(stuck)
            text = f"worker processes {stuck} have not ended {LAST_S} s after SIGKILL, so the "
            text += "kernel holds them, for example for a disk or network; they are left alone"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


@functools.cache
def _expect_exit(pid: int) -> None:
    """Call ``_end_at_exit`` at the end of this process. A process inherits no such calls."""
    util.Finalize(None, _end_at_exit, exitpriority=0)


def _end_at_exit() -> None:
    """End workers before multiprocessing does, because it would wait without end for a worker that
    SIGTERM does not end."""
    end_workers([process for process in list(_workers) if process in processes._children], 0)  # type: ignore[attr-defined]


# ---- the dataset of a worker

# A forked worker inherits its dataset. A spawned worker receives a pickle in shared memory. Large
# arrays and tensors are not in the pickle: they are written to the memory once, and each worker
# maps them privately and writable, as a forked worker has them. torch would move the tensors to
# shared memory, although code may hold their old addresses. If tensors are in shared memory
# already, torch shares them.


class SharedFile:
    """A file in memory for the data that spawned workers share. The file is closed when all workers
    have started; if dead workers are replaced, when all workers have ended."""

    def __init__(self) -> None:
        self._fd = -1
        self._end = 0
        self._ranges: dict[tuple[Any, ...], FileRange] = {}
        self._alive: list[Any] = []  # keeps the addresses and storages from being used again

    def fd(self) -> int:
        if self._fd < 0:
            self._fd = os.memfd_create("fastloop", os.MFD_CLOEXEC)
        return self._fd

    def write(self, data: Any, over: FileRange | None = None) -> FileRange:
        """Write `data` over `over`, a range that nobody reads any more, if the data fit there; else
        at the end. Return the range of the data: offset, bytes."""
        view = memoryview(data).cast("B")
        if over is not None and len(view) <= over[1] + -over[1] % _PAGE:
            offset = over[0]
        else:
            offset = self._end
            self._end += len(view) + -len(view) % _PAGE
        done = 0
        while done < len(view):
            done += os.pwrite(self.fd(), view[done:], offset + done)
        return offset, len(view)

    def write_once(self, buffer: Any, storage: torch.UntypedStorage | None) -> FileRange:
        """Write an array or a storage, unless the file has it already. Return its range. The key of
        a storage is its identity, because its memory may move."""
        import numpy as np

        view = buffer.raw()
        address = np.frombuffer(view, np.uint8).ctypes.data if storage is None else None
        key = address, view.nbytes, storage and storage._cdata
        if key not in self._ranges:
            self._alive.append(buffer if storage is None else storage)
            self._ranges[key] = self.write(view)
        return self._ranges[key]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _open_storage(data: Any) -> torch.UntypedStorage:
    """Return a storage over memory that a worker has mapped; a copy if it is small."""
    whole = torch.frombuffer(data, dtype=torch.uint8)
    return (whole if whole.numel() >= _LARGE else whole.clone()).untyped_storage()


class _DatasetPickler(reduction.ForkingPickler):
    """Pickles as torch does, except that storages outside shared memory are sent as bytes."""

    def __init__(self, data: io.BytesIO, file: SharedFile) -> None:
        super().__init__(data, 5, True, self._put_beside)
        self._file = file
        self._storages: dict[int, torch.UntypedStorage] = {}  # by the id of their buffers
        self._buffers: list[pickle.PickleBuffer] = []  # keeps ids from being used again
        self.ranges: list[FileRange] = []

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.UntypedStorage or obj.device.type != "cpu":
            return NotImplemented
        if obj.nbytes() == 0 or obj.is_shared():
            return NotImplemented
        view = (ctypes.c_char * obj.nbytes()).from_address(obj.data_ptr())
        buffer = pickle.PickleBuffer(view)
        self._storages[id(buffer)] = obj
        self._buffers.append(buffer)
        return _open_storage, (buffer,)

    def _put_beside(self, buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < _LARGE:
            return True
        self.ranges.append(self._file.write_once(buffer, self._storages.get(id(buffer))))
        return False


def _map_privately(fd: int, offset: int, size: int) -> memoryview:
    if size == 0:
        return memoryview(b"")
    prot = mmap.PROT_READ | mmap.PROT_WRITE
    return memoryview(mmap.mmap(fd, size, mmap.MAP_PRIVATE, prot, offset=offset))


class DatasetTransfer:
    """The arguments of a worker. They are sent with the worker's process object. If the worker
    dies, they are sent again with the process object of its successor.

    Attributes:
        contents: torch's arguments; ``ParentEnd.address()`` of the shared memory: descriptor,
            bytes, offset, workers, depth, mapped at; and the descriptor of the file for stacks, -1
            if nobody will ask for them.
    """

    def __init__(
        self, arguments: dict[str, Any], address: Any, file: SharedFile, stacks: int
    ) -> None:
        self.contents = arguments, address, stacks
        self._file = file
        self._pickled: FileRange | None = None  # the range of the last pickle

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, (fd, *rest, _), stacks = self.contents
        data = io.BytesIO()
        pickler = _DatasetPickler(data, self._file)
        pickler.dump(arguments)
        self._pickled = pickled = self._file.write(data.getbuffer(), self._pickled)
        descriptors = [reduction.DupFd(each) for each in (fd, self._file.fd(), stacks) if each >= 0]
        return _receive, (descriptors, rest, [pickled, *pickler.ranges])


def _receive(descriptors: list[Any], rest: Any, ranges: list[FileRange]) -> DatasetTransfer:
    """Load a transfer in the process that received it."""
    channel_fd, file_fd, *stacks = [each.detach() for each in descriptors]
    pickled, *buffers = (_map_privately(file_fd, *each) for each in ranges)
    arguments = pickle.loads(pickled, buffers=buffers)
    os.close(file_fd)
    for each in (channel_fd, *stacks):
        os.set_inheritable(each, False)  # a spawned process's descriptors are inheritable
    return DatasetTransfer(arguments, (channel_fd, *rest, 0), SharedFile(), [*stacks, -1][0])
