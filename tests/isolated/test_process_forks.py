"""Batches that are held while workers start: the workers read them as they were for as long as they
live, and then the memory comes back."""

from pathlib import Path

from helpers import run_script

HEAD = """
import gc, multiprocessing, os, sys
import torch
torch.set_num_threads(1)
from torch.utils.data import DataLoader as TorchLoader
from fastloop import DataLoader
from workers import *
from workers import Items, check_batches


class Replay(torch.utils.data.Dataset):
    # A dataset over a batch; the parent lets go of it.
    def __init__(self, batch):
        self.batch = batch
    def __len__(self):
        return 240
    def __getitem__(self, i):
        return self.batch[i % len(self.batch)]


def replay(kind, loader, **kwargs):
    iterator = iter(kind(loader.dataset, 4, num_workers=1))
    next(iterator)
    data = Replay(next(iterator))
    wanted = data.batch[:, 0].tolist()
    replays = [iter(kind(data, 4, num_workers=1, **kwargs)) for _ in range(2)]
    data.batch = None
    gc.collect()
    got = []
    for _ in range(60):
        next(iterator)
        got += [next(each)[:, 0].tolist() for each in replays]
    return wanted, got


def count_slots(loader):
    return loader._shared.worker_memory.count()
"""


def test_a_dataset_made_from_a_batch_that_is_let_go_of(tmp_path: Path) -> None:
    """Two of them; with workers that persist; in the same loader."""
    run_script(
        tmp_path,
        HEAD
        + """
items = Items(400, shape=(5000,))
for kwargs in ({}, {"persistent_workers": True}):
    ours, theirs = (replay(kind, kind(items), **kwargs) for kind in (DataLoader, TorchLoader))
    assert ours == theirs == ([4, 5, 6, 7], [[4, 5, 6, 7]] * 120), ours

class Grows(Items):
    held = None
    def __getitem__(self, i):
        return super().__getitem__(i) if self.held is None else self.held[i % 4]

for kind in (DataLoader, TorchLoader):
    data = Grows(240, shape=(5000,))
    loader = kind(data, 4, num_workers=2)
    data.held = next(iter(loader))
    second = iter(loader)
    data.held = None
    assert all(batch[:, 0].tolist() == [0, 1, 2, 3] for batch in second)
""",
    )


def test_two_loaders_that_start_at_once(tmp_path: Path) -> None:
    """In two threads, and the batch is let go of in a third."""
    run_script(
        tmp_path,
        HEAD
        + """
import threading
source = iter(DataLoader(Items(2000, shape=(5000,)), 4, num_workers=1))
for round in range(10):
    data = Replay(next(source))
    wanted = data.batch[:, 0].tolist()
    loaders = [DataLoader(data, 4, num_workers=2) for _ in range(2)]
    started, results = threading.Barrier(3), []
    def run(loader):
        iterator = iter(loader)
        started.wait(300)
        results.extend(batch[:, 0].tolist() for batch in iterator)
    threads = [threading.Thread(target=run, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    started.wait(300)
    data.batch = None
    for _ in range(20):
        next(source)
    for thread in threads:
        thread.join()
    assert results == [wanted] * 120, round
""",
    )


def test_memory_is_bounded_where_each_epoch_holds_its_last_batch(tmp_path: Path) -> None:
    """Blocks are counted: with workers of every epoch's own, and beside workers that persist."""
    run_script(
        tmp_path,
        HEAD
        + """
train = DataLoader(Items(8, shape=(5000,)), 4, num_workers=1)
persistent = DataLoader(Items(8, shape=(5000,)), 4, num_workers=1, persistent_workers=True)
made = []
for epoch in range(30):
    for batch in train:
        pass
    for other in persistent if epoch % 10 == 5 else ():
        pass
    made.append(count_slots(train)["made"])
assert made[-1] == made[15] <= 15, made
assert count_slots(train)["lent"] == 1 and count_slots(persistent)["made"] <= 8
del batch, other
persistent.close()
train.close()
assert count_slots(train)["empty"] == count_slots(persistent)["empty"] == 0
assert arena_bytes() == 0
""",
    )


def test_what_a_left_epoch_has_lent_comes_back(tmp_path: Path) -> None:
    """Workers that were killed have ended, too."""
    run_script(
        tmp_path,
        HEAD
        + """
import signal
loader = DataLoader(Items(64, shape=(5000,)), 4, num_workers=2)
made = []
for epoch in range(12):
    iterator = iter(loader)
    batch = next(iterator)
    if epoch % 2 == 0:
        os.kill(children()[0], signal.SIGKILL)
        error_text(lambda: [None for _ in iterator])
    made.append(count_slots(loader)["made"])
    del iterator
assert made[-1] <= 12, made
""",
    )


def test_an_iterator_of_the_parents_gives_a_child_nothing(tmp_path: Path) -> None:
    """Neither what had arrived nor other batches, by any of torch's methods; the parent goes on."""
    run_script(
        tmp_path,
        HEAD
        + """
from helpers import outcome

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
        for name, *args in (("__next__",), ("_next_data",), ("_get_data",),
                            ("_reset", loader)):
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
""",
    )
