import gc
import os
import re
import signal
import time

import torch

torch.set_num_threads(1)
from workers import Items, children, error_text, resources, state, wait_until

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

made = torch.zeros(64).share_memory_()
before = resources()


def are_idle():
    # All that was asked for is made: the first batch, and two ahead of each worker.
    return made.sum() == 5 * 4 and all(state(child) == "S" for child in children())


for end in ENDS[:4]:
    made.zero_()
    loader = DataLoader(Items(hook=lambda i: made[i].fill_(1)), 4, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    first = next(iterator)
    wait_until(are_idle)
    assert len(children()) == 2
    victim = children()[0]
    text, seconds = timed(iterator, lambda: os.kill(victim, end))
    check_text(text, end)
    assert f"(pid {victim})" in text, text
    assert re.search("batch [0-9]+ .indices .[0-9, ]+.[)]", text), text
    assert seconds < 60, seconds
    del iterator, loader, first
    check_clean()
    print(f"{end!r}: {seconds * 1e3:.0f} ms")
