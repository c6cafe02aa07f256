"""Worker threads where the process ends, forks, or meets Ctrl-C; and nothing grows."""

from pathlib import Path

import pytest
from helpers import run_script

HEAD = """
import atexit, gc, os, signal, sys, threading, time
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
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


def test_exit_does_not_wait_for_a_thread_that_is_stuck(tmp_path: Path) -> None:
    text = """
sleeps = SleepAt(0, 600)
iterator = iter(loader_of(sleeps))
wait_until(lambda: bool(sleeps.is_there))
begin = time.monotonic()
atexit.register(lambda: print("late" if time.monotonic() - begin > 60 else "in time"))
"""
    assert run_script(tmp_path, HEAD + text).split() == ["in", "time"]


@pytest.mark.parametrize("persistent", [False, True])
def test_forks(persistent: bool, tmp_path: Path) -> None:
    """In a child the parent's threads are not there: the iterator says so, the loader starts new
    ones, and the parent goes on."""
    run_script(
        tmp_path,
        HEAD
        + """
loader = loader_of(persistent_workers=sys.argv[1] == "True")
iterator = iter(loader)
batches = [next(iterator)]

def child():
    assert "workers of this iterator belong to the parent" in error_text(lambda: next(iterator))
    assert check_batches(loader) == 16
    assert check_batches(loader) == 16
    loader.close()

for end in (os._exit, sys.exit):
    in_child(child, end)

batches += iterator
assert check_batches(batches) == 16
assert check_batches(loader) == 16
""",
        persistent,
    )


def test_a_worker_process_may_have_worker_threads(tmp_path: Path) -> None:
    """As where a dataset has a loader of its own."""
    run_script(
        tmp_path,
        HEAD
        + """
import torch.utils.data
inner = loader_of(n=8)
next(iter(inner))

class Outer(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return torch.cat(list(inner))

for path in ("process", "torch"):
    outer = DataLoader(Outer(), 2, num_workers=2, path=path)
    assert [batch[:, :, 0].tolist() for batch in outer] == [[list(range(8))] * 2] * 3
""",
    )


def test_ctrl_c(tmp_path: Path) -> None:
    """KeyboardInterrupt at once while threads load; then the iterator goes on."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
for kwargs in ({}, {"timeout": 50}, {"persistent_workers": True}):
    is_due, is_reached = threading.Event(), threading.Event()
    loader = loader_of(CallAt(20, lambda: (is_reached.set(), is_due.wait(300))), **kwargs)
    iterator = iter(loader)
    when = lambda: is_reached.is_set() and is_thread_in("_get_data")
    sender = Interrupt(0.05, when=when, on_other_thread=bool(kwargs))
    batches = []
    try:
        for batch in iterator:
            batches.append(batch)
        raise AssertionError("no KeyboardInterrupt")
    except KeyboardInterrupt:
        late = time.monotonic() - sender.sent
    assert not is_due.is_set() and late < 60, late
    is_due.set()
    print(f"{late * 1e3:.0f} ms")
    batches += iterator
    assert check_batches(batches) == 16
    assert check_batches(loader) == 16
""",
        )
    )


def test_ctrl_c_at_any_moment(tmp_path: Path) -> None:
    """From the first line of iter() to the last of the shutdown: no thread is left."""
    run_script(
        tmp_path,
        HEAD
        + """
import random
random.seed(3)
for persistent in (False, True):
    loader = loader_of(n=32, persistent_workers=persistent, num_workers=4)
    begin = time.monotonic()
    assert check_batches(loader) == 8
    epoch = time.monotonic() - begin
    for round in range(20):
        try:
            sender = Interrupt(random.random() * 2 * epoch)
            while True:
                for batch in loader:
                    pass
        except KeyboardInterrupt:
            pass
        sender.thread.join()
        for _ in range(2):
            assert check_batches(loader) == 8
    loader.close()
    del loader
    gc.collect()
    wait_until(lambda: threading.active_count() == 1)
""",
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_nothing_grows(persistent: bool, tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
persistent = sys.argv[1] == "True"

def fails(i):
    if i == 21:
        raise ValueError(i)

def whole(loader):
    for batch in loader:
        pass

def left(loader):
    for batch in loader:
        break

def failing(loader):
    error_text(lambda: whole(loader), ValueError)

def kept(loader):
    batches = list(loader)
    del batches[::2]

def closed(loader):
    with loader:
        next(iter(loader))

def measure():
    gc.collect()
    text = open("/proc/self/status").read()
    return int(text.split("VmRSS:")[1].split()[0]), *resources()

def cases():
    yield whole, loader_of(persistent_workers=persistent)
    yield left, loader_of(persistent_workers=persistent)
    yield failing, loader_of(fails, persistent_workers=persistent)
    yield kept, loader_of(persistent_workers=persistent)
    yield closed, loader_of(persistent_workers=persistent)

for case, loader in cases():
    def run(epochs):
        for _ in range(epochs):
            case(loader)
    run(40)
    before = measure()
    run(120)
    after = measure()
    assert after[1] == before[1] and after[3] == before[3], (case, before, after)
    assert after[0] - before[0] < 8_000, (case, before, after)
    wait_until(lambda: resources()[1] <= (3 if loader._iterator else 1))
    loader.close()
""",
        persistent,
    )
