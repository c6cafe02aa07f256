import gc

import torch

torch.set_num_threads(1)
from torch.utils.data import DataLoader as TorchLoader
from workers import Items

from fastloop import DataLoader


class Replay(torch.utils.data.Dataset):
    # A dataset over a batch; the parent lets go of it.
    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 240

    def __getitem__(self, i):
        return self.batch[i % len(self.batch)]


def replay(kind, loader, **kwargs):
    iterator = iter(kind(loader.dataset, 4, num_workers=1))
    next(iterator)
    data = Replay(next(iterator))
    wanted = data.batch[:, 0].tolist()
    replays = [iter(kind(data, 4, num_workers=1, **kwargs)) for _ in range(2)]
    data.batch = None
    gc.collect()
    got = []
    for _ in range(60):
        next(iterator)
        got += [next(each)[:, 0].tolist() for each in replays]
    return wanted, got


items = Items(400, shape=(5000,))
for kwargs in ({}, {"persistent_workers": True}):
    ours, theirs = (replay(kind, kind(items), **kwargs) for kind in (DataLoader, TorchLoader))
    assert ours == theirs == ([4, 5, 6, 7], [[4, 5, 6, 7]] * 120), ours


class Grows(Items):
    held = None

    def __getitem__(self, i):
        return super().__getitem__(i) if self.held is None else self.held[i % 4]


for kind in (DataLoader, TorchLoader):
    data = Grows(240, shape=(5000,))
    loader = kind(data, 4, num_workers=2)
    data.held = next(iter(loader))
    second = iter(loader)
    data.held = None
    assert all(batch[:, 0].tolist() == [0, 1, 2, 3] for batch in second)
