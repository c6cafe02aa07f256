"""Makes a loader, and only then imports accelerate, by the name in argv[1]."""

import importlib
import sys

import torch

import fastloop

loader = fastloop.DataLoader(torch.arange(4), device="cpu", device_transform=lambda x: x * 2)
assert "accelerate" not in sys.modules
skip_first_batches = importlib.import_module(sys.argv[1]).skip_first_batches
assert [x.item() for x in skip_first_batches(loader, 1)] == [2, 4, 6]
