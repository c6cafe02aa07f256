import gc
import os
import re
import signal
import time

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Kill, children, error_text, resources, wait_until

from fastloop import DataLoader

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


def check_text(text, end, batch=None, indices=None):
    assert "DataLoader worker (pid" in text, text
    assert (f"{signal.Signals(end).name}" if end else "exit code 3") in text, text
    if batch is not None:
        assert f"batch {batch} " in text, (batch, text)
    if indices is not None:
        assert f"(indices {indices})" in text, (indices, text)
    if end == signal.SIGKILL:
        assert re.search(r"[0-9.]+ of [0-9.]+ GiB of memory", text), text


def timed(iterator, kill=lambda: None):
    # The error's text; the time counts from the death or from the wait for the batch.
    kill()
    begin = time.monotonic()
    text = error_text(lambda: [None for _ in iterator])
    return text, time.monotonic() - begin


def check_clean():
    gc.collect()
    wait_until(lambda: resources() == before, 60)


if __name__ == "__main__":
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()


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
assert time.monotonic() - begin < 60  # ended, not waited for
assert not children()
