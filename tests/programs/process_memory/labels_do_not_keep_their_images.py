import gc

import torch

torch.set_num_threads(1)
from workers import Items, arena_bytes, wait_until

from fastloop import DataLoader

MIB = 1 << 20


def settle(most):
    gc.collect()
    wait_until(lambda: arena_bytes() <= most, 60)


class Pairs(Items):
    def __getitem__(self, i):
        return super().__getitem__(i), i


def pairs(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.tensor([y for _, y in samples])}


for collate in (None, pairs):
    loader = DataLoader(Pairs(256, shape=(MIB // 4,)), 4, num_workers=2, collate_fn=collate)
    loader.memory_budget = 32 * MIB
    labels = [batch[1 if collate is None else "y"] for batch in loader]
    assert torch.cat(labels).tolist() == list(range(256))
    settle(40 * MIB)
