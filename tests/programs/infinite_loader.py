"""Runs a loader with one iterator for all epochs, as in ultralytics."""

import gc

import torch
from torch.utils.data import TensorDataset

from fastloop import DataLoader


class Repeats:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Infinite(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeats(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self):
        for worker in self.iterator._workers:
            worker.terminate()
        self.iterator._shutdown_workers()

    def reset(self):
        self.iterator = self._get_iterator()


dataset = TensorDataset(torch.arange(6))
for workers, collate in ((0, None), (1, None), (1, list)):
    args = {"batch_size": 2, "num_workers": workers, "collate_fn": collate}
    loader = Infinite(dataset, **args)
    print(loader.stats().path, len([batch for epoch in range(3) for batch in loader]))
    next(loader.iterator)
    loader.reset()
    first, *_ = loader
    print(first)
    del loader
    older = Infinite(dataset, **args)
    loader = Infinite(dataset, **args)
    loader.iterator, older.iterator = older.iterator, loader.iterator
    loader.itself, older.itself = loader, older  # cycles: an iterator is finalized first
    del loader, older
    gc.collect()
loaders = [Infinite(dataset, **args), Infinite(dataset, 2)]  # there when the interpreter exits
