import os
import random
import signal
import time

from head import check_clean, check_text, warm_up
from time_limits import limit
from workers import Items, children

from fastloop import DataLoader

if __name__ == "__main__":
    before = warm_up()

random.seed(1)
late = []
for round in range(20):
    loader = DataLoader(Items(256, shape=(4000,)), 4, num_workers=3, in_order=round % 2 == 0)
    iterator = iter(loader)
    victim = children()[round % 3]
    seen, at, killed = set(), random.randrange(1, 48), 0.0
    try:
        for batch in iterator:
            assert bool((batch == batch[:, :1]).all())
            first = int(batch[0, 0])
            assert first not in seen and first % 4 == 0
            seen.add(first)
            if len(seen) == at:
                time.sleep(random.random() * 0.002)
                os.kill(victim, signal.SIGKILL)
                killed = time.monotonic()
        raise AssertionError("nobody died")
    except RuntimeError as error:
        late.append(time.monotonic() - killed)
        check_text(str(error), signal.SIGKILL)
    del iterator, loader, batch
check_clean(before)
assert max(late) < limit(60), late
print(f"the latest death was met after {max(late) * 1e3:.0f} ms")
