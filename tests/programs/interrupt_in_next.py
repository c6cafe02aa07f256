"""Presses Ctrl-C while another thread is in next()."""

import threading
from typing import Any

import torch
from holding import Holds
from time_limits import limit
from workers import Interrupt, error_text, is_thread_in

from fastloop import DataLoader

torch.set_num_threads(1)
dataset, got = Holds(8), list[Any]()
iterator = iter(DataLoader(dataset, 2, path="sync"))
thread = threading.Thread(target=lambda: got.append(next(iterator)))
thread.start()
assert dataset.inside.wait(limit(300))
interrupt = Interrupt(when=lambda: is_thread_in("__next__"))
error_text(lambda: next(iterator), KeyboardInterrupt)
dataset.end.set()
thread.join()
got += iterator
assert [batch[:, 0].tolist() for batch in got] == [[0, 1], [2, 3], [4, 5], [6, 7]]
