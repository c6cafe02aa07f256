import gc
import os
import signal
import time

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Sleep, check_batches, children, error_text

from fastloop import DataLoader


class Stop:
    def __call__(self):
        os.kill(os.getpid(), signal.SIGSTOP)


for act in (Sleep(60), Stop()):
    iterator = iter(DataLoader(Items(hook=CallAt(10, act)), 4, num_workers=2, timeout=0.5))
    next(iterator), next(iterator)
    begin = time.monotonic()
    text = error_text(lambda: next(iterator))  # noqa: F821
    seconds = time.monotonic() - begin
    assert text == "DataLoader timed out after 0.5 seconds", text  # torch's
    assert 0.5 <= seconds < 60, seconds
    begin = time.monotonic()
    del iterator
    gc.collect()
    print(f"{type(act).__name__}: after {seconds:.2f} s, ended in {time.monotonic() - begin:.2f} s")
    assert not children()
    assert time.monotonic() - begin < 60  # ended, not waited for
assert check_batches(DataLoader(Items(), 4, num_workers=2, timeout=300)) == 16
