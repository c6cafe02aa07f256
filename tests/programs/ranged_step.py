"""One batch and one clipped step, in the ranges of the tool that is attached."""

import torch
from torch.utils.data import TensorDataset

from fastloop import DataLoader, GradScaler, clip_grad_norm_

p = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([p], 0.1)
scaler = GradScaler("cpu", 8.0)
for (x,) in DataLoader(TensorDataset(torch.ones(2, 3)), batch_size=2):
    scaler.scale((p * x).sum()).backward()
    clip_grad_norm_([p], 1.0)
    scaler.step(optimizer)
