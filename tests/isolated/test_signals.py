"""Ctrl-C while a batch is awaited. The bar is 200 ms; the tests allow two seconds of the processor,
where the batch itself would take many."""

from pathlib import Path

from helpers import run_script

HEAD = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
from fastloop import ArrayDataset, DataLoader
from helpers import outcome, slow_array
from workers import is_thread_in, wait_until

array = slow_array(Path.cwd(), 8)


def loader_of(workers, rows):
    slow = [i % 8 for i in range(rows)]  # 25 ms a row
    return DataLoader(ArrayDataset(array), batch_sampler=[[3], slow, [4], [5]],
                      num_workers=workers, prefetch_factor=2 if workers else None, path="array")


def interrupt():
    # Once the main thread has been in next() for a while.
    def send():
        wait_until(lambda: is_thread_in("__next__"))
        time.sleep(0.05)
        global sent
        sent = time.process_time()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
"""


def test_ctrl_c_ends_a_wait_and_the_loader_goes_on(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1, 2):
    loader = loader_of(workers, 400)
    for _ in range(2):
        got = []
        try:
            for (batch,) in loader:
                got.append(int(batch[0, 0]))
                interrupt()
        except KeyboardInterrupt:
            assert time.process_time() - sent < 2
        else:
            raise AssertionError("no KeyboardInterrupt")
        assert got == [3]
    del loader.batch_sampler[1]
    assert [int(batch[0, 7]) for (batch,) in loader] == [3, 4, 5]
    assert loader.stats().slots_lent <= 1
""",
    )


def test_the_iterator_goes_on_after_ctrl_c(tmp_path: Path) -> None:
    """Without workers the batch that was being made is gone, as in torch; what threads have made
    ahead is kept."""
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1):
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    interrupt()
    try:
        next(iterator)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("no KeyboardInterrupt")
    rest = [batch[:, 0].tolist() for (batch,) in iterator]
    assert rest == [list(range(8)) * 10, [4], [5]][1 - workers :], rest
""",
    )


def test_a_handler_that_returns_lets_the_wait_go_on(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1):
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(outcome(lambda: next(iterator))))
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    interrupt()
    (batch,) = next(iterator)
    assert batch[:, 9].tolist() == list(range(8)) * 10
    assert len(seen) == 1 and seen[0][1] is RuntimeError, seen
    assert "already in use" in seen[0][2], seen
    assert [int(batch[0, 7]) for (batch,) in iterator] == [4, 5]
""",
    )


def test_ctrl_c_while_another_thread_is_in_next(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
for workers in (0, 1):
    iterator = iter(loader_of(workers, 80))
    next(iterator)
    got = []
    thread = threading.Thread(target=lambda: got.append(next(iterator)))
    thread.start()
    wait_until(lambda: is_thread_in("__next__", thread.ident))
    interrupt()
    try:
        next(iterator)
    except KeyboardInterrupt:
        assert time.process_time() - sent < 2
    else:
        raise AssertionError("no KeyboardInterrupt")
    thread.join()
    assert got[0][0].shape == (80, 1 << 20)
    assert [int(batch[0, 7]) for (batch,) in iterator] == [4, 5]
    del got, thread
""",
    )


def test_our_threads_take_no_signals(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HEAD
        + """
tasks = set(os.listdir("/proc/self/task"))
iterator = iter(loader_of(2, 40))
ours = set(os.listdir("/proc/self/task")) - tasks
assert len(ours) == 2, ours
for task in ours:
    status = Path(f"/proc/self/task/{task}/status").read_text()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM):
        assert blocked >> (number - 1) & 1, (number, hex(blocked))
""",
    )
