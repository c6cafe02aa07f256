import gc
import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import (
    Interrupt,
    Items,
    SleepAt,
    check_batches,
    children,
    is_thread_in,
    sleep_in_steps,
    state,
    wait_until,
)

from fastloop import DataLoader

USED_BY_CELLS = check_batches, sleep_in_steps
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


import code


class Notebook(code.InteractiveConsole):
    def write(self, data):
        print(data, end="")


notebook = Notebook(globals())


def cell(text):
    notebook.runcode(compile(text, "cell", "exec"))


good = DataLoader(Items(), 4, num_workers=2)
for round in range(3):
    for text in (
        "for batch in loader: pass",
        "for batch in good: sleep_in_steps()",
        "iterator = iter(loader)\nfor batch in iterator: pass",
    ):
        sleep = SleepAt(20)
        loader = DataLoader(Items(64, sleep), 4, num_workers=2)
        in_body = lambda: is_thread_in("sleep_in_steps")
        sender = Interrupt(
            0.2 * round, True, times=2, when=lambda: in_body() or sleep.is_waited_for()
        )
        try:
            cell(text)
            sender.wait()
        except KeyboardInterrupt:
            pass  # the second one, at the prompt
        wait_until(lambda: not zombies(), 60)
        cell("print(check_batches(good))")
        assert not zombies()
del iterator  # noqa: F821
sys.last_traceback = sys.last_value = None
gc.collect()
wait_until(lambda: not children(), 60)
