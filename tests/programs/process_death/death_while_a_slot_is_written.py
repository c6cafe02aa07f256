import os
import signal
from pathlib import Path

from head import ENDS, check_clean, check_text, timed, warm_up
from workers import Items, Kill, arena_bytes, children

from fastloop import DataLoader

if __name__ == "__main__":
    before = warm_up()

import numpy as np
from torch.utils.data import Dataset, default_collate


class Mapped(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i != 22:
            return np.zeros(1 << 20, np.uint8)
        mapped = np.memmap("data.bin", np.uint8, "r+", shape=(1 << 20,))
        os.truncate("data.bin", 4096)
        return mapped


class Dies:
    def __init__(self, end):
        self.end = end

    def __reduce__(self):
        Kill(self.end)()


class Collate:
    def __init__(self, end):
        self.end = end

    def __call__(self, samples):
        batch = default_collate(samples)
        return [batch, Dies(self.end) if samples[-1][0] == 23 else 0, batch + 1]


Path("data.bin").write_bytes(bytes(1 << 20))
text, seconds = timed(iter(DataLoader(Mapped(), 4, num_workers=2)))
check_text(text, signal.SIGBUS, 5, [20, 21, 22, 23])
check_clean(before)

for end in ENDS:
    loader = DataLoader(Items(hook=None), 4, num_workers=2, collate_fn=Collate(end))
    text, seconds = timed(iter(loader))
    check_text(text, end, 5, [20, 21, 22, 23])
    del loader
    check_clean(before)

for wanted in (1 << 20, 20 << 20, 30 << 20, 50 << 20):
    loader = DataLoader(Items(8, shape=(14 << 20,)), 1, num_workers=1, prefetch_factor=1)
    loader.memory_budget = 8 << 30
    iterator = iter(loader)
    while arena_bytes() < wanted:
        pass
    text, seconds = timed(iterator, lambda: os.kill(children()[0], signal.SIGKILL))
    check_text(text, signal.SIGKILL, 0, [0])
    loader.close()
    assert arena_bytes() < 1 << 20, arena_bytes()
    del iterator, loader
    check_clean(before)
    print(f"killed at {wanted >> 20} MiB: {seconds * 1e3:.0f} ms")
