"""Prints how a file of tokens is read and by how many MiB this process grows meanwhile:
`python token_growth.py path io`."""

import os
import sys
from pathlib import Path

import torch

from fastloop import DataLoader, TokenDataset


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


dataset = TokenDataset(sys.argv[1], 4096, dtype="uint16", mode="random", io=sys.argv[2])
loader = DataLoader(torch.utils.data.Subset(dataset, range(12000)), 32, num_workers=1)
before = 0
for i, _ in enumerate(loader):
    if i == 20:
        before = resident()
print(dataset._windows.io[0], (resident() - before) // 2**20)
