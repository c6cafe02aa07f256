import gc
import os
import signal
import time

import torch

torch.set_num_threads(1)
from time_limits import limit
from workers import CallAt, Items, Sleep, check_batches, children, error_text

from fastloop import DataLoader


class Stop:
    def __call__(self):
        os.kill(os.getpid(), signal.SIGSTOP)


timeout = limit(0.5)
for act in (Sleep(600), Stop()):
    iterator = iter(DataLoader(Items(hook=CallAt(10, act)), 4, num_workers=2, timeout=timeout))
    next(iterator), next(iterator)
    begin = time.monotonic()
    text = error_text(lambda: next(iterator))  # noqa: F821
    seconds = time.monotonic() - begin
    assert text.startswith(f"DataLoader timed out after {timeout} seconds"), text  # torch's
    assert "it was to make batch 2 (indices [8, 9, 10, 11])" in text, text
    assert timeout <= seconds < timeout + limit(60), seconds
    begin = time.monotonic()
    del iterator
    gc.collect()
    print(f"{type(act).__name__}: after {seconds:.2f} s, ended in {time.monotonic() - begin:.2f} s")
    assert not children()
    assert time.monotonic() - begin < limit(60)  # ended, not waited for
assert check_batches(DataLoader(Items(), 4, num_workers=2, timeout=limit(300))) == 16
