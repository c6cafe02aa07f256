"""memory(): n/a where torch keeps no account, the limit that is set where it does; trials leave a
margin."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fastloop
from fastloop.tools.batch_size import device_memory
from fastloop.tools.batch_size.device_memory import TrialMemory

GIB = 2**30


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


def test_of_the_cpu_everything_is_not_available() -> None:
    use = fastloop.memory("cpu")
    assert set(vars(use).values()) == {torch.device("cpu"), None}
    text = str(use)
    assert text.startswith("memory of cpu: n/a, torch keeps no account of it\n")
    assert text.count("n/a") == 8 and "0" not in text


def test_the_cpu_has_no_limit_to_set() -> None:
    with pytest.raises(RuntimeError, match=r"limit_fraction=0\.5 needs a device .* cpu has none"):
        fastloop.memory("cpu", limit_fraction=0.5)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="device is 'xla'; torch finds"):
        fastloop.memory("xla")


@pytest.mark.parametrize(
    ("fraction", "error", "text"),
    [
        (0, ValueError, "limit_fraction is 0; pass what share"),
        (1.1, ValueError, r"limit_fraction is 1\.1; pass what share"),
        (float("nan"), ValueError, "limit_fraction is nan; pass what share"),
        ("0.5", TypeError, r"limit_fraction is '0\.5'; pass a number"),
        (True, TypeError, "limit_fraction is True; pass a number"),
    ],
)
def test_the_limit_is_checked(fraction: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        fastloop.memory(limit_fraction=fraction)


def test_the_limit_is_set_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch)
    use = fastloop.memory(limit_fraction=0.5)
    assert (use.device, use.limit_fraction, device.fraction) == (torch.device("cuda:0"), 0.5, 0.5)
    assert fastloop.memory().limit_fraction == 0.5
    assert str(use).splitlines() == [
        "memory of cuda:0",
        "  limit of this process  50.0% of 80.00 GiB",
        "  free on the device     66.00 GiB",
        "  in tensors             2.00 GiB now, 3.00 GiB at most",
        "  reserved by torch      4.00 GiB now, 5.00 GiB at most",
    ]


@pytest.mark.parametrize(("fraction", "limit"), [(0.75, 54 * GIB), (1.0, 63 * GIB)])
def test_trials_stop_short_of_the_margin_of_what_is_left_and_the_limit_is_put_back(
    monkeypatch: pytest.MonkeyPatch, fraction: float, limit: int
) -> None:
    device = FakeDevice(monkeypatch)
    device.fraction = fraction
    memory = TrialMemory([torch.device("cuda", 0), torch.device("cpu")], margin=0.1)
    with pytest.raises(ZeroDivisionError), memory.limited():
        assert device.fraction == pytest.approx(limit / (80 * GIB))
        raise ZeroDivisionError
    assert device.fraction == fraction
    memory.release()
    memory.synchronize()
    assert device.calls == ["empty_cache", "reset_peak", "synchronize"]
    assert (memory.peak_bytes(), memory.has_room(2**50)) == (5 * GIB, True)


def test_the_hosts_peak_is_what_a_step_has_taken_and_none_where_it_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = TrialMemory([torch.device("cpu")], margin=0.1)
    memory.release()
    if memory.peak_bytes() is not None:
        torch.ones(64 << 20, dtype=torch.uint8)
        assert 60 << 20 < (memory.peak_bytes() or 0) < 640 << 20
    monkeypatch.setattr(device_memory, "_reset_host_peak", lambda: None)
    memory.release()
    assert memory.peak_bytes() is None
