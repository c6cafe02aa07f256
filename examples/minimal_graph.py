"""A training step as a CUDA graph over batches with fixed addresses; on the CPU it runs eagerly."""

import torch
from torch import nn

from fastloop import ArrayDataset, DataLoader

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(10_000, 20)
data = ArrayDataset(x, (x.sum(1, keepdim=True) > 0).float())
options = {"drop_last": True, "num_workers": 2, "static_buffers": True}  # all batches are alike
loader = DataLoader(data, batch_size=100, shuffle=True, device=device, **options)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=device == "cuda")


def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


graph = None
for epoch in range(2):
    for xb, yb in loader:
        if device == "cpu":
            loss = step(xb, yb)
        elif graph is None:
            (side := torch.cuda.Stream()).wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step(xb, yb)  # warms up
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
                loss = step(xb, yb)
        else:
            graph.replay()  # reads the batch at xb and yb
    print(f"epoch {epoch}: loss {loss.item():.4f}")
