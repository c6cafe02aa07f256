import ctypes
import faulthandler
import gc
import os
import random
import re
import resource
import sys
import time

import numpy as np
import torch

torch.set_num_threads(1)
from head import find_ring
from time_limits import limit
from torch.utils.data import Dataset, get_worker_info
from workers import wait_until

from fastloop import DataLoader

GIB = 1 << 30


def find_areas(fd):
    # (offset, bytes) of all parts of the file that have been written to: the queues come first.
    areas, end = [], 0
    while True:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:
            return areas
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        areas.append((begin, min(end - begin, 16 << 10)))


def write_words(rng):
    base, fd = find_ring()
    queues, *slots = find_areas(fd)
    written = []
    for _ in range(rng.choice((1, 1, 3))):
        begin, size = rng.choice(slots) if slots and rng.random() < 0.4 else queues
        words = np.ctypeslib.as_array((ctypes.c_uint32 * (size // 4)).from_address(base + begin))
        # Most of the words are in use at the moment, that is, not zero.
        used = np.flatnonzero(words.copy())  # others write there
        few = used[: 1 + rng.randrange(64)]
        at = int(rng.choice(few if len(few) and rng.random() < 0.8 else range(len(words))))
        value = rng.choice(
            (
                0,
                1,
                0xFFFFFFFF,
                1 << 31,
                rng.getrandbits(32),
                rng.randrange(64),
                (int(words[at]) + 1) % (1 << 32),
                (int(words[at]) - 1) % (1 << 32),
            )
        )
        written.append((begin + 4 * at, int(words[at]), value))
        words[at] = value
    return written


class Wild(Dataset):
    # Worker `writer` writes when it is asked for item `at` or one behind it. Its parent may meet
    # that, and end it, before it says that it has written. No lock: it would end with it.

    def __init__(self, seed, writer, at):
        self.seed, self.writer, self.at = seed, writer, at
        self.is_due, self.is_hit = torch.zeros(2).share_memory_().split(1)

    def __len__(self):
        return 24

    def __getitem__(self, i):
        if i >= self.at and get_worker_info().id == self.writer and not self.is_hit:
            self.is_due.fill_(1)
            written = write_words(random.Random(self.seed))
            if len(sys.argv) > 3:
                print(self.seed, written, flush=True)
            self.is_hit.fill_(1)
        return {"x": torch.full((8,), float(i)), "y": i, "name": f"item {i}"}


def quiet(_):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # for its own error


def keep(samples):
    return samples


def split(samples):
    return [sample["x"] for sample in samples], [sample["name"] for sample in samples]


def check(batch, first, collate_fn):
    # What is in tensors may be anything.
    names = [f"item {i}" for i in range(first, first + 2)]
    if collate_fn is None:
        assert batch["x"].shape == (2, 8) and batch["y"].shape == (2,), batch
        assert batch["name"] == names, batch
    elif collate_fn is keep:
        assert [sample["name"] for sample in batch] == names, batch
        assert [sample["y"] for sample in batch] == [first, first + 1], batch
    else:
        assert len(batch[0]) == 2 and batch[1] == names, batch


def run(seed):
    rng = random.Random(seed)
    workers, waits, is_persistent = rng.choice((1, 2)), rng.random() < 0.7, rng.random() < 0.2
    collate_fn = rng.choice((None, keep, split))
    data = Wild(seed, rng.randrange(workers), rng.randrange(4 if waits else 20))
    loader = DataLoader(
        data,
        2,
        num_workers=workers,
        collate_fn=collate_fn,
        worker_init_fn=quiet,
        persistent_workers=is_persistent,
    )
    try:
        for _ in range(1 + is_persistent):
            iterator = iter(loader)
            if waits:  # for what has been sent before to lie there when it writes
                wait_until(lambda: data.is_hit)
            count = 0
            for batch in iterator:
                check(batch, 2 * count, collate_fn)
                count += 1
            assert count == 12, count
    except RuntimeError as error:
        assert next(iterator, None) is None
        assert list(loader) if seed % 8 == 0 else True  # a new epoch is as good as any
        return str(error)
    finally:
        assert data.is_due
    return "right"


first, last = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (2 * GIB, 2 * GIB))
slowest, errors = 0.0, 0
for seed in range(first, last):
    faulthandler.dump_traceback_later(300, exit=True)
    begin = time.monotonic()
    outcome = run(seed)
    gc.collect()
    seconds = time.monotonic() - begin
    faulthandler.cancel_dump_traceback_later()
    if len(sys.argv) > 3:
        print(seed, round(seconds, 2), outcome[:70], flush=True)
    slowest = max(slowest, seconds)
    assert seconds < limit(60), (seed, seconds, outcome)
    is_error = re.match("worker [01](, or a .*,)? has overwritten the memory", outcome) is not None
    assert outcome == "right" or is_error, (seed, outcome)
    errors += is_error
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
assert most < 1024, most
assert errors > (last - first) // 10, errors  # or nothing was hit
print(f"{last - first} loaders, {errors} errors, at most {slowest:.1f} s and {most} MiB")
