import gc
import os
import random
import sys
import time

from head import interrupted
from time_limits import limit
from workers import Interrupt, Items, check_batches, children, wait_until

from fastloop import DataLoader

os.setpgrp()


persistent = sys.argv[1] == "True"
random.seed(int(persistent))
loader = DataLoader(Items(32, shape=(1000,)), 4, num_workers=2, persistent_workers=persistent)
begin = time.monotonic()
assert check_batches(loader) == 8
epoch = time.monotonic() - begin
late = []
for round in range(12):
    again = True

    def sleeper():
        while True:
            for batch in loader:  # noqa: F821
                pass

    try:
        sender = Interrupt(0.005 + random.random() * 2 * epoch, round % 2 == 1)
        late.append(interrupted(sleeper, sender))
        if round % 4 > 1:
            sender = Interrupt(random.random() * 0.005, round % 2 == 1)
            gc.collect()
            sender.wait()
    except KeyboardInterrupt:
        pass
    for _ in range(2):
        assert check_batches(loader) == 8
del loader
gc.collect()
wait_until(lambda: not children(), 60)
assert max(late) < limit(60), late
print(f"the latest after {max(late) * 1e3:.0f} ms")
