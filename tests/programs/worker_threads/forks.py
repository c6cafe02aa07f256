import os
import sys

import torch

torch.set_num_threads(1)
from workers import Items, check_batches, error_text, in_child

from fastloop import DataLoader


def loader_of(hook=None, n=64, **kwargs):
    return DataLoader(Items(n, hook), 4, path="thread", **{"num_workers": 2, **kwargs})


loader = loader_of(persistent_workers=sys.argv[1] == "True")
iterator = iter(loader)
batches = [next(iterator)]


def child():
    assert "this iterator belongs to the parent" in error_text(lambda: next(iterator))
    assert check_batches(loader) == 16
    assert check_batches(loader) == 16
    loader.close()


for end in (os._exit, sys.exit):
    in_child(child, end)

batches += iterator
assert check_batches(batches) == 16
assert check_batches(loader) == 16
