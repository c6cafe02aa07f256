"""Handwritten digits on several ranks: DistributedDataParallel with gradient accumulation, a loss
scaler and clipping, once with torch's pieces and once with fastloop's.

Each rank reads its share of the same shuffled epoch, and the gradients of a window of batches are
reduced once, in the last backward. Written out, that is TorchStep; with fastloop it is the Stepper.
Both train the same numbers. With CUDA devices each rank takes one, else all run on the CPU.

    torchrun --nproc-per-node 2 examples/ddp.py [--epochs 5] [--batch-size 32] [--accumulate 4]
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import fastloop

MAX_NORM = 1.0
TOLERANCE = 1e-5  # of a loss: the norm that gradients are clipped by is rounded once, not often


def model_of(args: argparse.Namespace, device: torch.device) -> DistributedDataParallel:
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    return DistributedDataParallel(model)


def loader_of(args: argparse.Namespace, kind: type[DataLoader[Any]], **options: Any) -> Any:
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target))
    # Every rank has as many batches as the others.
    sampler = DistributedSampler(data, seed=args.seed)
    return kind(data, args.batch_size, sampler=sampler, drop_last=True, **options)


def train_with_torch(args: argparse.Namespace, device: torch.device) -> Iterator[Tensor]:
    """Yields the losses of each epoch, a rank's own."""
    loader = loader_of(args, DataLoader)
    model = model_of(args, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        losses = []
        for i, batch in enumerate(loader):
            images, labels = (part.to(device) for part in batch)
            first = i - i % args.accumulate
            size = min(args.accumulate, len(loader) - first)  # the last window may be short
            is_boundary = i + 1 == first + size
            with nullcontext() if is_boundary else model.no_sync():
                loss = functional.cross_entropy(model(images), labels)
                scaler.scale(loss / size).backward()
            losses.append(loss.detach())
            if is_boundary:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        yield torch.stack(losses)


def train_with_fastloop(args: argparse.Namespace, device: torch.device) -> Iterator[Tensor]:
    """The same."""
    loader = loader_of(args, fastloop.DataLoader, num_workers=1, device=device)
    model = model_of(args, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = fastloop.GradScaler(device.type)
    stepper = fastloop.Stepper(
        optimizer, args.accumulate, scaler=scaler, max_norm=MAX_NORM, model=model
    )
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        losses = []
        for images, labels in stepper.iterate(loader):
            with stepper.micro(weight=len(images)):
                loss = functional.cross_entropy(model(images), labels)
                stepper.backward(loss)
            losses.append(loss.detach())
        yield torch.stack(losses)


def mean_over_ranks(losses: Tensor) -> float:
    total = losses.double().mean()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()


def join_ranks() -> torch.device:
    """Returns the device of this rank."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
        return device
    torch.set_num_threads(1)  # a model this small is fastest on one thread
    dist.init_process_group("gloo")
    return torch.device("cpu")


def leave_ranks() -> None:
    """gloo's threads let go of the last losses a moment after these are there. Were Python ending
    by then, torch would abort the process."""
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of a rank")
    parser.add_argument("--accumulate", type=int, default=4, help="batches of a step")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not dist.is_torchelastic_launched():
        parser.error("this example is started by torchrun, as its first lines say")

    device = join_ranks()
    columns = {"torch": train_with_torch, "fastloop": train_with_fastloop}
    runs = [[mean_over_ranks(own) for own in train(args, device)] for train in columns.values()]
    epochs = list(zip(*runs, strict=True))
    agree = all(math.isclose(*losses, rel_tol=TOLERANCE) for losses in epochs)
    if dist.get_rank() == 0:
        print(f"{f'{dist.get_world_size()} ranks':28}" + "".join(f"{n:>16}" for n in columns))
        for epoch, losses in enumerate(epochs, 1):
            shown = "".join(f"{loss:16.6f}" for loss in losses)
            print(f"{f'loss of epoch {epoch}':28}{shown}")
        if not agree:
            print("\nThe curves differ: please report this.", file=sys.stderr)
    leave_ranks()
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
