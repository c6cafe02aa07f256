"""find_batch_size: the micro-batch it finds, by an injected limit and clock, and that it puts
everything back."""

import importlib
import math
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from batch_trials_rig import Training

import fastloop
from fastloop import BatchPlan, Stepper
from fastloop.tools import batch_size


@pytest.fixture(autouse=True, scope="module")
def optimizers_have_their_imports() -> None:
    """In the first test they would be a heap of objects for gc.collect()."""
    importlib.import_module("torch._dynamo")


class Bench:
    """A step of n samples takes as long as `seconds` says, and fits up to a limit."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: Callable[[int], float] = lambda n: 1.0,
        limit: float = math.inf,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    ) -> None:
        self.model = torch.nn.Linear(2, 1)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.seconds, self.limit, self.now = seconds, limit, 0.0
        monkeypatch.setattr(batch_size, "perf_counter", lambda: self.now)

    def step(self, n: int) -> None:
        if n > self.limit:
            raise torch.OutOfMemoryError(f"no room for {n}\nand more")
        self.now += self.seconds(n)
        self.optimizer.step()

    def find(self, **arguments: Any) -> BatchPlan:
        return fastloop.find_batch_size(self.step, self.model, self.optimizer, **arguments)


def saturating(n: int) -> float:
    """Throughput n / (40 + n)."""
    return 40.0 + n


# ---- what is found


@pytest.mark.parametrize(
    ("seconds", "limit", "micro", "largest"),
    [
        (saturating, math.inf, 512, 1024),
        (saturating, 700, 512, 512),
        (lambda n: 1.0, 700, 512, 512),
        (lambda n: 1.0 * n, math.inf, 1, 1024),
        (lambda n: 1.0, 1, 1, 1),
        (lambda n: 1.0 + max(0, n - 64), math.inf, 64, 1024),  # slower from 64 on
    ],
)
def test_the_smallest_good_divisor_of_the_effective_batch(
    monkeypatch: pytest.MonkeyPatch,
    seconds: Callable[[int], float],
    limit: float,
    micro: int,
    largest: int,
) -> None:
    plan = Bench(monkeypatch, seconds, limit).find(batch_size=1024)
    assert (plan.micro_batch, plan.largest) == (micro, largest)
    assert (plan.accumulate, plan.effective_batch, plan.rule) == (1024 // micro, 1024, "")
    assert plan.is_limited == (limit < 1024)


@pytest.mark.parametrize("limit", [1, 2, 63, 64, 65, 700, 8191, 8192, math.inf])
def test_without_a_batch_to_keep_sizes_are_doubled(
    monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    plan = Bench(monkeypatch, saturating, limit).find(keep=None)
    sizes = [trial.size for trial in plan.attempts]
    assert sizes == [2**i for i in range(len(sizes))]
    assert plan.largest == 2 ** math.floor(math.log2(min(limit, 8192)))
    assert plan.is_limited == (limit < 8192)
    best = plan.largest / saturating(plan.largest)
    assert plan.micro_batch == next(n for n in sizes if n / saturating(n) >= 0.95 * best)


def test_bounds_are_kept_and_divisors_of_any_batch_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Bench(monkeypatch).find(batch_size=90, lo=4, hi=20)
    assert {trial.size for trial in plan.attempts} == {5, 10, 18}
    assert (plan.micro_batch, plan.accumulate) == (18, 5)


def test_the_plan_shows_what_to_paste_and_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = str(Bench(monkeypatch, lambda n: 0.5, limit=5).find(batch_size=16))
    assert text.startswith(
        "batch_size=4, Stepper(optimizer, accumulate=4): 16 samples in a step\n"
        "the effective batch is unchanged, so the learning rate stays\n"
        "4 is the largest micro-batch that fits; larger sizes do not fit\n"
    )
    rows = [line.split() for line in text.splitlines()[3:]]
    assert rows[0] == ["size", "a", "step", "samples/s", "peak"]
    assert rows[3][:4] == ["4", "500", "ms", "8"]
    assert rows[4] == "8 n/a 0 n/a OutOfMemoryError: no room for 8".split()


def test_the_plan_feeds_a_stepper(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, limit=3)
    plan = bench.find(batch_size=12)
    stepper = Stepper(bench.optimizer, plan.accumulate)
    for batch in stepper.iterate(torch.ones(12, 2).split(plan.micro_batch)):
        with stepper.micro(weight=len(batch)):
            stepper.backward(bench.model(batch).mean())
    assert (plan.micro_batch, stepper.stepped) == (2, 1)


# ---- a changed effective batch


def test_one_line_tells_of_a_changed_batch_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    plan = bench.find(batch_size=16, keep=None, lo=64, hi=64)
    assert (plan.micro_batch, plan.accumulate, plan.effective_batch) == (64, 1, 64)
    assert plan.rule.startswith(
        "the effective batch goes from 16 to 64: learning rates are usually"
    )
    assert "× 4 with SGD, × 2 with Adam; nothing was changed" in plan.rule
    assert plan.rule in str(plan)
    assert bench.optimizer.param_groups[0]["lr"] == 0.1


# ---- what is put back


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize("has_stepped", [False, True])
def test_everything_is_put_back_in_place(error: type[Exception], has_stepped: bool) -> None:
    training = Training(limit=21, error=error)
    if has_stepped:  # gradients and moments are there before
        training.step(3)
    objects, before = [id(t) for t in training.tensors()[:6]], training.digest()
    plan = fastloop.find_batch_size(training.step, *training.state, batch_size=64)
    assert plan.largest == 16 and training.sizes[-1] == 32  # a step that has failed is the last
    assert training.digest() == before
    assert [id(t) for t in training.tensors()[:6]] == objects
    training.limit = math.inf
    again = Training()
    if has_stepped:
        again.step(3)
    for each in (training, again):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        each.step(5)
    assert training.digest() == again.digest()  # it goes on as if nothing had been


def test_everything_is_put_back_after_an_error_and_after_ctrl_c() -> None:
    for error in (ZeroDivisionError, KeyboardInterrupt):
        training = Training(limit=5, error=error)
        before = training.digest()
        with pytest.raises(error, match="no room for 8"):
            fastloop.find_batch_size(training.step, *training.state, keep=None)
        assert training.digest() == before
        assert len(training.optimizer._optimizer_step_post_hooks) == 0


def test_tensors_of_a_failed_step_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, limit=9)
    held: list[weakref.ref[torch.Tensor]] = []

    def step(n: int) -> None:
        cycle: list[Any] = [torch.ones(n)]
        cycle.append(cycle)
        held.append(weakref.ref(cycle[0]))
        bench.step(n)

    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None, trials=1)
    assert plan.largest == 8 and len(held) > 2
    assert not [ref for ref in held if ref() is not None]


def test_gradients_and_options_are_put_back() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.weight.grad = grad = torch.ones(2, 2)

    def step(n: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1
        grad.fill_(n)
        model.bias.grad = torch.ones(2)
        optimizer.step()
        optimizer.zero_grad()

    fastloop.find_batch_size(step, model, optimizer, batch_size=2)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert model.weight.grad is grad and grad.tolist() == [[1, 1], [1, 1]]
    assert model.bias.grad is None


# ---- what does not fit


def test_an_error_that_is_no_lack_of_memory_is_not_taken_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)

    def step(n: int) -> None:
        if n > 2:
            raise RuntimeError("CUDA out of memory, says a text")
        bench.step(n)

    with pytest.raises(RuntimeError, match="says a text"):
        fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None)


def test_what_torchs_allocator_of_the_cpu_refuses_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It raises a bare RuntimeError."""
    bench = Bench(monkeypatch)

    def step(n: int) -> None:
        torch.empty(n if n <= 40 else 10**15)
        bench.step(n)

    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None)
    assert (plan.largest, plan.is_limited) == (32, True)
    assert "DefaultCPUAllocator: can't allocate memory" in str(plan)


def _of_a_batch(batch: Any) -> None:
    _images, _labels = batch


@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        (_of_a_batch, TypeError, "it raised TypeError: cannot unpack non-iterable int object"),
        (lambda batch: batch.to("cpu"), AttributeError, "'int' object has no attribute 'to'"),
        (lambda images, labels: None, TypeError, "missing 1 required positional argument"),
    ],
)
def test_a_step_of_a_batch_is_told_what_it_is_called_with(
    step: Any, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(monkeypatch)
    with pytest.raises(error, match=text) as raised:
        fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None)
    assert "find_batch_size() called step_fn(1); " in str(raised.value)
    assert "with a number of samples, tune() with a batch" in str(raised.value)


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"not even a micro-batch of 2 fits: OutOfMemoryError: .* for 2; make the model",
    ):
        Bench(monkeypatch, limit=1).find(batch_size=16, lo=2)


def test_the_hosts_memory_is_not_tried_beyond_what_smaller_steps_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that takes more than there is would be killed."""
    monkeypatch.setattr(batch_size, "available_bytes", lambda: 1000)
    bench = Bench(monkeypatch)
    tried: list[int] = []

    def step(n: int) -> None:
        tried.append(n)
        bench.step(n)

    monkeypatch.setattr(batch_size, "reset_own_peak", lambda: 5)
    monkeypatch.setattr(batch_size, "own_bytes", lambda name: 5 + 10 * tried[-1])
    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None, margin=0.25)
    assert (plan.largest, max(tried), plan.is_limited) == (64, 64, True)
    assert "needs 1.25 KiB, judged by smaller sizes" in str(plan)
    assert [trial.peak_bytes for trial in plan.attempts[:2]] == [10, 20]


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, TypeError, "batch_size must be an int >= 1, got None .*keep=None"),
        ({"batch_size": 0}, ValueError, "batch_size must be an int >= 1, got 0"),
        ({"batch_size": 2.0}, TypeError, r"batch_size must be an int >= 1, got 2\.0"),
        (
            {"batch_size": 8, "keep": "all"},
            ValueError,
            "keep must be one of 'effective', None, got",
        ),
        ({"keep": None, "lo": 0}, ValueError, "lo must be an int >= 1, got 0"),
        ({"keep": None, "lo": 8, "hi": 4}, ValueError, "hi must be an int >= 8, got 4"),
        ({"batch_size": 7, "lo": 2, "hi": 6}, ValueError, r"batch_size must be .*\[2, 6\], got 7"),
        ({"batch_size": 8, "trials": 0}, ValueError, "trials must be an int >= 1, got 0"),
        ({"batch_size": 8, "margin": 1}, ValueError, r"margin must be a number in \[0.*\], got 1"),
        ({"batch_size": 8, "margin": "2"}, TypeError, "margin must be a number in .* got '2'"),
    ],
)
def test_arguments_are_checked(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Bench(monkeypatch).find(**arguments)


def test_state_and_step_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    find: Any = fastloop.find_batch_size
    with pytest.raises(TypeError, match=r"a module and an optimizer, got SGD \(pass both\)"):
        find(bench.step, bench.optimizer, batch_size=4)
    with pytest.raises(TypeError, match="state must have a module and an optimizer, got Linear"):
        find(bench.step, bench.model, batch_size=4)
    with pytest.raises(TypeError, match=r"state must be objects with a state_dict\(\), got \[\]"):
        find(bench.step, bench.model, bench.optimizer, [], batch_size=4)
    with pytest.raises(TypeError, match="step_fn must be a function of the number of samples, got"):
        find(3, bench.model, bench.optimizer, batch_size=4)


def test_a_step_that_does_not_train_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    with pytest.raises(RuntimeError, match=r"step_fn\(1\) has stepped no optimizer; step an"):
        fastloop.find_batch_size(lambda n: None, bench.model, bench.optimizer, batch_size=4)
