import gc
import re
import signal
import time

import torch

torch.set_num_threads(1)
from workers import CallAt, Items, Kill, Stream, children, error_text, resources, wait_until

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


def main():
    killed, left = (Items, signal.SIGKILL), (Stream, 0)
    for method, ends in (("fork", (killed, left)), ("spawn", (killed,)), ("forkserver", (left,))):
        for data, end in ends:
            loader = DataLoader(
                data(hook=CallAt(22, Kill(end))), 4, num_workers=1, multiprocessing_context=method
            )
            begin = time.monotonic()
            check_text(
                error_text(lambda: list(loader)),
                end,
                5,
                None if data is Stream else [20, 21, 22, 23],
            )
            print(f"{method} {data.__name__} {end!r}: {time.monotonic() - begin:.1f} s")
    wait_until(lambda: len(children()) <= 2, 60)  # forkserver and resource tracker


if __name__ == "__main__":
    main()
