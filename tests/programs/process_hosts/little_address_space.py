import gc
import resource

import torch

torch.set_num_threads(1)
from helpers import outcome
from workers import Items, check_batches

from fastloop import DataLoader


def main():
    for gib, method in ((8, "fork"), (3, "fork"), (3, "spawn")):
        resource.setrlimit(resource.RLIMIT_AS, (gib << 30, resource.RLIM_INFINITY))
        loader = DataLoader(
            Items(shape=(100_000,)),
            4,
            num_workers=2 if method == "fork" else 1,
            multiprocessing_context=method,
        )
        assert check_batches(list(loader)) == 16
        del loader
    gc.collect()
    loader = DataLoader(Items(4, shape=(300 << 20,)), 1, num_workers=1, prefetch_factor=1)
    loader.memory_budget = 1 << 20
    kind, error, text = outcome(lambda: list(loader))
    assert error in (MemoryError, RuntimeError), (error, text)
    assert check_batches(DataLoader(Items(), 4, num_workers=2)) == 16


if __name__ == "__main__":
    main()
