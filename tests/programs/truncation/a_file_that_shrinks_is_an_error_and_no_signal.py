import os

import torch
from head import PAGE, Table, fails, path
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

from fastloop import ArrayDataset, DataLoader


def shrink(row_bytes, rows, workers):
    table = Table(row_bytes, rows)
    dataset = table.dataset
    keep = rows * row_bytes // 2 // PAGE * PAGE
    first_lost = keep // row_bytes  # the first row that is not whole any more
    size = max(1, rows // 6)
    loader = DataLoader(dataset, size, num_workers=workers, path="array")
    iterator = iter(loader)
    first = next(iterator)
    os.truncate(path, keep)
    for _ in range(rows // size - 1):
        try:
            table.check(next(iterator))
        except OSError:
            pass
    table.check(first)

    fails(lambda: list(loader), first_lost)
    shuffled = DataLoader(dataset, size, True, num_workers=workers)
    assert fails(lambda: list(shuffled)) >= first_lost
    part = Subset(dataset, range(rows - 1, -1, -1))
    fails(lambda: list(DataLoader(part, size, num_workers=workers)), rows - 1)
    fails(lambda: list(DataLoader(dataset, None, num_workers=workers)), first_lost)
    backwards = ArrayDataset(data=table.mapped[::-1, ::-1])
    fails(lambda: list(DataLoader(backwards, size, num_workers=workers)), 0)

    table.check({name: rows[None] for name, rows in dataset[0].items()})
    fails(lambda: dataset[rows - 1], rows - 1)
    fails(lambda: dataset[-1], rows - 1)
    fails(lambda: dataset[[0, rows - 1]], rows - 1)
    fails(lambda: dataset[rows - 1 :], rows - 1)
    fails(lambda: list(TorchLoader(dataset, size)))
    del first
    assert loader.stats().slots_lent == shuffled.stats().slots_lent == 0

    table.write()
    for again in (loader, shuffled):
        total = 0
        for batch in again:
            table.check(batch)
            total += len(batch["index"])
        assert total == rows
    assert torch.equal(dataset[rows - 1]["data"], table.truth[-1])
    os.truncate(path, 0)
    fails(lambda: list(loader), 0)
    fails(lambda: dataset[0], 0)


for shape in ((1, 50_000), (100, 3000), (4096, 60), (70_000, 40), (1 << 20, 6)):
    for workers in (0, 2):
        shrink(*shape, workers)
