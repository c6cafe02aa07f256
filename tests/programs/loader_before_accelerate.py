"""Makes or unpickles a loader, calls patch(), and only then imports accelerate:
`… MODULE made|unpickled`."""

import importlib
import pickle
import sys

import torch

import fastloop


def double(batch: torch.Tensor) -> torch.Tensor:
    return batch * 2


if sys.argv[2] == "made":
    loader = fastloop.DataLoader(torch.arange(4), device="cpu", device_transform=double)
else:
    loader = fastloop.DataLoader(torch.arange(4))
    state = loader.__getstate__() | {"device": "cpu", "device_transform": double}
    loader.__setstate__(pickle.loads(pickle.dumps(state)))
assert "accelerate" not in sys.modules
fastloop.patch()
skip_first_batches = importlib.import_module(sys.argv[1]).skip_first_batches
assert [x.item() for x in skip_first_batches(loader, 1)] == [2, 4, 6]
