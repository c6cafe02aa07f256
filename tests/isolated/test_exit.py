"""The interpreter ends cleanly whatever is still open: exit code, and nothing on stderr."""

from pathlib import Path

import pytest
from helpers import run_script

HEAD = """
import atexit, gc, sys, threading, time
import numpy as np
import torch
from fastloop import ArrayDataset, DataLoader
from helpers import slow_array
from pathlib import Path
from torch.utils.data import TensorDataset
from workers import is_thread_in, wait_until

def loader_of(workers, width=100_000, **kwargs):
    dataset = TensorDataset(torch.zeros(64, width), torch.arange(64))
    return DataLoader(dataset, 4, True, num_workers=workers, path="array", **kwargs)
"""
CASES = {
    "open handles": """
iterators = [iter(loader_of(workers, width)) for workers in (0, 1, 2) for width in (3, 100_000)]
batches = [next(iterator) for iterator in iterators]

lent, array = next(iter(loader_of(2)))[0], next(iter(loader_of(0)))[1].numpy()
view = lent[1:].t()
del lent

persistent = loader_of(2, persistent_workers=True)
next(iter(persistent))

class Node:
    pass
gc.disable()
for workers in (0, 2):
    node = Node()
    node.me, node.iterator = node, iter(loader_of(workers))
    node.batch = next(node.iterator)
del node
""",
    "threads": """
# torch releases the interpreter lock while it frees a tensor. If the interpreter ends meanwhile, a
# daemon thread cannot take the lock again, and the process aborts (with torch's loaders, too). So
# daemon threads here free no tensor.
kept = []
def work(iterator, seconds):
    for batch in iterator:
        kept.append(batch)
        time.sleep(seconds)
for workers in (0, 2):
    threading.Thread(target=work, args=[iter(loader_of(workers)), 0.01]).start()
    threading.Thread(target=work, args=[iter(loader_of(workers)), 0.2], daemon=True).start()

array = slow_array(Path.cwd(), 4)
waiting = []
for workers in (0, 1):
    iterator = iter(DataLoader(ArrayDataset(array), batch_sampler=[[0, 1, 2, 3] * 25] * 2,
                               num_workers=workers))
    waiting += [threading.Thread(target=next, args=[iterator], daemon=True) for _ in range(2)]
for thread in waiting:
    thread.start()
wait_until(lambda: all(is_thread_in("__next__", thread.ident) for thread in waiting))
""",
    "use at exit": """
class Last:
    def __init__(self, iterator):
        self.iterator = iterator
    def __del__(self):
        next(self.iterator)
iterators = [iter(loader_of(workers)) for workers in (0, 2)]
atexit.register(lambda: [next(iterator) for iterator in iterators])
atexit.register(lambda: [next(iter(loader_of(workers))) for workers in (0, 2)])
kept = [Last(iter(loader_of(workers))) for workers in (0, 2)]
""",
    "a main module that another keeps, as dill does": """
import fastloop  # and what is below it
torch.utils.data.kept = sys.modules["__main__"]

class Samples:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(index)

loaders = [DataLoader(Samples(), 2, num_workers=workers, path=path, **kwargs)
           for path, workers in (("sync", 0), ("process", 1), ("thread", 1), ("torch", 1))
           for kwargs in ({}, {"device": "cpu", "device_transform": abs})]
loaders += [DataLoader(Samples(), 2, num_workers=1, persistent_workers=True, path=path)
            for path in ("process", "thread", "torch")]
loaders += [loader_of(workers) for workers in (0, 1)]
iterators = [iter(loader) for loader in loaders]
batches = [next(iterator) for iterator in iterators]
""",
    "sys.exit in the loop": """
for batch in loader_of(2):
    sys.exit(3)
""",
    "an error in the loop": """
for batch in loader_of(2):
    raise KeyError("mine")
""",
}


@pytest.mark.parametrize("name", CASES)
def test_exit_with(name: str, tmp_path: Path) -> None:
    returncode = {"sys.exit in the loop": 3, "an error in the loop": 1}.get(name, 0)
    stderr = "KeyError: 'mine'" if returncode == 1 else ""
    run_script(
        tmp_path,
        HEAD + CASES[name],
        returncode=returncode,
        stderr=stderr,
        is_fresh=name.partition(" ")[0] in ("open", "threads", "a"),
    )
