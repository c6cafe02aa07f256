import gc
import re
import signal
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Kill, error_text, resources, wait_until

from fastloop import DataLoader

NAME = Path(__file__).name
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

    class Here(torch.utils.data.Dataset):
        __len__ = lambda self: 8
        __getitem__ = lambda self, i: i

    loader = DataLoader(Here(), 4, num_workers=1, multiprocessing_context="spawn")
    text = error_text(lambda: list(loader))
    assert f"{NAME} anew, " in text and "stderr says which error it met" in text, text
    loader = DataLoader(
        Items(hook=CallAt(2, Kill(0))), 4, num_workers=1, multiprocessing_context="spawn"
    )
    assert NAME not in error_text(lambda: list(loader))
