"""A stream of JSON lines that is left in the middle of an epoch and taken up again.

The lines are written here, several files of them: points, each with the number of the spiral arm
that it lies on. Two worker processes share the files. One training runs through; another stops
after some batches, saves itself, and a new one goes on from there. Both train the same numbers,
and no line is read twice.

    python examples/stream.py [--lines 12000] [--epochs 3] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, get_worker_info

import fastloop

FILES, ARMS = 6, 3
BATCH, WORKERS = 100, 2


def write_lines(root: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(FILES):
        with (root / f"{number}.jsonl").open("w") as file:
            for _ in range(count // FILES):
                arm, radius = rng.randrange(ARMS), rng.random()
                angle = 4 * radius + arm * math.tau / ARMS + rng.gauss(0, 0.15)
                point = [radius * math.cos(angle), radius * math.sin(angle)]
                file.write(json.dumps({"point": point, "arm": arm}) + "\n")


class Lines(IterableDataset[tuple[torch.Tensor, int]]):
    """Each worker reads every n-th file. It knows where it is in them, and can go on from there:
    with these two methods the loader saves and restores each worker's place."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(root.glob("*.jsonl"))
        self.file, self.offset = 0, 0  # the next line

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        mine = self.files[first::step]
        while self.file < len(mine):
            with mine[self.file].open("rb") as file:
                file.seek(self.offset)
                while line := file.readline():
                    self.offset = file.tell()
                    record = json.loads(line)
                    yield torch.tensor(record["point"]), record["arm"]
            self.file, self.offset = self.file + 1, 0
        self.file = 0

    def state_dict(self) -> dict[str, int]:
        return {"file": self.file, "offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.file, self.offset = state["file"], state["offset"]


@dataclass
class Run:
    """A training, and the sums of its losses over the batches of each epoch."""

    root: Path
    seed: int
    losses: list[float] = field(default_factory=list)
    unfinished: float = 0.0  # of an epoch that was left

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.network = nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ARMS)
        )
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-3)
        self.loader: Any = fastloop.DataLoader(Lines(self.root), BATCH, num_workers=WORKERS)

    def train(self, epochs: int, most_batches: int | None = None) -> None:
        """Up to so many epochs in all; leaves after so many batches."""
        batches = 0
        while len(self.losses) < epochs:
            total, self.unfinished = self.unfinished, 0.0
            for points, arms in self.loader:
                loss = functional.cross_entropy(self.network(points), arms)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                total += loss.item()
                batches += 1
                if batches == most_batches:
                    self.unfinished = total
                    return
            self.losses.append(total)

    def save(self, path: Path) -> None:
        saved = {
            "loader": self.loader.state_dict(),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
            "unfinished": self.unfinished,
        }
        torch.save(saved, path)

    def resume(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.loader.load_state_dict(saved["loader"])
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.losses, self.unfinished = saved["losses"], saved["unfinished"]


def train_in_two(root: Path, args: argparse.Namespace) -> Run:
    """The second begins with what the first has saved, and with nothing else."""
    first = Run(root, args.seed)
    an_epoch = args.lines // BATCH
    first.train(args.epochs, most_batches=an_epoch + an_epoch // 3)
    first.save(root / "saved.pt")
    second = Run(root, args.seed + 1)
    second.resume(root / "saved.pt")
    second.train(args.epochs)
    return second


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=12_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_lines(root, args.lines, args.seed)
        whole = Run(root, args.seed)
        whole.train(args.epochs)
        in_two = train_in_two(root, args)
    print(f"{'':28}{'whole':>16}{'in two runs':>16}")
    batches = args.lines // BATCH
    for epoch, losses in enumerate(zip(whole.losses, in_two.losses, strict=True), 1):
        shown = "".join(f"{loss / batches:16.4f}" for loss in losses)
        print(f"{f'loss of epoch {epoch}':28}{shown}")
    if whole.losses != in_two.losses:
        print("\nThe curves differ: please report this.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
