"""A dataset whose first sample waits, so that a thread is held in next()."""

import threading

import torch
from time_limits import limit
from workers import Items


class Holds(Items):
    """Item 0 sets `inside` and waits for `end`."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.inside, self.end = threading.Event(), threading.Event()

    def __getitem__(self, i: int) -> torch.Tensor:
        if i == 0:
            self.inside.set()
            assert self.end.wait(limit(300))
        return super().__getitem__(i)
