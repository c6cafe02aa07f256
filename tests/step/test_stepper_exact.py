"""The gradients a Stepper hands to the optimizer against those of one big batch in float64, within
the bounds of docs/internals/stepper.md: windows × dataset lengths × weights × dtypes × scalers."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import small_dataset
from stepper_runs import INF, scalers
from torch import Tensor

from fastloop import GradScaler, Stepper

WINDOWS = (1, 3, 4, 7)
LENGTHS = range(16)
ROWS = 4  # of a micro-batch with equal weights


@pytest.fixture(autouse=True)
def small_work() -> Iterator[None]:
    """One thread, and no oneDNN, which compiles code for each shape: all matrices are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Intel GPUs, which there are none
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    torch.set_num_threads(threads)


def data(n: int, tokens: bool) -> list[tuple[Tensor, Tensor]]:
    """n micro-batches: of equal size, or of 1 to 13 rows."""
    generator = torch.Generator().manual_seed(n)
    sizes = [1 + (5 * i + n) % 13 if tokens else ROWS for i in range(n)]
    return [
        (
            torch.randn(size, 6, generator=generator, dtype=torch.float64),
            torch.randn(size, 2, generator=generator, dtype=torch.float64),
        )
        for size in sizes
    ]


def model_of(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(4)
    layers = torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)
    # The same numbers in each dtype.
    return torch.nn.Sequential(*layers).to(torch.bfloat16).to(dtype)


def loss_of(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def flat(tensors: Any) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


class Records:
    """An optimizer that notes the gradients of each step and leaves the parameters alone."""

    def __init__(self, model: torch.nn.Module, fused: bool) -> None:
        self.steps: list[Tensor] = []
        self.params = list(model.parameters())
        self.before = [p.detach().clone() for p in self.params]
        # A step from zero at rate 1 is the gradient as the fused kernel has unscaled it.
        self.optimizer = torch.optim.SGD(self.params, 1.0, maximize=True, fused=fused)
        self.fused = fused
        self.optimizer.register_step_pre_hook(self.begin)
        self.optimizer.register_step_post_hook(self.end)

    def begin(self, *args: Any) -> None:
        if self.fused:
            for p in self.params:
                p.data = torch.zeros_like(p)
        else:
            self.steps.append(flat(p.grad for p in self.params))

    def end(self, *args: Any) -> None:
        if self.fused:
            self.steps.append(flat(self.params))
        for p, before in zip(self.params, self.before, strict=True):
            p.data = before.clone()


def ours(
    batches: list[tuple[Tensor, Tensor]],
    window: int,
    dtype: torch.dtype,
    fused: bool = False,
    weigh: Callable[[int, Tensor], Any] = lambda i, x: len(x),
    **kwargs: Any,
) -> list[Tensor]:
    model = model_of(dtype)
    records = Records(model, fused)
    stepper = Stepper(records.optimizer, window, **kwargs)
    for i, (x, y) in enumerate(stepper.iterate(batches)):
        with stepper.micro(weight=weigh(i, x)):
            stepper.backward(loss_of(model, x.to(dtype), y.to(dtype)))
    return records.steps


def exact(batches: list[tuple[Tensor, Tensor]], window: int, dtype: torch.dtype) -> list[Tensor]:
    """One big batch for each window, in float64; its data as `dtype` has them."""
    model, steps = model_of(torch.float64), []
    for begin in range(0, len(batches), window):
        x, y = (torch.cat(parts) for parts in zip(*batches[begin : begin + window], strict=True))
        loss_of(model, x.to(dtype).double(), y.to(dtype).double()).backward()
        steps.append(flat(p.grad for p in model.parameters()))
        model.zero_grad()
    return steps


def torchs(batches: list[tuple[Tensor, Tensor]], window: int, dtype: torch.dtype) -> list[Tensor]:
    """What a careful user's own loop gives: each loss times its part of the window's rows."""
    model, steps = model_of(dtype), []
    for begin in range(0, len(batches), window):
        part = batches[begin : begin + window]
        rows = sum(len(x) for x, _ in part)
        for x, y in part:
            (loss_of(model, x.to(dtype), y.to(dtype)) * (len(x) / rows)).backward()
        steps.append(flat(p.grad for p in model.parameters()))
        model.zero_grad()
    return steps


def errors(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    assert len(found) == len(wanted)
    pairs = zip(found, wanted, strict=True)
    return [float((a - b).norm() / b.norm()) for a, b in pairs]


def scaler_kinds() -> list[Callable[[], Any]]:
    return [lambda: None, *(lambda kind=kind: kind("cpu", init_scale=1024.0) for kind in scalers())]


@pytest.mark.parametrize("tokens", [False, True], ids=["equal", "tokens"])
@pytest.mark.parametrize("window", WINDOWS)
def test_gradients_equal_those_of_one_big_batch(window: int, tokens: bool) -> None:
    for n in LENGTHS:
        batches = data(n, tokens)
        wanted = {dtype: exact(batches, window, dtype) for dtype in (torch.float32, torch.float64)}
        cases = [(False, None), (True, None), *((n % 2 > 0, kind) for kind in scalers())]
        for fused, kind in cases:
            for dtype, steps in wanted.items():
                scaler = None if kind is None else kind("cpu", init_scale=1024.0)
                found = ours(batches, window, dtype, fused, scaler=scaler)
                where = f"{n} batches, {dtype}, fused={fused}, {kind}"
                assert len(found) == len(steps), where
                if dtype == torch.float32:
                    assert max(errors(found, steps), default=0.0) <= 1e-6, where
                else:
                    pairs = zip(found, steps, strict=True)
                    assert all(torch.allclose(*p, rtol=1e-12, atol=1e-15) for p in pairs), where


@pytest.mark.parametrize("tokens", [False, True], ids=["equal", "tokens"])
def test_bfloat16_is_as_good_as_torch(tokens: bool) -> None:
    """Over all lengths, as single roundings fall one way or the other."""
    dtype = torch.bfloat16
    choices: list[dict[str, Any]] = [{}, {"accum_dtype": torch.float32}, {"on_nonfinite": "micro"}]
    for window in WINDOWS:
        totals, limit = [0.0] * len(choices), 0.0
        for n in LENGTHS:
            batches = data(n, tokens)
            wanted = exact(batches, window, dtype)
            theirs = errors(torchs(batches, window, dtype), wanted)
            limit += sum(theirs)
            for i, kwargs in enumerate(choices):
                found = errors(ours(batches, window, dtype, **kwargs), wanted)
                assert all(a <= 2 * b + 2**-8 for a, b in zip(found, theirs, strict=True))
                totals[i] += sum(found)
        assert totals[0] <= 2 * limit and totals[2] <= 2 * limit, window
        assert totals[1] <= 1.05 * limit, window


@pytest.mark.slow
def test_buffers_equal_one_big_batch() -> None:
    for window in WINDOWS:
        for n in (1, 6, 15):
            batches = data(n, tokens=True)
            double, single = (exact(batches, window, d) for d in (torch.float64, torch.float32))
            for kwargs in ({"accum_dtype": torch.float64}, {"on_nonfinite": "micro"}):
                for make in scaler_kinds():
                    for fused in (False, True):
                        options = {"fused": fused, "scaler": make(), **kwargs}
                        found = ours(batches, window, torch.float64, **options)
                        torch.testing.assert_close(found, double, rtol=1e-12, atol=1e-15)
                        options["scaler"] = make()
                        found = ours(batches, window, torch.float32, **options)
                        assert max(errors(found, single)) <= 1e-6


def test_many_small_contributions_survive_in_a_float32_buffer() -> None:
    """bf16 alone stops growing at 256 times what is added."""
    p = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    found = {}
    for dtype in (None, torch.float32):
        optimizer = torch.optim.SGD([p], 0.0)
        seen: list[Tensor] = []
        optimizer.register_step_pre_hook(lambda *a, seen=seen: seen.append(p.grad.clone()))
        stepper = Stepper(optimizer, 1024, accum_dtype=dtype)
        for _ in stepper.iterate(range(1024)):
            with stepper.micro():
                stepper.backward(p.sum())
        found[dtype] = seen[0].float().tolist()
    assert found[torch.float32] == [1.0] * 5
    assert found[None] != [1.0] * 5


@pytest.mark.parametrize("heavy", [0, 1, 2])
def test_weights_0_and_1_beside_2048_in_float16(heavy: int) -> None:
    """One huge weight, one tiny and one zero, of which the losses are inf and NaN."""
    dtype = torch.float16
    weights = [1, 0, 0]
    weights[heavy] = 2048
    weights[(heavy + 2) % 3] = 1
    weights[(heavy + 1) % 3] = 0
    for make in scaler_kinds():
        for kwargs in ({}, {"accum_dtype": torch.float32}, {"on_nonfinite": "micro"}):
            if kwargs == {} and make() is not None and type(make()) is torch.amp.GradScaler:
                continue  # torch's refuses float16 gradients
            model = model_of(dtype)
            records = Records(model, False)
            scaler = make()
            if scaler is not None:
                scaler._init_scale = 8.0
            stepper = Stepper(records.optimizer, 3, scaler=scaler, **kwargs)
            batches = data(3, tokens=False)
            for spoil in (INF, float("nan")):
                for weight, (x, y) in zip(weights, batches, strict=True):
                    with stepper.micro(weight=weight):
                        loss = loss_of(model, x.to(dtype), y.to(dtype))
                        stepper.backward(loss * spoil if weight == 0 else loss)
            assert (stepper.stepped, stepper.skipped) == (2, 0)
            reference = model_of(torch.float64)
            total = torch.zeros((), dtype=torch.float64)
            for weight, (x, y) in zip(weights, batches, strict=True):
                x, y = x.to(dtype).double(), y.to(dtype).double()
                total = total + loss_of(reference, x, y) * (weight / 2049)
            total.backward()
            wanted = flat(p.grad for p in reference.parameters())
            assert max(errors(records.steps, [wanted] * 2)) < 4e-3, (weights, kwargs)


@pytest.mark.parametrize("fused", [False, True])
def test_inf_in_micro_batch_k(fused: bool) -> None:
    """ "micro" gives the big batch without it, "window" no step."""
    window = 4
    for make in scaler_kinds():
        for k in range(window):
            batches = data(window, tokens=True)
            rest = [batch for i, batch in enumerate(batches) if i != k]
            spoiled = [(x * INF if i == k else x, y) for i, (x, y) in enumerate(batches)]
            for dtype in (torch.float32, torch.float64):
                options = {"fused": fused, "scaler": make(), "on_nonfinite": "micro"}
                found = ours(spoiled, window, dtype, **options)
                wanted = exact(rest, window, dtype)
                assert max(errors(found, wanted)) <= (1e-6 if dtype == torch.float32 else 1e-12)
            scaler = make()
            found = ours(spoiled, window, dtype, fused, scaler=scaler, on_nonfinite="window")
            assert all(not step.any() for step in found)  # a fused step is called, and does nothing
            if scaler is not None:
                assert scaler.get_scale() == 512.0


def test_a_tensor_is_a_weight_and_weights_need_not_be_counts() -> None:
    batches = data(7, tokens=True)
    for weigh in (
        lambda i, x: torch.tensor(len(x)),
        lambda i, x: torch.tensor(float(len(x)), requires_grad=True),
        lambda i, x: len(x) / 3e5,
        lambda i, x: len(x) * 1e12,
    ):
        found = ours(batches, 3, torch.float64, weigh=weigh)
        wanted = exact(batches, 3, torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def test_clipping_happens_in_the_buffers_dtype() -> None:
    batches = data(4, tokens=True)
    wanted = exact(batches, 4, torch.float16)[0]
    wanted = wanted * min(1.0, 0.1 / (float(wanted.norm()) + 1e-6))
    model = model_of(torch.float16)
    records = Records(model, False)
    options: dict[str, Any] = {"accum_dtype": torch.float32, "max_norm": 0.1}
    stepper = Stepper(records.optimizer, 4, **options)
    for x, y in stepper.iterate(batches):
        with stepper.micro(weight=len(x)):
            stepper.backward(loss_of(model, x.half(), y.half()))
    assert errors(records.steps, [wanted])[0] < 2e-3


def test_the_loader_may_be_ours() -> None:
    from fastloop import DataLoader

    dataset = small_dataset(23)
    model = torch.nn.Linear(3, 1).double()
    records = Records(model, False)
    stepper = Stepper(records.optimizer, 3)
    for x, _ in stepper.iterate(DataLoader(dataset, batch_size=4, path="array")):
        with stepper.micro(weight=len(x)):
            stepper.backward(model(x.double()).square().mean())
    wanted = []
    for rows in dataset.tensors[0].double().split(12):
        model.zero_grad()
        model(rows).square().mean().backward()
        wanted.append(flat(p.grad for p in model.parameters()))
    torch.testing.assert_close(records.steps, wanted, rtol=1e-12, atol=1e-15)


def test_what_a_subclass_has_put_in_place_of_unscaling_runs() -> None:
    class Halved(GradScaler):
        def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
            super().unscale_(optimizer)
            for p in optimizer.param_groups[0]["params"]:
                p.grad *= 0.5

    for fused in (False, True):
        p = torch.nn.Parameter(torch.zeros(3))
        stepper = Stepper(torch.optim.SGD([p], 1.0, fused=fused), 2, scaler=Halved("cpu"))
        for _ in range(2):
            with stepper.micro():
                stepper.backward(p.sum())
        assert p.tolist() == [-0.5] * 3


def test_a_group_without_parameters_does_not_matter() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([{"params": []}, {"params": [p]}], 1.0)
    scaler = GradScaler("cpu", 8.0)
    stepper = Stepper(optimizer, scaler=scaler, on_nonfinite="micro")
    for factor in (INF, 1.0):
        with stepper.micro():
            stepper.backward(p.sum() * factor)
    assert (stepper.stepped, stepper.skipped, scaler.get_scale()) == (1, 1, 4.0)
    assert p.tolist() == [-1.0] * 3


@pytest.mark.parametrize("shape", [(2,), (3,), (4, 2)])
def test_a_parameter_replaced_between_windows_gets_a_buffer(shape: tuple[int, ...]) -> None:
    first, old, new = (torch.nn.Parameter(torch.ones(n)) for n in ((2,), (2,), shape))
    optimizer = torch.optim.SGD([first, old], 1.0)
    stepper = Stepper(optimizer, 2, accum_dtype=torch.float32)
    for p in (old, new):
        optimizer.param_groups[0]["params"][1] = p
        for factor in (1, 3):
            with stepper.micro():
                stepper.backward(p.sum() * factor)
        assert torch.equal(p, torch.full_like(p, -1.0))
    assert torch.equal(old, torch.full_like(old, -1.0)) and torch.equal(first, torch.ones(2))
