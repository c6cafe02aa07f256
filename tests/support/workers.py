"""What the scripts about worker processes share: a dataset with a hook, and what a process has:
children, descriptors, threads, memory of the ring."""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch
from time_limits import limit
from torch.utils.data import Dataset, IterableDataset

# Starts another script from a script.
PROGRAM = [sys.executable, "-S", str(Path(__file__).with_name("fork_server.py"))]


class Items(Dataset[torch.Tensor]):
    """Item i is `shape` times i; before that a worker calls `hook(i)`."""

    def __init__(
        self,
        n: int = 64,
        hook: Callable[[int], object] | None = None,
        shape: tuple[int, ...] = (256,),
    ) -> None:
        self.n, self.hook, self.shape = n, hook, shape

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.hook is not None:
            self.hook(i)
        return torch.full(self.shape, i, dtype=torch.int32)


class Stream(IterableDataset[torch.Tensor]):
    """Each worker gives 0 to n - 1; before item i it calls `hook(i)`."""

    def __init__(self, n: int = 64, hook: Callable[[int], object] | None = None) -> None:
        self.n, self.hook = n, hook

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.n):
            if self.hook is not None:
                self.hook(i)
            yield torch.full((256,), i, dtype=torch.int32)


class Sized(Dataset[torch.Tensor]):
    """Item i is that many zero bytes, but for its first, which is i % 251."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> torch.Tensor:
        item = torch.zeros(self.sizes[i], dtype=torch.uint8)
        item[:1] = i % 251
        return item


def check_batches(batches: Any, size: int = 4) -> int:
    """Batches of Items are whole and in order; how many there are."""
    count = 0
    for batch in batches:
        first = [count * size + k for k in range(len(batch))]
        assert batch[:, 0].tolist() == first, (count, batch[:, 0].tolist())
        assert bool((batch == batch[:, :1]).all()), count
        count += 1
    return count


class CallAt:
    """Calls `act` when item `i` is asked for, or a multiple if `every`."""

    def __init__(self, i: int, act: Callable[[], object], every: bool = False) -> None:
        self.i, self.act, self.every = i, act, every

    def __call__(self, i: int) -> None:
        if i == self.i or (self.every and i % self.i == 0):
            self.act()


class Kill:
    """Ends this process by a signal, or with an exit code."""

    def __init__(self, number: int, code: int = 3) -> None:
        self.number, self.code = number, code

    def __call__(self) -> None:
        if self.number == 0:
            os._exit(self.code)
        os.kill(os.getpid(), self.number)
        time.sleep(60)


class Gate:
    """Whoever calls it waits until it is open, in whatever process."""

    def __init__(self) -> None:
        self.is_open = torch.zeros(1).share_memory_()

    def open(self) -> None:
        self.is_open.fill_(1)

    def __call__(self, *_: object) -> None:
        wait_until(lambda: bool(self.is_open), 300)


class SleepAt:
    """Sleeps when item `i` is asked for, and says so before."""

    def __init__(self, i: int, seconds: float = 60) -> None:
        self.i, self.seconds, self.is_there = i, seconds, torch.zeros(1).share_memory_()

    def __call__(self, i: int) -> None:
        if i == self.i:
            self.is_there.fill_(1)
            time.sleep(self.seconds)

    def is_waited_for(self) -> bool:
        """Whether a worker sleeps while the main thread waits for a batch."""
        return bool(self.is_there) and is_thread_in("_get_data")


class Sleep:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, *_: object) -> None:
        time.sleep(self.seconds)


# ---- what a process has


def read(path: str | Path) -> str:
    """A file of /proc; "" when what it describes is gone."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def children(pid: int | None = None) -> list[int]:
    """Processes started by `pid`, zombies included."""
    tasks = Path(f"/proc/{pid or os.getpid()}/task").iterdir()
    return [int(child) for task in tasks for child in read(task / "children").split()]


def state(pid: int) -> str:
    """The letter of /proc, or "" when there is no such process."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except IndexError:
        return ""


def is_running(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


def wait_until(check: Callable[[], object], seconds: float = 60) -> float:
    """Return the seconds until `check()` holds: `seconds` of an idle machine at most."""
    begin = time.monotonic()
    while not check():
        assert time.monotonic() - begin < limit(seconds), "it never came to that"
        time.sleep(0.005)
    return time.monotonic() - begin


def wait_for_torchs_workers() -> None:
    """Return once this process has no children. torch's loader waits 5 s for the end of a worker,
    then sends it a signal, and leaves a zombie until multiprocessing looks."""
    wait_until(lambda: not active_children() and not children())


@contextmanager
def on_collection(act: Callable[[], object], after: int) -> Iterator[None]:
    """Python's collector runs when so many more objects have been made, and `act` as a finalizer
    would."""

    def run(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(run)
        act()

    before = gc.get_threshold()
    gc.collect()
    gc.callbacks.append(run)
    gc.set_threshold(gc.get_count()[0] + after)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        with suppress(ValueError):
            gc.callbacks.remove(run)


def arena_files() -> list[os.stat_result]:
    """The files in memory that this process has open for its batches."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            file = Path("/proc/self/fd", name)
            if "memfd:fastloop" in os.readlink(file):
                found.append(file.stat())
    return found


def arena_bytes() -> int:
    """Memory of all batches, under way, lent or waiting for reuse."""
    return sum(arena.st_blocks * 512 for arena in arena_files())


def mapped_arenas(pid: int | str = "self") -> set[int]:
    """The inodes of the files in memory that a process has mapped for batches."""
    lines = read(f"/proc/{pid}/maps").splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:fastloop" in line}


def are_mapped(arenas: set[int]) -> bool:
    """Whether any process has one of these mapped."""
    pids = filter(str.isdigit, os.listdir("/proc"))
    return any(arenas & mapped_arenas(pid) for pid in pids)


def threads() -> set[str]:
    """Threads of this process by number. One that was waited for may stay in /proc for a while
    after that; it is on its way out then, and does not count."""
    exiting = 0x4  # PF_EXITING
    found = set()
    for thread in os.listdir("/proc/self/task"):
        fields = read(f"/proc/self/task/{thread}/stat").rpartition(")")[2].split()
        if fields and not int(fields[6]) & exiting:
            found.add(thread)
    return found


def resources() -> tuple[int, int, int]:
    """Descriptors, threads and children of this process."""
    return len(os.listdir("/proc/self/fd")), len(threads()), len(children())


def error_text(call: Callable[[], object], kind: type[BaseException] = RuntimeError) -> str:
    """The text of the error that `call` raises, which must be of this very type."""
    try:
        call()
    except BaseException as error:
        assert type(error) is kind, repr(error)
        return str(error)
    raise AssertionError("no error")


def in_child(work: Callable[[], object], leave: Callable[[int], object] = os._exit) -> None:
    """Calls `work` in a fork of this process, which must end without an error, and soon."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)
    for _ in range(24_000):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGABRT)
    raise AssertionError("the child hangs")


MAIN = threading.main_thread().ident


def is_thread_in(function: str, thread: int | None = MAIN) -> bool:
    """Whether a thread is in a Python function of that name, or in what that calls. "__next__": it
    asks a loader's iterator for a batch."""
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def sleep_in_steps() -> None:
    """For 30 s in short sleeps: one long sleep would go on where another thread takes the signal,
    as happens when the main thread is about to take another."""
    for _ in range(3000):
        time.sleep(0.01)


class Interrupt:
    """Sends SIGINT `after` seconds after `when()` holds, so many `times`: to this process, to its
    whole `group`, or to a thread that is not the main one."""

    def __init__(
        self,
        after: float = 0.0,
        group: bool = False,
        times: int = 1,
        when: Callable[[], object] = lambda: True,
        on_other_thread: bool = False,
    ) -> None:
        self.sent = 0.0

        def send() -> None:
            while not when():
                time.sleep(0.005)
            for _ in range(times):
                if after:
                    time.sleep(after)
                self.sent = time.monotonic()
                if on_other_thread:
                    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
                elif group:
                    os.killpg(os.getpgrp(), signal.SIGINT)
                else:
                    os.kill(os.getpid(), signal.SIGINT)

        self.thread = threading.Thread(target=send, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Until the last has come, that is until KeyboardInterrupt but for earlier ones. What a
        finalizer has held back comes from a thread of its own."""
        self.thread.join()
        wait_until(lambda: threading.active_count() == 1)
        time.sleep(0.02)
