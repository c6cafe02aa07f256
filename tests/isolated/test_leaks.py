"""Nothing grows: memory, threads and file descriptors over many epochs, good and bad."""

from pathlib import Path

import pytest
from helpers import run_script

SCRIPT = """
import gc, os, sys
import numpy as np
import torch
from fastloop import ArrayDataset, DataLoader
from helpers import FailingSampler, SamplerError, ListSampler
from workers import threads

workers, epochs = map(int, sys.argv[1:])
page = os.sysconf("SC_PAGE_SIZE")


def count():
    gc.collect()
    rss = int(open("/proc/self/statm").read().split()[1]) * page
    return rss, len(threads()), len(os.listdir("/proc/self/fd"))


def whole(loader):
    for batch in loader:
        pass


def left_early(loader):
    for batch in loader:
        break


def failing(loader):
    try:
        whole(loader)
    except (IndexError, SamplerError, TypeError):
        return
    raise AssertionError("no error")


def closed(loader):
    with loader:
        next(iter(loader))


def kept(loader):
    batches = list(loader)
    del batches[::2]


np.save("data.npy", np.zeros((16, 100), np.float32))
array = np.zeros((16, 300), np.float32)
fields = dict(a=array, b="data.npy", c=torch.arange(16), d=array[::-1])
dataset = ArrayDataset(**fields)
cases = {
    "epoch": (whole, dict(batch_size=4, shuffle=True)),
    "user sampler": (whole, dict(batch_size=4, sampler=ListSampler(range(16), np.int64))),
    "singles": (whole, dict(batch_size=None)),
    "fetched": (whole, dict(batch_sampler=[[True], [torch.tensor(1)], [slice(2)]])),
    "break": (left_early, dict(batch_size=2)),
    "index error": (failing, dict(batch_sampler=[[0], [99], [1]])),
    "sampler error": (failing, dict(batch_size=4, sampler=FailingSampler(16, 9))),
    "bad batch": (failing, dict(batch_sampler=[[0], 5, [1]])),
    "close": (closed, dict(batch_size=4)),
    "kept": (kept, dict(batch_size=2)),
}
for name, (use, kwargs) in cases.items():
    loader = DataLoader(dataset, num_workers=workers, path="array", **kwargs)
    share = epochs if name == "epoch" else epochs // 20
    for _ in range(share // 10):
        use(loader)
    before = count()
    for _ in range(share):
        use(loader)
    after = count()
    assert after[1:] == before[1:], (name, before, after)
    assert after[0] - before[0] < 2 << 20, (name, before, after)
    print(name, after[0] - before[0])

if workers:
    loader = DataLoader(dataset, 4, num_workers=workers, persistent_workers=True)
    whole(loader)
    before = count()
    for _ in range(epochs):
        whole(loader)
    assert count()[1:] == before[1:]
    del loader

before = count()
for _ in range(epochs // 20):
    for batch in DataLoader(ArrayDataset(**fields), 4, num_workers=workers):
        pass
after = count()
assert after[1:] == before[1:], ("loaders", before, after)
assert after[0] - before[0] < 2 << 20, ("loaders", before, after)
"""


@pytest.mark.parametrize(("workers", "epochs"), [(0, 10_000), (2, 1_000)])
def test_no_leak_of_memory_threads_or_descriptors(
    workers: int, epochs: int, tmp_path: Path
) -> None:
    run_script(tmp_path, SCRIPT, workers, epochs)


def test_batches_of_changing_size_do_not_grow_the_pool(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import ctypes, os, random, torch
from fastloop import DataLoader
from torch.utils.data import TensorDataset
x = torch.zeros(1000, 1000, dtype=torch.uint8)
random.seed(1)
for workers in (0, 2):
    def rss():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    batches = [list(range(random.choice((1, 10, 100, 1000)))) for _ in range(300)]
    loader = DataLoader(TensorDataset(x), batch_sampler=batches, num_workers=workers)
    for (batch,) in loader:
        pass
    first = rss()
    for _ in range(3):
        for (batch,) in loader:
            pass
    assert rss() - first < 20 << 20, (first, rss())
    kept = list(loader)
    full = rss()
    del kept, batch
    loader.close()
    ctypes.CDLL(None).malloc_trim(0)  # what is free in between goes back, too
    assert rss() < full - (50 << 20), (first, full, rss())
""",
    )


def test_without_threads_or_memory_it_says_so_and_recovers(tmp_path: Path) -> None:
    run_script(
        tmp_path,
        """
import os, resource, warnings
import torch
from fastloop import DataLoader
from helpers import outcome
from torch.utils.data import TensorDataset
from workers import threads
warnings.simplefilter("ignore")
x = torch.zeros(1000, 1 << 12)
many = DataLoader(TensorDataset(x), 3, num_workers=100)
large = DataLoader(TensorDataset(x), batch_sampler=[[0] * (1 << 15)])
before = threads()
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
for _ in range(3):
    kind, error, text = outcome(lambda: len(list(many)))
    assert (error, "cannot start a thread" in text) == (RuntimeError, True), (error, text)
    kind, error, text = outcome(lambda: len(list(large)))
    assert (error, str(1 << 29) in text) == (MemoryError, True), (error, text)
assert threads() == before
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert len(list(many)) == 334
assert len(list(large)) == 1
""",
    )
