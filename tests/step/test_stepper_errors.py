"""Stepper: what exceptions leave behind, what is refused, the states it saves and loads."""

import gc
import pickle
import warnings
from typing import Any

import pytest
import torch
from helpers import small_dataset
from stepper_runs import INF, Run
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fastloop import DataLoader, GradScaler, Stepper

# ---- leaving early, exceptions


def test_leaving_the_loop_discards_the_open_window() -> None:
    run = Run(3)
    with pytest.warns(UserWarning, match=r"left early.*2 complete.*zeroed"):
        for i in run.stepper.iterate(range(9)):
            run.micro()
            if i == 4:
                break
        gc.collect()
    assert run.stepper.stepped == 1 and not run.has_gradients()
    before = run.parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for i in run.stepper.iterate(range(9)):
            run.micro()
            if i == 2:
                break
    assert run.stepper.stepped == 2 and run.parameters() != before


def test_an_exception_before_backward_is_not_counted() -> None:
    run, reference = Run(2), Run(2)
    run.micro(1)
    warned = pytest.warns(UserWarning, match="before backward.*not counted")
    with warned, pytest.raises(OSError), run.stepper.micro(5):
        raise OSError
    run.micro(2)
    reference.micro(1)
    reference.micro(2)
    assert run.stepper.stepped == 1 and run.parameters() == reference.parameters()
    with pytest.warns(UserWarning, match="without backward"), run.stepper.micro():
        pass
    run.micro(3)
    assert run.stepper.stepped == 1


@pytest.mark.parametrize("kwargs", [{}, {"accum_dtype": torch.float32}])
def test_an_exception_after_backward_discards_the_window(kwargs: Any) -> None:
    run, reference = Run(2, **kwargs), Run(2, **kwargs)

    def fail(grad: Tensor) -> Tensor:
        raise OSError

    for where in ("after", "during"):
        run.micro(1)
        warned = pytest.warns(UserWarning, match=r"discarded \(1 complete")
        with warned, pytest.raises(OSError), run.stepper.micro():
            loss = run.loss(2)
            if where == "during":
                loss.register_hook(fail)
            run.stepper.backward(loss)
            raise OSError
        assert not run.has_gradients() and run.stepper.stepped == 0
    for each in (run, reference):
        each.micro(3)
        each.micro(4)
    assert run.stepper.stepped == 1 and run.parameters() == reference.parameters()


def test_an_exception_at_the_boundary_ends_the_window() -> None:
    run = Run(2, max_norm=1.0, fused=True)
    run.optimizer.grad_scale = mine = torch.tensor(2.0)

    def fail(*args: Any) -> None:
        assert run.optimizer.grad_scale is not mine
        raise OSError

    hook = run.optimizer.register_step_pre_hook(fail)
    run.micro()
    with pytest.raises(OSError):
        run.micro()
    assert run.optimizer.grad_scale is mine and not hasattr(run.optimizer, "found_inf")
    hook.remove()
    assert not run.has_gradients() and run.stepper.stepped == 0
    run.micro()
    run.micro()
    assert run.stepper.stepped == 1 and run.optimizer.grad_scale is mine


# ---- what is refused


@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_loop_without_micro_is_told_what_to_call(batches: int) -> None:
    model = torch.nn.Linear(2, 1)
    stepper = Stepper(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match=r"put `with stepper\.micro\(\):` around") as told:
        for _ in range(2):
            for x in stepper.iterate([torch.ones(3, 2)] * batches):
                model(x).sum().backward()
    assert len(told) == 1 and told[0].filename == __file__
    assert f"has given {min(batches, 2)} batches" in str(told[0].message)


@pytest.mark.filterwarnings("error")
def test_a_loop_may_leave_out_batches() -> None:
    model = torch.nn.Linear(2, 1)
    stepper = Stepper(torch.optim.SGD(model.parameters(), lr=0.1))
    for number, x in enumerate(stepper.iterate([torch.ones(3, 2)] * 6)):
        if number % 2:
            with stepper.micro():
                stepper.backward(model(x).sum())
    assert list(stepper.iterate([])) == []


def test_backward_of_the_loss_itself_is_told_what_to_call() -> None:
    model = torch.nn.Linear(2, 1)
    stepper = Stepper(torch.optim.SGD(model.parameters(), lr=0.1))
    with (
        pytest.warns(UserWarning, match=r"call stepper\.backward\(loss\), not loss\.backward\(\)"),
        stepper.micro(),
    ):
        model(torch.ones(3, 2)).sum().backward()


def test_what_may_not_follow_what() -> None:
    run = Run(2)
    stepper = run.stepper
    with pytest.raises(RuntimeError, match=r"outside micro\(\); use `with"):
        stepper.backward(run.loss(0))
    with stepper.micro():
        with pytest.raises(RuntimeError, match=r"micro\(\) inside micro\(\); call micro\(\) after"):
            stepper.micro().__enter__()
        for call in (stepper.flush, stepper.state_dict, lambda: stepper.load_state_dict({})):
            with pytest.raises(RuntimeError, match=r"inside micro\(\); call .* after"):
                call()
        with pytest.raises(RuntimeError, match=r"iterate\(\) inside micro"):
            next(stepper.iterate([1]))
        stepper.backward(run.loss(0))
        with pytest.raises(RuntimeError, match="second time in one micro"):
            stepper.backward(run.loss(0))
    assert stepper.state_dict()["open_micros"] == 1
    with pytest.raises(RuntimeError, match="has begun inside this loop"):
        for _ in stepper.iterate(range(4)):
            run.micro()
            for _ in stepper.iterate(range(1)):
                run.micro()


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"accumulate": 0}, ValueError, "accumulate must be an int >= 1, got 0"),
        ({"accumulate": -3}, ValueError, "got -3"),
        ({"accumulate": 2.0}, TypeError, "accumulate must be an int >= 1, got 2.0"),
        ({"accumulate": True}, TypeError, "got True"),
        ({"accumulate": "4"}, TypeError, "got '4'"),
        ({"max_norm": -1}, ValueError, "max_norm must be a number >= 0, got -1 (or None: no clip"),
        ({"max_norm": float("nan")}, ValueError, "got nan"),
        ({"max_norm": "1a"}, TypeError, "got '1a'"),
        ({"model": 3}, TypeError, "model must be the torch.nn.Module that the loop calls"),
        ({"model": ["a"]}, TypeError, "got ['a']"),
        ({"scaler": 3}, TypeError, "scaler must be a torch or fastloop GradScaler, got 3"),
        ({"scheduler": 3}, TypeError, "scheduler must be one or several LRScheduler, got 3"),
        ({"accum_dtype": torch.bfloat16}, ValueError, "accum_dtype must be one of None, torch"),
        ({"accum_dtype": "float32"}, ValueError, "got 'float32'"),
        (
            {"on_nonfinite": "skip"},
            ValueError,
            "None, 'window', 'micro', 'ignore', got",
        ),
    ],
)
def test_wrong_arguments(wrong: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Run(**wrong)
    assert text in str(caught.value)


def test_wrong_arguments_that_need_others() -> None:
    run = Run()
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, got"):
        Stepper(run.model)  # type: ignore[arg-type]
    plateau = ReduceLROnPlateau(run.optimizer)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau \(call its step\(metric\) yourself"):
        Stepper(run.optimizer, scheduler=[plateau])
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="with an enabled scaler, got 'ignore'"):
        Stepper(run.optimizer, scaler=scaler, on_nonfinite="ignore")
    off = torch.amp.GradScaler("cpu", enabled=False)
    Stepper(run.optimizer, scaler=off, on_nonfinite="ignore")
    for weight in (-1, INF, float("nan"), torch.tensor(-0.5), 10**400):
        with pytest.raises(ValueError, match=r"weight must be .*; 0 leaves the micro-batch out"):
            run.stepper.micro(weight)
    for weight in ("many", "1", None, torch.ones(2), torch.tensor(1j), [1]):
        with pytest.raises(TypeError, match="weight must be a number >= 0, got"):
            run.stepper.micro(weight)  # type: ignore[arg-type]
    with run.stepper.micro():
        with pytest.raises(ValueError, match=r"loss must be one number, got shape \(4, 1\)"):
            run.stepper.backward(run.model(torch.ones(4, 3)))
        with pytest.raises(TypeError, match="loss must be a real tensor, got float"):
            run.stepper.backward(1.0)  # type: ignore[arg-type]
        run.stepper.backward(run.loss(0))


def test_gradients_that_the_user_has_unscaled_are_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), GradScaler("cpu", 4.0)
    stepper = Stepper(optimizer, scaler=scaler)
    with (
        pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"),
        stepper.micro(),
    ):
        stepper.backward(weight.sum())
        scaler.unscale_(optimizer)
    with stepper.micro():
        stepper.backward(weight.sum())
    assert (stepper.stepped, scaler.get_scale()) == (1, 4.0)


# ---- states


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"fused": True, "max_norm": 0.1},
        {"accum_dtype": torch.float64},
        {"on_nonfinite": "micro", "max_norm": 0.5},
        {"scaler": 64.0},
    ],
    ids=["plain", "fused", "accum_dtype", "micro", "scaler"],
)
def test_resumes_at_a_boundary_and_begins_an_open_window_anew(kwargs: Any) -> None:
    def make() -> tuple[Run, DataLoader[Any]]:
        mine = dict(kwargs)
        if "scaler" in mine:
            mine["scaler"] = torch.amp.GradScaler("cpu", init_scale=mine["scaler"])
        loader = DataLoader(small_dataset(50), batch_size=4, shuffle=True, path="array")
        return Run(4, schedule=0.9, **mine), loader

    def train(run: Run, loader: Any, seen: list[Any]) -> None:
        for x, y in run.stepper.iterate(loader):
            with run.stepper.micro(weight=float(y.sum()) + 1):
                run.stepper.backward(run.model(x).square().mean())
            seen.append(pickle.dumps([part.state_dict() for part in parts(run, loader)]))

    def parts(run: Run, loader: Any) -> list[Any]:
        boundary = run.stepper._boundary
        found = [run.stepper, run.model, run.optimizer, run.stepper._outcomes.schedulers[0]]
        return [*found, loader, *([] if boundary._scaler is None else [boundary._scaler])]

    def resume(saved: bytes, **changes: int) -> Run:
        run, loader = make()
        states = pickle.loads(saved)  # anew: optimizers keep the tensors that they load
        states[0].update(changes)
        for part, state in zip(parts(run, loader), states, strict=True):
            part.load_state_dict(state)
        train(run, loader, [])
        return run

    torch.manual_seed(7)
    whole, saved = make(), []
    train(*whole, saved)
    assert len(saved) == 13 and whole[0].stepper.stepped == 4
    at_boundary = make()[0].stepper.state_dict()
    for at, parts_saved in enumerate(saved):
        state = pickle.loads(parts_saved)[0]
        if at in (3, 7, 11, 12):
            at_boundary = state
            assert resume(parts_saved).parameters() == whole[0].parameters(), at
            continue
        count = at % 4 + 1
        assert state == {**at_boundary, "open_micros": count}
        with pytest.warns(RuntimeWarning, match=f"saved {count} micro-batches into a window"):
            run = resume(parts_saved)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = resume(parts_saved, open_micros=0)
        assert run.parameters() == other.parameters(), at
        assert run.stepper.stepped == at // 4 + -(-(12 - at) // 4)


def test_states_that_do_not_fit() -> None:
    run = Run(3)
    run.micro()
    good = run.stepper.state_dict()
    run.micro(5)
    advice = "(pass the dict that state_dict() of a fastloop.Stepper returned, unchanged)"
    refused: list[tuple[Any, type[Exception], str]] = [
        ({**good, "version": 99}, ValueError, r"state\['version'\] must be 1, got 99"),
        ({**good, "skipped": "1"}, TypeError, r"state\['skipped'\] must be an int in "),
        ({**good, "open_micros": -1}, ValueError, r"state\['open_micros'\] must be an int in "),
        ([], TypeError, r"state must be a dict, got \[\]"),
        ({}, ValueError, "state must be a dict with 'version', got a dict w"),
    ]
    for state, error, text in refused:
        with pytest.raises(error, match=text) as caught:
            run.stepper.load_state_dict(state)
        assert advice in str(caught.value)
    assert run.stepper.state_dict()["open_micros"] == 2  # untouched by what was refused
    assert run.has_gradients()
    with pytest.warns(RuntimeWarning, match="the window begins anew") as told:
        run.stepper.load_state_dict(good)
    assert len(told) == 1 and told[0].filename == __file__
    assert run.stepper.state_dict()["open_micros"] == 0 and not run.has_gradients()


def test_lbfgs_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="optimizer must take one gradient a step, got LBFGS"):
        Stepper(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]))
