import gc
import os
import signal

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
    wait_until,
)

from fastloop import DataLoader

os.setpgrp()


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
