"""Takes the batch that is waited for in a signal handler."""

import os
import signal
import threading
import time
from typing import Any

import torch
from helpers import outcome
from workers import Items, is_thread_in, wait_until

from fastloop import DataLoader


class Held(Items):
    """Waits until it is released, by all of `released` being 1."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.released = torch.zeros(1).share_memory_()

    def __getitem__(self, i: int) -> torch.Tensor:
        while not self.released:
            time.sleep(0.001)
        return super().__getitem__(i)


def take_in_handler(n: int) -> Any:
    dataset, inner = Held(n), list[int]()
    iterator = iter(DataLoader(dataset, 1, num_workers=1))

    def handle(*_: object) -> None:
        dataset.released.fill_(1)
        inner.append(int(next(iterator)[0, 0]))

    def send() -> None:
        wait_until(lambda: is_thread_in("_get_data"))
        os.kill(os.getpid(), signal.SIGUSR1)

    signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=send)
    thread.start()
    result = outcome(lambda: int(next(iterator)[0, 0]))
    thread.join()
    assert inner == [0], inner
    return result


torch.set_num_threads(1)
assert take_in_handler(2) == 1
assert "was taken meanwhile" in (text := take_in_handler(1)[2]), text
