import os

import torch

torch.set_num_threads(1)
from helpers import outcome
from workers import Items, check_batches

from fastloop import DataLoader


def in_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


for kwargs in ({}, {"persistent_workers": True}, {"in_order": False}):
    loader = DataLoader(Items(shape=(5000,)), 4, num_workers=2, **kwargs)
    iterator = iter(loader)
    batches = [next(iterator)]

    def ask():
        for name, *args in (("__next__",), ("_next_data",), ("_get_data",), ("_reset", loader)):
            kind, error, text = outcome(lambda: getattr(iterator, name)(*args))
            assert error is RuntimeError, (name, error, text)
            assert "parent process; call iter() on the loader in the child" in text, text

    for _ in range(3):
        in_child(ask)
        batches.append(next(iterator))
    batches += iterator
    if "in_order" in kwargs:
        batches.sort(key=lambda batch: int(batch[0, 0]))
    assert check_batches(batches) == 16
    in_child(ask)  # where there is nothing left
