"""Forks while another thread is in next()."""

import os
import threading
from typing import Any

import torch
from holding import Holds
from time_limits import limit

from fastloop import DataLoader


def fork_in_next(path: str) -> None:
    dataset, got = Holds(8), list[Any]()
    iterator = iter(DataLoader(dataset, 2, path=path))
    thread = threading.Thread(target=lambda: got.append(next(iterator)))
    thread.start()
    assert dataset.inside.wait(limit(300))
    child = os.fork()
    if child == 0:
        os._exit(next(iterator)[:, 0].tolist() != [2, 3])
    assert os.waitpid(child, 0)[1] == 0
    dataset.end.set()
    thread.join()
    assert got[0][:, 0].tolist() == [0, 1] and next(iterator)[:, 0].tolist() == [2, 3]


torch.set_num_threads(1)
for path in ("sync", "torch"):
    fork_in_next(path)
