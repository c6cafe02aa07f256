import torch
from helpers import outcome
from torch.utils.data import TensorDataset
from workers import in_child

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


def check(batches, first=0):
    for k, (rows, labels) in enumerate(batches, first):
        assert labels.tolist() == list(range(4 * k, 4 * k + 4)), labels
        assert torch.equal(rows, x[4 * k : 4 * k + 4])


loader = DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
iterator = iter(loader)
lent = [next(iterator)]


def child():
    assert outcome(lambda: next(iterator))[1] is RuntimeError
    for _ in range(2):
        check(list(loader))


in_child(child)
check(lent)
check(list(iterator), 1)
check(list(loader))
