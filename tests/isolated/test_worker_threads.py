"""Worker threads where the process ends, forks, or meets Ctrl-C; and nothing grows."""

from pathlib import Path

import pytest
from helpers import run_program, run_script

HEAD = """
import atexit, gc, os, signal, sys, threading, time
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from time_limits import limit
from workers import *
from workers import Items, Stream, check_batches


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})
"""
EXITS = {
    "open iterators": """
iterators = [iter(loader_of()), iter(loader_of(persistent_workers=True))]
batches = [next(iterator) for iterator in iterators]
stream = iter(DataLoader(Stream(), 4, num_workers=1, path="thread"))
next(stream)
""",
    "in code of the dataset": """
def work(i):
    a = torch.rand(200, 200)
    for _ in range(20):
        a = (a @ a).sin()
iterator = iter(loader_of(work, num_workers=8))
next(iterator)
""",
    "in a cycle": """
class Node:
    pass
gc.disable()
node = Node()
node.me, node.iterator = node, iter(loader_of())
next(node.iterator)
del node
""",
    "other threads that iterate": """
def work(iterator):
    for batch in iterator:
        time.sleep(0.01)
for is_daemon in (True, False):
    threading.Thread(target=work, args=[iter(loader_of())], daemon=is_daemon).start()
waiting = iter(loader_of(Sleep(60)))
threading.Thread(target=next, args=[waiting], daemon=True).start()
wait_until(lambda: any(is_thread_in("_get_data", t.ident) for t in threading.enumerate()))
""",
    "use at exit": """
class Last:
    def __init__(self, iterator):
        self.iterator = iterator
    def __del__(self):
        try:
            next(self.iterator)
        except RuntimeError:
            pass
iterator = iter(loader_of())
atexit.register(lambda: next(iterator))
atexit.register(lambda: check_batches(loader_of()))
kept = Last(iter(loader_of()))
""",
    "sys.exit in the loop": """
for batch in loader_of():
    sys.exit(3)
""",
    "an error in the loop": """
for batch in loader_of():
    raise KeyError("mine")
""",
}


@pytest.mark.slowest
@pytest.mark.parametrize("name", EXITS)
def test_exit_with(name: str, tmp_path: Path) -> None:
    returncode = {"sys.exit in the loop": 3, "an error in the loop": 1}.get(name, 0)
    run_script(
        tmp_path,
        HEAD + EXITS[name],
        returncode=returncode,
        stderr="KeyError: 'mine'" if returncode == 1 else "",
        is_fresh=name == "in code of the dataset",
    )


@pytest.mark.slowest
def test_exit_does_not_wait_for_a_thread_that_is_stuck(tmp_path: Path) -> None:
    text = """
sleeps = SleepAt(0, 600)
iterator = iter(loader_of(sleeps))
wait_until(lambda: bool(sleeps.is_there))
begin = time.monotonic()
atexit.register(lambda: print("late" if time.monotonic() - begin > limit(60) else "in time"))
"""
    assert run_script(tmp_path, HEAD + text).split() == ["in", "time"]


@pytest.mark.parametrize("persistent", [False, True])
def test_forks(persistent: bool, tmp_path: Path) -> None:
    """In a child the parent's threads are not there: the iterator says so, the loader starts new
    ones, and the parent goes on."""
    run_program(
        tmp_path,
        "worker_threads/forks",
        persistent,
    )


def test_a_worker_process_may_have_worker_threads(tmp_path: Path) -> None:
    """As where a dataset has a loader of its own."""
    run_program(
        tmp_path,
        "worker_threads/a_worker_process_may_have_worker_threads",
    )


def test_ctrl_c(tmp_path: Path) -> None:
    """KeyboardInterrupt at once while threads load; then the iterator goes on."""
    print(
        run_program(
            tmp_path,
            "worker_threads/ctrl_c",
        )
    )


def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """From the first line of iter() to the last of the shutdown: no thread is left."""
    run_program(
        tmp_path,
        "worker_threads/ctrl_c_at_any_moment",
    )


@pytest.mark.slowest
@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_grows(persistent: bool, tmp_path: Path) -> None:
    run_program(
        tmp_path,
        "worker_threads/nothing_grows",
        persistent,
    )
