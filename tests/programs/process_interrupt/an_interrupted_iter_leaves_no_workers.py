import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import Items, children, state

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
            loader = DataLoader(
                Items(), 4, sampler=Stops(at, act), num_workers=2, persistent_workers=persistent
            )
            try:
                iter(loader)
            except (KeyboardInterrupt, KeyError) as stop:
                kept.append(stop)
            assert not children(), (persistent, at, act)
assert len(kept) == 12
