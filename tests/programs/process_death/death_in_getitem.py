import gc
import re
import signal
import time

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Kill, check_batches, error_text, resources, wait_until

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

for end in ENDS:
    for workers in (1, 3):
        loader = DataLoader(Items(hook=CallAt(22, Kill(end))), 4, num_workers=workers)
        iterator, got = iter(loader), []
        begin = time.monotonic()
        text = error_text(lambda: got.extend(iterator))  # noqa: F821
        seconds = time.monotonic() - begin
        assert check_batches(got) == loader.stats().slots_lent <= 5
        check_text(text, end, 5, [20, 21, 22, 23])
        assert seconds < 60, seconds
        del iterator, loader, got
        check_clean()
        print(f"{end!r} {workers} workers: {seconds * 1e3:.0f} ms")
