import gc
import threading
import time

import torch

torch.set_num_threads(1)
from workers import Interrupt, Items, check_batches, wait_until

from fastloop import DataLoader


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})


import random

random.seed(3)
for persistent in (False, True):
    loader = loader_of(n=32, persistent_workers=persistent, num_workers=4)
    begin = time.monotonic()
    assert check_batches(loader) == 8
    epoch = time.monotonic() - begin
    for round in range(20):
        try:
            sender = Interrupt(random.random() * 2 * epoch)
            while True:
                for batch in loader:
                    pass
        except KeyboardInterrupt:
            pass
        sender.thread.join()
        for _ in range(2):
            assert check_batches(loader) == 8
    loader.close()
    del loader
    gc.collect()
    wait_until(lambda: threading.active_count() == 1)
