import os

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset
from workers import in_child

from fastloop import DataLoader

x = torch.arange(40 * 3000, dtype=torch.float32).reshape(40, 3000)
dataset = TensorDataset(x, torch.arange(40))


from torch.utils.data import BatchSampler, RandomSampler, Sampler

torch.set_num_threads(1)  # torch's own threads do not survive fork()


class Own(Sampler):
    def __iter__(self):
        for _ in range(20):
            yield int(torch.randint(40, ()))

    def __len__(self):
        return 20


CASES = {
    "sequential": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "short": {"batch_size": 7, "shuffle": True},
    "drop_last": {"batch_size": 7, "shuffle": True, "drop_last": True},
    "replacement": {"batch_size": 7, "sampler": RandomSampler(dataset, True, 90)},
    "own": {"batch_size": 4, "sampler": Own()},
    "singles": {"batch_size": None, "sampler": BatchSampler(Own(), 3, False)},
}


def follow(iterator, steps, depth):
    found = [labels.tolist() for _, labels in (next(iterator) for _ in range(steps))]
    if depth > 0:
        read, write = os.pipe()

        def child():
            with os.fdopen(write, "w") as pipe:
                pipe.write(repr(follow(iterator, 1, depth - 1)))

        in_child(child)
        os.close(write)
        with os.fdopen(read) as pipe:
            found.append(pipe.read())
    found += [labels.tolist() for _, labels in iterator]
    return found, torch.rand(1).item()


for name, given in CASES.items():
    for steps in (0, 1, 3):
        results = []
        for cls in (TorchLoader, DataLoader):
            torch.manual_seed(1)
            loader = cls(dataset, **given)
            iterator = iter(loader)
            results.append(follow(iterator, steps, 2))
        assert loader.stats().path == "array", name
        assert results[0] == results[1], (name, steps, results)
