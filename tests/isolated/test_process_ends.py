"""However a loop over workers ends, nothing is left of it: no process, descriptor, thread or
memory. That includes the end of the program, by whatever means."""

from pathlib import Path

import pytest
from helpers import run_program

HEAD = """
import gc, os, signal, subprocess, sys, threading, time
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from workers import *
from workers import Items, check_batches
"""


# How a loop may end, and what must be left of each.


def test_nothing_is_left_of_a_loop(tmp_path: Path) -> None:
    print(
        run_program(
            tmp_path,
            "process_ends/nothing_is_left_of_a_loop",
        )
    )


# The end of a program, its exit code, and what its stderr holds.
EXITS = {
    "open": ("iterators[0].count()", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "error": ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    "os._exit": ("os._exit(4)", 4, ""),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -2, "KeyboardInterrupt"),
    "busy": ("list(zip(range(1), busy))", 0, ""),
    "SIGKILL busy": ("next(busy); os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    "exec": ("os.execv('/bin/true', ['true'])", 0, ""),
}


@pytest.mark.slowest
def test_nothing_is_left_of_a_program(tmp_path: Path) -> None:
    inner = (
        HEAD
        + """
from time_limits import limit
has_begun = threading.Event()

def keep(iterator):
    for batch in iterator:
        has_begun.set()
        time.sleep(0.01)

iterators = [iter(DataLoader(Items(64, shape=(100_000,)), 4, num_workers=1)) for _ in range(2)]
persistent = DataLoader(Items(), 4, num_workers=1, persistent_workers=True)
batches = [next(iterator) for iterator in iterators], next(iter(persistent))
busy = iter(DataLoader(Items(64, CallAt(10, Sleep(600))), 4, num_workers=1))
stuck = threading.Thread(target=keep, args=[iterators.pop()], daemon=True)
stuck.start()
assert has_begun.wait(limit(60))
print(*children(), flush=True)
print(*mapped_arenas(), flush=True)
input()
exec(sys.argv[1])
"""
    )
    (tmp_path / "inner.py").write_text(inner)
    print(
        run_program(
            tmp_path,
            "process_ends/nothing_is_left_of_a_program",
            repr(EXITS),
        )
    )


def test_a_daemon_thread_that_waits_at_exit_is_told_of_no_death(tmp_path: Path) -> None:
    """At exit multiprocessing ends workers while such threads still run."""
    run_program(
        tmp_path,
        "process_ends/a_daemon_thread_that_waits_at_exit_is_told_of_no_death",
    )


@pytest.mark.slowest
def test_a_spawned_worker_outlives_nobody(tmp_path: Path) -> None:
    """Nor does one whose main process dies while it is being started."""
    (tmp_path / "inner.py").write_text(
        HEAD
        + """
def main():
    loader = DataLoader(Items(), 4, num_workers=1, multiprocessing_context=sys.argv[1])
    if sys.argv[2] == "starting":
        def die():
            wait_until(lambda: len(children()) > 1)
            print(*children(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=die).start()
    iterator = iter(loader)
    next(iterator)
    print(*children(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""
    )
    run_program(
        tmp_path,
        "process_ends/a_spawned_worker_outlives_nobody",
    )
