"""Stepper: what exceptions leave behind, what is refused, the states it saves and loads."""

import copy
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

from fastloop import DataLoader, Stepper

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
    with pytest.raises(RuntimeError, match=r"outside micro\(\): call it inside"):
        stepper.backward(run.loss(0))
    with stepper.micro():
        with pytest.raises(RuntimeError, match=r"micro\(\) inside micro\(\): leave"):
            stepper.micro().__enter__()
        for call in (stepper.flush, stepper.state_dict, lambda: stepper.load_state_dict({})):
            with pytest.raises(RuntimeError, match=r"inside micro\(\): call it after"):
                call()
        with pytest.raises(RuntimeError, match=r"iterate\(\) inside micro"):
            next(stepper.iterate([1]))
        stepper.backward(run.loss(0))
        with pytest.raises(RuntimeError, match="second time in one micro"):
            stepper.backward(run.loss(0))
    assert stepper.state_dict()["window"]["count"] == 1
    with pytest.raises(RuntimeError, match="has begun inside this loop"):
        for _ in stepper.iterate(range(4)):
            run.micro()
            for _ in stepper.iterate(range(1)):
                run.micro()


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"accumulate": 0}, ValueError, "accumulate is 0; a window has at least 1"),
        ({"accumulate": -3}, ValueError, "accumulate is -3"),
        ({"accumulate": 2.0}, TypeError, "accumulate is 2.0; pass the number"),
        ({"accumulate": True}, TypeError, "accumulate is True"),
        ({"accumulate": "4"}, TypeError, "accumulate is '4'"),
        ({"max_norm": -1}, ValueError, "max_norm is -1.0"),
        ({"max_norm": float("nan")}, ValueError, "max_norm is nan"),
        ({"max_norm": "1a"}, TypeError, "max_norm is '1a'"),
        ({"model": 3}, TypeError, "model is a int; pass the torch.nn.Module"),
        ({"model": ["a"]}, TypeError, "model holds a str"),
        ({"scaler": 3}, TypeError, "scaler is a int; pass a fastloop.GradScaler"),
        ({"scheduler": 3}, TypeError, "scheduler is a int without step"),
        ({"accum_dtype": torch.bfloat16}, ValueError, "accum_dtype is torch.bfloat16"),
        ({"accum_dtype": "float32"}, ValueError, "accum_dtype is 'float32'"),
        ({"on_nonfinite": "skip"}, ValueError, "on_nonfinite is 'skip'; pass one of window"),
    ],
)
def test_wrong_arguments(wrong: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        Run(**wrong)
    assert text in str(caught.value)


def test_wrong_arguments_that_need_others() -> None:
    run = Run()
    with pytest.raises(TypeError, match="optimizer is a Sequential"):
        Stepper(run.model)  # type: ignore[arg-type]
    plateau = ReduceLROnPlateau(run.optimizer)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau.*call its step\(metric\) yourself"):
        Stepper(run.optimizer, scheduler=[plateau])
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="'ignore' with an enabled scaler"):
        Stepper(run.optimizer, scaler=scaler, on_nonfinite="ignore")
    off = torch.amp.GradScaler("cpu", enabled=False)
    Stepper(run.optimizer, scaler=off, on_nonfinite="ignore")
    for weight in (-1, INF, float("nan"), torch.tensor(-0.5)):
        with pytest.raises(ValueError, match="pass a finite number that is not negative"):
            run.stepper.micro(weight)
    for weight in ("many", "1", None, 10**400, torch.ones(2), [1]):
        with pytest.raises(TypeError, match="weight is"):
            run.stepper.micro(weight)  # type: ignore[arg-type]
    with run.stepper.micro():
        with pytest.raises(ValueError, match=r"loss has the shape \(4, 1\); pass one number"):
            run.stepper.backward(run.model(torch.ones(4, 3)))
        with pytest.raises(TypeError, match="loss is a float"):
            run.stepper.backward(1.0)  # type: ignore[arg-type]
        run.stepper.backward(run.loss(0))


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
def test_resumes_in_the_middle_of_a_window(kwargs: Any) -> None:
    def make() -> tuple[Run, DataLoader[Any]]:
        mine = dict(kwargs)
        if "scaler" in mine:
            mine["scaler"] = torch.amp.GradScaler("cpu", init_scale=mine["scaler"])
        loader = DataLoader(small_dataset(50), batch_size=4, shuffle=True, path="array")
        return Run(4, schedule=0.9, **mine), loader

    def train(run: Run, loader: Any, seen: list[Any], stop: int | None = None) -> None:
        for x, y in run.stepper.iterate(loader):
            with run.stepper.micro(weight=float(y.sum()) + 1):
                run.stepper.backward(run.model(x).square().mean())
            seen.append(save(run, loader))
            if len(seen) == stop:
                return

    def parts(run: Run, loader: Any) -> list[Any]:
        scheduler = run.stepper._outcomes._schedulers[0]
        found = [run.model, run.optimizer, scheduler, run.stepper, loader]
        return (
            found
            if run.stepper._boundary._scaler is None
            else [*found, run.stepper._boundary._scaler]
        )

    def save(run: Run, loader: Any) -> Any:
        return pickle.dumps([part.state_dict() for part in parts(run, loader)])

    torch.manual_seed(7)
    whole, states = make(), []
    train(*whole, states)
    assert len(states) == 13 and whole[0].stepper.stepped == 4
    for at in range(13):
        run, loader = make()
        for part, state in zip(parts(run, loader), pickle.loads(states[at]), strict=True):
            part.load_state_dict(state)
        train(run, loader, [])
        assert run.parameters() == whole[0].parameters(), at
        assert run.stepper.stepped == 4


def test_states_that_do_not_fit() -> None:
    run = Run(3)
    run.micro()
    good = run.stepper.state_dict()
    run.micro(5)
    assert good["window"]["count"] == 1  # a copy

    def refused(kind: type[Exception], text: str, stepper: Any = None, **changes: Any) -> None:
        state = copy.deepcopy(good)
        for key, value in changes.items():
            (state["window"] if key in state["window"] else state)[key] = value
        with pytest.raises(kind, match=text):
            (stepper or run.stepper).load_state_dict(state)

    tensors = good["window"]["tensors"]
    refused(ValueError, "version", version=99)
    refused(TypeError, "'stepped'", stepped="1")
    refused(ValueError, "of 3 parameters, and the optimizer has 4", tensors=tensors[1:])
    refused(ValueError, r"has the shape \(5,\)", tensors=[tensors[1], *tensors[1:]])
    refused(ValueError, "in which 2 ranks have a part each, and there are 1 here", ranks=2)
    refused(ValueError, "the state holds gradients", Run(accum_dtype=torch.float64).stepper)
    with pytest.raises(TypeError, match="not a dict"):
        run.stepper.load_state_dict([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no 'version'"):
        run.stepper.load_state_dict({})
    assert run.stepper.state_dict()["window"]["count"] == 2  # untouched by what was refused
    del good["window"]["ranks"]  # as in states of the first versions
    run.stepper.load_state_dict(good)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    scaled = Run(3, scaler=scaler)
    scaled.micro()
    other = Run(3, scaler=torch.amp.GradScaler("cpu", init_scale=2.0))
    other.stepper.load_state_dict(scaled.stepper.state_dict())
    warned = pytest.warns(UserWarning, match="discarded")
    with warned, pytest.raises(RuntimeError, match="load the scaler's state_dict"):
        other.micro()


def test_lbfgs_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="LBFGS calls a closure"):
        Stepper(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]))
