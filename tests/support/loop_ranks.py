"""What each rank of test_whole_loop.py runs: `python loop_ranks.py CASE...`, started as by
torchrun."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rank_program import leave_ranks, run_cases
from torch.utils.data.distributed import DistributedSampler
from whole_loop import EPOCHS, RANK, Reference, Run, all_of, assert_equal, same

from fastloop import ArrayDataset, DataLoader, LengthBucketBatchSampler, ShuffleSampler

STAGES = (3, 1, 1)  # how many ranks end each epoch of the stages, which are of 2, 3 and 1 ranks


def case_exact() -> None:
    """Loader, scaler and Stepper together are torch alone on the whole batch."""
    for wrap in ("ddp", "fsdp"):
        for sampler in ("shuffle", "distributed"):
            run, reference = Run(wrap, sampler), Reference(sampler)
            for number in range(EPOCHS):
                run.epoch(number)
                reference.epoch(number)
                assert_equal(run, reference)
            assert reference.skipped == 1
            assert run.loader.stats().path == "array"
            assert len(set(all_of(run.micro_batches))) == 1


def case_by_hand() -> None:
    """A loop that has steps of its own, with the scaler's clipping."""
    for wrap in ("ddp", "fsdp"):
        run, reference = Run(wrap), Reference()
        for number in range(EPOCHS):
            run.epoch_by_hand(number)
            reference.epoch_by_hand(number)
            same(run.parameters(), reference.parameters())
            assert run.scaler.get_scale() == reference.scaler.get_scale()
        assert run.scaler.skipped_steps == reference.skipped == 1


def case_even() -> None:
    """Every rank has as many batches as the others, whatever the samplers' lengths."""
    for samples in range(1, 15):
        lengths = [1 + i * 7 % 5 for i in range(samples)]
        x = torch.arange(samples)
        loaders = [
            DataLoader(ArrayDataset(x), 3, sampler=ShuffleSampler(samples, seed=1)),
            DataLoader(ArrayDataset(x), 3, sampler=DistributedSampler(x)),
            DataLoader(
                ArrayDataset(x), batch_sampler=LengthBucketBatchSampler(lengths, max_tokens=7)
            ),
        ]
        for loader in loaders:
            batches = [batch.tolist() for (batch,) in loader]
            ranks = all_of(batches)
            assert len({len(of_rank) for of_rank in ranks}) == 1, (samples, ranks)
            seen = {i for of_rank in ranks for batch in of_rank for i in batch}
            assert seen == set(range(samples)), (samples, ranks)


def case_resume() -> None:
    """Saved in the middle of an epoch, at the end of a window, and taken up by new objects."""
    for wrap in ("ddp", "fsdp"):
        for number, stop in ((0, 2), (1, 4), (1, None)):
            reference = Reference()
            for epoch in range(EPOCHS):
                reference.epoch(epoch)
            first = Run(wrap)
            for epoch in range(number):
                first.epoch(epoch)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # no window is open when the loop is left
                first.epoch(number, stop)
            saved = first.save()
            assert len({repr(part) for part in all_of(saved["parts"][2])}) == 1  # the stepper's
            run = Run(wrap, workers=0)
            run.load(saved)
            for epoch in range(number + (stop is None), EPOCHS):
                run.epoch(epoch)
            assert_equal(run, reference)


def case_dies_ddp() -> None:
    die_in_the_middle("ddp")


def case_dies_fsdp() -> None:
    die_in_the_middle("fsdp")


def stage(wrap: str, number: int, stop: int | None) -> None:
    """Of a training whose stages have other numbers of ranks: go on in the middle of epoch `number`
    - 1, then train epoch `number` up to `stop`, and save; the last stage compares."""
    run = Run(wrap)
    path = Path("saved.pt")
    if path.exists():
        run.load(torch.load(path, weights_only=True))
        run.epoch(number - 1)
    run.epoch(number, stop)
    saved = run.save()
    if stop is None:
        reference = Reference()
        for epoch, ranks in enumerate(STAGES):
            reference.epoch(epoch, ranks)
        assert_equal(run, reference)
    elif RANK == 0:
        torch.save(saved, path)


def case_stage_0() -> None:
    stage("fsdp", 0, 2)


def case_stage_1() -> None:
    stage("fsdp", 1, 4)


def case_stage_2() -> None:
    stage("ddp", 2, None)


class EndsItsProcess:
    """A loader, three batches long, of a rank that dies."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.loader):
            if number == 3:
                os._exit(0)
            yield batch


def die_in_the_middle(wrap: str) -> None:
    """The others get an error, and their loaders end."""
    run = Run(wrap)
    run.epoch(0)
    loader = run.loader
    if RANK == 1:
        run.loader = EndsItsProcess(loader)
    try:
        run.epoch(0)
    except RuntimeError as error:
        print(f"ended by {type(error).__name__}: {error}")
    else:
        raise AssertionError("the other rank is gone, and nothing was raised")
    loader.close()
    leave_ranks()


run_cases(globals())
