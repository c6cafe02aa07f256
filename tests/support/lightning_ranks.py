"""What each of two ranks of test_lightning.py runs: the Trainer and Fabric under DDP, where they
make the loader anew with a DistributedSampler."""

import functools
from typing import Any

import torch
from framework_runs import Stream, arrays, assert_trains_alike
from lightning_runs import fit, loop
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import fastloop

DDP: dict[str, Any] = {"strategy": "ddp", "devices": 2}


def run(how: Any, make: Any) -> Any:
    trained = how(make(), **DDP)
    if make is shuffled:
        assert isinstance(trained.loader.sampler, DistributedSampler)
    return trained


def shuffled() -> DataLoader[Any]:
    return DataLoader(arrays(), 4, shuffle=True)


def stream() -> DataLoader[Any]:
    return DataLoader(Stream(), 4)


def check_class_swap(how: Any) -> None:
    """Our class keeps its arguments, and trains the same."""
    given: dict[str, Any] = {
        "device": "cpu",
        "path": "array",
        "memory_budget": 1 << 20,
        "resume": "skip",
        "on_worker_death": "restart",
    }
    loader = fastloop.DataLoader(arrays(), 4, shuffle=True, **given)
    torch.manual_seed(3)
    theirs = run(how, shuffled).results
    torch.manual_seed(3)
    results, used = how(loader, **DDP)
    assert results == theirs
    used = getattr(used, "_dataloader", used)
    assert type(used) is fastloop.DataLoader and used is not loader
    assert {name: getattr(used, name) for name in given} == given
    assert fastloop.stats(used).path == "array" and fastloop.stats(used).batches > 0


def main() -> None:
    torch.set_num_threads(1)
    for how in (fit, loop):
        results = assert_trains_alike(functools.partial(run, how, shuffled), "array")
        assert len(results[0]) == 2 * 3  # of 11 samples a rank
        assert_trains_alike(functools.partial(run, how, stream), "sync")
        check_class_swap(how)
    torch.distributed.destroy_process_group()
    print("all alike")


main()
