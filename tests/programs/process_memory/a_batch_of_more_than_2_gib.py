import gc
import sys

import torch

torch.set_num_threads(1)
from workers import Sized, arena_bytes, wait_until

from fastloop import DataLoader


def settle(most):
    gc.collect()
    wait_until(lambda: arena_bytes() <= most, 60)


from fastloop.base.machine import available_bytes

if available_bytes() < 14 << 30:
    sys.exit(0)
size = 1_080_000_000
loader = DataLoader(Sized([size, size, 5, 5]), 2, num_workers=1, prefetch_factor=1)
first, second = loader
assert first.shape == (2, size) and first[:, 0].tolist() == [0, 1]
assert not first[1, -1000:].any() and not first[0, 1 << 30 :: 4096].any()
assert second[:, 0].tolist() == [2, 3]
assert arena_bytes() > 2 * size
del first, second
loader.close()
settle(0)
