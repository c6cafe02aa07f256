"""Runs the loader of torchdata as a subclass of fastloop.DataLoader."""

import pickle
import warnings

import torch.utils.data

import fastloop

warnings.simplefilter("ignore")  # set_vital is deprecated
torch.utils.data.DataLoader = fastloop.DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

assert issubclass(StatefulDataLoader, fastloop.DataLoader)
dataset = torch.utils.data.TensorDataset(torch.arange(6))
for workers in (0, 1):
    with StatefulDataLoader(dataset, 2, num_workers=workers) as loader:
        print(loader.stats().batches, len(pickle.loads(pickle.dumps(loader))))
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    del iterator
    loader = StatefulDataLoader(dataset, 2, num_workers=workers)
    loader.load_state_dict(state)
    print([batch.tolist() for [batch] in loader])
    loader.close()
