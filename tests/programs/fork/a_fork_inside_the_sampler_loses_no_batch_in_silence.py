import os

import torch
from helpers import outcome
from torch.utils.data import TensorDataset

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


class Forking:
    def __len__(self):
        return 3

    def __iter__(self):
        for i in range(3):
            self.pid = os.fork() if i == 1 else -1
            yield [2 * i, 2 * i + 1]


sampler = Forking()
found = outcome(lambda: [y.tolist() for _, y in DataLoader(dataset, batch_sampler=sampler)])
if sampler.pid == 0:
    os._exit(0 if found[1] is RuntimeError else 1)
assert os.wait()[1] == 0
