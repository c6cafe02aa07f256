"""Two ranks save one distributed checkpoint of their loaders, and each resumes from it."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from helpers import labels, small_dataset
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader

torch.set_num_threads(1)
rank = int(os.fork() == 0)
dist.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=2)


def make():
    data = small_dataset()
    return DataLoader(data, 5, sampler=DistributedSampler(data, 2, rank))


loader = make()
loader.sampler.set_epoch(3)
iterator = iter(loader)
next(iterator)
dcp.save({"loader": loader}, checkpoint_id="saved")
expected = labels(iterator)
other = make()
dcp.load({"loader": other}, checkpoint_id="saved")
assert other.state_dict()["yielded"] == 1
assert labels(other) == expected
dist.destroy_process_group()
if rank == 1:
    os._exit(0)
assert os.wait()[1] == 0
print("fine")
