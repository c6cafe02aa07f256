"""GradScaler where sequences of calls beside torch's (test_scaler_parity.py) do not reach: warnings
and signatures, skipped steps counted, flags merged, nothing left on optimizers, steps with
gradients that the caller has checked."""

import gc
import inspect
import math
import pickle
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import passes
import pytest
import torch
from helpers import assert_same

from fastloop import GradScaler
from fastloop.step.grad_list import GradList
from fastloop.step.scaler import takes_grad_scale

TorchScaler = torch.amp.GradScaler
INF = math.inf


@pytest.fixture(params=passes.NAMES, autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    passes.choose(request.param, monkeypatch)
    yield request.param


class Recorder(torch.optim.Optimizer):
    """Notes what is set on it when its step is called; raises `error`."""

    def __init__(self, *params: torch.Tensor, fused: bool = False) -> None:
        super().__init__(params, {})
        self.calls: list[Any] = []
        self.error: Exception | None = None
        if fused:
            self._step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        self.calls.append({name: getattr(self, name, None) for name in ("grad_scale", "found_inf")})
        if self.error is not None:
            raise self.error
        return None if closure is None else closure()


def fail(*args: Any) -> None:
    raise AssertionError(args)


def param(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A parameter with this gradient."""
    p = torch.zeros(len(values), dtype=dtype).requires_grad_()
    p.grad = torch.tensor(values, dtype=dtype)
    return p


def ready(*args: Any, cls: type[TorchScaler] = GradScaler, **kwargs: Any) -> Any:
    """A scaler that has scaled something."""
    scaler = cls("cpu", *args, **kwargs)
    scaler.scale(torch.ones(()))
    return scaler


def message(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


# ---- torch's face


def test_signature_is_torchs_and_three_keywords() -> None:
    ours = list(inspect.signature(GradScaler.__init__).parameters.values())
    theirs = list(inspect.signature(TorchScaler.__init__).parameters.values())
    both = zip(ours, theirs, strict=False)
    assert all((a.name, a.default, a.kind) == (b.name, b.default, b.kind) for a, b in both)
    added = ours[len(theirs) :]
    assert [p.name for p in added] == ["min_scale", "max_scale", "hysteresis"]
    assert {p.kind for p in added} == {inspect.Parameter.KEYWORD_ONLY}


def test_cuda_without_cuda_is_disabled_with_a_warning_at_the_users_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: True)
    seen = []
    for cls in (GradScaler, TorchScaler):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert not cls("cuda").is_enabled()
            assert not cls("cuda", enabled=False).is_enabled()
        assert [w.filename for w in caught] == [__file__]
        seen.append([(w.category, str(w.message)) for w in caught])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("state", [None, {}, 7])
def test_a_disabled_scaler_looks_at_no_state(state: Any) -> None:
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), GradScaler("cpu", enabled=False)):
        scaler.load_state_dict(state)
        assert scaler.state_dict() == {}


def test_disabled_scaler_only_steps_and_clips() -> None:
    scaler, loss, p = GradScaler("cpu", enabled=False), torch.ones(()), param(3.0, 4.0)
    optimizer = Recorder(p, fused=True)
    assert scaler.scale(loss) is loss
    assert scaler.unscale_and_clip_(optimizer, 1.0) == 5.0
    assert_same(scaler.last_norm, torch.tensor(5.0))
    torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]))
    p.grad[0] = INF
    assert scaler.step(optimizer, closure=lambda: 7.0) == 7.0
    scaler.update()
    scaler.load_state_dict({})
    assert scaler.state_dict() == {} and scaler.get_scale() == 1.0
    assert (scaler.skipped_steps, scaler.last_step_skipped()) == (0, False)
    assert not pickle.loads(pickle.dumps(scaler)).is_enabled()
    assert len(optimizer.calls) == 1


@pytest.mark.parametrize("fused", [False, True])
def test_only_a_closure_by_keyword_is_refused(fused: bool) -> None:
    scaler, optimizer = ready(), Recorder(param(1.0), fused=fused)
    said = [
        message(RuntimeError, lambda s=s: s.step(optimizer, closure=None))
        for s in (scaler, ready(cls=TorchScaler))
    ]
    assert said[0] == said[1] and "losure" in said[0]
    assert scaler.step(optimizer, None) is None
    scaler.update()
    assert scaler.step(optimizer, lambda: 3.0) == 3.0


def test_optimizers_that_take_the_scaler_get_it() -> None:
    class Old(Recorder):
        def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:  # type: ignore[override]
            return grad_scaler, hasattr(self, "grad_scale"), hasattr(self, "found_inf")

    seen = []
    for cls in (GradScaler, TorchScaler):
        scaler, optimizer = ready(cls=cls), Old(param(1.0), fused=True)
        with pytest.warns(FutureWarning) as caught:
            given = scaler.step(optimizer)
        assert given == (scaler, False, False)
        assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()
        seen.append([str(w.message) for w in caught])
    assert seen[0] == seen[1]


# ---- flags and skipping


@pytest.mark.parametrize("bad", [INF, -INF, math.nan])
def test_step_of_an_optimizer_is_not_called_when_a_gradient_is_not_finite(bad: float) -> None:
    p = param(1.0, 2.0)
    scaler, optimizer = ready(2.0), Recorder(p)
    for value, calls, skipped in ((bad, 0, 1), (1.0, 1, 1), (bad, 1, 2)):
        p.grad = torch.tensor([1.0, value])
        scaler.step(optimizer)
        scaler.update()
        assert len(optimizer.calls) == calls
        assert (scaler.skipped_steps, scaler.last_step_skipped()) == (skipped, value != 1.0)


def test_fused_optimizer_gets_the_flag_and_is_counted(path: str) -> None:
    p = param(1.0)
    scaler, optimizer = ready(8.0), Recorder(p, fused=True)
    for value in (1.0, INF, INF, 2.0):
        p.grad = torch.tensor([value])
        scaler.step(optimizer)
        seen = optimizer.calls[-1]
        assert_same(seen["found_inf"], torch.tensor(float(value == INF)))
        assert seen["grad_scale"] == scaler.get_scale()
        assert scaler.last_step_skipped() == (value == INF)
        assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()
        assert p.grad == value
        assert path == "torch" or p.grad._version == 0  # only read
        scaler.update()
    assert scaler.skipped_steps == 2


def test_optimizers_skip_each_for_itself() -> None:
    scaler, good, bad = ready(4.0), Recorder(param(1.0)), Recorder(param(INF), fused=True)
    scaler.step(bad)
    assert scaler.last_step_skipped()
    scaler.step(good)
    assert not scaler.last_step_skipped()
    scaler.update()
    assert (scaler.skipped_steps, scaler.get_scale(), len(good.calls)) == (1, 2.0, 1)


def test_flags_of_several_devices_become_one_that_is_0_or_1(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A sum of 2.0 would make fused optimizers step."""
    if path == "engine":
        pytest.skip("several devices are torch's")
    devices = [torch.device("cpu"), torch.device("cpu", 0)]
    for values in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0)):
        flags = {d: torch.tensor(v) for d, v in zip(devices, values, strict=True)}
        monkeypatch.setattr(TorchScaler, "_unscale_grads_", lambda *a, f=flags: dict(f))
        scaler, optimizer = ready(), Recorder(param(1.0), fused=True)
        for unscale in (lambda o: None, scaler.unscale_):
            unscale(optimizer)
            scaler.step(optimizer)
            assert_same(optimizer.calls[-1]["found_inf"], torch.tensor(max(values)))
            assert scaler.last_step_skipped() == (max(values) == 1.0)
            scaler.update()


class Sharded(GradScaler):
    """As torch's ShardedGradScaler on two ranks, both of which meet the same."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for flag in self._found_inf_per_device(optimizer).values():
            flag.mul_(2)


@pytest.mark.parametrize("value", [1.0, INF])
def test_flags_summed_over_ranks_are_0_or_1(value: float) -> None:
    p = param(value)
    scaler, optimizer = ready(4.0, cls=Sharded), Recorder(p, fused=True)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert_same(optimizer.calls[-1]["found_inf"], torch.tensor(float(value == INF)))
    scaler.update()
    p.grad = torch.tensor([8.0])
    assert scaler.unscale_and_clip_(optimizer, 1.0) * scaler.get_scale() == 8.0
    assert p.grad == pytest.approx(1.0)


class Doubled(GradScaler):
    """Its `_unscale_grads_` leaves a flag that is a sum."""

    def _unscale_grads_(self, *args: Any) -> dict[torch.device, torch.Tensor]:
        return {d: flag * 2 for d, flag in super()._unscale_grads_(*args).items()}


def test_flags_of_an_overridden_pass_are_0_or_1() -> None:
    for value in (1.0, INF):
        scaler, optimizer = ready(cls=Doubled), Recorder(param(value), fused=True)
        scaler.step(optimizer)
        assert_same(optimizer.calls[-1]["found_inf"], torch.tensor(float(value == INF)))


def test_a_pass_put_in_place_of_ours_is_used_everywhere() -> None:
    """Trainers of float16 parameters do this."""
    p = param(8.0, dtype=torch.float16)
    scaler, optimizer, calls = ready(4.0), Recorder(p), []
    original = scaler._unscale_grads_

    def allowing(optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool) -> Any:
        calls.append(allow_fp16)
        return original(optimizer, inv_scale, found_inf, True)

    assert "FP16" in message(ValueError, lambda: scaler.unscale_and_clip_(optimizer, 1.0))
    assert "FP16" in message(ValueError, lambda: scaler.unscale_(optimizer))
    scaler._unscale_grads_ = allowing
    scaler.unscale_(optimizer)
    assert_same(p.grad, torch.tensor([2.0], dtype=torch.float16))
    scaler.update()
    p.grad.fill_(8.0)
    assert_same(scaler.unscale_and_clip_(optimizer, 1.0), torch.tensor(2.0, dtype=torch.float16))
    assert p.grad.item() == pytest.approx(1.0)
    scaler.update()
    scaler.step(Recorder(p, fused=True))
    assert calls == [False, False, True]


def test_count_on_a_device_is_read_when_asked() -> None:
    class OnDevice(torch.Tensor):
        reads = 0
        device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]

        def item(self) -> Any:
            OnDevice.reads += 1
            return super().item()

        def to(self, *args: Any, **kwargs: Any) -> Any:
            return self

    scaler = GradScaler("cpu")
    for value in (1.0, 0.0, 1.0):
        scaler._note_step(torch.tensor(value).as_subclass(OnDevice))
    assert OnDevice.reads == 0
    assert scaler.skipped_steps == 2 and scaler.skipped_steps == 2 and OnDevice.reads > 0
    assert scaler.last_step_skipped()
    scaler._note_step(torch.tensor(1.0).as_subclass(OnDevice))
    assert pickle.loads(pickle.dumps(scaler)).skipped_steps == 3
    scaler._note_step(torch.tensor(1.0).as_subclass(OnDevice))
    scaler.load_state_dict({**scaler.state_dict(), "skipped_steps": 9})
    assert scaler.skipped_steps == 9
    scaler._note_step(torch.tensor(1.0).as_subclass(OnDevice))
    scaler.load_state_dict(TorchScaler("cpu").state_dict())
    assert scaler.skipped_steps == 10


def test_update_leaves_flags_as_they_are() -> None:
    """torch adds all flags into the first."""
    first, second = Recorder(param(1.0)), Recorder(param(1.0))
    scaler, flag = ready(), torch.zeros(())
    for optimizer, found in ((first, flag), (second, torch.ones(()))):
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {flag.device: found}
    scaler.update()
    assert flag.item() == 0.0 and scaler.get_scale() == 2.0**15


def test_a_flag_that_is_not_0d_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GradList, "run_unscale", fail)
    scaler, optimizer = ready(), Recorder(param(8.0, INF))
    ((device, flag),) = scaler._unscale_grads_(
        optimizer, torch.tensor([0.5]), torch.zeros(1), False
    ).items()
    assert device == torch.device("cpu")
    assert_same(flag, torch.ones(1))


# ---- what is set on fused optimizers


@pytest.mark.parametrize("of_user", [None, 3.0])
def test_nothing_stays_on_an_optimizer_whose_step_raises(of_user: float | None) -> None:
    p = param(1.0)
    scaler, optimizer = ready(8.0), Recorder(p, fused=True)
    if of_user is not None:
        optimizer.grad_scale = torch.tensor(of_user)  # type: ignore[attr-defined]
    had = dict(vars(optimizer))
    for error in (KeyError("mine"), None):
        optimizer.error = had["error"] = error
        try:
            scaler.step(optimizer)
        except KeyError:
            assert vars(optimizer) == had
        else:
            assert error is None
            assert vars(optimizer).keys() == had.keys() - {"grad_scale"}  # torch's: once used
        assert optimizer.calls[-1]["grad_scale"] == 8.0 * (of_user or 1.0)


def test_grad_scale_is_for_optimizers_that_look_for_it() -> None:
    class Old(Recorder):
        def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:  # type: ignore[override]
            pass

    p = param(1.0)
    optimizers = [torch.optim.AdamW([p], fused=True), Recorder(p, fused=True), Recorder(p)]
    optimizers += [torch.optim.AdamW([p]), Old(p, fused=True), Old(p)]
    assert [takes_grad_scale(o) for o in optimizers] == [True, True, False, False, False, False]
    torch.optim.lr_scheduler.StepLR(optimizers[0], 1)  # wraps its step
    for optimizer in optimizers[1], optimizers[4]:
        optimizer.step = partial(optimizer.step)  # type: ignore[method-assign]
    assert [takes_grad_scale(o) for o in optimizers] == [True, True, False, False, False, False]

    def step(*args: Any) -> None:
        pass

    step.__signature__ = inspect.signature(optimizers[4].step)  # type: ignore[attr-defined]
    step.__wrapped__ = fail  # type: ignore[attr-defined]
    optimizers[1].step = step  # type: ignore[method-assign]
    assert not takes_grad_scale(optimizers[1])


def test_nothing_of_an_optimizer_is_kept() -> None:
    scaler, dead = ready(), []
    for _ in range(100):
        p = param(1.0)
        optimizer = Recorder(p)
        scaler.step(optimizer)
        scaler.update()
        dead += [weakref.ref(p), weakref.ref(p.grad), weakref.ref(optimizer)]
        del p, optimizer
        assert len(scaler._grad_lists) <= 16
    gc.collect()
    assert not any(ref() is not None for ref in dead)


def test_a_scale_that_collecting_replaces_is_the_one_that_counts() -> None:
    """Collecting gradients runs the user's code; an address taken before it might be stale."""

    class Group(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            if key == "params":
                scaler._scale.set_(torch.tensor(2.0))  # type: ignore[union-attr]
            return super().__getitem__(key)

    scaler = GradScaler("cpu", init_scale=8.0)
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum()).backward()  # type: ignore[no-untyped-call]
    optimizer.param_groups[0] = Group(optimizer.param_groups[0])
    scaler.unscale_(optimizer)
    assert weight.grad is not None
    # torch's own operations take it before, from a tensor of their own.
    assert weight.grad.tolist() in ([4.0] * 4, [1.0] * 4)
