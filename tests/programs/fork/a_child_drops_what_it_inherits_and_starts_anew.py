import sys

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


for workers in (0, 1, 2):
    loader = DataLoader(dataset, 4, num_workers=workers, path="array")
    iterator = iter(loader)
    lent = [next(iterator) for _ in range(3)]
    unused = iter(loader)

    def child():
        global iterator, loader, unused
        lent[0][0].fill_(-1)  # noqa: F821
        lent.clear()  # noqa: F821
        for old in (iterator, unused):
            if workers == 0:  # goes on from where the parent's stands, as torch's does
                check(list(old), 3 * (old is iterator))
                continue
            for _ in range(2):
                kind, error, text = outcome(lambda: next(old))  # noqa: F821
                assert (kind, error) == ("raised", RuntimeError), error
                assert "parent process; call iter()" in text, text
        del iterator, old, unused
        for _ in range(2):
            check(list(loader))
            fresh = iter(loader)
            mine = [next(fresh) for _ in range(2)]
            check(mine)
        assert loader.stats().slots_lent == len(mine)
        in_child(grandchild)
        check(mine)
        check(list(fresh), 2)
        loader.close()
        check(list(loader))
        del loader

    def grandchild():
        check(list(loader))

    in_child(child)
    in_child(child, sys.exit)
    check(lent)
    more = [next(iterator) for _ in range(3)]
    check(more, 3)
    check(lent)
    assert loader.stats().slots_lent == 6, loader.stats()
    check(list(iterator), 6)
    check(list(unused))
    del lent, more
    assert loader.stats().slots_lent == 0
