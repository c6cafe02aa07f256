"""Counts page faults of a dataset that makes temporary arrays: `… sync|thread|fork|spawn`."""

import resource
import sys

import numpy as np

from fastloop import DataLoader

ROUNDS = 10


class Faults:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        # Page faults of a round after the first. All arrays of a round are alive at once.
        self.work()
        before = self.faults()
        for _ in range(ROUNDS):
            self.work()
        return (self.faults() - before) / ROUNDS

    @staticmethod
    def work():
        _ = [np.ones(1 << 17) for _ in range(8)]

    @staticmethod
    def faults():
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


if __name__ == "__main__":
    path = sys.argv[1]
    how = {"sync": {}, "thread": {"path": "thread", "num_workers": 1}}.get(
        path, {"num_workers": 1, "multiprocessing_context": path}
    )
    faults = [float(of) for batch in DataLoader(Faults(), 1, **how) for of in batch]
    pages = 8 << 8
    assert len(faults) == 4 and max(faults) < pages / 4, (faults, pages)
