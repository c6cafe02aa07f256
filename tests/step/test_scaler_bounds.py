"""What fastloop's GradScaler adds to the scale: bounds, hysteresis, and the rule that it never
becomes inf or NaN; its checkpoints, which torch's scaler loads too."""

import copy
import math
import pickle
import random
from typing import Any

import pytest
import torch

from fastloop import GradScaler

TorchScaler = torch.amp.GradScaler
INF, NAN = math.inf, math.nan
FIVE = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}


def run(scaler: Any, *found: float, fused: bool = False) -> list[float]:
    """Steps in which a gradient was not finite (1) or all were (0): the scale after each."""
    p = torch.zeros(2, requires_grad=True)
    cls = torch.optim.AdamW if fused else torch.optim.SGD
    optimizer = cls([p], lr=0.1, fused=fused)
    scaler.scale(torch.ones(()))
    scales = []
    for value in found:
        p.grad = torch.tensor([1.0, INF if value else 1.0])
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


# ---- bounds


def test_backing_off_ends_at_min_scale_and_growth_at_max_scale() -> None:
    scaler = GradScaler("cpu", 8.0, growth_interval=1, min_scale=3.0, max_scale=20.0)
    assert run(scaler, 1, 1, 1, 0, 0, 0, 0, 1) == [4.0, 3.0, 3.0, 6.0, 12.0, 20.0, 20.0, 10.0]
    assert run(GradScaler("cpu", 8.0, min_scale=4.0), 1, 1) == [4.0, 4.0]
    assert run(GradScaler("cpu", 8.0, growth_interval=1, max_scale=9.0), 0, 1) == [9.0, 4.5]
    assert run(GradScaler("cpu", 8.0), 1, 1) == [4.0, 2.0]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_new_scale_is_taken_within_the_bounds(as_tensor: bool) -> None:
    scaler = GradScaler("cpu", 8.0, min_scale=2.0, max_scale=16.0)
    scaler.scale(torch.ones(()))
    for new, result in ((4.0, 4.0), (1.0, 2.0), (1e6, 16.0)):
        scaler.update(torch.tensor(new) if as_tensor else new)
        assert scaler.get_scale() == result


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_a_scale_that_is_not_finite_is_refused(bad: float) -> None:
    scaler = GradScaler("cpu", 8.0)
    with pytest.raises(ValueError, match=f"init_scale must be finite, got {bad}"):
        GradScaler("cpu", bad)
    GradScaler("cpu", bad, enabled=False)
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.update(bad)
    scaler.scale(torch.ones(()))
    for new in (bad, torch.tensor(bad)):
        with pytest.raises(ValueError, match=f"new_scale must be finite, got {bad}"):
            scaler.update(new)
    with pytest.raises(ValueError, match="new_scale must be finite, got inf"):
        scaler.update(torch.tensor(1e300, dtype=torch.float64))  # inf in float32
    state = {**TorchScaler("cpu").state_dict(), "scale": bad}
    with pytest.raises(ValueError, match=r"state_dict\['scale'\] must be finite, got"):
        scaler.load_state_dict(state)
    assert scaler.get_scale() == 8.0 and scaler.get_growth_interval() == 2000


@pytest.mark.parametrize("factor", [1e38, INF, NAN])
def test_no_factor_makes_the_scale_infinite(factor: float) -> None:
    scaler = GradScaler("cpu", 1e30, growth_interval=1)
    scaler.set_backoff_factor(factor)
    assert run(scaler, 1, 1) == [pytest.approx(1e30)] * 2
    scaler = GradScaler("cpu", 1e30, growth_factor=factor, growth_interval=1)
    assert run(scaler, 0, 0) == [pytest.approx(1e30)] * 2


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        ({"min_scale": 0.0}, "min_scale must be a positive float32 number, got 0.0 .or None"),
        ({"min_scale": -1.0}, "got -1.0 "),
        ({"min_scale": NAN}, "got nan "),
        ({"max_scale": INF}, "max_scale must be .*got inf "),
        ({"max_scale": 1e39}, "got 1e[+]39 "),
        ({"min_scale": 4.0, "max_scale": 2.0}, "min_scale must be <= max_scale=2.0, got 4.0"),
        ({"min_scale": 16.0}, "init_scale must be in .min_scale=16.0, .*, got 8.0"),
        ({"max_scale": 4.0}, "init_scale must be in .*, max_scale=4.0., got 8.0"),
        ({"hysteresis": 0}, "hysteresis must be an int >= 1, got 0 .1 backs off at once"),
    ],
)
def test_bad_extras_are_refused(extras: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GradScaler("cpu", 8.0, **extras)


# ---- hysteresis


class Apex:
    """The rule of NVIDIA apex's update_scale_hysteresis, in Python."""

    def __init__(self, scale: float, interval: int, hysteresis: int) -> None:
        self.scale, self.interval, self.hysteresis = scale, interval, hysteresis
        self.left, self.tracker = hysteresis, 0

    def update(self, found: int) -> float:
        if found:
            self.left -= 1
            self.tracker = 0
            self.scale *= 0.5 if self.left <= 0 else 1.0
            return self.scale
        self.left = self.hysteresis
        self.tracker += 1
        if self.tracker == self.interval:
            self.scale, self.tracker = self.scale * 2.0, 0
        return self.scale


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("hysteresis", [1, 2, 3])
def test_hysteresis_is_apexs(hysteresis: int, fused: bool) -> None:
    rng = random.Random(hysteresis)
    found = [int(rng.random() < 0.6) for _ in range(80)]
    rule = Apex(2.0**10, 2, hysteresis)
    scaler = GradScaler("cpu", 2.0**10, growth_interval=2, hysteresis=hysteresis)
    assert run(scaler, *found, fused=fused) == [rule.update(f) for f in found]
    assert scaler._get_growth_tracker() == rule.tracker
    assert scaler.skipped_steps == sum(found)


def test_hysteresis_counts_updates_not_optimizers() -> None:
    scaler = GradScaler("cpu", 8.0, hysteresis=2)
    params = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in params]
    scaler.scale(torch.ones(()))
    for scale in (8.0, 4.0):
        for p, optimizer in zip(params, optimizers, strict=True):
            p.grad = torch.tensor([INF])
            scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == scale
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.update()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a device beside the CPU")
def test_a_loss_on_another_device_than_the_gradients() -> None:
    p = torch.zeros(2, device="cuda", requires_grad=True)
    scaler, optimizer = GradScaler("cpu", 8.0), torch.optim.SGD([p], 1.0)
    for factor in (1.0, math.inf):
        scaler.scale(p.cpu().sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert p.tolist() == [-1.0, -1.0] and scaler.get_scale() == 4.0


def test_hysteresis_beyond_all_steps() -> None:
    assert run(GradScaler("cpu", 8.0, hysteresis=10**10), 1, 1, 0) == [8.0, 8.0, 8.0]


def test_hysteresis_resumes_in_the_middle_of_a_row() -> None:
    whole = GradScaler("cpu", 64.0, hysteresis=3)
    first = GradScaler("cpu", 64.0, hysteresis=3)
    expected = run(whole, 1, 1, 1, 1)[2:]
    run(first, 1, 1)
    loaded = GradScaler("cpu")
    loaded.load_state_dict(first.state_dict())
    for copied in (loaded, pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert run(copied, 1, 1) == expected == [32.0, 16.0]
        assert copied.skipped_steps == 4
    assert run(first, 1) == expected[:1]


# ---- checkpoints


@pytest.mark.parametrize("is_scaled", [False, True])
def test_state_dicts_go_both_ways(is_scaled: bool) -> None:
    settings: dict[str, Any] = {
        "init_scale": 4.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 7,
    }
    for a, b in ((TorchScaler, GradScaler), (GradScaler, TorchScaler)):
        source, target = a("cpu", **settings), b("cpu")
        if is_scaled:
            target.scale(torch.ones(()))
        run(source, 0, 0)
        target.load_state_dict(source.state_dict())
        states = [{k: s.state_dict()[k] for k in FIVE} for s in (source, target)]
        assert states[0] == states[1]
        assert (states[0]["scale"], states[0]["_growth_tracker"]) == (4.0, 2)


def test_extras_are_saved_and_loaded_and_not_needed() -> None:
    source = GradScaler("cpu", 16.0, min_scale=2.0, max_scale=32.0, hysteresis=2)
    run(source, 1, 0, 1)
    state = source.state_dict()
    assert {key: state[key] for key in state.keys() - FIVE} == {
        "min_scale": 2.0,
        "max_scale": 32.0,
        "hysteresis": 2,
        "skipped_steps": 2,
        "_bad_steps": 1,
    }
    target = GradScaler("cpu", 8.0)
    target.load_state_dict(state)
    assert target.state_dict() == state
    other = GradScaler("cpu", 8.0, min_scale=4.0, hysteresis=5)
    run(other, 1)
    other.load_state_dict({**TorchScaler("cpu").state_dict(), "scale": 1.0})
    assert (other.get_scale(), other.min_scale, other.hysteresis) == (4.0, 4.0, 5)
    assert other.skipped_steps == 1
    fresh = GradScaler("cpu", 8.0, min_scale=4.0)
    fresh.load_state_dict({**TorchScaler("cpu").state_dict(), "scale": 1.0})
    assert fresh.get_scale() == 4.0 and run(fresh, 0) == [4.0]
    with pytest.raises(ValueError, match="hysteresis must be"):
        other.load_state_dict({**state, "hysteresis": 0})
    assert other.get_scale() == 4.0
    with pytest.raises(RuntimeError, match="source state dict is empty"):
        other.load_state_dict({})
    with pytest.raises(KeyError, match="scale"):
        other.load_state_dict({"growth_factor": 2.0})


def test_pickles_are_torchs_and_keep_the_extras() -> None:
    scaler = GradScaler("cpu", 16.0, min_scale=2.0, hysteresis=2)
    run(scaler, 1, 1)
    p = torch.zeros(2, requires_grad=True)
    p.grad = torch.ones(2)
    optimizer = torch.optim.SGD([p])
    scaler.unscale_and_clip_(optimizer, 1.0)
    assert scaler.last_norm is not None
    with pytest.raises(AssertionError, match="may only be pickled at the beginning"):
        pickle.dumps(scaler)
    scaler.update()
    for other in (pickle.loads(pickle.dumps(scaler)), copy.deepcopy(scaler)):
        assert other.state_dict() == scaler.state_dict()
        assert other.last_norm is None
        assert other._scale is None
        assert not any(isinstance(value, torch.Tensor) for value in vars(other).values())


def test_a_pickle_without_the_extras_has_their_defaults() -> None:
    state = TorchScaler("cpu", 4.0).__getstate__()
    scaler = GradScaler.__new__(GradScaler)
    scaler.__setstate__(state)
    assert run(scaler, 1, 0) == [2.0, 2.0]
    assert (scaler.skipped_steps, scaler.hysteresis, scaler.min_scale) == (1, 1, None)


def test_autograd_is_told_of_a_scale_that_changes() -> None:
    """As by torch: whoever compares versions can tell."""
    scaler = GradScaler("cpu")
    run(scaler, 0)
    scale: Any = scaler._scale
    before = scale._version
    run(scaler, 0)
    assert scaler._scale is scale and scale._version > before


def test_tensors_of_the_state_stay_where_a_graph_has_seen_them() -> None:
    scaler = GradScaler("cpu", hysteresis=3)
    scaler.scale(torch.ones(()))
    bad_steps: Any = scaler._bad_steps
    scaler.load_state_dict({**scaler.state_dict(), "_bad_steps": 2})
    assert scaler._bad_steps is bad_steps and bad_steps.item() == 2
