import gc
import os
import sys

import numpy as np
import torch
from helpers import FailingSampler, ListSampler, SamplerError
from workers import threads

from fastloop import ArrayDataset, DataLoader

workers, epochs = map(int, sys.argv[1:])
page = os.sysconf("SC_PAGE_SIZE")


def count():
    gc.collect()
    rss = int(open("/proc/self/statm").read().split()[1]) * page
    return rss, len(threads()), len(os.listdir("/proc/self/fd"))


def whole(loader):
    for batch in loader:
        pass


def left_early(loader):
    for batch in loader:
        break


def failing(loader):
    try:
        whole(loader)
    except (IndexError, SamplerError, TypeError):
        return
    raise AssertionError("no error")


def closed(loader):
    with loader:
        next(iter(loader))


def kept(loader):
    batches = list(loader)
    del batches[::2]


np.save("data.npy", np.zeros((16, 100), np.float32))
array = np.zeros((16, 300), np.float32)
fields = dict(a=array, b="data.npy", c=torch.arange(16), d=array[::-1])
dataset = ArrayDataset(**fields)
cases = {
    "epoch": (whole, dict(batch_size=4, shuffle=True)),
    "user sampler": (whole, dict(batch_size=4, sampler=ListSampler(range(16), np.int64))),
    "singles": (whole, dict(batch_size=None)),
    "fetched": (whole, dict(batch_sampler=[[True], [torch.tensor(1)], [slice(2)]])),
    "break": (left_early, dict(batch_size=2)),
    "index error": (failing, dict(batch_sampler=[[0], [99], [1]])),
    "sampler error": (failing, dict(batch_size=4, sampler=FailingSampler(16, 9))),
    "bad batch": (failing, dict(batch_sampler=[[0], 5, [1]])),
    "close": (closed, dict(batch_size=4)),
    "kept": (kept, dict(batch_size=2)),
}
for name, (use, kwargs) in cases.items():
    loader = DataLoader(dataset, num_workers=workers, path="array", **kwargs)
    share = epochs if name == "epoch" else epochs // 20
    for _ in range(share // 10):
        use(loader)
    before = count()
    for _ in range(share):
        use(loader)
    after = count()
    assert after[1:] == before[1:], (name, before, after)
    assert after[0] - before[0] < 2 << 20, (name, before, after)
    print(name, after[0] - before[0])

if workers:
    loader = DataLoader(dataset, 4, num_workers=workers, persistent_workers=True)
    whole(loader)
    before = count()
    for _ in range(epochs):
        whole(loader)
    assert count()[1:] == before[1:]
    del loader

before = count()
for _ in range(epochs // 20):
    for batch in DataLoader(ArrayDataset(**fields), 4, num_workers=workers):
        pass
after = count()
assert after[1:] == before[1:], ("loaders", before, after)
assert after[0] - before[0] < 2 << 20, ("loaders", before, after)
