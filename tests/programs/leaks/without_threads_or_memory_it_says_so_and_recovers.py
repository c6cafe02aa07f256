import os
import resource
import warnings

import torch
from helpers import outcome
from torch.utils.data import TensorDataset
from workers import threads

from fastloop import DataLoader

warnings.simplefilter("ignore")
x = torch.zeros(1000, 1 << 12)
many = DataLoader(TensorDataset(x), 3, num_workers=100)
large = DataLoader(TensorDataset(x), batch_sampler=[[0] * (1 << 15)])
before = threads()
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
for _ in range(3):
    kind, error, text = outcome(lambda: len(list(many)))
    assert (error, "cannot start a thread" in text) == (RuntimeError, True), (error, text)
    kind, error, text = outcome(lambda: len(list(large)))
    assert (error, str(1 << 29) in text) == (MemoryError, True), (error, text)
assert threads() == before
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert len(list(many)) == 334
assert len(list(large)) == 1
