import torch
from helpers import outcome
from torch.utils.data import TensorDataset

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


def check(batches, first=0):
    for k, (rows, labels) in enumerate(batches, first):
        assert labels.tolist() == list(range(4 * k, 4 * k + 4)), labels
        assert torch.equal(rows, x[4 * k : 4 * k + 4])


for workers in (0, 1):
    iterator = iter(DataLoader(dataset, 4, num_workers=workers, path="array"))
    first = [next(iterator)]
    for _ in range(2):
        kind, error, text = outcome(iterator._array_loader.rest)
        assert error is RuntimeError and "in a forked child" in text, (kind, text)
    check(first + list(iterator))
