import ctypes
import os
import random

import torch
from torch.utils.data import TensorDataset

from fastloop import DataLoader

x = torch.zeros(1000, 1000, dtype=torch.uint8)
random.seed(1)
for workers in (0, 2):

    def rss():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    batches = [list(range(random.choice((1, 10, 100, 1000)))) for _ in range(300)]
    loader = DataLoader(TensorDataset(x), batch_sampler=batches, num_workers=workers)
    for (batch,) in loader:
        pass
    first = rss()
    for _ in range(3):
        for (batch,) in loader:
            pass
    assert rss() - first < 20 << 20, (first, rss())
    kept = list(loader)
    full = rss()
    del kept, batch
    loader.close()
    ctypes.CDLL(None).malloc_trim(0)  # what is free in between goes back, too
    assert rss() < full - (50 << 20), (first, full, rss())
