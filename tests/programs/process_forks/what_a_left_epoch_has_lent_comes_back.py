import os

import torch

torch.set_num_threads(1)
from workers import Items, children, error_text

from fastloop import DataLoader


def count_slots(loader):
    return loader._shared.worker_memory.count()


import signal

loader = DataLoader(Items(64, shape=(5000,)), 4, num_workers=2)
made = []
for epoch in range(12):
    iterator = iter(loader)
    batch = next(iterator)
    if epoch % 2 == 0:
        os.kill(children()[0], signal.SIGKILL)
        error_text(lambda: [None for _ in iterator])  # noqa: F821
    made.append(count_slots(loader)["made"])
    del iterator
assert made[-1] <= 12, made
