"""Norm, clipping and Stepper for every dtype that torch can train, alone and two in one optimizer:
real parts alone are not the gradient of a complex parameter."""

import math
import warnings
from itertools import combinations
from typing import Any

import passes
import pytest
import torch
from helpers import outcome
from torch import Tensor

import fastloop
from fastloop import Stepper, clip_grad_norm_
from fastloop.step.grad_list import GradList, new_flag

torch_clip = torch.nn.utils.clip_grad_norm_
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
MIXES = [(dtype,) for dtype in REAL + COMPLEX] + list(combinations(REAL + COMPLEX, 2))
ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.complex64: 1e-5}
SHAPES = ((5, 3), (), (7,))


def name_of(mix: tuple[torch.dtype, ...]) -> str:
    return "+".join(str(dtype).removeprefix("torch.") for dtype in mix)


def rounding_of(dtypes: Any) -> float:
    return max(ROUNDING.get(dtype, 1e-12) for dtype in dtypes)


def wide(tensor: Tensor) -> Tensor:
    """In double, with all parts of the number."""
    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float64))


def gradients(mix: tuple[torch.dtype, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kinds = [torch.complex128 if dtype.is_complex else torch.float64 for dtype in mix]
    return [
        torch.randn(shape, generator=generator, dtype=kind).to(dtype)
        for dtype, kind in zip(mix, kinds, strict=True)
        for shape in SHAPES
    ]


def with_gradients(mix: tuple[torch.dtype, ...]) -> list[Tensor]:
    params = [torch.zeros_like(g).requires_grad_() for g in gradients(mix)]
    for p, g in zip(params, gradients(mix), strict=True):
        p.grad = g
    return params


def norm_of(tensors: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """torch's own norm, of gradients in double."""
    return torch.nn.utils.get_total_norm([wide(t) for t in tensors], norm_type)


# ---- norms and clipping


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_the_norm_is_torchs(mix: tuple[torch.dtype, ...], norm_type: float) -> None:
    found_inf = new_flag(torch.device("cpu"))
    ours = GradList().collect(gradients(mix)).norm_check(found_inf, p=norm_type)
    assert not found_inf
    torch.testing.assert_close(ours, norm_of(gradients(mix), norm_type), rtol=1e-12, atol=0)


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
@pytest.mark.parametrize("path", passes.NAMES)
def test_clipping_is_torchs(
    mix: tuple[torch.dtype, ...], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes.choose(path, monkeypatch)
    for norm_type in (1.0, 2.0, 3.0, math.inf, 0.5):
        ours, theirs = with_gradients(mix), with_gradients(mix)
        norm = clip_grad_norm_(ours, 0.5, norm_type)
        expected = torch_clip(theirs, 0.5, norm_type)
        rounding = rounding_of(mix)
        torch.testing.assert_close(norm, expected, rtol=rounding, atol=0)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=rounding, atol=1e-7)


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
def test_unscaling_and_clipping_is_torchs(mix: tuple[torch.dtype, ...]) -> None:
    """Also where torch refuses: its scaler knows neither float16 gradients nor complex ones."""
    results = []
    for kind in (torch.amp.GradScaler, fastloop.GradScaler):
        params = with_gradients(mix)
        optimizer = torch.optim.SGD(params, 1.0)
        scaler: Any = kind("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))

        def unscale(scaler: Any = scaler, params: Any = params, optimizer: Any = optimizer) -> Any:
            if hasattr(scaler, "unscale_and_clip_"):
                return scaler.unscale_and_clip_(optimizer, 0.5)
            scaler.unscale_(optimizer)
            return torch_clip(params, 0.5)

        results.append((outcome(unscale), [p.grad for p in params]))
    (theirs, expected), (ours, grads) = results
    if isinstance(theirs, tuple):
        assert ours == theirs
        return
    torch.testing.assert_close(ours, theirs, rtol=rounding_of(mix), atol=0)
    torch.testing.assert_close(grads, expected, rtol=rounding_of(mix), atol=1e-7)


# ---- the stepper


class Training:
    """Micro-batches whose gradients are known exactly; `seen` is what the optimizer was handed."""

    def __init__(self, mix: tuple[torch.dtype, ...], scaler: str = "", **kwargs: Any) -> None:
        self.mix = mix
        self.params = [torch.zeros_like(g).requires_grad_() for g in gradients(mix)]
        self.optimizer = torch.optim.SGD(self.params, 1.0)
        self.seen: list[list[Tensor]] = []
        self.optimizer.register_step_pre_hook(
            lambda *_: self.seen.append([p.grad.clone() for p in self.params])
        )
        kinds = {"ours": fastloop.GradScaler, "torch": torch.amp.GradScaler}
        if scaler:
            kwargs["scaler"] = kinds[scaler]("cpu", init_scale=8.0)
        self.stepper = Stepper(self.optimizer, **kwargs)

    def micro(self, seed: int, weight: float, spoil: float = 0.0) -> None:
        grads = gradients(self.mix, seed)
        as_real(grads[-1])[..., -1] += spoil  # of complex ones: the imaginary part
        with self.stepper.micro(weight=weight):
            parts = zip(self.params, grads, strict=True)
            loss = sum((as_real(p).double() * as_real(g)).sum() for p, g in parts)
            self.stepper.backward(loss)  # type: ignore[arg-type]


def as_real(tensor: Tensor) -> Tensor:
    """Its parts: a product of complex numbers would bring a NaN of one part into the other."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mean_of(mix: tuple[torch.dtype, ...], weights: dict[int, float]) -> list[Tensor]:
    whole = sum(weights.values())
    lists = [[wide(g) * (w / whole) for g in gradients(mix, k)] for k, w in weights.items()]
    return [torch.stack(parts).sum(0) for parts in zip(*lists, strict=True)]


@pytest.mark.parametrize("mix", MIXES, ids=name_of)
@pytest.mark.parametrize("scaler", ["", "ours", "torch"])
@pytest.mark.parametrize("accum_dtype", [None, torch.float32, torch.float64], ids=str)
def test_the_stepper_clips_the_whole_gradient(
    mix: tuple[torch.dtype, ...], scaler: str, accum_dtype: torch.dtype | None
) -> None:
    choices = ("window", "micro") if scaler else ("window", "micro", "ignore")
    for choice in choices:
        is_buffered = accum_dtype is not None or choice == "micro"
        if scaler == "torch" and not is_buffered and {torch.float16, *COMPLEX} & {*mix}:
            continue  # torch's scaler refuses to unscale these
        training = Training(
            mix, scaler, accumulate=2, max_norm=0.5, accum_dtype=accum_dtype, on_nonfinite=choice
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            training.micro(1, 3)
            training.micro(2, 1)
        exact = mean_of(mix, {1: 3, 2: 1})
        norm = norm_of(exact)
        rounding = rounding_of([*mix, accum_dtype])
        torch.testing.assert_close(training.stepper.last_norm, norm, rtol=rounding, atol=0)
        (seen,) = training.seen
        for g, e in zip(seen, exact, strict=True):
            torch.testing.assert_close(
                wide(g), e * (0.5 / (norm + 1e-6)), rtol=rounding, atol=rounding
            )


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_a_nan_in_an_imaginary_part_is_found(dtype: torch.dtype, spoil: float) -> None:
    """One micro-batch alone: torch's sum of two would bring the NaN into the real part."""
    plain = Training((dtype,))
    plain.micro(2, 1, spoil)
    assert plain.seen[0][-1].real.isfinite().all() and not plain.seen[0][-1].isfinite().any()
    window = Training((dtype,), on_nonfinite="window")
    window.micro(2, 1, spoil)
    ignore = Training((dtype,), max_norm=100.0)
    ignore.micro(2, 1, spoil)
    micro = Training((dtype,), accumulate=2, on_nonfinite="micro", max_norm=100.0)
    micro.micro(1, 1)
    micro.micro(2, 1, spoil)
    assert (window.stepper.stepped, window.stepper.skipped) == (0, 1)
    assert micro.stepper.stepped == 1
    for g, e in zip(micro.seen[0], mean_of((dtype,), {1: 1}), strict=True):
        torch.testing.assert_close(wide(g), e, rtol=1e-5, atol=1e-6)
    assert ignore.stepper.last_norm is not None and not ignore.stepper.last_norm.isfinite()


def test_accum_dtype_is_that_of_both_parts_of_complex_gradients() -> None:
    """complex64 gradients of 1 + 1j, of 2^-30 of it, and of -1 - 1j: their sum needs double."""
    p = torch.zeros(1, dtype=torch.complex64).requires_grad_()
    stepper = Stepper(torch.optim.SGD([p], 1.0), 3, accum_dtype=torch.float64)
    for g in (1 + 1j, 2**-30 * (1 + 1j), -1 - 1j):
        with stepper.micro():
            stepper.backward((p * torch.tensor([g]).conj()).real.sum())
    assert -p.item() * 3 * 2**30 == pytest.approx(1 + 1j, rel=1e-5)


class TakesScale(torch.optim.SGD):
    """Divides by a grad_scale, as torch's fused optimizers do; these refuse complex parameters."""

    _step_supports_amp_scaling = True
    seen: Any = None

    def step(self, closure: Any = None) -> None:
        self.seen = getattr(self, "grad_scale", None)


@pytest.mark.parametrize("mix", [(torch.complex64,), (torch.complex128,)], ids=name_of)
def test_doubles_are_not_left_to_a_grad_scale_of_float32(mix: tuple[torch.dtype, ...]) -> None:
    params = [torch.zeros_like(g).requires_grad_() for g in gradients(mix)]
    optimizer = TakesScale(params, 1.0)
    stepper = Stepper(optimizer, max_norm=0.5)
    with stepper.micro():
        pairs = zip(params, gradients(mix), strict=True)
        stepper.backward(sum((p * g.conj()).real.sum() for p, g in pairs))  # type: ignore[arg-type]
    assert (optimizer.seen is None) == (mix == (torch.complex128,))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_complex_loss_is_refused_as_torch_does(accumulate: int) -> None:
    p = torch.zeros(1, dtype=torch.complex64).requires_grad_()
    stepper = Stepper(torch.optim.SGD([p], 1.0), accumulate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # micro() is left without a backward
        with (
            pytest.raises(TypeError, match="loss must be a real tensor"),
            stepper.micro(),
        ):
            stepper.backward(p.sum())
    assert p.grad is None
