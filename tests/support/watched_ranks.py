"""What each rank of test_ranks.py runs: `python watched_ranks.py CASE...`, started as by torchrun.
Clocks are fakes that the loops move, so a share depends on no machine."""

import json
import os
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from rank_program import run_cases
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import fastloop
from fastloop.tools.report import loader_source, observer, report

RANK = int(os.environ["RANK"])
MS = 1_000_000


class Clock:
    now = 0

    def sleep(self, ms: float) -> None:
        self.now += round(ms * MS)


CLOCK = Clock()
report.LoopObserver = partial(observer.LoopObserver, clock=lambda: CLOCK.now)  # type: ignore[misc, assignment]
observer.scheduled_ns = lambda task="": None
loader_source.scheduled_ns = lambda task="": (0, 0)  # loading takes no CPU


class Slow(Dataset[torch.Tensor]):
    def __init__(self, steps: int, wait: float) -> None:
        self.steps, self.wait = steps, wait

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> torch.Tensor:
        CLOCK.sleep(self.wait)
        return torch.zeros(4)


def train(steps: int, wait: float, is_ddp: bool = False, dies_at: int = -1) -> Any:
    model: Any = torch.nn.Linear(4, 1)
    model = DistributedDataParallel(model) if is_ddp else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen: list[fastloop.Update] = []
    watched = fastloop.report(f"run{int(is_ddp)}.json", watch=1, verbose=False)
    watched.on_update(seen.append)
    with watched:
        for number, batch in enumerate(DataLoader(Slow(steps, wait))):
            CLOCK.sleep(10)
            model(batch).mean().backward()
            optimizer.step()
            if number == dies_at:
                os._exit(0)
    return watched, seen


def case_straggler() -> None:
    watched, seen = train(300, 5 if RANK == 2 else 0.1, is_ddp=True)
    names = [update.slowest_rank for update in seen]
    assert names[-1] == (2 if RANK == 0 else None), names
    found = watched.to_dict()
    assert (found["ranks"] is None) == (RANK != 0)
    print(json.dumps(found["ranks"]), found["verdict"]["text"])


class Together(torch.nn.Linear):
    """Computes for a while. The clocks of all ranks are one after a step, as if ranks waited."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        CLOCK.sleep(15 if RANK == 2 else 10)
        return super().forward(batch)


def case_slow_device() -> None:
    model = DistributedDataParallel(Together(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with fastloop.report(verbose=False) as watched:
        for batch in DataLoader(Slow(200, 0)):
            model(batch).mean().backward()
            latest = torch.tensor(CLOCK.now + (5 if RANK == 2 else 0) * MS)
            dist.all_reduce(latest, dist.ReduceOp.MAX)
            CLOCK.now = int(latest)
            optimizer.step()
    if RANK == 0:
        print("slow", watched.to_dict()["ranks"]["text"])


def case_dies() -> None:
    """The rank of the environment dies. No collective holds the others up."""
    dying = int(os.environ["DYING"])
    watched, seen = train(3000, 0.1, dies_at=150 if dying == RANK else -1)
    assert seen[-1].steps == 3000 and watched.paths
    print("heard", [sorted(update.ranks) for update in seen])


if __name__ == "__main__":
    run_cases(globals())
    assert dist.is_initialized()
