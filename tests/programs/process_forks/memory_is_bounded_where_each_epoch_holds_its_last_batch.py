import torch

torch.set_num_threads(1)
from workers import Items, arena_bytes

from fastloop import DataLoader


def count_slots(loader):
    return loader._shared.worker_memory.count()


train = DataLoader(Items(8, shape=(5000,)), 4, num_workers=1)
persistent = DataLoader(Items(8, shape=(5000,)), 4, num_workers=1, persistent_workers=True)
made = []
for epoch in range(30):
    for batch in train:
        pass
    for other in persistent if epoch % 10 == 5 else ():
        pass
    made.append(count_slots(train)["made"])
assert made[-1] == made[15] <= 15, made
assert count_slots(train)["lent"] == 1 and count_slots(persistent)["made"] <= 8
del batch, other
persistent.close()
train.close()
assert count_slots(train)["empty"] == count_slots(persistent)["empty"] == 0
assert arena_bytes() == 0
