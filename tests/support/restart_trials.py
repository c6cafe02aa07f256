"""What the scripts about workers that come back share: acts that happen once in all processes, and
what warnings have said."""

import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from workers import Kill

from fastloop.loader.workers import lifecycle

# The begin of the scripts.
HEAD = """
import gc, os, random, signal, sys, time
import numpy as np
import torch
torch.set_num_threads(1)
from fastloop import DataLoader
from restart_trials import *
from workers import *


def restarting(dataset, size=4, **kwargs):
    kwargs.setdefault("num_workers", 2)
    return DataLoader(dataset, size, on_worker_death="restart", **kwargs)


def check_clean():
    gc.collect()
    wait_until(lambda: resources() == before, 60)


def begin():
    global before
    for batch in DataLoader(Items(8), 4, num_workers=1):
        del batch
    before = resources()
"""

ENDS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, 0]


class Once:
    """Acts when it is called with `i`, the first `times` times in all processes that share it."""

    def __init__(self, i: int, act: Callable[[], object], times: int = 1) -> None:
        self.i, self.act, self.times = i, act, times
        self.count = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __call__(self, i: int) -> None:
        if i == self.i and self.count < self.times:
            self.count += 1  # one worker alone is given this sample
            self.act()


class Log:
    """How often each item was asked for, in all processes; at one time by one of them."""

    def __init__(self, n: int) -> None:
        self.counts = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __call__(self, i: int) -> None:
        self.counts[i] += 1


class Both:
    def __init__(self, *hooks: Callable[[int], object]) -> None:
        self.hooks = hooks

    def __call__(self, i: int) -> None:
        for hook in self.hooks:
            hook(i)


class OnceInit:
    """A worker_init_fn that acts in worker `worker`, the first `times` times."""

    def __init__(self, worker: int, act: Callable[[], object], times: int = 1) -> None:
        self.once = Once(worker, act, times)

    def __call__(self, worker: int) -> None:
        self.once(worker)


@contextmanager
def deaths() -> Iterator[list[str]]:
    """The texts of the RuntimeWarnings in this block, once it is over."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuntimeWarning)
        yield texts
    for warning in caught:
        text = str(warning.message)
        assert "A new process takes its place" in text, text
        texts.append(text)


def check_death(text: str, end: int, batch: int | None = None) -> None:
    """It names the signal or exit code, the batch, and memory."""
    wanted = f"signal: {signal.Signals(end).name} " if end else "exit code 3"
    assert wanted in text, text
    assert batch is None or f"batch {batch} (indices [" in text, text
    assert re.search(r"[0-9.]+ of [0-9.]+ GiB of memory", text), text


def around_next_start(
    before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
) -> None:
    """Has these called around the next start of a worker process."""
    start = lifecycle.WorkerProcess._start

    def start_once(process: Any) -> None:
        lifecycle.WorkerProcess._start = start
        before()
        start(process)
        after()

    lifecycle.WorkerProcess._start = start_once


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def pids(iterator: Any) -> list[int]:
    return [worker.pid for worker in iterator._workers]


__all__ = [
    "ENDS",
    "Both",
    "Kill",
    "Log",
    "Once",
    "OnceInit",
    "around_next_start",
    "check_death",
    "deaths",
    "kill",
    "pids",
]
