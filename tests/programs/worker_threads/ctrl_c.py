import threading
import time

import torch

torch.set_num_threads(1)
from time_limits import limit
from workers import CallAt, Interrupt, Items, check_batches, is_thread_in

from fastloop import DataLoader


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})


for kwargs in ({}, {"timeout": limit(50)}, {"persistent_workers": True}):
    is_due, is_reached = threading.Event(), threading.Event()
    loader = loader_of(CallAt(20, lambda: (is_reached.set(), is_due.wait(limit(300)))), **kwargs)
    iterator = iter(loader)
    when = lambda: is_reached.is_set() and is_thread_in("_get_data")
    sender = Interrupt(0.05, when=when, on_other_thread=bool(kwargs))
    batches = []
    try:
        for batch in iterator:
            batches.append(batch)
        raise AssertionError("no KeyboardInterrupt")
    except KeyboardInterrupt:
        late = time.monotonic() - sender.sent
    assert not is_due.is_set() and late < limit(60), late
    is_due.set()
    print(f"{late * 1e3:.0f} ms")
    batches += iterator
    assert check_batches(batches) == 16
    assert check_batches(loader) == 16
