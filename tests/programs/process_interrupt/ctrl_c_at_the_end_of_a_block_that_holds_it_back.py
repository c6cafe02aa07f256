import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import children, error_text, state

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
