import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from workers import Items

import fastloop

LATE = "numpy.random", "fastloop.loader.workers.processes", "fastloop.loader.workers.threads"
imported = lambda: [name for name in LATE if name in sys.modules]
before = imported()
fastloop.patch()
list(DataLoader(TensorDataset(torch.arange(8)), 2))
assert imported() == before, imported()
forks = []
os.register_at_fork(before=lambda: forks.append("numpy.random" in sys.modules))
assert len(list(DataLoader(Items(8), 4, num_workers=2))) == 2
assert forks == [True, True], forks
