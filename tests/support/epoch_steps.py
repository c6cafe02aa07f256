"""Runs of a loader with epochs_ahead=1 and of torch's loader, for tests: the same steps, whose
batches and random numbers are compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchLoader

from fastloop import DataLoader


class Noisy(Dataset[Any]):
    """Samples that draw from all generators of a worker."""

    def __init__(self, length: int = 23, hook: Callable[[int], object] | None = None) -> None:
        self.length, self.hook = length, hook

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        if self.hook is not None:
            self.hook(i)
        return i, torch.rand(1), random.random(), np.random.rand()


class Own(Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> int:
        return i * i


def make_sampler(kind: str) -> dict[str, Any]:
    if kind == "distributed":
        return {"sampler": DistributedSampler(range(23), 2, 1, seed=3)}  # type: ignore[arg-type]
    if kind == "subset":
        return {"sampler": SubsetRandomSampler(range(3, 20))}
    if kind == "weights":
        return {"sampler": WeightedRandomSampler(torch.arange(1.0, 24).tolist(), 17)}
    if kind == "generator":
        return {"shuffle": True, "generator": torch.Generator().manual_seed(3)}
    if kind == "batches":
        sampler = RandomSampler(range(23), generator=torch.Generator().manual_seed(3))
        return {"batch_sampler": BatchSampler(sampler, 3, drop_last=True)}
    return {"shuffle": kind == "shuffle"}


KINDS = ["sequential", "shuffle", "generator", "distributed", "subset", "weights", "batches"]


def make(cls: Any, kind: str, dataset: Any = None, **kwargs: Any) -> Any:
    how = make_sampler(kind)
    if kind != "batches":
        how["batch_size"] = 3
    if kwargs.get("path") != "thread":
        kwargs["multiprocessing_context"] = "fork"
    kwargs = {"num_workers": 2, "persistent_workers": True, **how, **kwargs}
    return cls(Noisy() if dataset is None else dataset, **kwargs)


def ahead(kind: str = "shuffle", dataset: Any = None, **kwargs: Any) -> Any:
    return make(DataLoader, kind, dataset, epochs_ahead=1, **kwargs)


def generators(loader: Any) -> list[Any]:
    own = loader.generator.get_state() if loader.generator is not None else None
    states = torch.get_rng_state(), own, random.getstate(), np.random.get_state()[1:]
    return [repr(state) if not torch.is_tensor(state) else state.tolist() for state in states]


def values(batch: Any) -> Any:
    return [leaf.tolist() for leaf in batch] if isinstance(batch, list) else batch.tolist()


# ---- a model: the same steps with torch's loader


def run(loader: Any, steps: list[str]) -> list[Any]:
    """Return every batch and the states of all generators after each step."""
    found: list[Any] = []
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", int)
    for number, step in enumerate(steps):
        if step == "draw":
            torch.rand(3), random.random(), np.random.rand()
        elif step == "seed":
            torch.manual_seed(number)
        elif step == "validate":
            found += [values(batch) for batch in TorchLoader(Own(), 9, shuffle=True)]
        elif step == "set_epoch":
            set_epoch(number)
        elif step == "own":
            torch.rand(2, generator=loader.generator)
        elif step == "state" and isinstance(loader, DataLoader):
            loader.state_dict()
        else:
            last = {"first": 1, "most": 5, "exact": len(loader)}.get(step, 0)
            last = 99 if step in ("all", "dropout") else last
            iterator = iter(loader) if last else iter(())
            for _, batch in zip(range(last), iterator, strict=False):
                found.append(values(batch))
                if step == "dropout":
                    torch.rand(1)
            if number % 2:
                del iterator  # else the next iter() comes while there is this iterator
        found.append(generators(loader))
    return found


STEPS = "all all all exact dropout first most draw seed validate set_epoch own state".split()
