"""Workers that hang: errors show where, worker_timeout replaces them, and the end waits for nobody.

No test waits for a time limit of `worker_timeout`: `mark_hung` sets the clock of a worker that is
known to hang.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import run_script
from restart_trials import HEAD

from fastloop import DataLoader
from fastloop.loader.workers import processes
from fastloop.loader.workers.processes import ProcessIter

HANGS = (
    HEAD
    + """
import ctypes, multiprocessing, threading, warnings
from fastloop.loader.workers import lifecycle, processes

NEVER = 1e6
processes.POLITE_S = 0.01
lifecycle.FIRM_S = 0.1  # none of these workers is ended by SIGTERM


class Hang:
    # A hook that acts at sample 10, and says so before.
    def __init__(self, act):
        self.act, self.is_there = act, torch.zeros(1).share_memory_()

    def __call__(self, i):
        if i == 10:
            self.is_there.fill_(1)
            self.act()


def spin():
    while True:
        pass


def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(600)


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def keep(pid):
    # No signal ends the process any more.
    process, end = multiprocessing.process.BaseProcess, multiprocessing.process.BaseProcess.kill
    process.kill = lambda self: None if self.pid == pid else end(self)
    lifecycle.LAST_S = processes.LAST_S = 0.5


def let_go(worker):
    # Whoever reads what the program prints does not wait for the worker.
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def mark_hung(iterator, worker):
    process = iterator._workers[worker]
    while iterator._workers[worker] is process and not iterator._shutdown:
        iterator._seen[worker] = iterator._parent_end.progress(worker), 1e9
        time.sleep(0.001)


def mark_stopped(iterator):
    # Each stopped worker, for ever: in a thread.
    while not iterator._shutdown:
        for worker, process in enumerate(list(iterator._workers)):
            if state(process.pid) == "T":
                mark_hung(iterator, worker)
        time.sleep(0.001)


def watched(loader):
    lifecycle._STACK_S = 0.05  # a stopped process has none to give
    iterator = iter(loader)
    threading.Thread(target=mark_stopped, args=(iterator,), daemon=True).start()
    return iterator
"""
)


FAILS = (
    HANGS
    + """
def fail(act, **kwargs):
    hang = Hang(act)
    loader = DataLoader(Items(hook=hang), 4, num_workers=2, timeout=0.1, **kwargs)
    iterator, text = iter(loader), ""
    wait_until(lambda: hang.is_there)
    wanted = "state is T" if act is stop else f" in {act.__name__}\\n"
    while "batch 2 (indices [8, 9, 10, 11])." not in text or wanted not in text:
        try:
            next(iterator)
        except RuntimeError as error:  # on a busy machine other batches are late as well
            text = str(error)
    assert text.startswith("DataLoader timed out after 0.1 seconds: worker 0 (pid "), text
    return text
"""
)


def test_a_timeout_shows_worker_batch_indices_and_stack(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        FAILS
        + """
begin()
for act in (spin, hold_the_interpreter, wait_for_a_lock):
    text = fail(act, in_order=act is not spin)
    assert f"most recent call first:\\n  File \\"{__file__}\\", line" in text, text
    assert " in __getitem__\\n" in text, text
    assert "_worker_loop" not in text
text = fail(stop)
assert text.endswith("The worker gives no Python stack; its state is T (stopped)"), text
check_clean()
""",
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_otherwise_show_their_stack(tmp_path: Path, method: str) -> None:
    run_script(
        tmp_path,
        FAILS
        + """
if __name__ == "__main__":
    fail(spin, multiprocessing_context=sys.argv[1])
""",
        method,
    )


def test_a_timeout_shows_the_stack_of_a_thread(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HANGS
        + """
gate = threading.Event()
begin()
items = Items(hook=CallAt(10, gate.wait))
loader = DataLoader(items, 4, num_workers=2, timeout=0.1, path="thread")
iterator, got, text = iter(loader), [], ""
while "in wait\\n" not in text:
    try:
        got.append(next(iterator))
    except RuntimeError as error:
        text = str(error)
assert text.startswith("DataLoader timed out after 0.1 seconds: worker thread 0 has not"), text
assert "; it was to make batch 2 (indices [8, 9, 10, 11])." in text, text
assert "most recent call last:\\n  File" in text and "in __getitem__\\n" in text
assert "worker/threads.py" not in text
gate.set()
while True:
    try:
        got.extend(iterator)
        break
    except RuntimeError as error:
        assert "timed out" in str(error)
assert check_batches(got) == 16  # it goes on
del iterator, loader
check_clean()
""",
    )


def test_a_hung_worker_is_replaced(tmp_path: Path) -> None:
    """Its batches are dealt out again twice, and then there is an error."""
    run_script(
        tmp_path,
        HANGS
        + """
begin()
for times in (1, 2, 3):
    for in_order in (True, False):
        items = Items(hook=Once(10, stop, times))
        loader = restarting(items, worker_timeout=NEVER, in_order=in_order)
        got = []
        with deaths() as texts:
            if times < 3:
                got.extend(watched(loader))
            else:
                error = error_text(lambda: got.extend(watched(loader)))
        got.sort(key=lambda batch: int(batch[0, 0])) if not in_order else None
        if times < 3:
            assert check_batches(got) == 16
        else:
            assert not in_order or check_batches(got) == 2
            assert "three workers have hung or died while they loaded batch 2" in error, error
        assert len(texts) == min(times, 2) == loader.stats().restarts, texts
        for text in texts:
            assert "has not answered for 1000000" in text and "batch 2 (indices [8, 9" in text, text
            assert text.endswith("its state is T (stopped)"), text
        loader.close()
        del loader, got, items
check_clean()
""",
    )


def test_the_clock_finds_a_hung_worker_and_shows_its_stack(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        HANGS
        + """
begin()
loader = restarting(Items(hook=Once(10, spin)), worker_timeout=limit(0.5), persistent_workers=True)
for _ in range(2):
    with deaths() as texts:
        assert check_batches(loader) == 16
    assert _ or any(" in spin\\n" in text for text in texts), texts
loader.close()
del loader
check_clean()
""",
    )


def test_a_worker_that_hangs_before_its_first_batch(tmp_path: Path) -> None:
    """Or while it is idle between two epochs."""
    run_script(
        tmp_path,
        HANGS
        + """
begin()
for times in (2, 3):
    loader = restarting(Items(), worker_timeout=NEVER, worker_init_fn=OnceInit(1, stop, times))
    with deaths() as texts:
        if times == 2:
            assert check_batches(watched(loader)) == 16
        else:
            text = error_text(lambda: list(watched(loader)))
            assert "worker 1 has died 3 times in a row before it could begin a batch" in text, text
    assert len(texts) == 2, texts
    loader.close()
loader = restarting(Items(), worker_timeout=NEVER, persistent_workers=True)
iterator = watched(loader)
assert check_batches(iterator) == 16
kill(pids(iterator)[1], signal.SIGSTOP)
with deaths() as texts:
    assert check_batches(loader) == 16
assert len(texts) == 1, texts
loader.close()
del loader, iterator
check_clean()
""",
    )


def test_interrupts_and_close_while_a_worker_is_ended(tmp_path: Path) -> None:
    """While it is asked for its stack, and after SIGKILL; by Ctrl-C, from a handler, a thread."""
    run_script(
        tmp_path,
        HANGS
        + """
begin()
signal.signal(signal.SIGUSR1, lambda *_: loader.close())
for moment in ("explain_stack", "kill"):
    for how in ("Ctrl-C", "handler", "thread"):
        items = Items(hook=Once(10, stop))
        loader = restarting(items, worker_timeout=NEVER, persistent_workers=True)
        iterator, threads = watched(loader), []

        def act():
            if how == "thread":
                threads.append(threading.Thread(target=loader.close))
                threads[0].start()
                wait_until(lambda: iterator._is_closed)
            else:
                os.kill(os.getpid(), signal.SIGINT if how == "Ctrl-C" else signal.SIGUSR1)

        real = lifecycle.WorkerProcess.__dict__.get(moment)

        def once(self, *args):
            if real is None:
                del lifecycle.WorkerProcess.kill
            else:
                setattr(lifecycle.WorkerProcess, moment, real)
            if moment == "kill":
                self.kill()
            act()
            return getattr(self, moment)(*args)

        setattr(lifecycle.WorkerProcess, moment, once)
        got = []
        with deaths() as texts:
            kind = KeyboardInterrupt if how == "Ctrl-C" else RuntimeError
            text = error_text(lambda: got.extend(iterator), kind)
            if how == "Ctrl-C":
                got.extend(iterator)
        count = check_batches(got)
        assert count == 16 if how == "Ctrl-C" else count <= 2, (moment, how, count)
        assert how == "Ctrl-C" or "was closed" in text, text
        for thread in threads:
            thread.join()
        loader.close()
        wait_until(lambda: not children())
        del loader, iterator, got, items, threads
check_clean()
""",
    )


def test_a_worker_that_no_signal_ends_is_left_alone(tmp_path: Path) -> None:
    """As a process that the kernel holds: the shutdown is over, with one warning, the program ends,
    and the loader works. `kill` does nothing here, and the worker is stopped."""
    out = run_script(
        tmp_path,
        HANGS
        + """
gate = SleepAt(10, 600)
loader = DataLoader(Items(hook=gate), 4, num_workers=2, worker_init_fn=let_go)
iterator = iter(loader)
wait_until(lambda: gate.is_there)
stuck = pids(iterator)[0]
kill(stuck, signal.SIGSTOP)
keep(stuck)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    loader.close()
assert len(caught) == 1 and f"worker processes [{stuck}] have not ended" in str(caught[0].message)
del iterator
gc.collect()
gate.i = -1
assert check_batches(loader) == 16
assert state(stuck) == "T"
print(stuck)
""",
    )
    kill_for_good(int(out))


def test_a_hung_worker_that_cannot_be_ended_is_not_replaced(tmp_path: Path) -> None:
    """Its memory stays out of use: it writes when it wakes up."""
    out = run_script(
        tmp_path,
        HANGS
        + """
loader = restarting(Items(hook=Once(10, stop)), worker_timeout=NEVER, worker_init_fn=let_go)
iterator, got = watched(loader), []
stuck = pids(iterator)[0]
keep(stuck)
text = error_text(lambda: got.extend(iterator))
assert "It is not replaced: its process may not have ended: SIGKILL does not end it" in text, text
again = list(loader)
kill(stuck, signal.SIGCONT)
wait_until(lambda: iterator._parent_end.has_replies(0))  # it has written its batch
assert check_batches(got) == 2 and check_batches(again) == 16
loader.close()
print(stuck)
""",
    )
    kill_for_good(int(out))


def kill_for_good(pid: int) -> None:
    with suppress(ProcessLookupError):  # its parent may have ended
        os.kill(pid, signal.SIGKILL)


def test_a_program_ends_although_a_worker_does_not(tmp_path: Path) -> None:
    """SIGTERM does not end a stopped process, and multiprocessing would wait for it without end."""
    run_script(
        tmp_path,
        HANGS
        + """
iterator = iter(DataLoader(Items(), 4, num_workers=2))
next(iterator)
kill(pids(iterator)[0], signal.SIGSTOP)
""",
    )


@pytest.mark.slow
def test_kills_and_stops_at_random(tmp_path: Path) -> None:
    """What comes is the beginning of torch's order, all of it if there is no error, and nothing is
    left behind."""
    run_script(
        tmp_path,
        HANGS
        + """
from torch.utils.data import DataLoader as TorchLoader

draw = random.Random(int(sys.argv[1]))
wanted = [batch.clone() for batch in TorchLoader(Items(96, shape=(512,)), 3)]
begin()
complete = acts = 0
for trial in range(8):
    in_order, workers = draw.random() < 0.7, draw.randint(1, 3)
    loader = restarting(
        Items(96, Sleep(0.001), shape=(512,)), 3, worker_timeout=NEVER, num_workers=workers,
        in_order=in_order, persistent_workers=draw.random() < 0.5)
    iterator, got = watched(loader), []

    def disturb():
        for _ in range(draw.randint(1, 4)):
            time.sleep(draw.uniform(0, 0.2))
            if not iterator._shutdown:
                try:
                    pid = draw.choice([pid for pid in pids(iterator) if pid])
                    kill(pid, draw.choice([signal.SIGKILL, signal.SIGSTOP]))
                except (ProcessLookupError, IndexError):
                    pass

    thread = threading.Thread(target=disturb)
    thread.start()
    error = ""
    with deaths() as texts:
        try:
            got.extend(iterator)
        except RuntimeError as caught:
            error = str(caught)
            assert "workers have" in error or "in a row" in error, error
    thread.join()
    acts += len(texts)
    if not in_order:
        got.sort(key=lambda batch: int(batch[0, 0]))
        places = [int(batch[0, 0]) // 3 for batch in got]
        assert len(set(places)) == len(places)
    else:
        places = list(range(len(got)))
    assert all(torch.equal(batch, wanted[i]) for batch, i in zip(got, places, strict=True))
    assert error or len(got) == 32, (len(got), in_order)
    complete += not error
    loader.close()
    wait_until(lambda: not children())
    del loader, iterator, got
assert complete >= 4 and acts >= 4, (complete, acts)
check_clean()
assert not arena_files()
""",
        5,
    )


def test_time_outside_next_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """And neither does a worker without a request, or one that makes progress."""
    now = 0.0
    asked: list[tuple[int, int] | None] = [(1, 3), None, (0, 0)]
    monkeypatch.setattr(processes, "monotonic", lambda: now)
    end = SimpleNamespace(progress=lambda worker: asked[worker])
    it: ProcessIter = ProcessIter.__new__(ProcessIter)
    it.__dict__.update(_hang_s=5, _num_workers=3, _seen={}, _last_look=0.0, _parent_end=end)

    def hung() -> list[int]:
        return [worker for worker in range(3) if it._is_hung(worker)]

    it._note_progress()
    now += 1000  # the loop was elsewhere, or the program stopped
    it._note_progress()
    assert not hung() and it._seen[0][1] == 1.0
    for _ in range(100):
        now += 0.05
        it._note_progress()
    assert hung() == [0]  # worker 2 may still be starting
    asked[0] = (2, 4)
    for _ in range(66):
        now += 1
        it._note_progress()
        asked[0] = (3, 4) if asked[0] == (2, 4) else (2, 4)
    assert hung() == [2]


@pytest.mark.parametrize("value", [-1, float("nan"), "5", None])
def test_values_are_checked(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="worker_timeout must be a number"):
        DataLoader(range(4), worker_timeout=value, on_worker_death="restart")  # type: ignore[arg-type, var-annotated]


def test_it_needs_workers_that_are_replaced() -> None:
    with pytest.raises(ValueError, match=r"worker_timeout must be 0 without on_worker_death='res"):
        DataLoader(range(4), worker_timeout=5)  # type: ignore[arg-type, var-annotated]
    loader = DataLoader(range(4), worker_timeout=5, on_worker_death="restart")  # type: ignore[arg-type, var-annotated]
    assert loader._own_arguments() == {"worker_timeout": 5, "on_worker_death": "restart"}
    loader.on_worker_death = "raise"
    with pytest.raises(ValueError, match="worker_timeout must be 0"):
        iter(loader)
