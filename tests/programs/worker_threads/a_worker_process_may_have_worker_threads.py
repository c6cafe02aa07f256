import torch

torch.set_num_threads(1)
from workers import Items

from fastloop import DataLoader


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})


import torch.utils.data

inner = loader_of(n=8)
next(iter(inner))


class Outer(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.cat(list(inner))


for path in ("process", "torch"):
    outer = DataLoader(Outer(), 2, num_workers=2, path=path)
    assert [batch[:, :, 0].tolist() for batch in outer] == [[list(range(8))] * 2] * 3
