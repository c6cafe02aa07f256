"""A small causal transformer that learns to write Python, with torch's pieces and with fastloop's.

The text is Python's own standard library, which every machine has: bytes in, next byte out. They
are first written to a file of 16-bit tokens, as GPTs are trained from: torch's loop reads windows
of it through a Dataset over a memmap, fastloop's through TokenDataset. Both trainings use bf16
autocast, gradients accumulated over micro-batches, clipping, fused AdamW and a warm-up schedule,
from the same seed; the two loops below are all that differs.

    python examples/charlm.py [--steps 40] [--accumulate 4] [--batch-size 8] [--seed 0]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import fastloop

CONTEXT = 128  # bytes the model sees
TOLERANCE = 0.01  # of the loss, between the two curves: bf16 and sums in another order
ROUNDS = 3  # each training this often, in turns; the medians are shown
MAX_NORM = 1.0


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm_attention(x)).view(shape).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 128, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256))

    def forward(self, seen: Tensor, next_byte: Tensor) -> Tensor:
        """The mean loss, in nats a byte, of predicting each byte from those before it."""
        x = self.bytes(seen) + self.places.weight
        logits = self.head(self.blocks(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), next_byte.flatten())


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)  # one a step: the mean of its micro-batches
    seconds: float = 0.0
    seconds_stepping: float = 0.0  # from the end of a backward to the next batch


def write_tokens(path: Path, windows: int) -> None:
    """As many windows from the standard library's sources, and the byte behind the last."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    wanted = windows * CONTEXT + 1
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    text = (text * (wanted // len(text) + 1))[:wanted]
    np.frombuffer(text, np.uint8).astype(np.uint16).tofile(path)


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """What a user of torch writes."""

    def __init__(self, path: Path) -> None:
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        begin = index * CONTEXT
        window = torch.from_numpy(self.tokens[begin : begin + CONTEXT + 1].astype(np.int64))
        return window[:-1], window[1:]


def make(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer, Callable[..., float]]:
    torch.manual_seed(args.seed)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    return model, optimizer, lambda step: min(1.0, (step + 1) / 10)


def train_torch(path: Path, args: argparse.Namespace, on_step: Callable[[], object]) -> Run:
    model, optimizer, warm_up = make(args)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
    loader = DataLoader(Windows(path), args.batch_size, shuffle=True)
    run, total = Run(), 0.0
    start = perf_counter()
    for number, (x, y) in enumerate(loader, 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x, y)
        (loss / args.accumulate).backward()
        begin = perf_counter()
        if number % args.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        run.seconds_stepping += perf_counter() - begin
        total += loss.item() / args.accumulate
        if number % args.accumulate == 0:
            run.losses.append(total)
            total = 0.0
            on_step()
    run.seconds = perf_counter() - start
    return run


def train_fastloop(path: Path, args: argparse.Namespace, on_step: Callable[[], object]) -> Run:
    model, optimizer, warm_up = make(args)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)
    windows = fastloop.TokenDataset(path, CONTEXT, format="raw", dtype="uint16")
    loader = fastloop.DataLoader(windows, args.batch_size, shuffle=True)
    stepper = fastloop.Stepper(
        optimizer,
        args.accumulate,
        max_norm=MAX_NORM,
        scheduler=scheduler,
        on_nonfinite="window",  # the guard that bf16 has no scaler for
    )
    run, total = Run(), 0.0
    start = perf_counter()
    for x, y in stepper.iterate(loader):
        with stepper.micro(weight=len(x)):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x, y)
            stepper.backward(loss)
            begin = perf_counter()
        run.seconds_stepping += perf_counter() - begin
        total += loss.item() / args.accumulate
        if stepper.is_boundary:
            run.losses.append(total)
            total = 0.0
            on_step()
    run.seconds = perf_counter() - start
    return run


TRAININGS = {"torch": train_torch, "fastloop": train_fastloop}


def report(runs: dict[str, list[Run]], args: argparse.Namespace) -> str:
    """Print the table; return the line that sums it up."""

    def row(title: str, show: str, value: Callable[[Run], float]) -> dict[str, float]:
        medians = {name: statistics.median(map(value, of)) for name, of in runs.items()}
        print(f"{title:28}" + "".join(f"{show.format(x):>18}" for x in medians.values()))
        return medians

    print(f"{'':28}" + "".join(f"{name:>18}" for name in runs))
    for step in sorted({0, args.steps // 4, args.steps // 2, args.steps - 1}):
        row(f"loss of step {step + 1}", "{:.4f}", lambda run, step=step: run.losses[step])
    tokens = args.steps * args.accumulate * args.batch_size * CONTEXT
    speed = row("bytes per second", "{:,.0f}", lambda run: tokens / run.seconds)
    share = row("time spent stepping", "{:.2%}", lambda run: run.seconds_stepping / run.seconds)
    return (
        f"Same curve within {TOLERANCE:.0%}, {speed['fastloop'] / speed['torch']:.2f}x as fast: "
        f"{share['fastloop']:.1%} of the time went into steps (with torch: {share['torch']:.1%})."
    )


def widest_gap(runs: dict[str, list[Run]]) -> float:
    """The largest difference between the two curves, as a share of the loss."""
    pairs = zip(runs["torch"][0].losses, runs["fastloop"][0].losses, strict=True)
    return max(abs(a - b) / a for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of each training")
    parser.add_argument("--accumulate", type=int, default=4, help="micro-batches a step")
    parser.add_argument("--batch-size", type=int, default=8, help="windows a micro-batch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    runs: dict[str, list[Run]] = {name: [] for name in TRAININGS}
    total = ROUNDS * len(TRAININGS) * args.steps
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=total, unit="step", disable=None) as bar,  # None: only on a terminal
    ):
        path = Path(folder) / "tokens.bin"
        write_tokens(path, args.steps * args.accumulate * args.batch_size)
        for _ in range(ROUNDS):
            for name, train in TRAININGS.items():
                bar.set_description(name)
                runs[name].append(train(path, args, bar.update))

    summary = report(runs, args)
    if (gap := widest_gap(runs)) > TOLERANCE:
        print(f"\nThe curves differ by {gap:.2%}: please report this.", file=sys.stderr)
        return 1
    print("\n" + summary)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
