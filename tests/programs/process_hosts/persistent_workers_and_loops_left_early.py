import gc

import torch

torch.set_num_threads(1)
from workers import Items, Stream, children

from fastloop import DataLoader

for data, whole in ((Items(shape=(20_000,)), 16), (Stream(64), 32)):
    loader = DataLoader(data, 4, num_workers=2, persistent_workers=True)
    pids = set()
    for stop in (1, 7, 0, 15, 3):
        number = 0
        for number, batch in enumerate(loader):
            if isinstance(data, Items):
                assert batch[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
            if number == stop:
                break
        pids |= set(children())
        assert len(pids) == 2
    assert len(list(loader)) == whole
    del loader
    gc.collect()
    assert not children()
