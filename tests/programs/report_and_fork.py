"""A report around a fork: prints what the child and the parent have of it."""

import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop

with fastloop.report("run.json", verbose=False):
    child = os.fork()
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    for _ in DataLoader(TensorDataset(torch.zeros(4, 1)), 2):
        optimizer.step()
    if child == 0:
        print("child", len(fastloop.tools.report.hooks._observers), flush=True)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert not os.path.exists("run.json")
print("parent", os.path.exists("run.json"))
