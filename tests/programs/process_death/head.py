"""What the programs of this folder share."""

import gc
import re
import signal
import time

import torch
from workers import Items, error_text, resources, wait_until

from fastloop import DataLoader

torch.set_num_threads(1)

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, 0]


def warm_up():
    # What a loop leaves once and for all, as the state that check_clean() expects.
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    return resources()


def check_clean(before):
    gc.collect()
    wait_until(lambda: resources() == before, 60)


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
