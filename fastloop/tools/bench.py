"""``python -m fastloop bench``: measures torch and fastloop at the same work on this machine.

The results are compared first. Then the contestants take turns in rounds, and the best setting of
each side counts. The project's own benchmarks are in ``benchmarks/``, with theoretical limits and
other packages.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.nn import Linear, Sequential, functional
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

from fastloop.loader.dataloader import DataLoader
from fastloop.step.scaler import GradScaler
from fastloop.step.stepper import Stepper
from fastloop.tools import text

TORCH, FASTLOOP = "torch", "fastloop"
_WORKERS = (0, 2)
_ACCUMULATE, _MAX_NORM = 4, 1.0

# A function that does the work once and yields one result for each batch or step.
Run = Callable[[], Iterator[Any]]


class Contestant(NamedTuple):
    """One side at one of its settings."""

    side: str
    setting: str
    run: Run


class Case(NamedTuple):
    """A comparison: `make` returns contestants whose results differ by `tolerance` at most."""

    title: str
    make: Callable[[], list[Contestant]]
    tolerance: float = 0.0


def _make_loaders(shape: tuple[int, ...], batch_size: int) -> list[Contestant]:
    """Make loaders of random bytes and labels in memory."""
    data = torch.randint(256, shape, dtype=torch.uint8)
    dataset, contestants = TensorDataset(data, torch.arange(len(data))), []
    for workers in _WORKERS:
        options: Any = {"num_workers": workers, "persistent_workers": workers > 0}
        for side, kind in ((TORCH, TorchLoader), (FASTLOOP, DataLoader)):
            loader: Any = kind(dataset, batch_size, True, **options)
            contestants.append(Contestant(side, f"{workers} workers", loader.__iter__))
    return contestants


def _make_steps() -> list[Contestant]:
    """Make loops of optimizer steps: scaled losses, accumulation, clipping, SGD."""
    batches = torch.randn(_ACCUMULATE, 8, 64)
    sides = ((TORCH, _torch_step), (FASTLOOP, _stepper_step))
    return [Contestant(side, "SGD", _make_run(make_step, batches)) for side, make_step in sides]


def _make_run(make_step: Callable[..., Callable[[Any], None]], batches: torch.Tensor) -> Run:
    torch.manual_seed(0)
    model = Sequential(*[Linear(64, 64) for _ in range(40)])
    step = make_step(model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9))

    def run() -> Iterator[torch.Tensor]:
        for _ in range(5):
            step(batches)
            yield next(model.parameters()).detach().norm()

    return run


def _torch_step(model: Sequential, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    scaler: Any = torch.amp.GradScaler("cpu")

    def step(batches: Any) -> None:
        for batch in batches:
            scaler.scale(functional.mse_loss(model(batch), batch) / _ACCUMULATE).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


def _stepper_step(model: Sequential, optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    stepper = Stepper(optimizer, _ACCUMULATE, scaler=GradScaler("cpu"), max_norm=_MAX_NORM)

    def step(batches: Any) -> None:
        for batch in batches:
            with stepper.micro():
                stepper.backward(functional.mse_loss(model(batch), batch))

    return step


CASES = {
    "table": Case("rows of a table, batch 256", partial(_make_loaders, (20_000, 20), 256)),
    "images": Case("3x96x96 images, batch 64", partial(_make_loaders, (2_048, 3, 96, 96), 64)),
    "step": Case("4 micro-batches, scaler, clipping, SGD", _make_steps, 1e-5),
}


def find_difference(contestants: list[Contestant], tolerance: float) -> str:
    """Return the first difference between the contestants' results, "" if there is none."""
    expected = None
    for contestant in contestants:
        torch.manual_seed(0)
        results = list(contestant.run())
        expected = results if expected is None else expected
        try:
            torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            return f"{contestant.side}, {contestant.setting}: {error}"
    return ""


def measure(contestants: list[Contestant], rounds: int, seconds: float) -> list[list[float]]:
    """Return the seconds of a step for each round and contestant. Contestants take turns."""
    with text.progress("bench", rounds) as show:
        return [
            [_time(one, seconds) for one in contestants]
            for number in range(rounds)
            if show(f"round {number + 1}") is None
        ]


def _time(contestant: Contestant, seconds: float) -> float:
    begin, steps = perf_counter(), 0
    while steps == 0 or perf_counter() - begin < seconds:
        steps += sum(1 for _ in contestant.run())
    return (perf_counter() - begin) / steps


def describe(contestants: list[Contestant], rounds: list[list[float]]) -> list[str]:
    """Return a table of medians and a line that compares the best settings of both sides."""
    columns = dict(zip(contestants, zip(*rounds, strict=True), strict=True))
    rows = [(f"{c.side}, {c.setting}", text.seconds(median(s))) for c, s in columns.items()]

    def choose_best(side: str) -> Any:
        return min((times for one, times in columns.items() if one.side == side), key=median)

    pairs = zip(choose_best(TORCH), choose_best(FASTLOOP), strict=True)
    ratios = sorted(torchs / ours for torchs, ours in pairs)
    span = f"{text.ratio(ratios[0])} to {text.ratio(ratios[-1])} in {len(rounds)} rounds"
    verdict = f"{text.ratio(median(ratios))} as fast as torch"
    if ratios[0] <= 1 <= ratios[-1]:
        verdict = "no clear difference"
    return [*text.table(rows), f"  fastloop: {verdict} ({span})"]


def run_case(name: str, rounds: int, seconds: float) -> bool:
    """Print the times of a case. Return whether both sides computed the same results."""
    case = CASES[name]
    print(f"{name}: {case.title}", flush=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        contestants = case.make()
        if difference := find_difference(contestants, case.tolerance):
            print(f"  results differ, so nothing is measured. {difference}")
            return False
        times = measure(contestants, rounds, seconds)
    print("\n".join(describe(contestants, times)), flush=True)
    return True
