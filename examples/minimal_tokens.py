"""Windows of tokens out of a file, for a language model: here of the bytes of this program."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fastloop import DataLoader, ShuffleSampler, TokenDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
folder = tempfile.TemporaryDirectory()
text = Path(__file__).read_bytes() * 40
np.frombuffer(text, np.uint8).astype(np.uint16).tofile(f"{folder.name}/train.bin")

data = TokenDataset(f"{folder.name}/*.bin", seq_len=64, dtype="uint16", vocab_size=256)
sampler = ShuffleSampler(data, seed=0)
loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, device=device)

model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:  # int64 [16, 64]; y is x shifted by one token
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
