"""What fastloop does in a step has names on the timelines of torch's profiler and of Nsight, and
none where no tool is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import run_script
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fastloop
from fastloop import DataLoader, GradScaler, Stepper, clip_grad_norm_
from fastloop.compat import ranges

Names = list[tuple[str, str]]  # a range and the one that it lies in, "" for none


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def find_ranges(run: Callable[[], object]) -> Names:
    """Of fastloop, in the order of their begin."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        run()

    def parent_of(event: Any) -> str:
        above = event.cpu_parent
        while above is not None and not above.name.startswith("fastloop::"):
            above = above.cpu_parent
        return "" if above is None else str(above.name)

    events = [event for event in found.events() if event.name.startswith("fastloop::")]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, parent_of(event)) for event in events]


def make_steps() -> tuple[torch.nn.Linear, torch.optim.Optimizer, GradScaler]:
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1), GradScaler("cpu", 8.0)


def backward(model: torch.nn.Linear, scaler: Any) -> None:
    scaler.scale(model(torch.ones(1, 3)).sum()).backward()


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (TensorDataset(torch.arange(6)), {}),
        (TensorDataset(torch.arange(6)), {"num_workers": 1}),
        (Squares(), {}),
        (Squares(), {"num_workers": 1, "path": "process"}),
        (Squares(), {"num_workers": 1, "path": "thread"}),
        (Stream(), {}),
        (Squares(), {"path": "torch"}),
    ],
)
def test_each_batch_of_a_loader_is_a_range(dataset: Any, arguments: dict[str, Any]) -> None:
    loader = DataLoader(dataset, batch_size=3, **arguments)
    found = find_ranges(lambda: list(loader))
    assert found == [("fastloop::next", "")] * 3  # the last finds the end


def test_reading_ahead_and_uploads_hold_what_they_do() -> None:
    batches = fastloop.prefetch(DataLoader(Squares(), batch_size=3), "cpu", depth=1)
    found = find_ranges(lambda: next(batches))
    inside = "fastloop::prefetch"
    assert found == [(inside, ""), ("fastloop::next", inside), ("fastloop::upload", inside)]


def test_the_passes_of_a_scaler() -> None:
    model, optimizer, scaler = make_steps()

    def run() -> None:
        backward(model, scaler)
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        backward(model, scaler)
        scaler.unscale_and_clip_(optimizer, 0.1)
        scaler.update()

    names = [name for name, _ in find_ranges(run)]
    assert names == [
        "fastloop::unscale",
        "fastloop::clip",
        "fastloop::step",
        "fastloop::unscale_and_clip",
    ]


def test_a_step_that_unscales_by_itself_is_a_range() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)
    scaler = GradScaler("cpu", 8.0)
    backward(model, scaler)
    found = find_ranges(lambda: scaler.step(optimizer))
    assert found == [("fastloop::step", ""), ("fastloop::unscale", "fastloop::step")]


def test_unscaling_lies_in_the_step_that_does_it() -> None:
    model, optimizer, scaler = make_steps()
    backward(model, scaler)
    found = find_ranges(lambda: scaler.step(optimizer))
    assert found == [("fastloop::step", ""), ("fastloop::unscale", "fastloop::step")]


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_step_of_a_stepper_is_one_range_whatever_steps_in_it(is_fused: bool) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=is_fused)
    stepper = Stepper(optimizer, 2, scaler=GradScaler("cpu", 8.0), max_norm=0.1)

    def run() -> None:
        for _ in range(2):
            with stepper.micro():
                stepper.backward(model(torch.ones(1, 3)).sum())

    step = "fastloop::step"
    scaled = [] if is_fused else [("fastloop::unscale_and_clip", step)]
    assert find_ranges(run) == [(step, ""), ("fastloop::check", step), *scaled]


def test_torchs_own_pieces_are_named_where_they_are_patched() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 8.0)

    def run() -> None:
        list(torch.utils.data.DataLoader(Squares(), batch_size=6))
        backward(model, scaler)
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    with fastloop.patched():
        names = [name for name, _ in find_ranges(run)]
    assert names == ["fastloop::next"] * 2 + ["fastloop::unscale", "fastloop::clip"]


def test_a_range_ends_where_its_call_raises() -> None:
    def fail() -> None:
        raise ValueError("mine")

    def run() -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="mine"):
                ranges.named("fails", fail)()
        ranges.named("works", int)()

    assert find_ranges(run) == [("fastloop::fails", "")] * 2 + [("fastloop::works", "")]


def test_nothing_is_named_without_a_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError(f"a range {args[0]} that nobody reads")

    monkeypatch.setattr(ranges, "_call", refuse)
    model, optimizer, scaler = make_steps()
    stepper = Stepper(optimizer, scaler=scaler, max_norm=0.1)
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2)
    for (batch,) in stepper.iterate(fastloop.prefetch(loader, "cpu")):
        with stepper.micro():
            stepper.backward(model(batch).sum())
    backward(model, scaler)
    scaler.unscale_and_clip_(optimizer, 0.1)
    clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    assert ranges.tools is torch.autograd.profiler
    assert ranges.named("none", int) is int


# ---- Nsight

PROGRAMS = Path(__file__).parent.parent / "programs"
NVTX = (PROGRAMS / "fake_torch_nvtx.py").read_text() + "\n"
PROGRAM = (PROGRAMS / "ranged_step.py").read_text()


def tell(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.slowest
def test_nsight_sees_the_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tool.so")
    out = run_script(tmp_path, NVTX + PROGRAM, "with", is_fresh=True)
    assert out.splitlines() == tell("""
        push fastloop::next
        pop
        push fastloop::clip
        pop
        push fastloop::step
        push fastloop::unscale
        pop
        pop
        push fastloop::next
        pop
    """)


@pytest.mark.slowest
@pytest.mark.parametrize("has_tool", [False, True])
def test_no_ranges_without_a_tool_or_without_nvtx_in_torch(
    has_tool: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    if has_tool:
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/tool.so")
    arguments = [] if has_tool else ["with"]
    assert run_script(tmp_path, NVTX + PROGRAM, *arguments, is_fresh=True) == ""
