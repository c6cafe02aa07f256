"""Handwritten digits, trained with torch's loader, scaler and step and with fastloop's: same model,
same seed, same numbers. Then the same with augmented images.

The data are 1 797 real 8x8 images that come with scikit-learn; nothing is downloaded. `train` is
an ordinary training loop that takes these pieces as an argument: they are the only difference
between the two columns of the table that this prints. `make demo` runs it.

In the second part images are moved by up to one pixel, cast and normalised for each sample: on
torch's side by torchvision's transforms, or, where torchvision is not there, by a few lines of
torch; on fastloop's by fastloop.transforms. Each draws its own random crops, torch from its
generator and fastloop from (seed, epoch, index), so the losses differ there.

    python examples/digits.py [--epochs 40] [--batch-size 64] [--workers 0] [--seed 0]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm import tqdm

import fastloop
from fastloop import transforms as T

ROUNDS = 3  # each of the two trains the model this often, in turns; the medians are shown
WARM_UP_EPOCHS = 3  # before that, so that nobody pays for torch's first calls


@dataclass
class Run:
    """One training: what came out of it and where its time went."""

    loss: float
    accuracy: float
    seconds: float
    seconds_waiting: float


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


@dataclass(frozen=True)
class Data:
    """What is trained on, for each of BOTH, and tested with."""

    train: Mapping[str, Dataset[Any]]
    test: tuple[torch.Tensor, torch.Tensor]
    samples: int


Tensors = tuple[torch.Tensor, torch.Tensor]


def load_digits_as_bytes(seed: int) -> tuple[Tensors, Tensors]:
    """uint8 [n, 1, 8, 8] and labels: four fifths to train on, the rest to test with."""
    digits = load_digits()
    images = torch.tensor(digits.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    train, test = order.tensor_split([len(order) * 4 // 5])
    return (images[train], labels[train]), (images[test], labels[test])


MEAN, STD = 0.305, 0.376


def normalized(images: torch.Tensor) -> torch.Tensor:
    return images.to(torch.float32).mul_(1 / 255).sub_(MEAN).div_(STD)


def plain_data(seed: int) -> Data:
    (images, labels), (test_images, test_labels) = load_digits_as_bytes(seed)
    train = TensorDataset(normalized(images), labels)
    both = dict.fromkeys(BOTH, train)
    return Data(both, (normalized(test_images), test_labels), len(labels))


class Augmented(Dataset[Any]):
    """What a user of torchvision writes."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def chain(transforms: Any) -> Any:
    """torchvision.transforms.v2 and fastloop.transforms have the same names."""
    return transforms.Compose(
        [
            transforms.RandomCrop(8, padding=1),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize([MEAN], [STD]),
        ]
    )


def chain_in_torch(image: torch.Tensor) -> torch.Tensor:
    top, left = torch.randint(3, (2,)).tolist()
    return normalized(F.pad(image, (1, 1, 1, 1))[:, top : top + 8, left : left + 8])


def torchs_transform() -> Any:
    try:
        from torchvision.transforms import v2
    except (ImportError, RuntimeError):  # RuntimeError: torchvision for another build of torch
        return chain_in_torch
    return chain(v2)


def augmented_data(seed: int) -> Data:
    (images, labels), (test_images, test_labels) = load_digits_as_bytes(seed)
    train: dict[str, Dataset[Any]] = {
        "torch": Augmented(images, labels, torchs_transform()),
        "fastloop": fastloop.ArrayDataset(images, labels, transform=chain(T), seed=seed),
    }
    return Data(train, (normalized(test_images), test_labels), len(labels))


def train(
    name: str,
    data: Data,
    args: argparse.Namespace,
    epochs: int,
    on_epoch: Callable[[], object] = lambda: None,
) -> Run:
    """Train a fresh model and time it; `name` is all that may differ between two calls."""
    pieces, train_set = BOTH[name], data.train[name]
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    step = pieces.step(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loss_of = nn.CrossEntropyLoss()
    waiting = 0.0

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

            images, labels = batch
            with step.micro():
                loss = loss_of(model(images), labels)
                step.backward(loss)
            total += loss.item() * len(labels)
            asked = perf_counter()
        waiting += perf_counter() - asked
        on_epoch()
    seconds = perf_counter() - start

    images, labels = data.test
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    return Run(total / data.samples, right / len(labels), seconds, waiting)


def medians(runs: dict[str, list[Run]], value: Callable[[Run], float]) -> list[float]:
    return [statistics.median(map(value, runs[name])) for name in BOTH]


def print_table(parts: dict[str, dict[str, list[Run]]], epochs: int, same_loss: str) -> None:
    print(" " * 40 + "".join(f"{name:>12}" for name in BOTH))
    for part, runs in parts.items():
        speed = medians(runs, lambda run: epochs / run.seconds)
        waits = medians(runs, lambda run: run.seconds_waiting / run.seconds)
        loss = medians(runs, lambda run: run.loss)
        right = medians(runs, lambda run: run.accuracy)
        rows = [
            ("epochs a second", "{:.1f}", speed, f"{speed[1] / speed[0]:.1f}x"),
            ("time spent waiting for data", "{:.0%}", waits, ""),
            ("final loss", "{:.6f}", loss, same_loss if part == "plain" else "own random crops"),
            ("right answers in the test", "{:.1%}", right, ""),
        ]
        for title, show, both, remark in rows:
            numbers = "".join(f"{show.format(number):>12}" for number in both)
            print(f"{part:11}{title:29}{numbers}  {remark}".rstrip())
            part = ""


def summarize(parts: dict[str, dict[str, list[Run]]]) -> str:
    ratios = [medians(runs, lambda run: 1 / run.seconds) for runs in parts.values()]
    plain, augmented = (f"{fastloops / torchs:.1f}" for torchs, fastloops in ratios)
    waits = medians(parts["augmented"], lambda run: run.seconds_waiting / run.seconds)
    return textwrap.fill(
        f"With fastloop the same training is {plain} times as fast, with the same numbers, and "
        f"{augmented} times with augmented images, because its loop waits {waits[1]:.0%} of the "
        f"time for data instead of {waits[0]:.0%}.",
        96,
    )


def run_in_turns(data: Data, args: argparse.Namespace, part: str) -> dict[str, list[Run]]:
    for name in BOTH:
        train(name, data, args, WARM_UP_EPOCHS)
    runs: dict[str, list[Run]] = {name: [] for name in BOTH}
    total = ROUNDS * len(BOTH) * args.epochs
    with tqdm(
        total=total, unit="epoch", disable=None, leave=False
    ) as bar:  # None: only on a terminal
        for _ in range(ROUNDS):
            for name in BOTH:
                bar.set_description(f"{part}, {name}")
                runs[name].append(train(name, data, args, args.epochs, bar.update))
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40, help="epochs of each training")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0, help="num_workers of both loaders")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)  # a model this small is fastest on one thread
    data = {"plain": plain_data(args.seed), "augmented": augmented_data(args.seed)}
    print(
        f"Training {data['plain'].samples:,} handwritten digits for {args.epochs} epochs, {ROUNDS} "
        "times with torch's loader,\nscaler and step and as often with fastloop's, in turns. Then "
        "the same with images that are\nmoved by a pixel, cast and normalised as they come.\n",
        flush=True,
    )
    parts = {part: run_in_turns(of, args, part) for part, of in data.items()}
    results = {(run.loss, run.accuracy) for of in parts["plain"].values() for run in of}
    print_table(parts, args.epochs, "equal" if len(results) == 1 else "DIFFERENT")
    if len(results) > 1:
        print("\nThe losses differ, and they never should: please report this.", file=sys.stderr)
        return 1
    print(f"\n{summarize(parts)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
