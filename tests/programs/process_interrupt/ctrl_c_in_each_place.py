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
