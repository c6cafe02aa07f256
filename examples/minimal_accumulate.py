"""Gradient accumulation with mixed precision, clipping and a schedule, by a Stepper."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fastloop import DataLoader, GradScaler, Stepper

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16
x = torch.randn(6400, 20)
y = (x.sum(1, keepdim=True) > 0).float()
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, device=device)

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=75)
parts = {"scaler": GradScaler(device), "max_norm": 1.0, "scheduler": schedule}
stepper = Stepper(optimizer, accumulate=4, **parts)
for epoch in range(3):
    for xb, yb in stepper.iterate(loader):  # short last windows count as they should
        with stepper.micro(weight=len(xb)), torch.autocast(device, dtype):
            loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
            stepper.backward(loss)
    print(f"epoch {epoch}: loss {loss.item():.4f} after {stepper.stepped} steps")
