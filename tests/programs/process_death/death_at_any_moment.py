import gc
import os
import random
import re
import signal
import time

import torch

torch.set_num_threads(1)
from workers import Items, children, error_text, resources, wait_until

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

random.seed(1)
late = []
for round in range(20):
    loader = DataLoader(Items(256, shape=(4000,)), 4, num_workers=3, in_order=round % 2 == 0)
    iterator = iter(loader)
    victim = children()[round % 3]
    seen, at, killed = set(), random.randrange(1, 48), 0.0
    try:
        for batch in iterator:
            assert bool((batch == batch[:, :1]).all())
            first = int(batch[0, 0])
            assert first not in seen and first % 4 == 0
            seen.add(first)
            if len(seen) == at:
                time.sleep(random.random() * 0.002)
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
        raise AssertionError("nobody died")
    except RuntimeError as error:
        late.append(time.monotonic() - killed)
        check_text(str(error), signal.SIGKILL)
    del iterator, loader, batch
check_clean()
assert max(late) < 60, late
print(f"the latest death was met after {max(late) * 1e3:.0f} ms")
