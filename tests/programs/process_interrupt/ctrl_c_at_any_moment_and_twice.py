import gc
import os
import random
import signal
import sys
import time

import torch

torch.set_num_threads(1)
from workers import Interrupt, Items, check_batches, children, state, wait_until

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
            for batch in loader:  # noqa: F821
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
