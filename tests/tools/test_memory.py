"""memory(): figures of the CPU and of a device, the limit that is set; trials leave a margin."""

import importlib
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastloop
from fastloop.tools import batch_size

GIB = 2**30


@pytest.fixture(autouse=True, scope="module")
def optimizers_have_their_imports() -> None:
    """They would look at a fake device."""
    importlib.import_module("torch._dynamo")


class FakeDevice:
    """torch.cuda and torch.accelerator for one device of 80 GiB, of which others hold 10."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fraction, self.reserved, self.retries = 0.75, 4 * GIB, 0
        self.calls: list[str] = []
        monkeypatch.setattr(torch, "get_device_module", lambda device: self)
        accelerator = SimpleNamespace(
            current_accelerator=lambda is_checked: torch.device("cuda"),
            current_device_index=lambda: 0,
            device_index=lambda index: torch.no_grad(),
            get_memory_info=lambda device: (70 * GIB - self.reserved, 80 * GIB),
            memory_allocated=lambda device: 2 * GIB,
            memory_reserved=lambda device: self.reserved,
            max_memory_allocated=lambda device: 3 * GIB,
            max_memory_reserved=lambda device: 5 * GIB,
            memory_stats=lambda device: {"num_alloc_retries": self.retries},
            empty_cache=lambda: self.calls.append("empty_cache"),
            reset_peak_memory_stats=lambda device: self.calls.append("reset_peak"),
            synchronize=lambda device: self.calls.append("synchronize"),
        )
        monkeypatch.setattr(torch, "accelerator", accelerator)

    def set_per_process_memory_fraction(self, fraction: float, device: torch.device) -> None:
        assert device == torch.device("cuda", 0)
        self.fraction = fraction

    def get_per_process_memory_fraction(self, device: torch.device) -> float:
        return self.fraction


def test_the_cpu_has_its_own_figures() -> None:
    use = fastloop.memory("cpu")
    assert use.device == torch.device("cpu")
    assert use.limit_fraction is use.reserved_bytes is use.peak_reserved_bytes is None
    assert use.free_bytes is not None and use.total_bytes is not None
    assert use.allocated_bytes is not None and use.peak_allocated_bytes is not None
    assert 0 < use.free_bytes <= use.total_bytes
    assert 1 << 20 < use.allocated_bytes <= use.peak_allocated_bytes
    text = str(use)
    assert text.startswith("memory of cpu\n  limit fraction  ") and "\n  peak allocated  " in text
    assert text.count("n/a") == 3


def test_memory_of_the_cpu_follows_tensors() -> None:
    before = fastloop.memory("cpu").allocated_bytes or 0
    # From the system: the allocator may hold memory that earlier tests have touched.
    kept = torch.frombuffer(mmap.mmap(-1, 64 << 20), dtype=torch.uint8).fill_(1)
    assert (fastloop.memory("cpu").allocated_bytes or 0) - before > 60 << 20
    del kept


def test_the_cpu_has_no_limit_to_set() -> None:
    text = r"limit_fraction must be None on cpu, got 0\.5 \(torch cannot limit"
    with pytest.raises(RuntimeError, match=text):
        fastloop.memory("cpu", limit_fraction=0.5)


def test_torch_names_a_device_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="xla"):
        fastloop.memory("xla")


@pytest.mark.parametrize(
    ("fraction", "error"),
    [
        (-0.1, ValueError),
        (1.1, ValueError),
        (float("nan"), ValueError),
        ("0.5", TypeError),
        (True, TypeError),
    ],
)
def test_the_limit_is_checked(fraction: Any, error: type[Exception]) -> None:
    with pytest.raises(
        error, match=rf"limit_fraction must be a number in \[0, 1\], got {fraction!r}"
    ):
        fastloop.memory(limit_fraction=fraction)


def test_the_limit_is_set_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    use = fastloop.memory(limit_fraction=0.5)
    assert (use.device, use.limit_fraction, device.fraction) == (torch.device("cuda:0"), 0.5, 0.5)
    assert fastloop.memory().limit_fraction == 0.5
    assert str(use).splitlines() == [
        "memory of cuda:0",
        "  limit fraction       50%",
        "  total           80.0 GiB",
        "  free            66.0 GiB",
        "  allocated       2.00 GiB",
        "  reserved        4.00 GiB",
        "  peak allocated  3.00 GiB",
        "  peak reserved   5.00 GiB",
    ]


@pytest.mark.parametrize(("fraction", "limit"), [(0.75, 54 * GIB), (1.0, 63 * GIB)])
def test_trials_stop_short_of_the_margin_of_what_is_left_and_the_limit_is_put_back(
    monkeypatch: pytest.MonkeyPatch, fraction: float, limit: int
) -> None:
    device = FakeDevice(monkeypatch)
    device.fraction = fraction
    on = trials_on(monkeypatch, torch.device("cuda", 0), margin=0.1)
    with pytest.raises(ZeroDivisionError), on as trials:
        assert device.fraction == pytest.approx(limit / (80 * GIB))
        trial = trials.run(3)
        assert (trial.peak_bytes, trial.why) == (5 * GIB, "")
        assert device.calls == ["empty_cache", "reset_peak", "synchronize", "synchronize"]
        raise ZeroDivisionError
    assert device.fraction == fraction
    assert device.calls[4:] == ["empty_cache", "reset_peak"]


class On(torch.nn.Module):
    """A module that is on a device, as far as its parameters tell."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def parameters(self, recurse: bool = True) -> Any:
        return iter([SimpleNamespace(device=self.device, grad=None)])


@contextmanager
def trials_on(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    margin: float,
    step: Callable[[int], object] = lambda n: None,
) -> Iterator[batch_size._Runner]:
    monkeypatch.setattr(batch_size, "keep_random_state", lambda: lambda: None)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)

    def run(n: int) -> None:
        step(n)
        optimizer.step()

    with ExitStack() as undo:
        yield batch_size._Runner(undo, run, [On(device), optimizer], margin, 1)


def test_the_hosts_peak_is_the_growth_in_a_step_and_none_where_it_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(n: int) -> None:
        torch.ones(n << 20, dtype=torch.uint8)

    with trials_on(monkeypatch, torch.device("cpu"), 0.1, step) as trials:
        peak = trials.run(64).peak_bytes
        assert peak is None or 60 << 20 < peak < 640 << 20
        monkeypatch.setattr(batch_size, "reset_own_peak", lambda: None)
        assert trials.run(64).peak_bytes is None
