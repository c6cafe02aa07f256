import torch

torch.set_num_threads(1)
from workers import Items

from fastloop import DataLoader


class Replay(torch.utils.data.Dataset):
    # A dataset over a batch; the parent lets go of it.
    def __init__(self, batch):
        self.batch = batch

    def __len__(self):
        return 240

    def __getitem__(self, i):
        return self.batch[i % len(self.batch)]


import threading

from time_limits import limit

source = iter(DataLoader(Items(2000, shape=(5000,)), 4, num_workers=1))
for round in range(10):
    data = Replay(next(source))
    wanted = data.batch[:, 0].tolist()
    loaders = [DataLoader(data, 4, num_workers=2) for _ in range(2)]
    started, results = threading.Barrier(3), []

    def run(loader):
        iterator = iter(loader)
        started.wait(limit(300))
        results.extend(batch[:, 0].tolist() for batch in iterator)

    threads = [threading.Thread(target=run, args=(loader,)) for loader in loaders]
    for thread in threads:
        thread.start()
    started.wait(limit(300))
    data.batch = None
    for _ in range(20):
        next(source)
    for thread in threads:
        thread.join()
    assert results == [wanted] * 120, round
