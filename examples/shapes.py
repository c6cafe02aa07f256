"""Shapes in JPEG files: a small network trained from a folder of images, decoded by threads.

The files are drawn here, a folder for each shape. The same ImageFolder is read by torch's loader,
by worker processes and by threads. What its transforms draw is a function of seed, epoch and
index, so all train the same numbers.

    python examples/shapes.py [--images 600] [--epochs 4] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from tqdm import tqdm

import fastloop
from fastloop import transforms as T

SHAPES = ("circle", "square", "triangle")
WIDTH, HEIGHT, SIDE = 160, 120, 64  # of files, and of what the network sees
BATCH, WORKERS = 32, 2


def draw_shape(shape: str, rng: random.Random) -> Image.Image:
    dark, light = (
        tuple(rng.randrange(*levels) for _ in "RGB") for levels in ((0, 100), (150, 256))
    )
    image = Image.new("RGB", (WIDTH, HEIGHT), dark)
    draw = ImageDraw.Draw(image)
    x, y, r = rng.randrange(50, 110), rng.randrange(45, 75), rng.randrange(25, 40)
    if shape == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), light)
    else:
        sides = 4 if shape == "square" else 3
        draw.regular_polygon((x, y, r), sides, rng.randrange(360), light)
    return image.filter(ImageFilter.GaussianBlur(1))


def write_images(root: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for shape in SHAPES:
        (root / shape).mkdir(parents=True)
        for number in range(count // len(SHAPES)):
            draw_shape(shape, rng).save(root / shape / f"{number:04}.jpg", quality=90)


def open_images(root: Path, seed: int) -> fastloop.ImageFolder:
    transform = T.Compose(
        [
            T.RandomResizedCrop(SIDE, scale=(0.7, 1.0)),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    return fastloop.ImageFolder(root, transform, seed=seed)


class Network(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 5, 2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(32, len(SHAPES)),
        )


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)  # mean of each epoch
    seconds: float = 0.0
    seconds_waiting: float = 0.0


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "torch": lambda *args, **more: DataLoader(*args, **more),
    "processes": lambda *args, **more: fastloop.DataLoader(*args, **more),
    "threads": lambda *args, **more: fastloop.DataLoader(*args, **more, path="thread"),
}


def train(name: str, root: Path, args: argparse.Namespace) -> Run:
    torch.manual_seed(args.seed)
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    images = open_images(root, args.seed)
    sampler = fastloop.ShuffleSampler(images, seed=args.seed)
    loader = LOADERS[name](images, BATCH, sampler=sampler, num_workers=WORKERS)
    run = Run()
    start = perf_counter()
    for epoch in range(args.epochs):
        images.set_epoch(epoch)
        sampler.set_epoch(epoch)
        total = 0.0
        asked = perf_counter()
        for x, labels in loader:
            run.seconds_waiting += perf_counter() - asked
            loss = functional.cross_entropy(network(x), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(labels)
            asked = perf_counter()
        run.losses.append(total / len(images))
    run.seconds = perf_counter() - start
    return run


def report(runs: dict[str, Run]) -> None:
    def row(title: str, show: str, value: Callable[[Run], float]) -> None:
        print(f"{title:28}" + "".join(f"{show.format(value(run)):>16}" for run in runs.values()))

    print(f"{'':28}" + "".join(f"{name:>16}" for name in runs))
    for epoch in range(len(runs["torch"].losses)):
        row(f"loss of epoch {epoch + 1}", "{:.4f}", lambda run, epoch=epoch: run.losses[epoch])
    row("seconds", "{:.2f}", lambda run: run.seconds)
    row("time waiting for batches", "{:.1%}", lambda run: run.seconds_waiting / run.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "shapes"
        write_images(root, args.images, args.seed)
        with tqdm(LOADERS, unit="training", disable=None) as bar:
            runs = {name: train(name, root, args) for name in bar}
    report(runs)
    if len({tuple(run.losses) for run in runs.values()}) > 1:
        print("\nThe curves differ: please report this.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
