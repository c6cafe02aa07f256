import os
import sys
from pathlib import Path

import torch
from helpers import outcome, slow_array
from torch.utils.data import TensorDataset
from workers import in_child

from fastloop import ArrayDataset, DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


import threading

from workers import is_thread_in, wait_until

array = slow_array(Path.cwd(), 6)
for workers in (0, 1, 2):
    batches = [[0, 1, 2, 3, 4] * 3] * 3
    loader = DataLoader(ArrayDataset(array), batch_sampler=batches, num_workers=workers)
    iterator = iter(loader)
    got = []
    thread = threading.Thread(target=lambda: got.extend(iterator))
    thread.start()
    for fork in range(2):
        wait_until(lambda: is_thread_in("__next__", thread.ident) or not thread.is_alive())
        if fork and not thread.is_alive():
            break  # The first fork took longer than all batches.

        def child():
            assert outcome(lambda: next(iterator))[1] is RuntimeError
            small = DataLoader(ArrayDataset(array), batch_sampler=[[5]], num_workers=workers)
            assert [int(batch[0, 0]) for (batch,) in small] == [5]
            loader.close()
            os.environ.clear()

        in_child(child)
        in_child(lambda: None, sys.exit)
    thread.join()
    assert [batch[:, 0].tolist() for (batch,) in got] == batches
