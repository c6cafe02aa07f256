"""A table in tensors: the loader alone, on the CPU or a GPU. C threads gather the batches."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fastloop import DataLoader

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(20_000, 20)
y = (x.sum(1, keepdim=True) > 0).float()
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=256, shuffle=True, num_workers=2, device=device)

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    for xb, yb in loader:  # on the device already
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(loader.stats())
