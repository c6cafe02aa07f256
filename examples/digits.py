"""Handwritten digits, trained with torch's loader, scaler and step and with fastloop's: same model,
same seed, same numbers.

The data are 1 797 real 8x8 images that come with scikit-learn; nothing is downloaded. `train` is
an ordinary training loop that takes these pieces as an argument: they are the only difference
between the two columns this prints.

    python examples/digits.py [--epochs 60] [--batch-size 64] [--workers 0] [--seed 0]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import fastloop

ROUNDS = 5  # each of the two trains the model this often, in turns; the medians are shown
WARM_UP_EPOCHS = 3  # before that, so that nobody pays for torch's first calls


@dataclass
class Run:
    """One training: what came out of it and where its time went."""

    loss: float
    accuracy: float
    seconds: float
    seconds_waiting: float
    seconds_to_first_batch: float


class TorchStep:
    """What fastloop.Stepper does, written out with torch's own scaler."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.scaler = optimizer, torch.amp.GradScaler("cpu")

    @contextmanager
    def micro(self) -> Iterator[None]:
        yield
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()


def fastloop_step(optimizer: torch.optim.Optimizer) -> fastloop.Stepper:
    return fastloop.Stepper(optimizer, scaler=fastloop.GradScaler("cpu"))


@dataclass(frozen=True)
class Pieces:
    loader: type[DataLoader[Any]]
    step: Callable[[torch.optim.Optimizer], Any]


BOTH = {
    "torch": Pieces(DataLoader, TorchStep),
    "fastloop": Pieces(fastloop.DataLoader, fastloop_step),
}


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The digits as (images, labels): four fifths to train on, the rest to test with."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split([len(order) * 4 // 5])
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def train(
    pieces: Pieces,
    data: tuple[TensorDataset, TensorDataset],
    args: argparse.Namespace,
    epochs: int,
    on_epoch: Callable[[], object] = lambda: None,
) -> Run:
    """Train a fresh model and time it; `pieces` is all that may differ between two calls."""
    train_set, test_set = data
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    step = pieces.step(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loss_of = nn.CrossEntropyLoss()
    waiting = first_batch = 0.0

    start = perf_counter()
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    loader = pieces.loader(train_set, batch_size=args.batch_size, shuffle=True, **workers)
    for _ in range(epochs):
        total = 0.0
        asked = perf_counter()
        batches = iter(loader)
        while (batch := next(batches, None)) is not None:
            got = perf_counter()
            waiting += got - asked
            first_batch = first_batch or got - start

            images, labels = batch
            with step.micro():
                loss = loss_of(model(images), labels)
                step.backward(loss)
            total += loss.item() * len(labels)
            asked = perf_counter()
        waiting += perf_counter() - asked
        on_epoch()
    seconds = perf_counter() - start

    images, labels = test_set.tensors
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    return Run(total / len(train_set), right / len(labels), seconds, waiting, first_batch)


def report(runs: dict[str, list[Run]], epochs: int, samples: int) -> str:
    """Print the table; return the line that sums it up."""

    def row(title: str, show: str, value: Callable[[Run], float]) -> dict[str, float]:
        medians = {name: statistics.median(map(value, of)) for name, of in runs.items()}
        print(f"{title:24}" + "".join(f"{show.format(x):>22}" for x in medians.values()))
        return medians

    print(f"{'':24}" + "".join(f"{name:>22}" for name in runs))
    row("final loss", "{!r}", lambda run: run.loss)
    row("test accuracy", "{:.2%}", lambda run: run.accuracy)
    speed = row("epochs per second", "{:.1f}", lambda run: epochs / run.seconds)
    row("samples per second", "{:,.0f}", lambda run: epochs * samples / run.seconds)
    waits = row("time waiting for data", "{:.1%}", lambda run: run.seconds_waiting / run.seconds)
    row("time to first batch", "{:.2f} ms", lambda run: run.seconds_to_first_batch * 1e3)

    times = speed["fastloop"] / speed["torch"]
    pace = f"{times:.1f}x as fast" if times >= 1.05 else f"no faster here ({times:.2f}x)"
    waited = f"{waits['fastloop']:.0%} of the time went into waiting for data"
    return f"Same result, {pace} with fastloop: {waited} (with torch: {waits['torch']:.0%})."


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="epochs of each training")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="num_workers of both loaders")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # a model this small is fastest on one thread
    data = load_data(args.seed)
    for pieces in BOTH.values():
        train(pieces, data, args, WARM_UP_EPOCHS)

    runs: dict[str, list[Run]] = {name: [] for name in BOTH}
    total = ROUNDS * len(BOTH) * args.epochs
    with tqdm(total=total, unit="epoch", disable=None) as bar:  # None: only on a terminal
        for _ in range(ROUNDS):
            for name, pieces in BOTH.items():
                bar.set_description(name)
                runs[name].append(train(pieces, data, args, args.epochs, bar.update))

    summary = report(runs, args.epochs, len(data[0]))
    if len({(run.loss, run.accuracy) for of in runs.values() for run in of}) > 1:
        print("\nThe results differ, and they never should: please report this.", file=sys.stderr)
        return 1
    print("\n" + summary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
