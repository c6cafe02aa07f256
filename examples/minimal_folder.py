"""A folder of JPEG files, decoded and resized by threads. Needs fastloop[images]."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from fastloop import DataLoader, ImageFolder
from fastloop import transforms as T

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = tempfile.TemporaryDirectory()
for name, light in (("bright", 220), ("dark", 30)):
    (root := Path(folder.name) / name).mkdir()
    for i in range(100):
        noise = np.random.default_rng(i).integers(light - 30, light + 30, (90, 120, 3), np.uint8)
        Image.fromarray(noise).save(root / f"{i}.jpg")

augment = T.Compose([T.RandomResizedCrop(64), T.ToDtype(torch.float32, scale=True)])
train = ImageFolder(folder.name, augment, seed=0)
options = {"num_workers": 2, "path": "thread", "device": device}
loader = DataLoader(train, batch_size=20, shuffle=True, **options)

layers = nn.AvgPool2d(16), nn.Flatten(), nn.Linear(48, 2)
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
