import gc
import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import (
    Gate,
    Interrupt,
    Items,
    SleepAt,
    check_batches,
    children,
    error_text,
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
assert error_text(lambda: list(loader), ValueError) == "stop"  # noqa: F821
del loader
gc.collect()
wait_until(lambda: not children(), 60)
assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16
