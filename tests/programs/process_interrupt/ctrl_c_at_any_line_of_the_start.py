import gc
import os
import signal
import sys
import threading
import time

import torch

torch.set_num_threads(1)
from workers import Items, check_batches, children, sleep_in_steps, state

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


FILES = (
    "processes.py",
    "threads.py",
    "common.py",
    "dataloader.py",
    "iterators.py",
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
