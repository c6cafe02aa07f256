import gc
import os
import resource

import torch

torch.set_num_threads(1)
from workers import Items, arena_files, check_batches

from fastloop import DataLoader

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
loader = DataLoader(Items(4000, shape=(1000,)), 4, num_workers=2)
kept, fds = [], 0
for number, batch in enumerate(loader):
    kept.append(batch)
    if number == 10:
        fds = len(os.listdir("/proc/self/fd"))
assert len(os.listdir("/proc/self/fd")) <= fds
assert check_batches(kept) == 1000
views = [batch[1:3].t() for batch in kept[::2]]
views[0].zero_()
del kept[1::2], batch
kept += loader  # over memory that came back
assert check_batches(kept[500:]) == 1000
assert int(kept[0][3, 0]) == 3 and not kept[0][1:3].any()
assert all(int(kept[i][0, 0]) == 8 * i for i in range(1, 500))
del loader
gc.collect()
assert check_batches(kept[500:]) == 1000
kept, views = None, None
gc.collect()
assert not arena_files()
