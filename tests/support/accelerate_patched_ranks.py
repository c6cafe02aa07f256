"""What each of two ranks of test_accelerate.py runs: accelerate's loop with torch alone and
behind the seam, for the ways in which accelerate shares samples out."""

import functools
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from framework_runs import (
    Stream,
    Trained,
    accelerate_epoch,
    arrays,
    assert_trains_alike,
    model_of,
    weights,
)
from torch.utils.data import DataLoader

CASES: dict[str, dict[str, Any]] = {
    "even batches": {},
    "uneven batches": {"even_batches": False},
    "split": {"split_batches": True},
    "seedable": {"use_seedable_sampler": True},
    "dispatch": {"dispatch_batches": True},
    "stream shared out": {"dispatch_batches": False},
    "stream": {},
}


def train(case: str) -> Trained:
    AcceleratorState._reset_state()
    GradientState._reset_state()
    config = DataLoaderConfiguration(**CASES[case])
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, dataloader_config=config)
    assert accelerator.num_processes == 2
    loader: Any = DataLoader(arrays(), 4, shuffle=True)
    if case.startswith("stream"):
        loader = DataLoader(Stream(), 4)
    plain = model_of()
    optimizer = torch.optim.SGD(plain.parameters(), 0.1)
    model, optimizer, loader = accelerator.prepare(plain, optimizer, loader)
    losses: list[Any] = []
    for _ in range(2):
        losses += accelerate_epoch(accelerator, model, optimizer, loader)
    return Trained((losses, weights(plain)), loader)


def main() -> None:
    torch.set_num_threads(1)
    rank = Accelerator(cpu=True).process_index
    for case in CASES:
        path = "sync" if case.startswith("stream") else "array"
        is_read = rank == 0 or case not in ("dispatch", "stream")  # or sent by rank 0
        losses, _ = assert_trains_alike(functools.partial(train, case), path, is_read)
        assert len(losses) >= 6, (case, losses)
    Accelerator(cpu=True).end_training()
    print("all alike")


main()
