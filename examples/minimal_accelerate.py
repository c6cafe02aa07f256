"""accelerate: a fastloop.DataLoader with fastloop-specific arguments keeps them in prepare()."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

import fastloop

torch.manual_seed(0)
accelerator = Accelerator()
x = torch.randn(6400, 20)
data = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())
options = {"num_workers": 2, "device": accelerator.device}
loader = fastloop.DataLoader(data, batch_size=64, shuffle=True, **options)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(2):
    for xb, yb in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(fastloop.stats(loader))
