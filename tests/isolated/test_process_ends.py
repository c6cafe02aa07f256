"""However a loop over workers ends, nothing is left of it: no process, descriptor, thread or
memory. That includes the end of the program, by whatever means."""

from pathlib import Path

from helpers import run_script

HEAD = """
import gc, os, signal, subprocess, sys, threading, time
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from workers import *
from workers import Items, check_batches
"""


# How a loop may end, and what must be left of each.
WAYS = """
def loader_of(hook=None, **kwargs):
    return DataLoader(Items(64, hook, (100_000,)), 4, num_workers=2, **kwargs)

def whole():
    assert check_batches(loader_of()) == 16

def left():
    for batch in loader_of():
        break

def left_slow():
    for batch in loader_of(CallAt(14, Sleep(600))):
        break

def error_in_body():
    for batch in loader_of():
        raise KeyError("body")

def error_in_worker():
    list(loader_of(CallAt(20, lambda: 1 / 0)))

def dropped():
    iter(loader_of())

def dropped_later():
    made = torch.zeros(64).share_memory_()
    iterator = iter(loader_of(lambda i: made[i].fill_(1)))
    next(iterator)
    wait_until(lambda: made[8:].any())  # batches that nobody has asked for
    del iterator

def persistent():
    loader = loader_of(persistent_workers=True)
    next(iter(loader))
    check_batches(loader)

def closed():
    with loader_of(persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
    assert "closed" in error_text(lambda: next(iterator))
    assert not children()

def in_a_cycle():
    class Node: pass
    node = Node()
    node.me, node.iterator = node, iter(loader_of())
    node.batch = next(node.iterator)

def in_a_generator():
    def batches():
        yield from loader_of()
    generator = batches()
    next(generator)

def in_a_thread():
    thread = threading.Thread(target=left)
    thread.start()
    thread.join()

def died():
    list(loader_of(CallAt(20, Kill(signal.SIGKILL))))

whole()
gc.collect()
before, slowest = resources(), 0
for use in (whole, left, left_slow, error_in_body, error_in_worker, dropped, dropped_later,
            persistent, closed, in_a_cycle, in_a_generator, in_a_thread, died):
    for _ in range(1 if use is left_slow else 2):
        begin = time.monotonic()
        try:
            use()
        except (KeyError, ZeroDivisionError, RuntimeError):
            pass
        gc.collect()
        wait_until(lambda: resources() == before, 60)
        slowest = max(slowest, time.monotonic() - begin)
        assert not arena_files() and not mapped_arenas()
    print(f"{use.__name__}: {time.monotonic() - begin:.3f} s")
assert slowest < 60, slowest
"""


def test_nothing_is_left_of_a_loop(tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD + WAYS,
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


def test_nothing_is_left_of_a_program(tmp_path: Path) -> None:
    inner = (
        HEAD
        + """
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
assert has_begun.wait(60)
print(*children(), flush=True)
print(*mapped_arenas(), flush=True)
input()
exec(sys.argv[1])
"""
    )
    (tmp_path / "inner.py").write_text(inner)
    print(
        run_script(
            tmp_path,
            """
import subprocess, sys, time
from workers import PROGRAM, are_mapped, is_running, wait_until
exits = eval(sys.argv[1])
PIPE = subprocess.PIPE
inners = [subprocess.Popen([*PROGRAM, "inner.py", end], text=True,
                           stdin=PIPE, stdout=PIPE, stderr=PIPE) for end, _, _ in exits.values()]
for inner, (name, (_, expected, words)) in zip(inners, exits.items(), strict=True):
    pids = [int(pid) for pid in inner.stdout.readline().split()]
    assert len(pids) == 4, inner.stderr.read()
    arenas = {int(inode) for inode in inner.stdout.readline().split()}
    assert are_mapped(arenas)
    begin = time.monotonic()
    print(file=inner.stdin, flush=True)
    code = inner.wait(60)
    wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
    seconds = time.monotonic() - begin
    text = inner.stderr.read()
    assert code == expected, (name, code, text)
    assert words in text if words else not text, (name, text)
    assert "gnored" not in text, (name, text)
    assert seconds < 60 and not are_mapped(arenas), (name, seconds)
    print(f"{name}: {seconds:.2f} s")
""",
            repr(EXITS),
        )
    )


def test_a_daemon_thread_that_waits_at_exit_is_told_of_no_death(tmp_path: Path) -> None:
    """At exit multiprocessing ends workers while such threads still run."""
    run_script(
        tmp_path,
        """
import atexit, multiprocessing.util, threading
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from fastloop.loader.workers import processes as process_iter
from workers import *
from workers import Items, wait_until

looks = []

def look(iterator, look=process_iter.ProcessIter._look_for_dead):
    if not iterator._workers[0].is_alive():
        looks.append(1)
    return look(iterator)

def end():  # torch's flag is set after this, unless multiprocessing was imported before torch
    multiprocessing.util._exit_function()
    wait_until(lambda: len(looks) > 2 or not thread.is_alive())

process_iter.ProcessIter._look_for_dead = look
hook = SleepAt(0)
iterator = iter(DataLoader(Items(8, hook), 4, num_workers=1))
thread = threading.Thread(target=lambda: next(iterator), daemon=True)
thread.start()
wait_until(lambda: bool(hook.is_there))
atexit.register(end)
""",
        timeout=300,
    )


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
    run_script(
        tmp_path,
        """
import subprocess, sys
from workers import PROGRAM, children, is_running, wait_until
for method in ("spawn", "forkserver"):
    for moment in ("running", "starting"):
        inner = subprocess.Popen([*PROGRAM, "inner.py", method, moment],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        pids = [int(pid) for pid in inner.stdout.readline().split()]
        assert len(pids) >= 2 and inner.wait(60) == -9
        pids += [child for pid in pids for child in (children(pid) if is_running(pid) else [])]
        took = wait_until(lambda: not any(is_running(pid) for pid in pids), 60)
        print(f"{method} {moment}: {took:.2f} s")
""",
    )
