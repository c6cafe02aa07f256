import gc

import torch

torch.set_num_threads(1)
from workers import Sized, arena_bytes, wait_until

from fastloop import DataLoader

MIB = 1 << 20


def settle(most):
    gc.collect()
    wait_until(lambda: arena_bytes() <= most, 60)


sizes = [200 * MIB if i == 8 else MIB for i in range(64)]
loader = DataLoader(Sized(sizes), None, num_workers=2)
loader.memory_budget = 32 * MIB
for number, batch in enumerate(loader):
    pass
del batch
settle(40 * MIB)
