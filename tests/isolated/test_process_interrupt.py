"""Ctrl-C while workers load: KeyboardInterrupt at once, nothing on stderr, no process left, and the
next iteration works. Signals go to this process alone, as from a debugger, or to its whole group,
as from a terminal."""

from pathlib import Path

import pytest
from helpers import run_script

HEAD = """
import gc, os, random, signal, sys, threading, time, traceback
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from workers import *
from workers import Items, check_batches

os.setpgrp()


def zombies():
    return [pid for pid in children() if state(pid) == "Z"]


def interrupted(work, sender):
    # Seconds from the signal to the end of `work`.
    try:
        work()
        sender.wait()
    except KeyboardInterrupt:
        return time.monotonic() - sender.sent
    raise AssertionError("no KeyboardInterrupt")


class InterruptAt:
    # For sys.settrace(): Ctrl-C at a line of these files (None: of all), counted from 1, or after
    # it, as soon as a function is none of the `spared`.
    def __init__(self, line, files=None, spared=()):
        self.left, self.files, self.spared, self.is_sent = line, files, spared, False

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if self.files is not None and os.path.basename(code.co_filename) not in self.files:
            return None
        self.left -= 1
        if self.left > 0 or code.co_name in self.spared:
            return self
        sys.settrace(None)
        self.is_sent = True
        os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("to", ["process", "group", "another thread"])
def test_ctrl_c_in_each_place(to: str, tmp_path: Path) -> None:
    print(
        run_script(
            tmp_path,
            HEAD
            + """
to = sys.argv[1]
quick = DataLoader(Items(), 4, num_workers=2)

def wait():
    for batch in DataLoader(Items(64, sleep), 4, num_workers=2):
        pass

def body():
    for batch in quick:
        sleep_in_steps()

def idle():
    iterator = iter(quick)
    next(iterator)
    sleep_in_steps()

for name, work in (("in next()", wait), ("in the body", body), ("elsewhere", idle)):
    sleep = SleepAt(20, 600)
    when = sleep.is_waited_for if work is wait else lambda: is_thread_in("sleep_in_steps")
    late = interrupted(work, Interrupt(0.05, to == "group", 1, when, to == "another thread"))
    gc.collect()
    took = wait_until(lambda: not children(), 60)
    assert late < 60, late
    print(f"{name}: {late * 1e3:.0f} ms, all gone after {took * 1e3:.0f} ms")
    assert check_batches(quick) == 16
    assert not children()
""",
            to,
        )
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_ctrl_c_at_any_moment_and_twice(persistent: bool, tmp_path: Path) -> None:
    """From the first line of iter() to the last of the shutdown; a second one while the first is
    dealt with."""
    print(
        run_script(
            tmp_path,
            HEAD
            + """
persistent = sys.argv[1] == "True"
random.seed(int(persistent))
loader = DataLoader(Items(32, shape=(1000,)), 4, num_workers=2, persistent_workers=persistent)
begin = time.monotonic()
assert check_batches(loader) == 8
epoch = time.monotonic() - begin
late = []
for round in range(12):
    again = True

    def sleeper():
        while True:
            for batch in loader:
                pass

    try:
        sender = Interrupt(0.005 + random.random() * 2 * epoch, round % 2 == 1)
        late.append(interrupted(sleeper, sender))
        if round % 4 > 1:
            sender = Interrupt(random.random() * 0.005, round % 2 == 1)
            gc.collect()
            sender.wait()
    except KeyboardInterrupt:
        pass
    for _ in range(2):
        assert check_batches(loader) == 8
del loader
gc.collect()
wait_until(lambda: not children(), 60)
assert max(late) < 60, late
print(f"the latest after {max(late) * 1e3:.0f} ms")
""",
            persistent,
        )
    )


def test_a_notebook(tmp_path: Path) -> None:
    """Each cell is compiled and run by a loop that prints tracebacks and keeps the last."""
    out = run_script(
        tmp_path,
        HEAD
        + """
import code
class Notebook(code.InteractiveConsole):
    def write(self, data):
        print(data, end="")

notebook = Notebook(globals())
def cell(text):
    notebook.runcode(compile(text, "cell", "exec"))

good = DataLoader(Items(), 4, num_workers=2)
for round in range(3):
    for text in ("for batch in loader: pass", "for batch in good: sleep_in_steps()",
                 "iterator = iter(loader)\\nfor batch in iterator: pass"):
        sleep = SleepAt(20)
        loader = DataLoader(Items(64, sleep), 4, num_workers=2)
        in_body = lambda: is_thread_in("sleep_in_steps")
        sender = Interrupt(0.2 * round, True, times=2,
                           when=lambda: in_body() or sleep.is_waited_for())
        try:
            cell(text)
            sender.wait()
        except KeyboardInterrupt:
            pass  # the second one, at the prompt
        wait_until(lambda: not zombies(), 60)
        cell("print(check_batches(good))")
        assert not zombies()
del iterator
sys.last_traceback = sys.last_value = None
gc.collect()
wait_until(lambda: not children(), 60)
""",
    )
    assert "ignored" not in out
    assert [line for line in out.splitlines() if line.isdigit()] == ["16"] * 9


def test_an_interrupted_iter_leaves_no_workers(tmp_path: Path) -> None:
    """Though the traceback, which holds the iterator, is kept; nor does an error of the sampler."""
    run_script(
        tmp_path,
        HEAD
        + """
class Stops:
    def __init__(self, at, act):
        self.at, self.act = at, act
    def __iter__(self):
        for i in range(64):
            if i == self.at:
                self.act()
            yield i
    def __len__(self):
        return 64

def in_group():
    os.killpg(os.getpgrp(), signal.SIGINT)

def alone():
    os.kill(os.getpid(), signal.SIGINT)

def error():
    raise KeyError("mine")

kept = []
for persistent in (False, True):
    for at in (0, 5):
        for act in (in_group, alone, error):
            loader = DataLoader(Items(), 4, sampler=Stops(at, act), num_workers=2,
                                persistent_workers=persistent)
            try:
                iter(loader)
            except (KeyboardInterrupt, KeyError) as stop:
                kept.append(stop)
            assert not children(), (persistent, at, act)
assert len(kept) == 12
""",
    )


def test_persistent_workers_killed_by_ctrl_c_are_rebuilt_at_once(tmp_path: Path) -> None:
    """Not even a moment passes between the interrupt and the next iter()."""
    run_script(
        tmp_path,
        HEAD
        + """
loader = DataLoader(Items(), 4, num_workers=2, persistent_workers=True)
for round in range(4):
    assert check_batches(loader) == 16
    workers = children()
    got = 0
    try:
        for batch in loader:
            got += 1
            if round % 2 and got == 3:
                os.killpg(os.getpgrp(), signal.SIGINT)
        os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        assert check_batches(loader) == 16
    assert not set(workers) & set(children())
del loader, batch
wait_until(lambda: not children(), 60)
""",
    )


def test_a_handler_of_the_programs_own(tmp_path: Path) -> None:
    """One that returns lets the wait go on; the workers it was forked into go on, too."""
    run_script(
        tmp_path,
        HEAD
        + """
seen, program = [], os.getpid()

def go_on(*_):
    seen.append(os.getpid())
    if os.getpid() == program:
        gate.open()
signal.signal(signal.SIGINT, go_on)
for group in (False, True):
    for workers in (1, 2):
        sleep, gate = SleepAt(20, 0), Gate()
        hook = lambda i, gate=gate: i == 20 and (sleep(i), gate())
        loader = DataLoader(Items(40, hook), 4, num_workers=workers)
        sender = Interrupt(0.1, group, when=sleep.is_waited_for)
        assert check_batches(loader) == 10
        sender.wait()
assert seen == [os.getpid()] * 4
assert not children()

def stop(*_):
    raise ValueError("stop")
signal.signal(signal.SIGINT, stop)
sleep = SleepAt(20)
Interrupt(when=sleep.is_waited_for)
loader = DataLoader(Items(64, sleep), 4, num_workers=2)
assert error_text(lambda: list(loader), ValueError) == "stop"
del loader
gc.collect()
wait_until(lambda: not children(), 60)
assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16
""",
    )


def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    """No worker is forgotten, whether or not the iterator had listed it."""
    run_script(
        tmp_path,
        HEAD
        + """
import multiprocessing

def main():
    for method, longest, rounds in (("fork", 0.02, 20), ("spawn", 1.0, 2), ("forkserver", 1.0, 2)):
        loader = DataLoader(Items(), 4, num_workers=3 if method == "fork" else 2,
                            multiprocessing_context=method)
        for round in range(rounds):
            try:
                sender = Interrupt(longest * round / rounds)
                iterator = iter(loader)
                del iterator
                sender.wait()
            except KeyboardInterrupt:
                pass
            gc.collect()
            wait_until(lambda: len(children()) <= 2 * (method != "fork"), 60)
    # A fork server that was started here must not block SIGINT in what it makes for others.
    queue = multiprocessing.get_context("forkserver").SimpleQueue()
    process = multiprocessing.get_context("forkserver").Process(target=tell, args=(queue,))
    process.start()
    assert queue.get() == set()
    process.join()

def tell(queue):
    queue.put(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

if __name__ == "__main__":
    main()
""",
    )


@pytest.mark.parametrize("path", ["process", "thread"])
def test_ctrl_c_at_any_line_of_the_start(path: str, tmp_path: Path) -> None:
    """It is Ctrl-C that is raised, nothing is left, and the next iterator can be made."""
    run_script(
        tmp_path,
        HEAD
        + """
FILES = (
    "processes.py", "threads.py", "common.py", "dataloader.py", "iterators.py",
)

def interrupt_at(line):
    sender = InterruptAt(line, FILES)
    path = sys.argv[1]
    loader = DataLoader(Items(8), 4, num_workers=1, path=path if path == "thread" else "auto")
    try:
        sys.settrace(sender)
        iterator = iter(loader)
        sys.settrace(None)
        if sender.is_sent:
            sleep_in_steps()  # until it comes
        return False
    except KeyboardInterrupt:
        pass
    gc.collect()
    assert not children()
    assert not [t for t in threading.enumerate() if t is not threading.main_thread()]
    return True

line = 1
while interrupt_at(line):
    line += 1
assert line > 200, line
assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16
""",
        path,
    )


def test_ctrl_c_anywhere_in_the_finalizer(tmp_path: Path) -> None:
    """From before its first line on; where the yielded batches were counted is kept, too."""
    run_script(
        tmp_path,
        HEAD
        + """
# Not in a generator that is being closed, which cannot raise: fastloop's, or torch's BatchSampler.
CLOSING = ("opening", "remaining", "__iter__")

def interrupt_at(line):
    sender = InterruptAt(line, spared=CLOSING)
    loader = DataLoader(Items(), 4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    try:
        sys.settrace(sender)
        del iterator
        sys.settrace(None)
        if sender.is_sent:
            sleep_in_steps()  # until it comes
        return False
    except KeyboardInterrupt:
        pass
    gc.collect()
    assert not children()
    assert loader.state_dict()["yielded"] == 1
    return True

line = 1
while interrupt_at(line):
    line += 1 if line < 40 else 13
assert line > 300, line
""",
    )


def test_ctrl_c_at_the_end_of_a_block_that_holds_it_back(tmp_path: Path) -> None:
    """It may raise there, and the next block holds it back all the same."""
    run_script(
        tmp_path,
        HEAD
        + """
import types
from fastloop.base import interrupts

def set_and_send(number, handler):
    signal.signal(number, handler)
    if handler is signal.default_int_handler:
        os.kill(os.getpid(), number)

def hold(send):
    with interrupts.interrupts_held():
        assert not interrupts.is_interrupted()
        if send:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.is_interrupted()
        reached.append(send)

for send in (False, True):
    reached = []
    interrupts.signal = types.SimpleNamespace(**{**vars(signal), "signal": set_and_send})
    error_text(lambda: hold(send), KeyboardInterrupt)
    interrupts.signal = signal
    error_text(lambda: hold(True), KeyboardInterrupt)
    hold(False)
    assert reached == [send, True, False]
""",
    )
