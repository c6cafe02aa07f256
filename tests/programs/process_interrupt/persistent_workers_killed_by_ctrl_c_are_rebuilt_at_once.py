import os
import signal
import time

import torch

torch.set_num_threads(1)
from workers import Items, check_batches, children, wait_until

from fastloop import DataLoader

os.setpgrp()


loader = DataLoader(Items(), 4, num_workers=2, persistent_workers=True)
for round in range(4):
    assert check_batches(loader) == 16
    workers = children()
    got = 0
    try:
        for batch in loader:
            got += 1
            if round % 2 and got == 3:
                os.killpg(os.getpgrp(), signal.SIGINT)
        os.killpg(os.getpgrp(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        assert check_batches(loader) == 16
    assert not set(workers) & set(children())
del loader, batch
wait_until(lambda: not children(), 60)
