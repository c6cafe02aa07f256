"""What the tests of frameworks share: a small model and its data, and a training that runs with
torch alone and then behind fastloop.patch(), with the same seeds."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from helpers import bits, random_states
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fastloop

ROWS, WIDTH = 22, 3  # no multiple of the batch sizes that are used


class Trained(NamedTuple):
    """What a training gives: all that is to be the same, and the loader it has iterated."""

    results: Any
    loader: Any


def arrays(rows: int = ROWS) -> TensorDataset:
    x = torch.arange(float(rows * WIDTH)).reshape(rows, WIDTH).sin()
    return TensorDataset(x, x.sum(1, keepdim=True).cos())


class Samples(Dataset[Any]):
    """The same as samples of a user's own."""

    def __init__(self, rows: int = ROWS) -> None:
        self.tensors = arrays(rows).tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.tensors[0][index], self.tensors[1][index]


class Stream(IterableDataset[Any]):
    def __init__(self, rows: int = ROWS) -> None:
        self.samples = Samples(rows)

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[index] for index in range(len(self.samples)))


def model_of() -> torch.nn.Module:
    """With dropout: a loss tells where torch's generator stands, too."""
    layers = torch.nn.Linear(WIDTH, 5), torch.nn.Dropout(0.3), torch.nn.Linear(5, 1)
    return torch.nn.Sequential(*layers)


def loss_of(model: torch.nn.Module, batch: Any) -> Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def accelerate_epoch(
    accelerator: Any, model: Any, optimizer: Any, loader: Any
) -> Iterator[tuple[float, int]]:
    """accelerate's loop: the loss and the size of each batch, after its step."""
    for batch in loader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        yield loss.item(), len(batch[0])


def weights(model: torch.nn.Module) -> list[bytes]:
    return [bits(parameter) for parameter in model.parameters()]


def _run(train: Callable[[], Trained]) -> tuple[Any, Any]:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    results, loader = train()
    return (results, random_states()), loader


def assert_trains_alike(train: Callable[[], Trained], path: str, is_read: bool = True) -> Any:
    """Trains with torch alone and behind the seam; returns the results.

    Args:
        path: the one that the loader takes there.
        is_read: whether it gives batches to this process.
    """
    wanted, loader = _run(train)
    assert fastloop.stats(loader).path == "torch"
    with fastloop.patched():
        found, loader = _run(train)
        status = fastloop.patch_status().seams["dataloader"]
        stats = fastloop.stats(loader)
    assert found == wanted
    is_ours = path != "torch"
    assert (stats.path, stats.batches > 0) == (path, is_ours and is_read), stats
    assert (status.native > 0, bool(status.fallbacks)) == (is_ours, not is_ours), status
    return found[0]
