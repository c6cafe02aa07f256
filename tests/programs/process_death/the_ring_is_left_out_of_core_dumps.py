import gc
import re
import signal
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
from workers import Items, error_text, resources, wait_until

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


def flags():
    text = Path("/proc/self/smaps").read_text()
    parts = text.split("memfd:fastloop")[1:]
    assert parts
    return all(" dd" in part.split("VmFlags:")[1].split("\n")[0] for part in parts)


class Checks(Items):
    def __getitem__(self, i):
        assert flags()
        return super().__getitem__(i)


def main():
    for method in ("fork", "spawn"):
        loader = DataLoader(Checks(8), 4, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            assert flags()


if __name__ == "__main__":
    main()
