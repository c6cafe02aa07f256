import multiprocessing

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


def check(batches, first=0):
    for k, (rows, labels) in enumerate(batches, first):
        assert labels.tolist() == list(range(4 * k, 4 * k + 4)), labels
        assert torch.equal(rows, x[4 * k : 4 * k + 4])


torch.set_num_threads(1)
loader = DataLoader(dataset, 4, num_workers=2)
iterator = iter(loader)
lent = [next(iterator) for _ in range(2)]


def total(k):
    if k % 2:
        lent.clear()
    return sum(int(labels.sum()) for _, labels in loader) + k


with multiprocessing.get_context("fork").Pool(2) as pool:
    check([next(iterator)], 2)
    assert pool.map(total, range(6)) == [780 + k for k in range(6)]
    check(list(iterator), 3)
check(lent)

iterator = iter(loader)
first = next(iterator)
theirs = TorchLoader(dataset, 4, num_workers=2)
mixed = [batch for pair in zip(iterator, theirs) for batch in pair]
assert len(mixed) == 18
check([first] + mixed[::2])
check(mixed[1::2])
ours_in_workers = TorchLoader([DataLoader(dataset, 40)], None, collate_fn=list, num_workers=1)
((batch,),) = list(ours_in_workers)
assert torch.equal(batch[0], x)
