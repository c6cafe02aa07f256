"""Two ranks under DistributedDataParallel: torchrun --nproc-per-node 2 examples/minimal_ddp.py"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from fastloop import DataLoader, Stepper

torch.manual_seed(0)
rank = int(os.environ["LOCAL_RANK"])
has_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", rank) if has_gpus else torch.device("cpu")
if has_gpus:
    torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpus else "gloo")

x = torch.randn(6400, 20)
data = TensorDataset(x, (x.sum(1, keepdim=True) > 0).float())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=2, device=device)
model = nn.parallel.DistributedDataParallel(nn.Linear(20, 1).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
stepper = Stepper(optimizer, accumulate=2, max_norm=1.0, model=model)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for xb, yb in stepper.iterate(loader):
        with stepper.micro(weight=len(xb)):
            loss = nn.functional.binary_cross_entropy_with_logits(model(xb), yb)
            stepper.backward(loss)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")
dist.destroy_process_group()
