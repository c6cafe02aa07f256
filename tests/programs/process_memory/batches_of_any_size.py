import random
import time

import torch

torch.set_num_threads(1)
from workers import Items, Sized, check_batches

from fastloop import DataLoader

MIB = 1 << 20


random.seed(2)
small, large = [0, 1, 100, 5000, 70_000], [0, 3 * MIB, 9 * MIB + 17, 30 * MIB]
for budget in (None, 4 * MIB, 1):
    for persistent in (False, True):
        sizes = [random.choice(small if i % 7 else large) for i in range(40)]
        for kwargs in (dict(batch_size=None), dict(batch_size=3, collate_fn=list)):
            loader = DataLoader(
                Sized(sizes), num_workers=2, persistent_workers=persistent, **kwargs
            )
            loader.memory_budget = budget
            for round in range(2):
                begin = time.monotonic()
                count = 0
                for batch in loader:
                    for item in batch if isinstance(batch, list) else [batch]:
                        assert item.shape == (sizes[count],) and item.dtype == torch.uint8
                        assert not item[1:].any() and (not len(item) or item[0] == count % 251)
                        count += 1
                assert count == 40
                for batch in loader:  # what is left over must not disturb the next epoch
                    break
            del batch, item
    print(f"budget {budget}: {time.monotonic() - begin:.2f} s an epoch")
assert check_batches(DataLoader(Items(0), 4, num_workers=2)) == 0
assert [b.shape for b in DataLoader(Items(9, shape=(0,)), 4, num_workers=2)] == [
    (4, 0),
    (4, 0),
    (1, 0),
]
assert list(DataLoader([[]] * 6, 2, num_workers=2)) == [[]] * 3
