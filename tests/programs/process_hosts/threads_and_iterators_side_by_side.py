import gc
import threading

import torch

torch.set_num_threads(1)
from time_limits import limit
from workers import Items, check_batches, children, wait_until

from fastloop import DataLoader

loader = DataLoader(Items(shape=(20_000,)), 4, num_workers=2)
pairs = list(zip(loader, loader, strict=True))
assert check_batches(a for a, _ in pairs) == check_batches(b for _, b in pairs) == 16
del pairs

first, second = iter(loader), iter(loader)
kept = [next(first), next(second), next(first)]
del first
assert check_batches(kept[:1]) == 1 and int(kept[2][0, 0]) == 4
assert check_batches([kept[1], *second]) == 16
del second

errors, count = [], []


def work(loader):
    try:
        for _ in range(3):
            count.append(check_batches(loader))
    except BaseException as error:
        errors.append(error)


own = [DataLoader(Items(), 4, num_workers=1, persistent_workers=True) for _ in range(2)]
threads = [threading.Thread(target=work, args=[each]) for each in (loader, loader, *own)]
[thread.start() for thread in threads]
[thread.join(limit(300)) for thread in threads]
assert not errors and count == [16] * 12, (errors, count)
del own, kept
gc.collect()

iterator = iter(loader)  # made here, used there, and dropped in a third place
got = []
thread = threading.Thread(target=lambda: got.extend(iterator))
thread.start()
thread.join(limit(300))
assert check_batches(got) == 16


def nested():
    for outer, batch in enumerate(loader):
        assert check_batches(loader) == 16 and int(batch[0, 0]) == 4 * outer
        if outer == 3:
            break


nested()
gc.collect()
wait_until(lambda: not children(), 60)
