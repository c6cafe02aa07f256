"""Pickles and states of fastloop 0.1 (in saved_by_0_1.json as base64) load, and what comes next is
what would have come."""

import base64
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastloop import ArrayDataset, DataLoader, GradScaler, LoaderStats, Stepper, WorkerStats

SAVED = json.loads(Path(__file__).with_name("saved_by_0_1.json").read_text())


def load(name: str) -> Any:
    return pickle.loads(base64.b64decode(SAVED[name]))


def rest_of(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch["y"].tolist() for batch in loader]


def test_a_dataset() -> None:
    data = load("ArrayDataset")
    assert type(data) is ArrayDataset and len(data) == 20
    assert torch.equal(data[3]["x"], torch.tensor([6.0, 7.0])) and data[3]["y"] == 3
    assert type(pickle.loads(pickle.dumps(data))) is ArrayDataset


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_loader(workers: int) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    data = ArrayDataset(x=x, y=np.arange(20))
    generator = torch.Generator().manual_seed(77)
    loader = DataLoader(data, 4, shuffle=True, generator=generator, num_workers=workers)
    loader.load_state_dict(load("loader_state"), strict=True)
    assert rest_of(loader) == SAVED["rest"]


def test_a_loader_in_the_middle_of_an_epoch() -> None:
    loader = load("DataLoader")
    assert type(loader) is DataLoader
    assert loader.state_dict()["yielded"] == 2
    assert rest_of(loader) == SAVED["rest"]
    assert sorted(y for batch in rest_of(loader) for y in batch) == list(range(20))
    assert loader.stats().batches == 3 + 5


def test_stats() -> None:
    stats, worker = load("LoaderStats"), load("WorkerStats")
    assert type(stats) is LoaderStats and stats.batches == 5 and stats.path == "array"
    assert "5 batches" in repr(stats)
    assert worker == WorkerStats(3, 1.0, 2.0)


def check_scaler(scaler: GradScaler) -> None:
    """The third of its steps was its second in a row with gradients that are not finite."""
    assert type(scaler) is GradScaler
    assert scaler.get_scale() == 128
    assert scaler.skipped_steps == 2
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    for is_finite, scale in ((True, 128), (False, 128), (False, 64)):
        optimizer.zero_grad()
        (scaler.scale(p.sum()) * (1 if is_finite else float("inf"))).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
    assert scaler.skipped_steps == 4
    assert torch.equal(p.detach(), torch.full((3,), 0.9))


def test_a_scaler_and_its_state() -> None:
    check_scaler(load("GradScaler"))
    scaler = GradScaler("cpu", init_scale=512.0, min_scale=1.0, max_scale=1024.0, hysteresis=2)
    scaler.load_state_dict(load("scaler_state"))
    check_scaler(scaler)
    assert not load("GradScaler_off").is_enabled()


@pytest.mark.parametrize("kind", ["plain", "buffered"])
def test_the_state_of_a_stepper(kind: str) -> None:
    state = load(f"stepper_state_{kind}")
    kwargs: dict[str, Any] = {"accum_dtype": torch.float64} if kind == "buffered" else {}
    # As it stood after the first window and one micro-batch of the second.
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    stepper = Stepper(optimizer, 2, max_norm=1.0, **kwargs)
    for i in range(2):
        with stepper.micro(weight=i + 1):
            stepper.backward((p * (i + 1)).sum())
    stepper = Stepper(optimizer, 2, max_norm=1.0, **kwargs)
    stepper.load_state_dict(state)
    with stepper.micro(weight=4):
        stepper.backward((p * 4).sum())
    assert p.tolist() == SAVED[f"stepper_p_{kind}"]
    assert [stepper.stepped, stepper.skipped] == SAVED[f"stepper_counts_{kind}"]


def test_nothing_else_is_found_by_the_old_names() -> None:
    code = """
import sys
import fastloop
assert not any(name.startswith("fastloop._") for name in sys.modules if name != "fastloop._core")
for name in ("_array", "_stats"):
    module = __import__("fastloop." + name, fromlist=["x"])
    print(sorted(key for key in vars(module) if not key.startswith("__")))
try:
    import fastloop._transport
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    lines = ["['ArrayDataset', '_Field']", "['LoaderStats', 'WorkerStats']", "fastloop._transport"]
    assert done.stdout.splitlines() == lines, done.stderr
