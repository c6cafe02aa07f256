import torch

torch.set_num_threads(1)
from workers import Sized, children

from fastloop import DataLoader

sizes = [int(1.15**i * 300_000) if i < 32 else 5 for i in range(64)]
loader = DataLoader(Sized(sizes), None, num_workers=2, persistent_workers=True, prefetch_factor=4)
loader.memory_budget = 400_000_000
for round in range(30):
    workers = children()
    for number, batch in enumerate(loader):
        assert len(batch) == sizes[number], (round, number, len(batch))
        if number == round:
            break
    assert round == 0 or children() == workers
assert [len(batch) for batch in loader] == sizes
