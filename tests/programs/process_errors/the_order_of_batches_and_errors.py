import torch

torch.set_num_threads(1)
from helpers import outcome
from torch.utils.data import DataLoader as TorchLoader
from workers import CallAt, Items, children, wait_for_torchs_workers

from fastloop import DataLoader


class Raises:
    def __init__(self, error):
        self.error = error

    def __call__(self, *_):
        raise self.error()


for kind in (DataLoader, TorchLoader):
    for workers in (1, 3):
        iterator = iter(
            kind(Items(64, CallAt(9, Raises(ValueError), every=True)), 4, num_workers=workers)
        )
        got = []
        for _ in range(16):
            batch = outcome(lambda: next(iterator))
            got.append(batch[1].__name__ if isinstance(batch, tuple) else int(batch[0, 0]))
        assert outcome(lambda: next(iterator))[1] is StopIteration
        bad = {i // 4 for i in range(0, 64, 9)}
        assert got == ["ValueError" if i in bad else 4 * i for i in range(16)], got
        if kind is TorchLoader:
            wait_for_torchs_workers()
        assert not children()
