"""What each process of test_accelerate_advice.py runs, alone or as one of several ranks: the advice
of README for accelerate, and what it says of the other ways."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import DistributedSampler, TensorDataset

from fastloop import DataLoader, Stepper

BATCH, ACCUMULATE = 5, 4
EPOCHS = 2


def model_of() -> torch.nn.Module:
    torch.manual_seed(4)
    layers = torch.nn.Linear(1, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)
    return torch.nn.Sequential(*layers).double()


def loss_of(model: torch.nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean()


def dataset_of(ranks: int) -> TensorDataset:
    """23 samples a rank: the last batch has 3, the last window 1 of 4 batches."""
    return TensorDataset(torch.arange(23.0 * ranks, dtype=torch.float64)[:, None] / 40)


def all_of(accelerator: Accelerator, batches: list[Tensor]) -> list[list[Tensor]]:
    """The batches of every rank."""
    if accelerator.num_processes == 1:
        return [batches]
    lists: list[Any] = [None] * accelerator.num_processes
    dist.all_gather_object(lists, batches)
    return lists


def rows_of(ranks: list[list[Tensor]]) -> Tensor:
    return torch.cat([batch for rank in ranks for batch in rank]).sort(0).values


def case_advice(accelerator: Accelerator) -> None:
    ranks = accelerator.num_processes
    plain, dataset = model_of(), dataset_of(ranks)
    model = accelerator.prepare(plain)
    optimizer = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    sampler = DistributedSampler(dataset, ranks, accelerator.process_index)
    loader = DataLoader(
        dataset, BATCH, sampler=sampler, num_workers=1, device=accelerator.device, path="array"
    )
    stepper = Stepper(optimizer, ACCUMULATE, scaler=accelerator.scaler, model=model)
    reference = model_of()
    reference_optimizer = torch.optim.SGD(reference.parameters(), 0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        mine = []
        for (x,) in stepper.iterate(loader):
            mine.append(x.clone())
            with stepper.micro(weight=len(x)):
                stepper.backward(loss_of(model, x))
        everyones = all_of(accelerator, mine)
        assert torch.equal(rows_of(everyones), dataset.tensors[0])  # each sample once
        for begin in range(0, len(mine), ACCUMULATE):
            window = [batch for rank in everyones for batch in rank[begin : begin + ACCUMULATE]]
            reference_optimizer.zero_grad()
            loss_of(reference, torch.cat(window)).backward()
            reference_optimizer.step()
    assert stepper.stepped == EPOCHS * 2  # the short last window, too
    assert loader.stats().batches == EPOCHS * 5
    for ours, theirs in zip(plain.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def case_prepared(accelerator: Accelerator) -> None:
    """accelerate's own way: right, and torch's loader."""
    dataset = dataset_of(accelerator.num_processes)
    loader = DataLoader(dataset, BATCH, shuffle=True)
    prepared = accelerator.prepare(loader)
    mine = [x for (x,) in prepared]
    assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
    assert loader.stats().batches == 0
    rows = rows_of(all_of(accelerator, mine))
    assert torch.equal(rows.unique(dim=0), dataset.tensors[0])
    assert accelerator.gradient_state.sync_gradients


def case_left_out(accelerator: Accelerator) -> None:
    """Neither prepared nor given a sampler: every rank loads all, the short window has no step."""
    model, dataset = accelerator.prepare(model_of()), dataset_of(accelerator.num_processes)
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), 0.1))
    steps = []
    optimizer.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    loader = DataLoader(dataset, BATCH)
    for (x,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, x))
            optimizer.step()
            optimizer.zero_grad()
    assert loader.stats().samples == len(dataset)
    assert len(loader) % ACCUMULATE != 0
    assert len(steps) == len(loader) // ACCUMULATE


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    assert accelerator.num_processes == int(sys.argv[1])
    for case in (case_advice, case_prepared, case_left_out):
        case(accelerator)
        print(f"{case.__name__} fine", flush=True)
    accelerator.end_training()


main()
