"""A training loop with fastloop's loader, scaler and Stepper under DDP, FSDP2 or in one process,
and the same with plain torch on the whole batch, whatever the ranks: for loop_ranks.py."""

import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from fastloop import ArrayDataset, DataLoader, GradScaler, ShuffleSampler, Stepper

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SAMPLES = 61  # no multiple of ranks or batches
GLOBAL_BATCH = 12
ACCUMULATE = 2
EPOCHS = 3
MAX_NORM = 0.05
DTYPE = torch.float64
SPOILED = 17  # the sample whose loss is infinite in epoch 1


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(SAMPLES, 5, generator=generator, dtype=DTYPE)
    return x, torch.arange(SAMPLES)


def model_of() -> torch.nn.Sequential:
    torch.manual_seed(4)
    layers = torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
    return torch.nn.Sequential(*layers).to(DTYPE)


def weights_of(index: Tensor) -> Tensor:
    """Of samples, as if these were texts of so many tokens: ranks have unequal sums."""
    return 1.0 + index % 4


def loss_of(
    model: Callable[[Tensor], Tensor], x: Tensor, index: Tensor, epoch: int, weights: Tensor
) -> Tensor:
    """The weighted mean over the samples."""
    each = torch.nn.functional.cross_entropy(model(x), index % 3, reduction="none")
    if epoch == 1:
        each = each * torch.where(index == SPOILED, float("inf"), 1.0)
    return (each * weights).sum() / weights.sum()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def scheduler_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)


def sampler_of(kind: str, ranks: int, rank: int) -> Any:
    if kind == "shuffle":
        return ShuffleSampler(SAMPLES, seed=3, num_replicas=ranks, rank=rank)
    return DistributedSampler(range(SAMPLES), ranks, rank, seed=3)


class Run:
    """`wrap` is "ddp", "fsdp" or "plain"; the whole batch is the same with any number of ranks."""

    def __init__(self, wrap: str, sampler: str = "shuffle", workers: int = 2) -> None:
        self.model = model_of()
        self.parallel: torch.nn.Module = self.model
        if wrap == "ddp":
            self.parallel = DistributedDataParallel(self.model)
        elif wrap == "fsdp":
            mesh = init_device_mesh("cpu", (RANKS,))
            for part in (self.model[0], self.model[2], self.model):
                fully_shard(part, mesh=mesh)
        self.optimizer = optimizer_of(self.model)
        self.scheduler = scheduler_of(self.optimizer)
        self.scaler = GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.stepper = Stepper(
            self.optimizer,
            ACCUMULATE,
            scaler=self.scaler,
            max_norm=MAX_NORM,
            scheduler=self.scheduler,
            model=self.parallel,
        )
        self.sampler = sampler_of(sampler, RANKS, RANK)
        self.loader = DataLoader(
            ArrayDataset(*data()),
            GLOBAL_BATCH // RANKS,
            sampler=self.sampler,
            num_workers=workers,
        )
        self.micro_batches = 0

    def epoch(self, number: int, stop: int | None = None) -> None:
        """Train, and stop after so many micro-batches of it."""
        self.sampler.set_epoch(number)
        for done, (x, index) in enumerate(self.stepper.iterate(self.loader), 1):
            weights = weights_of(index)
            with self.stepper.micro(weight=weights.sum()):
                self.stepper.backward(loss_of(self.parallel, x, index, number, weights))
            self.micro_batches += 1
            if done == stop:
                return

    def epoch_by_hand(self, number: int) -> None:
        """Without the Stepper: a step for each batch, whose samples count alike."""
        self.sampler.set_epoch(number)
        for x, index in self.loader:
            self.optimizer.zero_grad()
            loss = loss_of(self.parallel, x, index, number, torch.ones(len(x)))
            self.scaler.scale(loss).backward()
            self.scaler.unscale_and_clip_(self.optimizer, MAX_NORM)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if not self.scaler.last_step_skipped():
                self.scheduler.step()

    def save(self) -> dict[str, Any]:
        """For any number of ranks: all parts, with whole parameters. A collective."""
        options = StateDictOptions(full_state_dict=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        parts = (self.scheduler, self.scaler, self.stepper, self.loader)
        states = [deepcopy(part.state_dict()) for part in parts]
        return deepcopy({"model": model, "optimizer": optimizer, "parts": states})

    def load(self, saved: dict[str, Any]) -> None:
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
            options=options,
        )
        parts = (self.scheduler, self.scaler, self.stepper)
        for part, state in zip(parts, saved["parts"], strict=False):
            part.load_state_dict(state)
        self.loader.load_state_dict(saved["parts"][-1], strict=True)

    def parameters(self) -> Tensor:
        parts = [getattr(p, "full_tensor", lambda p=p: p)() for p in self.model.parameters()]
        return torch.cat([part.detach().flatten() for part in parts])


class Reference:
    """torch alone, one process: each window is one batch, of the samples that all ranks have."""

    def __init__(self, sampler: str = "shuffle") -> None:
        self.sampler = sampler
        self.model = model_of()
        self.optimizer = optimizer_of(self.model)
        self.scheduler = scheduler_of(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
        self.skipped = 0

    def epoch(self, number: int, ranks: int = RANKS) -> None:
        self._epoch(number, ACCUMULATE, ranks, weights_of)

    def epoch_by_hand(self, number: int) -> None:
        self._epoch(number, 1, RANKS, torch.ones_like)

    def _epoch(
        self, number: int, accumulate: int, ranks: int, weights: Callable[[Tensor], Tensor]
    ) -> None:
        shares = []
        for rank in range(ranks):
            sampler = sampler_of(self.sampler, ranks, rank)
            sampler.set_epoch(number)
            shares.append(torch.tensor(list(sampler)))
        x, index = data()
        size = GLOBAL_BATCH // ranks * accumulate
        for begin in range(0, len(shares[0]), size):
            rows = torch.cat([share[begin : begin + size] for share in shares])
            loss = loss_of(self.model, x[rows], index[rows], number, weights(index[rows]))
            self.step(loss)

    def step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        else:
            self.skipped += 1

    def parameters(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def assert_equal(run: Run, reference: Reference) -> None:
    same(run.parameters(), reference.parameters())
    assert run.stepper.skipped == reference.skipped
    assert run.scaler.get_scale() == reference.scaler.get_scale()
    assert run.scaler.state_dict()["_growth_tracker"] == reference.scaler._get_growth_tracker()
    assert run.scheduler.last_epoch == reference.scheduler.last_epoch


def all_of(value: Any) -> list[Any]:
    values = [None] * RANKS
    dist.all_gather_object(values, value)
    return values
