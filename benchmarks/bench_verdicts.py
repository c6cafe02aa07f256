"""How often a report's verdict is right after 200 steps, and how often it is a false alarm.

    python benchmarks/bench_verdicts.py [--runs N] [--cases NAME,...]

Each run is a training of 200 steps; the device, the storage and the log are sleeps, and ranks are
torchrun's, over gloo. In a compute-bound run and among equal ranks each
blamed rank and each verdict but "not input-bound", at any time, is a false alarm. If other programs
have the CPUs, a loop waits for a CPU, and verdicts say so: measure on an idle machine.

input-bound        a CPU makes samples in 6 ms, without workers; a step takes 2 ms
compute-bound      samples take no time; a step takes 6 ms
logging-bound      the loop writes a log for 6 ms after each update; a step takes 2 ms
storage-cold       samples wait for storage 10 ms each, with 2 workers; a step takes 2 ms
slow-first-epoch   the first of 4 epochs waits 10 ms a sample, later ones nothing; a step takes 4 ms
straggler-worker   one of 4 workers needs 40 ms a sample; a step takes 4 ms
straggler-rank     rank 2 of 3 waits 6 ms for each sample, under DDP; a step takes 10 ms
straggler-rank-device  a step of rank 2 of 3 takes 15 ms, of other ranks 10 ms
equal-ranks        3 ranks, and a step takes 10 ms

One table row each on stdout, and each wrong verdict on stderr.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import get_worker_info

import fastloop

STEPS, CHILD = 200, "--child"
EVEN = "compute-bound", "equal-ranks"  # an alarm is false
RIGHT = {
    "input-bound": ("INPUT-BOUND", ""),
    "compute-bound": ("NOT INPUT-BOUND", "forward+backward"),
    "logging-bound": ("NOT INPUT-BOUND", "your other code"),
    "storage-cold": ("INPUT-BOUND", "which needs no CPU"),
    "slow-first-epoch": ("NOT INPUT-BOUND", "the first epoch waits"),
    "straggler-worker": ("INPUT-BOUND", "head-of-line blocking"),
    "straggler-rank": ("", "But rank 2 waits for storage"),
    "straggler-rank-device": ("", "But rank 2 runs forward and backward"),
    "equal-ranks": ("NOT INPUT-BOUND", ""),
}


class Device(torch.autograd.Function):
    """Sleeps in forward and, half as long, in backward."""

    @staticmethod
    def forward(ctx: Any, batch: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds * 2 / 3)
        return batch.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds / 3)
        return gradient, None


class Case:
    """The trainings of a process. Ranks are compared by the report of rank 0."""

    def __init__(self, name: str) -> None:
        self.name, self.rank, self.epoch = name, 0, 0
        self.epochs = 4 if name == "slow-first-epoch" else 1
        self.workers = {"storage-cold": 2, "straggler-worker": 4}.get(name, 0)
        self.step = {
            "compute-bound": 0.006,
            "slow-first-epoch": 0.004,
            "straggler-worker": 0.004,
            "straggler-rank": 0.01,
            "straggler-rank-device": 0.01,
            "equal-ranks": 0.01,
        }.get(name, 0.002)
        self.log = 0.006 if name == "logging-bound" else 0.0
        self.model: Any = torch.nn.Linear(4, 1)
        if "rank" in name:
            dist.init_process_group("gloo")
            self.rank, self.model = dist.get_rank(), DistributedDataParallel(self.model)
        if name == "straggler-rank-device" and self.rank == 2:
            self.step = 0.015

    def __len__(self) -> int:
        return STEPS // self.epochs

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        is_slow = {
            "storage-cold": True,
            "slow-first-epoch": self.epoch == 0,
            "straggler-worker": worker is not None and worker.id == 1,
            "straggler-rank": self.rank == 2,
        }.get(self.name, False)
        if is_slow:
            time.sleep({"straggler-worker": 0.04, "straggler-rank": 0.006}.get(self.name, 0.01))
        if self.name == "input-bound":
            end = time.thread_time() + 0.006
            while time.thread_time() < end:
                pass
        return torch.zeros(4)

    def train(self) -> dict[str, Any]:
        """Return the verdict of the report, and the false alarms of updates."""
        optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        alarms: list[str] = []

        def look(update: fastloop.Update) -> None:
            if update.verdict not in ("unknown", "not input-bound") or update.slowest_text:
                alarms.append(update.slowest_text or update.text)

        report = fastloop.report(verbose=False)
        report.on_update(look, 0.1)
        with report:
            for epoch in range(self.epochs):
                self.epoch = epoch
                for batch in fastloop.DataLoader(self, num_workers=self.workers):
                    Device.apply(self.model(batch), self.step).mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if self.log:
                        time.sleep(self.log)
        return {"text": report.to_dict()["verdict"]["text"], "alarms": alarms}


def run_child(name: str, runs: int) -> None:
    torch.set_num_threads(1)
    case = Case(name)
    for _ in range(runs):
        found = case.train()
        if case.rank == 0:
            print(json.dumps(found), flush=True)
        if dist.is_initialized():  # ranks do not begin their next report before the end of this one
            dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--cases", default=",".join(RIGHT))
    arguments = parser.parse_args()
    for case in arguments.cases.split(","):
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=3"] * ("rank" in case)
        command = [sys.executable, *launcher, __file__, CHILD, case, str(arguments.runs)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        kind, words = RIGHT[case]
        right = alarms = 0
        for line in done.stdout.splitlines():
            found = json.loads(line)
            is_right = found["text"].removeprefix("PARTLY ").startswith(kind)
            is_right = is_right and words in found["text"]
            right += is_right
            alarms += bool(found["alarms"])
            if not is_right or (found["alarms"] and case in EVEN):
                print(case, found, file=sys.stderr)
        told = f", {alarms} with a false alarm" * (case in EVEN)
        print(f"{case:21} {right} of {arguments.runs} right{told}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        run_child(sys.argv[2], int(sys.argv[3]))
    else:
        main()
