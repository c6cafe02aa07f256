"""A training loop that fails, ends or computes other bits as its argument says."""

import argparse
import os
import random
import sys

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastloop

parser = argparse.ArgumentParser()
parser.add_argument("what")
parser.add_argument("--steps", type=int, default=100)
given = parser.parse_args()
if given.what == "other bits":
    fastloop.patch()
torch_is_patched = fastloop.patch_status().seams["dataloader"].is_on
if given.what != "no seed":
    for set_seed in (torch.manual_seed, random.seed, numpy.random.seed):
        set_seed(0)
weight = torch.randn(20, 1, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
dataset = TensorDataset(torch.randn(100, 20))
for _ in range(100):
    for number, (x,) in enumerate(DataLoader(dataset, 10, shuffle=True)):
        if number == given.steps:
            sys.exit(3 if given.what == "status" else 0)
        if number == 2 and given.what == "raise":
            raise LookupError("wrong")
        if number == 2 and given.what == "raise patched" and torch_is_patched:
            raise LookupError("wrong")
        if number == 2 and given.what == "os._exit":
            os._exit(0)
        loss = (x @ weight).square().mean() + random.random() + numpy.random.rand()
        if given.what == "other bits" and number == 1 and torch_is_patched:
            loss = loss * (1 + 2e-7)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
