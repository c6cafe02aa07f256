import sys

import torch
from torch.utils.data import TensorDataset

from fastloop import DataLoader

loader = DataLoader(TensorDataset(torch.arange(8)), 4, num_workers=1)
assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
UNUSED = (
    "fastloop.adapters.",
    "fastloop.compat.seams",
    "fastloop.data.transforms",
    "fastloop.device",
    "fastloop.loader.arrays.ahead",
    "fastloop.loader.device_iter",
    "fastloop.loader.resume.saving",
    "fastloop.loader.stats",
    "fastloop.loader.workers",
    "fastloop.patching",
    "fastloop.step",
    "fastloop.tools",
)
found = [name for name in sys.modules if name.startswith(UNUSED)]
assert not found, found
assert loader.stats().path == "array"
assert loader.state_dict()["epoch"] == 1
