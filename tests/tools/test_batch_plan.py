"""find_batch_size: which micro-batch it finds, by an injected limit and clock, and that everything
is afterwards as it was before."""

import math
import random
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from batch_trials_rig import Training

import fastloop
from fastloop import BatchPlan, Stepper
from fastloop.tools.batch_size import device_memory
from fastloop.tools.batch_size import trials as batch_trials
from fastloop.tools.batch_size.snapshot import Snapshot


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
        monkeypatch.setattr(batch_trials, "perf_counter", lambda: self.now)

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
def test_the_largest_that_fits_is_found_to_the_sample(
    monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    plan = Bench(monkeypatch, saturating, limit).find(keep=None)
    assert plan.largest == min(limit, 8192)
    assert plan.is_limited == (limit < 8192)
    best = plan.largest / saturating(plan.largest)
    exact = next(n for n in range(1, 8193) if n / saturating(n) >= 0.95 * best)
    assert exact <= plan.micro_batch <= math.ceil(1.05 * exact)
    assert plan.micro_batch / saturating(plan.micro_batch) >= 0.95 * best


def test_a_size_is_tried_once_and_the_search_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Bench(monkeypatch, saturating, 3000).find(keep=None)
    sizes = [trial.size for trial in plan.trials]
    assert sizes == sorted(set(sizes))
    assert len(sizes) < 30


def test_bounds_are_kept_and_divisors_of_any_batch_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Bench(monkeypatch).find(batch_size=90, lo=4, hi=20)
    assert {trial.size for trial in plan.trials} <= {5, 6, 9, 10, 15, 18}
    assert (plan.micro_batch, plan.accumulate) == (18, 5)


def test_the_plan_shows_what_to_paste_and_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    text = str(Bench(monkeypatch, lambda n: 0.5, limit=5).find(batch_size=16))
    assert text.startswith(
        "batch_size=4, Stepper(optimizer, accumulate=4): 16 samples in a step\n"
        "the effective batch is unchanged, so the learning rate stays\n"
        "4 is the largest micro-batch that fits; larger ones do not fit\n"
    )
    assert "       4     500.00          8 " in text
    assert text.endswith("       8 OutOfMemoryError: no room for 8")


def test_the_plan_feeds_a_stepper(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, limit=3)
    plan = bench.find(batch_size=12)
    stepper = Stepper(bench.optimizer, plan.accumulate)
    for batch in stepper.iterate(torch.ones(12, 2).split(plan.micro_batch)):
        with stepper.micro(weight=len(batch)):
            stepper.backward(bench.model(batch).mean())
    assert (plan.micro_batch, stepper.stepped) == (3, 1)


# ---- a changed effective batch


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [
        (torch.optim.SGD, r"SGD: linear rule, lr × 4: 0\.1 -> 0\.4; begin with a warm-up"),
        (torch.optim.AdamW, r"AdamW: square-root rule, lr × 2: 0\.1 -> 0\.2"),
        (torch.optim.Adagrad, "Adagrad: no rule is known"),
    ],
)
def test_the_rule_for_a_changed_batch_is_told_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, optimizer: Callable[..., torch.optim.Optimizer], rule: str
) -> None:
    bench = Bench(monkeypatch, optimizer=optimizer)
    plan = bench.find(batch_size=16, keep=None, lo=64, hi=64)
    assert (plan.micro_batch, plan.accumulate, plan.effective_batch) == (64, 1, 64)
    assert "from 16 to 64 (×4); nothing was changed" in plan.rule
    assert re.search(rule, plan.rule)
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


def test_what_a_failed_step_held_is_freed_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, limit=9)
    held: list[weakref.ref[torch.Tensor]] = []

    def step(n: int) -> None:
        assert not [ref for ref in held if ref() is not None]
        cycle: list[Any] = [torch.ones(n)]
        cycle.append(cycle)
        if n > bench.limit:
            held.append(weakref.ref(cycle[0]))
        bench.step(n)

    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None, trials=1, hi=20)
    assert plan.largest == 9 and len(held) > 2


def test_snapshots_put_odd_state_back() -> None:
    """Tensors as options, lists in states, a scaler and a scheduler that have not begun."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.5))
    optimizer.state[model.weight] = {"old": [torch.ones(2), 3]}
    rate, old = optimizer.param_groups[0]["lr"], optimizer.state[model.weight]["old"][0]
    snapshot = Snapshot([model, optimizer])
    rate.fill_(0)
    old.fill_(0)
    optimizer.state[model.weight]["old"].append(5)
    optimizer.state[model.bias] = {"new": 1}
    optimizer.param_groups[0]["momentum"] = 0.9
    model.weight.grad = torch.ones(2, 2)
    model.eval()
    snapshot.restore()
    assert optimizer.param_groups[0]["lr"] is rate and rate == 0.5
    assert optimizer.state[model.weight]["old"][0] is old and old.tolist() == [1, 1]
    assert len(optimizer.state[model.weight]["old"]) == 2 and len(optimizer.state) == 1
    assert optimizer.param_groups[0]["momentum"] == 0
    assert model.weight.grad is None and model.training


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
    assert (plan.largest, plan.is_limited) == (40, True)
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
    assert "find_batch_size() has called step_fn(1); " in str(raised.value)
    assert "with a number of samples, tune() with a batch" in str(raised.value)


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"not even a micro-batch of 2 fits: OutOfMemoryError: no room for 2\. Make the model",
    ):
        Bench(monkeypatch, limit=1).find(batch_size=16, lo=2)


def test_the_hosts_memory_is_not_tried_beyond_what_smaller_steps_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that takes more than there is would be killed."""
    monkeypatch.setattr(device_memory, "available_bytes", lambda: 1000)
    bench = Bench(monkeypatch)
    tried: list[int] = []

    def step(n: int) -> None:
        tried.append(n)
        bench.step(n)

    monkeypatch.setattr(device_memory.TrialMemory, "peak_bytes", lambda self: 10 * tried[-1])
    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None, margin=0.25)
    assert (plan.largest, max(tried), plan.is_limited) == (75, 75, True)
    assert "needs 0.0 GiB by what smaller ones took" in str(plan)


def test_what_fits_only_by_retries_of_the_allocator_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    retries = [0]

    def step(n: int) -> None:
        retries[0] += n > 40
        bench.step(n)

    monkeypatch.setattr(device_memory.TrialMemory, "retries", lambda self: retries[0])
    plan = fastloop.find_batch_size(step, bench.model, bench.optimizer, keep=None)
    assert plan.largest == 40


# ---- arguments


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, TypeError, "batch_size is missing: keep='effective' needs"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; pass at least 1"),
        ({"batch_size": 2.0}, TypeError, r"batch_size is 2\.0; pass an int"),
        ({"batch_size": 8, "keep": "all"}, ValueError, "keep is 'all'; pass 'effective', or None"),
        ({"keep": None, "lo": 0}, ValueError, "lo is 0; pass at least 1"),
        ({"keep": None, "lo": 8, "hi": 4}, ValueError, "hi is 4; pass at least 8"),
        ({"batch_size": 7, "lo": 2, "hi": 6}, ValueError, "no micro-batch from lo=2 to hi=6"),
        ({"batch_size": 8, "trials": 0}, ValueError, "trials is 0; pass at least 1"),
        ({"batch_size": 8, "margin": 1}, ValueError, "margin is 1; pass a share"),
        ({"batch_size": 8, "margin": "2"}, TypeError, "margin is '2'; pass a share"),
    ],
)
def test_arguments_are_checked(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Bench(monkeypatch).find(**arguments)


def test_what_is_to_be_put_back_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    find: Any = fastloop.find_batch_size
    with pytest.raises(TypeError, match="state has no module: pass all that step_fn changes"):
        find(bench.step, bench.optimizer, batch_size=4)
    with pytest.raises(TypeError, match="state has no optimizer"):
        find(bench.step, bench.model, batch_size=4)
    with pytest.raises(TypeError, match="state holds a list, which has no state_dict"):
        find(bench.step, bench.model, bench.optimizer, [], batch_size=4)
    with pytest.raises(TypeError, match="step_fn must be a function of"):
        find(3, bench.model, bench.optimizer, batch_size=4)
    lazy = torch.nn.LazyLinear(2)
    with pytest.raises(ValueError, match="parameter 'weight' has no shape yet"):
        find(bench.step, lazy, bench.optimizer, batch_size=4)


def test_a_step_that_does_not_train_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    with pytest.raises(RuntimeError, match=r"step_fn\(1\) took no step of an optimizer"):
        fastloop.find_batch_size(lambda n: None, bench.model, bench.optimizer, batch_size=4)
