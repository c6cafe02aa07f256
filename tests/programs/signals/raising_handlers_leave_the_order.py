"""A storm of signals whose handler raises, around next(): the error is the handler's own, and what
comes after it is in order. A batch that was on its way to the loop may be lost, as with torch."""

from __future__ import annotations

import random
import signal
import sys
from typing import Any

from torch.utils.data import Dataset

from fastloop import DataLoader

BATCHES = 60
PATIENCE = 20  # handlers that raise at one batch, before it is left to come in peace


class AlarmError(Exception):
    pass


def ring(*_: Any) -> None:
    raise AlarmError


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> int:
        return index


def run(path: str, delays: random.Random) -> tuple[list[int], int]:
    # A list as batch sampler: an error inside a generator would end it.
    order = [[i] for i in range(BATCHES)]
    loader: Any = DataLoader(Rows(), batch_sampler=order, num_workers=2, path=path)
    iterator, seen, rings, row = iter(loader), [], 0, 0
    while True:
        try:
            try:
                if row < PATIENCE:
                    signal.setitimer(signal.ITIMER_REAL, 10 ** delays.uniform(-4.7, -3))
                batch = next(iterator)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            row = 0
            seen.append(int(batch))
        except AlarmError:
            rings, row = rings + 1, row + 1
        except StopIteration:
            return seen, rings


signal.signal(signal.SIGALRM, ring)
for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 2):
    for path in ("process", "thread"):
        seen, rings = run(path, random.Random(seed))
        assert seen == sorted(set(seen)), (path, seed, seen)
        assert len(seen) + rings >= BATCHES, (path, seed, rings, seen)
