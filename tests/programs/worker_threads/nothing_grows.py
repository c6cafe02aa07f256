import gc
import sys

import torch

torch.set_num_threads(1)
from workers import Items, error_text, resources, wait_until

from fastloop import DataLoader


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})


persistent = sys.argv[1] == "True"


def fails(i):
    if i == 21:
        raise ValueError(i)


def whole(loader):
    for batch in loader:
        pass


def left(loader):
    for batch in loader:
        break


def failing(loader):
    error_text(lambda: whole(loader), ValueError)


def kept(loader):
    batches = list(loader)
    del batches[::2]


def closed(loader):
    with loader:
        next(iter(loader))


def measure():
    gc.collect()
    text = open("/proc/self/status").read()
    return int(text.split("VmRSS:")[1].split()[0]), *resources()


def cases():
    yield whole, loader_of(persistent_workers=persistent)
    yield left, loader_of(persistent_workers=persistent)
    yield failing, loader_of(fails, persistent_workers=persistent)
    yield kept, loader_of(persistent_workers=persistent)
    yield closed, loader_of(persistent_workers=persistent)


for case, loader in cases():

    def run(epochs):
        for _ in range(epochs):
            case(loader)

    run(40)
    before = measure()
    run(120)
    after = measure()
    assert after[1] == before[1] and after[3] == before[3], (case, before, after)
    assert after[0] - before[0] < 8_000, (case, before, after)
    wait_until(lambda: resources()[1] <= (3 if loader._iterator else 1))
    loader.close()
