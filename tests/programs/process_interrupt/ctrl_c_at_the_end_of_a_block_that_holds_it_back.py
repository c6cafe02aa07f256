import os
import signal

import torch

torch.set_num_threads(1)
from workers import error_text

os.setpgrp()


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
