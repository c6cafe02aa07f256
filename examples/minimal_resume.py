"""Stop in the middle of an epoch and go on: the second run trains the batches that are left."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fastloop import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "saved.pt"
x = torch.randn(5000, 20, generator=torch.Generator().manual_seed(0))


def train(stop_after: int | None = None) -> None:
    torch.manual_seed(0)
    data = TensorDataset(x, (x[:, :1] > 0).float())
    loader = DataLoader(data, batch_size=100, shuffle=True, num_workers=2, device=device)
    model = nn.Linear(20, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    parts = {"loader": loader, "model": model, "optimizer": optimizer}
    if path.exists():
        for name, state in torch.load(path, weights_only=True).items():
            parts[name].load_state_dict(state)
    for count, (xb, yb) in enumerate(loader, 1):
        loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if count == stop_after:
            break
    torch.save({name: part.state_dict() for name, part in parts.items()}, path)
    print(f"{count} batches: loss {loss.item():.4f}")


train(stop_after=20)
train()  # 30 batches
