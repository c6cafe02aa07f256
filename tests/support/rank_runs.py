"""A training run under DDP, the same in one process, and what counts reductions: for ranks.py."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastloop import Stepper

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DTYPE = torch.float64
INF = float("inf")


def model_of(bn: bool = False) -> torch.nn.Module:
    torch.manual_seed(4)
    middle = torch.nn.BatchNorm1d(7) if bn else torch.nn.Tanh()
    return torch.nn.Sequential(torch.nn.Linear(5, 7), middle, torch.nn.Linear(7, 2)).to(DTYPE)


def batch_of(rank: int, i: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return torch.randn(size, 5, generator=generator, dtype=DTYPE)


def sizes_of(rank: int, n: int) -> list[int]:
    return [2 + (3 * i + 5 * rank) % 7 for i in range(n)]


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


class Counts:
    """DDP's reductions (by a comm hook), and those by torch.distributed.all_reduce."""

    def __init__(self, ddp: DistributedDataParallel | None = None) -> None:
        self.buckets = 0
        self.sizes: list[int] = []
        if ddp is not None:
            ddp.register_comm_hook(None, self._hook)

    def _hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        self.buckets += 1
        work = self.all_reduce(bucket.buffer().div_(RANKS), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    all_reduce = staticmethod(dist.all_reduce)

    @contextmanager
    def counting(self) -> Iterator[None]:
        def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.sizes.append(tensor.numel())
            return self.all_reduce(tensor, *args, **kwargs)

        dist.all_reduce = counted
        try:
            yield
        finally:
            dist.all_reduce = self.all_reduce


class Run:
    def __init__(self, accumulate: Any = 3, bn: bool = False, **kwargs: Any) -> None:
        self.plain = model_of(bn)
        ddp_kwargs = kwargs.pop("ddp", {})
        self.ddp = DistributedDataParallel(self.plain, **ddp_kwargs)
        fused = kwargs.pop("fused", False)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 0.1, momentum=0.9, fused=fused)
        self.steps: list[Tensor] = []
        self.optimizer.register_step_pre_hook(
            lambda *a: self.steps.append(flat(p.grad for p in self.plain.parameters()))
        )
        self.stepper = Stepper(self.optimizer, accumulate, model=self.ddp, **kwargs)

    def micro(self, i: int, size: int, weight: float | None = None, spoil: float = 1.0) -> None:
        with self.stepper.micro(weight=size if weight is None else weight):
            loss = self.ddp(batch_of(RANK, i, size)).square().mean() * spoil
            self.stepper.backward(loss)

    def epoch(self, n: int, loader: Callable[[int], Any] = range) -> None:
        sizes = sizes_of(RANK, n)
        for i in self.stepper.iterate(loader(n)):
            self.micro(i, sizes[i])

    def parameters(self) -> Tensor:
        return flat(self.plain.parameters())


class Reference:
    """The same training in one process: one big batch for each window."""

    def __init__(self) -> None:
        self.model = model_of()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.steps: list[Tensor] = []

    def step(self, batches: list[Tensor], max_norm: float = INF) -> None:
        self.optimizer.zero_grad()
        self.model(torch.cat(batches)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.steps.append(flat(p.grad for p in self.model.parameters()))
        self.optimizer.step()

    def epoch(self, counts: list[int], accumulate: int, max_norm: float = INF) -> None:
        """Rank r has counts[r] micro-batches."""
        for begin in range(0, max(counts), accumulate):
            self.step(
                [
                    batch_of(rank, i, sizes_of(rank, n)[i])
                    for rank, n in enumerate(counts)
                    for i in range(begin, min(begin + accumulate, n))
                ],
                max_norm,
            )


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
