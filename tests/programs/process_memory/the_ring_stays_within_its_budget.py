import gc
import threading
import time

import torch

torch.set_num_threads(1)
from workers import Items, arena_bytes, wait_until

from fastloop import DataLoader

MIB = 1 << 20


def settle(most):
    gc.collect()
    wait_until(lambda: arena_bytes() <= most, 60)


def peak_of(loader, pause, keep=0):
    most, kept, running = [0], [], [True]

    def watch():
        while running[0]:
            most[0] = max(most[0], arena_bytes())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    for batch in loader:
        time.sleep(pause)
        kept = [*kept, batch][-keep:] if keep else []
    running[0] = False
    thread.join()
    return most[0]


MARGIN = 3 * MIB
for workers, prefetch in ((1, 2), (4, 8)):
    loader = DataLoader(
        Items(160, shape=(MIB // 4,)), 4, num_workers=workers, prefetch_factor=prefetch
    )  # 4 MiB a batch
    for budget in (24 * MIB, 64 * MIB):
        loader.memory_budget = budget
        peak = peak_of(loader, 0.002)
        print(f"{workers} workers x {prefetch}, budget {budget >> 20}: {peak >> 20} MiB")
        assert peak <= budget + 4 * MIB + MARGIN, (workers, prefetch, budget, peak)
        kept = list(loader)
        assert arena_bytes() >= 160 * MIB
        kept = None
        settle(budget + MARGIN)
    loader.close()
    settle(0)

# Kept batches come on top, and no more than these.
loader.memory_budget = 24 * MIB
peak = peak_of(loader, 0.002, keep=20)
print(f"20 kept: {peak >> 20} MiB")
assert peak <= (20 + 2) * 4 * MIB + 24 * MIB + MARGIN, peak
