import gc
import signal
import threading
import time

import torch

torch.set_num_threads(1)
from time_limits import limit
from workers import (
    CallAt,
    Items,
    Kill,
    Sleep,
    arena_files,
    check_batches,
    children,
    error_text,
    mapped_arenas,
    resources,
    wait_until,
)

from fastloop import DataLoader


def loader_of(hook=None, **kwargs):
    return DataLoader(Items(64, hook, (100_000,)), 4, num_workers=2, **kwargs)


def whole():
    assert check_batches(loader_of()) == 16


def left():
    for batch in loader_of():
        break


def left_slow():
    for batch in loader_of(CallAt(14, Sleep(600))):
        break


def error_in_body():
    for batch in loader_of():
        raise KeyError("body")


def error_in_worker():
    list(loader_of(CallAt(20, lambda: 1 / 0)))


def dropped():
    iter(loader_of())


def dropped_later():
    made = torch.zeros(64).share_memory_()
    iterator = iter(loader_of(lambda i: made[i].fill_(1)))
    next(iterator)
    wait_until(lambda: made[8:].any())  # batches that nobody has asked for
    del iterator


def persistent():
    loader = loader_of(persistent_workers=True)
    next(iter(loader))
    check_batches(loader)


def closed():
    with loader_of(persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
    assert "closed" in error_text(lambda: next(iterator))
    assert not children()


def in_a_cycle():
    class Node:
        pass

    node = Node()
    node.me, node.iterator = node, iter(loader_of())
    node.batch = next(node.iterator)


def in_a_generator():
    def batches():
        yield from loader_of()

    generator = batches()
    next(generator)


def in_a_thread():
    thread = threading.Thread(target=left)
    thread.start()
    thread.join()


def died():
    list(loader_of(CallAt(20, Kill(signal.SIGKILL))))


whole()
gc.collect()
before, slowest = resources(), 0
for use in (
    whole,
    left,
    left_slow,
    error_in_body,
    error_in_worker,
    dropped,
    dropped_later,
    persistent,
    closed,
    in_a_cycle,
    in_a_generator,
    in_a_thread,
    died,
):
    for _ in range(1 if use is left_slow else 2):
        begin = time.monotonic()
        try:
            use()
        except (KeyError, ZeroDivisionError, RuntimeError):
            pass
        gc.collect()
        wait_until(lambda: resources() == before, 60)
        slowest = max(slowest, time.monotonic() - begin)
        assert not arena_files() and not mapped_arenas()
    print(f"{use.__name__}: {time.monotonic() - begin:.3f} s")
assert slowest < limit(60), slowest
