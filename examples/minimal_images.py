"""Images in memory, augmented by the loader's C threads: pad, crop, flip, cast, normalise."""

import torch
from torch import nn

from fastloop import ArrayDataset, DataLoader
from fastloop import transforms as T

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
labels = torch.randint(4, (4000,))
images = torch.randint(128, (4000, 3, 32, 32), dtype=torch.uint8)
images += 32 * labels[:, None, None, None].to(torch.uint8)  # brighter, class by class
augment = T.Compose(
    [
        T.RandomCrop(32, padding=4),
        T.RandomHorizontalFlip(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize([0.5] * 3, [0.25] * 3),
    ]
)
train = ArrayDataset(images, labels, transform=augment, seed=0)
loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=2, device=device)

layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 4)
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
