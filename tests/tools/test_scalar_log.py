"""ScalarLog: every number arrives once, with its step, and nothing waits for it but drain()."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from lazy_device import SCHEDULES, LazyAccelerator, LazyDevice

from fastloop import ScalarLog
from fastloop.tools import scalars as scalar_log

Told = list[tuple[int, str, float]]


@pytest.fixture(params=[*SCHEDULES, 1, 2])
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LazyDevice:
    """A device on which nothing is done before it is stepped: its tensors are those it has made."""
    late = LazyDevice(request.param)
    accelerator = LazyAccelerator(late)
    monkeypatch.setattr(
        scalar_log, "_accelerator_of", lambda t: accelerator if accelerator.holds(t) else None
    )
    return late


def on(late: LazyDevice, value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return late.put(torch.tensor([value], dtype=dtype))


# ---- on the CPU


def test_numbers_of_the_cpu_arrive_at_once_and_once() -> None:
    log = ScalarLog()
    loss = torch.tensor(1.5, requires_grad=True)
    log.push(7, loss=loss, n=torch.tensor([3]), rate=0.25)
    with torch.no_grad():
        loss.fill_(0)  # the number pushed is the one it had
    log.push(np.int64(8), {"loss/train": torch.tensor(2.5, dtype=torch.bfloat16)}, ok=np.float32(1))
    assert log.poll() == [
        (7, {"loss": 1.5, "n": 3, "rate": 0.25}),
        (8, {"loss/train": 2.5, "ok": 1.0}),
    ]
    assert log.poll() == log.drain() == []
    assert log.last() == {"loss": 1.5, "n": 3, "rate": 0.25, "loss/train": 2.5, "ok": 1.0}


def test_what_is_not_fetched_is_kept_up_to_the_capacity_and_dropping_is_counted() -> None:
    log = ScalarLog(capacity=3)
    for step in range(5):
        log.push(step, x=step)
    assert [step for step, _ in log.drain()] == [2, 3, 4]
    assert log.dropped == 2


def test_numbers_that_are_not_finite_are_told_with_step_and_name() -> None:
    told: Told = []
    log = ScalarLog(on_nonfinite=lambda *args: told.append(args))
    log.push(1, a=torch.tensor(math.inf), b=1.0, huge=10**400)
    log.push(2, a=0.0, b=torch.tensor(-math.inf))
    log.push(3, a=math.nan)
    assert told[:2] == [(1, "a", math.inf), (2, "b", -math.inf)]
    assert told[2][:2] == (3, "a") and len(told) == 3
    assert len(log.drain()) == 3 and len(told) == 3


def test_what_the_callback_raises_comes_out_and_loses_nothing() -> None:
    def stop(step: int, name: str, value: float) -> None:
        told.append((step, name, value))
        raise FloatingPointError(name)

    told: Told = []
    log = ScalarLog(on_nonfinite=stop)
    with pytest.raises(FloatingPointError, match="a"):
        log.push(1, a=math.inf, b=math.inf)
    with pytest.raises(FloatingPointError, match="b"):
        log.poll()
    assert log.poll() == [(1, {"a": math.inf, "b": math.inf})]
    assert told == [(1, "a", math.inf), (1, "b", math.inf)]


@pytest.mark.parametrize(
    ("step", "value", "error", "text"),
    [
        (1.5, 0, TypeError, r"step must be an int, got 1\.5"),
        (1, "2", TypeError, "x must be a 0-d tensor or a number, got '2'"),
        (
            1,
            torch.ones(2, 3),
            ValueError,
            r"x must be .* one element.*, got \(2, 3\) on cpu",
        ),
        (1, torch.ones((), device="meta"), ValueError, r"x must be .*, got \(\) on meta"),
        (
            1,
            torch.ones((), dtype=torch.cfloat),
            TypeError,
            r"x must be real, got torch.complex64 \(for example, pass x\.abs",
        ),
    ],
)
def test_what_is_no_scalar_is_refused_and_nothing_of_the_step_is_logged(
    step: Any, value: Any, error: type[Exception], text: str
) -> None:
    log = ScalarLog()
    with pytest.raises(error, match=text):
        log.push(step, fine=1.0, x=value)
    assert log.drain() == []


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="capacity must be an int >= 1, got 0"):
        ScalarLog(0)
    with pytest.raises(TypeError, match="capacity must be an int >= 1, got True"):
        ScalarLog(True)
    with pytest.raises(
        TypeError, match="on_nonfinite must be a function of step, name and value, got 3"
    ):
        ScalarLog(on_nonfinite=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the name of a scalar must be a str, got 3"):
        ScalarLog().push(1, {3: 1.0})  # type: ignore[dict-item]


# ---- from a device


def test_numbers_arrive_late_in_order_and_nothing_but_drain_waits(late: LazyDevice) -> None:
    log = ScalarLog()
    expected, arrived = [], []
    for step in range(100):
        log.push(step, loss=on(late, step / 3), n=on(late, step, torch.int64), host=step)
        expected.append((step, {"loss": np.float32(step / 3).item(), "n": step, "host": step}))
        arrived += log.poll()
        assert log.last() == (arrived[-1][1] if arrived else {})
    assert late.synchronized == 0
    assert arrived == expected[: len(arrived)]
    assert arrived + log.drain() == expected


def test_nothing_arrives_before_the_device_has_come_to_it(late: LazyDevice) -> None:
    late.order = SCHEDULES["copies-late"]  # nothing runs unless it is stepped
    log = ScalarLog()
    log.push(1, loss=on(late, 2.0))
    log.push(2, host=3)
    assert log.poll() == [] and log.last() == {}
    late.run()
    assert log.poll() == [(1, {"loss": 2.0}), (2, {"host": 3})]


def test_the_number_is_the_one_at_its_place_in_the_stream(late: LazyDevice) -> None:
    log, loss = ScalarLog(), on(late, 1.0)
    for step in range(8):
        log.push(step, loss=loss)
        late.launch(lambda memory: memory.mul_(2), loss)
    del loss  # the log keeps what it has not read
    assert [values["loss"] for _, values in log.drain()] == [2.0**i for i in range(8)]


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float64, torch.int64]
)
def test_every_dtype_arrives_exactly(late: LazyDevice, dtype: torch.dtype) -> None:
    log, value = ScalarLog(), torch.tensor([1.2]).to(dtype)
    log.push(0, x=late.put(value))
    assert log.drain() == [(0, {"x": value.item()})]


def test_pinned_memory_is_used_again_and_grows_with_what_is_under_way(late: LazyDevice) -> None:
    late.order = SCHEDULES["copies-late"]
    log = ScalarLog()

    def pinned() -> int:
        return sum(block.stream is None for block in late.blocks)

    for step in range(300):
        log.push(step, x=on(late, step))
        late.run()
    assert pinned() == 1
    for step in range(100):
        log.push(step, x=on(late, step))
    assert pinned() == 2
    assert len(log.drain()) == 400
    del log
    assert all(block.is_free for block in late.blocks if block.stream is None)


def test_a_number_from_a_device_that_is_not_finite_is_told_with_its_own_step(
    late: LazyDevice,
) -> None:
    told: Told = []
    log = ScalarLog(on_nonfinite=lambda *args: told.append(args))
    for step in range(6):
        log.push(step, loss=on(late, math.inf if step == 2 else 1.0))
    log.drain()
    assert told == [(2, "loss", math.inf)]
