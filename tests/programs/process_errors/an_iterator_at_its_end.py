import gc

import torch

torch.set_num_threads(1)
from helpers import outcome
from torch.utils.data import DataLoader as TorchLoader
from workers import Items, Stream, wait_for_torchs_workers

from fastloop import DataLoader

for persistent in (False, True):
    for data in (Items(16), Stream(8)):
        traces = []
        for kind in (DataLoader, TorchLoader):
            loader = kind(data, 4, num_workers=2, persistent_workers=persistent)
            first = iter(loader)
            trace = [batch[:, 0].tolist() for batch in first]
            trace += [outcome(lambda: next(first))[1] for _ in range(3)]  # noqa: F821
            second = iter(loader)
            trace += [batch[:, 0].tolist() for batch in second]
            trace += [outcome(lambda: next(first))[1], outcome(lambda: next(second))[1]]  # noqa: F821
            third, fourth = iter(loader), iter(loader)  # the same one where workers persist
            trace += [next(third)[:, 0].tolist(), next(fourth)[:, 0].tolist()]
            trace += [batch[:, 0].tolist() for batch in third]
            trace += [batch[:, 0].tolist() for batch in fourth]
            traces.append(trace)
            del loader, first, second, third, fourth
            gc.collect()
            wait_for_torchs_workers()
        assert traces[0] == traces[1], traces
