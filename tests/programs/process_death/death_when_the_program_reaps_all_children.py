import os
import signal
import time

import torch

torch.set_num_threads(1)
from head import warm_up
from time_limits import limit
from workers import CallAt, Items, Kill, children, error_text

from fastloop import DataLoader

if __name__ == "__main__":
    warm_up()


def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


signal.signal(signal.SIGCHLD, reap)
iterator = iter(DataLoader(Items(hook=CallAt(22, Kill(signal.SIGKILL))), 4, num_workers=2))
begin = time.monotonic()
text = error_text(lambda: list(iterator))  # noqa: F821
assert "DataLoader worker (pid" in text and "batch 5 (indices [20, 21, 22, 23])" in text, text
del iterator
assert time.monotonic() - begin < limit(60)  # ended, not waited for
assert not children()
