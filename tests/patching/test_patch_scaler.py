"""patch("grad_scaler"): torch's own GradScaler unscales by the engine, with torch's bits."""

from __future__ import annotations

import copy
import io
import math
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers import assert_same, collector_off, outcome, run_program
from scaler_calls import CALLS, Side, TorchScaler, draw
from torch.optim.optimizer import register_optimizer_step_pre_hook

import fastloop
from fastloop.patching import step_seams

NAMES = ("unscale_", "_unscale_grads_", "_check_scale_growth_tracker", "step", "update")
TORCHS = [vars(TorchScaler)[name] for name in NAMES]
SEEDS = 8


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    fastloop.unpatch()
    assert [vars(TorchScaler)[name] for name in NAMES] == TORCHS


def status() -> fastloop.SeamStatus:
    return fastloop.patch_status().seams["grad_scaler"]


def record(seed: int) -> list[Any]:
    """The outcome of each call of a sequence, and what it has left."""
    rng, side, found = random.Random(seed), Side(TorchScaler, seed), []
    for _ in range(CALLS):
        name, call = draw(rng)
        result = outcome(partial(call, side))
        found.append(copy.deepcopy([name, result, side.trace()]))
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_sequence_of_calls_is_torchs(seed: int) -> None:
    wanted = record(seed)
    fastloop.patch("grad_scaler")
    found = record(seed)
    assert status().native > 10
    assert not status().fallbacks
    for i, (mine, torchs) in enumerate(zip(found, wanted, strict=True)):
        assert_same(mine, torchs, f"call {i}, {mine[0]}")


def params_of(*grads: Any) -> list[torch.Tensor]:
    params = []
    for grad in grads:
        p = torch.zeros(grad.shape, dtype=grad.dtype, device=grad.device)
        p.grad = grad.clone()
        params.append(p)
    return params


def run_cycle(
    make: Callable[[], list[torch.Tensor]], cls: Any = TorchScaler, **kwargs: Any
) -> list[Any]:
    """A step: what it says, and what it leaves."""
    params = make()
    scaler = cls("cpu", init_scale=8.0, **kwargs)
    optimizer = torch.optim.SGD(params, 1.0)
    scaler.scale(torch.ones(()))
    told = [outcome(lambda: scaler.step(optimizer)), outcome(scaler.update)]
    return [*told, scaler.get_scale(), params, [p.grad for p in params]]


def sparse() -> list[torch.Tensor]:
    table = torch.nn.Embedding(5, 2, sparse=True)
    torch.nn.init.ones_(table.weight)
    table(torch.tensor([1, 1])).sum().backward()
    return [table.weight]


class Tagged(torch.Tensor):
    pass


def overlapping() -> list[torch.Tensor]:
    params = params_of(torch.ones(3), torch.ones(3))
    params[1].grad = params[0].grad
    return params


LEFT: dict[str, tuple[Callable[[], list[torch.Tensor]], str]] = {
    "sparse": (sparse, "a gradient is sparse"),
    "complex": (
        lambda: params_of(torch.ones(3, dtype=torch.complex64)),
        "a gradient is of torch.complex64",
    ),
    "subclass": (
        lambda: params_of(torch.ones(3), torch.ones(3).as_subclass(Tagged)),
        "a gradient is a Tagged",
    ),
    "overlap": (overlapping, "gradients overlap, have gaps in memory or are traced"),
    "device": (
        lambda: params_of(torch.ones(3), torch.ones(3, device="meta")),
        "gradients are on cpu, meta",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_the_engine_does_not_take_is_torchs_and_counted(case: str) -> None:
    make, reason = LEFT[case]
    wanted = run_cycle(make)
    fastloop.patch("grad_scaler")
    assert_same(run_cycle(make), wanted)
    assert status().native == 0 and status().fallbacks == {reason: 1}


@pytest.mark.parametrize("grads", [[], [torch.ones(3, dtype=torch.float16)]], ids=["none", "f16"])
def test_torchs_errors_stay_and_are_not_counted(grads: list[torch.Tensor]) -> None:
    wanted = run_cycle(lambda: [torch.zeros(2), *params_of(*grads)])
    assert wanted[0][0] == "raised"
    fastloop.patch("grad_scaler")
    assert_same(run_cycle(lambda: [torch.zeros(2), *params_of(*grads)]), wanted)
    assert status().native == 0 and not status().fallbacks


class AllowsHalf(TorchScaler):
    """As scripts do that train in half precision all the way."""

    def _unscale_grads_(self, optimizer: Any, inv: Any, found: Any, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv, found, True)


class Closures(TorchScaler):
    """As Composer's, whose steps take closures."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.unscale_(optimizer)
        found: Any = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return None if sum(flag.item() for flag in found.values()) else optimizer.step()


class Old(TorchScaler):
    """As torch.cuda.amp's."""

    def __init__(self, device: str, **kwargs: Any) -> None:
        super().__init__(device, **kwargs)


@pytest.mark.parametrize(
    ("cls", "native"), [(AllowsHalf, 0), (Closures, 1), (Old, 1), (fastloop.GradScaler, 0)]
)
@pytest.mark.parametrize("value", [3.0, math.inf])
def test_subclasses_are_served_unless_they_unscale_by_themselves(
    cls: type[TorchScaler], native: int, value: float
) -> None:
    make = partial(params_of, torch.ones(2), torch.full((3,), value, dtype=torch.float64))
    wanted = run_cycle(make, cls)
    fastloop.patch("grad_scaler")
    assert_same(run_cycle(make, cls), wanted)
    assert status().native == native
    is_left = cls is AllowsHalf
    assert status().fallbacks == ({"AllowsHalf unscales gradients by itself": 1} if is_left else {})


def test_sharded_scalers_stay_torchs(tmp_path: Path) -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        make = partial(params_of, torch.ones(2), torch.full((3,), 5.0))
        kwargs = {"process_group": dist.group.WORLD}
        wanted = run_cycle(make, ShardedGradScaler, **kwargs)
        fastloop.patch("grad_scaler")
        assert_same(run_cycle(make, ShardedGradScaler, **kwargs), wanted)
    finally:
        dist.destroy_process_group()
    assert status().native == 0
    assert status().fallbacks == {"ShardedGradScaler unscales gradients by itself": 1}


def test_what_the_user_sets_on_a_scaler_is_called() -> None:
    fastloop.patch("grad_scaler")
    scaler: Any = TorchScaler("cpu")
    calls, inner = [], scaler._unscale_grads_

    def wrapped(*args: Any) -> Any:
        calls.append(args)
        return inner(*args)

    scaler._unscale_grads_ = wrapped
    optimizer = torch.optim.SGD(params_of(torch.ones(2)), 1.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    assert len(calls) == 1 and status().native == 0


def test_what_others_have_wrapped_stays_and_passes_on() -> None:
    fastloop.patch("grad_scaler")
    ours: Any = vars(TorchScaler)["unscale_"]
    make = partial(params_of, torch.ones(2))
    try:
        TorchScaler.unscale_ = lambda self, optimizer: ours(self, optimizer)  # type: ignore[method-assign]
        run_cycle(make)
        assert status().native == 1
        assert "other tools have put around" in fastloop.unpatch().seams["grad_scaler"].why
        run_cycle(make)
        assert status().native == 1
        assert fastloop.patch("grad_scaler").seams["grad_scaler"].is_on
        run_cycle(make)
        assert status().native == 1  # counted from patch() on
    finally:
        TorchScaler.unscale_ = ours  # type: ignore[method-assign]


def test_the_callers_flag_is_left_alone() -> None:
    fastloop.patch("grad_scaler")
    optimizer = torch.optim.SGD(params_of(torch.tensor([math.inf])), 1.0)
    scaler, mine = TorchScaler("cpu"), torch.zeros(())
    flags = scaler._unscale_grads_(optimizer, torch.ones(()), mine, False)
    assert mine == 0 and [flag.item() for flag in flags.values()] == [1]
    wide = torch.ones((), dtype=torch.float64)
    assert outcome(lambda: scaler._unscale_grads_(optimizer, wide, mine, False))[0] == "raised"


def test_states_and_pickles_are_torchs() -> None:
    def save() -> tuple[Any, ...]:
        scaler = TorchScaler("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(params_of(torch.ones(2)), 1.0)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        file = io.BytesIO()
        torch.save(scaler.state_dict(), file)
        return sorted(vars(scaler)), scaler.state_dict(), pickle.dumps(scaler), file.getvalue()

    wanted = save()
    fastloop.patch("grad_scaler")
    assert save() == wanted
    assert pickle.loads(wanted[2]).state_dict() == wanted[1]


def test_nothing_is_kept_of_an_optimizer() -> None:
    fastloop.patch("grad_scaler")
    params = params_of(torch.ones(2))
    optimizer, scaler = torch.optim.SGD(params, 1.0), TorchScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    references = [weakref.ref(optimizer), weakref.ref(params[0].grad)]
    assert status().native == 1
    with collector_off():
        del optimizer, params
        assert [reference() for reference in references] == [None, None]


class Bare:
    """An optimizer that cannot be referred to weakly, nor hashed."""

    __slots__ = ("_step_supports_amp_scaling", "param_groups")
    __hash__ = None  # type: ignore[assignment]

    def step(self) -> None:
        self.param_groups[0]["params"][0].add_(1)


def test_an_optimizer_need_not_be_torchs() -> None:
    fastloop.patch("grad_scaler")
    optimizer: Any = Bare()
    optimizer.param_groups = [{"params": params_of(torch.ones(2))}]
    scaler = TorchScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    (param,) = optimizer.param_groups[0]["params"]
    assert param.tolist() == [1, 1] and param.grad.tolist() == [0.5, 0.5]
    assert status().native == 1


def test_a_torch_that_differs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(scaler: Any, optimizer: Any, grads: Any) -> bool:
        inv_scale = scaler._scale.reciprocal() * 1.0001
        flags = scaler._unscale_grads_(optimizer, inv_scale, torch.zeros(()), False)
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = flags
        return True

    monkeypatch.setattr(step_seams.grad_list, "unscale_at_once", forget)
    found = fastloop.patch(verbose=False).seams
    assert not found["grad_scaler"].is_on
    assert "differs from those that fastloop knows" in found["grad_scaler"].why
    assert found["dataloader"].is_on and found["clip_grad_norm"].is_on


def test_the_check_is_seen_by_nobody() -> None:
    calls: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *args: calls.append(args))
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert all(seam.is_on for seam in fastloop.patch().seams.values())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        handle.remove()
    assert not calls and status().native == 0
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slowest
def test_strict_mode_raises_for_what_is_left_to_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOOP_STRICT", "1")
    first, *errors = run_program(
        tmp_path,
        "patch_scaler/strict_mode_raises_for_what_is_left_to_torch",
        is_fresh=True,
    ).splitlines()
    others = "clip_grad_norm 0 native; transforms 0 native; texts 0 native"
    assert first.startswith(
        f"dataloader 0 native; grad_scaler 0 native; {others}; replaced for good"
    )
    text = "FASTLOOP_STRICT=1, and {} is left to torch: a gradient is sparse"
    step, clip = text.format("a GradScaler's step"), text.format("a clip")
    assert errors == [step, step, clip]
