"""An ordinary training script that knows nothing of fastloop: a table, and a small network.

fastloop compare examples/train.py
fastloop run --report=run.html examples/train.py --noise
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Rows with fresh noise: code in Python for each sample, as many scripts have it."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + 0.1 * torch.randn(20), self.y[i]


torch.manual_seed(0)
x = torch.randn(10_000, 20)
y = (x[:, :1] > 0).float()
data = Noisy(x, y) if "--noise" in sys.argv else TensorDataset(x, y)
loader = DataLoader(data, batch_size=256, shuffle=True)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_of = nn.BCEWithLogitsLoss()
for _ in range(20):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = loss_of(model(xb), yb)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
print(f"loss {loss.item():.4f}")
