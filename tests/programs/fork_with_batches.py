"""Forks a process that holds batches, and loads on in both."""

import os

import numpy as np
import torch

from fastloop import DataLoader

samples = [torch.from_numpy(np.full((3, 224, 224), i % 251, np.uint8)) for i in range(128)]
loader = DataLoader(samples, 64)


def check(batches):
    for number, batch in enumerate(batches):
        rows = np.arange(64 * number, 64 * number + 64) % 251
        assert (batch.numpy().reshape(64, -1) == rows[:, None]).all()


kept = list(loader)
child = os.fork()
for _ in range(3):
    check(loader)
check(kept)
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
