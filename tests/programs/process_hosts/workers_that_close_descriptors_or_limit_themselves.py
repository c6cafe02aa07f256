import gc
import os
import resource
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
from helpers import outcome
from time_limits import limit
from workers import CallAt, Items, Kill, SleepAt, check_batches, children, error_text, wait_until

from fastloop import DataLoader


def close_all(*_):
    os.closerange(3, 4096)


def close_again(i):
    os.closerange(3, 4096)
    [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]


def wander(number):
    os.chdir("/")


def limit_itself(number):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def drop_root(number):
    os.setgroups([]), os.setgid(65534), os.setuid(65534)


def check(init, hook=None):
    for persistent in (False, True):
        loader = DataLoader(
            Items(64, hook, (50_000,)),
            4,
            num_workers=2,
            worker_init_fn=init,
            persistent_workers=persistent,
        )
        assert check_batches(loader) == check_batches(loader) == 16
        begin = time.monotonic()
        del loader
        gc.collect()
        assert not children()
        assert time.monotonic() - begin < limit(60)  # ended, not waited for


for init in (close_all, wander, limit_itself, *([drop_root] if os.getuid() == 0 else [])):
    check(init)
check(None, close_again)

# Such a worker that is busy is ended like any other, and one that dies is seen.
sleep = SleepAt(14, 600)
iterator = iter(DataLoader(Items(hook=sleep), 4, num_workers=2, worker_init_fn=close_all))
next(iterator)
wait_until(lambda: sleep.is_there)
begin = time.monotonic()
del iterator
assert time.monotonic() - begin < limit(60) and not children()
text = error_text(
    lambda: list(
        DataLoader(Items(hook=CallAt(22, Kill(9))), 4, num_workers=2, worker_init_fn=close_all)
    )
)
assert "SIGKILL" in text, text


def little(number):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)


class Hungry(Items):
    def __getitem__(self, i):
        if i == 22:
            bytearray(1 << 30)
        return super().__getitem__(i)


kind, error, text = outcome(
    lambda: list(DataLoader(Hungry(), 4, num_workers=2, worker_init_fn=little))
)
assert error is MemoryError and "batch 5" in text, (error, text)
