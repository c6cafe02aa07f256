"""clip_grad_norm_ and GradScaler.unscale_and_clip_ beside torch's functions. What torch runs is
torch's bit for bit; the engine's results are within 4 ulp of the exact ones."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import passes
import pytest
import torch
from helpers import assert_same, outcome

import fastloop.step.grad_list
from fastloop import GradScaler, clip_grad_norm_

torch_clip = torch.nn.utils.clip_grad_norm_
INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((5, 3), (), (2, 3, 4), (1000,), (0,))


@pytest.fixture(params=passes.NAMES, autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    passes.choose(request.param, monkeypatch)
    yield request.param


def make(*dtypes: torch.dtype, factor: float = 1.0, norm_type: Any = 2) -> list[torch.Tensor]:
    """Parameters with gradients, the last without; the same at each call. torch has no inf norm of
    empty tensors."""
    generator = torch.Generator().manual_seed(3)
    params = []
    for i, shape in enumerate(SHAPES[:-1] if float(norm_type) == INF else SHAPES):
        p = torch.zeros(shape, dtype=dtypes[i % len(dtypes)]).requires_grad_()
        grad = torch.randn(shape, generator=generator, dtype=torch.float64) * factor
        p.grad = grad.to(p.dtype)
        params.append(p)
    return [*params, torch.zeros(2, requires_grad=True)]


def grads(params: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    return [p.grad for p in params]


def assert_within_ulps(actual: torch.Tensor, exact: torch.Tensor) -> None:
    """At most 4 ulp of actual's dtype from a result in float64."""
    info = torch.finfo(actual.dtype)
    ulp = exact.abs().clamp(min=info.smallest_normal) * info.eps
    assert ((actual.double() - exact).abs() <= 4 * ulp).all()


def assert_clipped(
    params: list[torch.Tensor], before: list[torch.Tensor], norm: torch.Tensor, args: Any
) -> None:
    """Clipping `before` by (max_norm, norm_type) has given params' gradients, exactly enough."""
    max_norm, norm_type = args
    exact = [g.double() for g in before]
    whole = torch.cat([g.flatten() for g in exact])
    exact_norm = torch.linalg.vector_norm(whole, float(norm_type))
    assert_within_ulps(norm, exact_norm)
    factor = torch.clamp(max_norm / (exact_norm + 1e-6), max=1.0)
    for p, g in zip(params, exact, strict=False):
        assert_within_ulps(p.grad, g * factor)  # type: ignore[arg-type]


def engine_runs(path: str, norm_type: Any) -> bool:
    return path == "engine" and float(norm_type) in (1.0, 2.0, INF)


# ---- clip_grad_norm_


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm_type", [1, 2.0, INF, "inf", 3.0, 0.5])
@pytest.mark.parametrize("max_norm", [0.5, 1e6, 0])
def test_results_are_torchs(path: str, dtype: torch.dtype, norm_type: Any, max_norm: float) -> None:
    ours, theirs, before = (make(dtype, factor=0.01, norm_type=norm_type) for _ in range(3))
    norm = clip_grad_norm_(ours, max_norm, norm_type)
    expected = torch_clip(theirs, max_norm, norm_type)
    assert (norm.dtype, norm.shape, norm.device) == (dtype, (), expected.device)
    assert not norm.requires_grad and ours[-1].grad is None
    if engine_runs(path, norm_type):
        assert_clipped(
            ours, [g for g in grads(before) if g is not None], norm, (max_norm, norm_type)
        )
    else:
        assert_same(norm, expected)
        assert_same(grads(ours), grads(theirs))


FORMS: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda params: (p for p in params),
    "iterator": iter,
    "tensor": lambda params: params[0],
    "dict values": lambda params: dict(enumerate(params)).values(),
    "none": lambda params: [],
    "without gradients": lambda params: params[-1:],
    "none, as an iterator": lambda params: iter(()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("foreach", [None, True, False])
def test_parameters_of_every_form(
    form: Callable[[list[torch.Tensor]], Any], foreach: bool | None
) -> None:
    ours, theirs = make(torch.float32), make(torch.float32)
    norm = clip_grad_norm_(form(ours), 0.5, foreach=foreach)
    expected = torch_clip(form(theirs), 0.5, foreach=foreach)
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        [g for g in grads(ours) if g is not None],
        [g for g in grads(theirs) if g is not None],
        rtol=1e-6,
        atol=0,
    )


def test_an_empty_generator_is_warned_of_at_the_users_line() -> None:
    seen = []
    for clip in (clip_grad_norm_, torch_clip):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            norm = clip((p for p in ()), 1.0)
        assert [w.filename for w in caught] == [__file__]
        seen.append((norm, [(w.category, str(w.message)) for w in caught]))
    assert_same(seen[0], seen[1])


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, INF, 3.0])
def test_a_norm_that_is_not_finite(bad: float, norm_type: float) -> None:
    results = []
    for clip in (clip_grad_norm_, torch_clip):
        params = make(torch.float32, norm_type=norm_type)
        params[3].grad[7] = bad  # type: ignore[index]
        before = [g.clone() for g in grads(params) if g is not None]
        with pytest.raises(RuntimeError) as caught:
            clip(params, 0.5, norm_type, error_if_nonfinite=True)
        assert_same([p.grad for p in params[:-1]], before)
        norm = clip(params, 0.5, norm_type)
        results.append((str(caught.value), norm, [p.grad for p in params[:-1]]))
    (said, *ours), (expected, *theirs) = results
    assert said == expected
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("arguments", [("high",), (1.0, "two"), (1.0, None), ([],)])
def test_bad_arguments_are_torchs_errors(arguments: Any) -> None:
    said = []
    for clip in (clip_grad_norm_, torch_clip):
        with pytest.raises((ValueError, TypeError)) as caught:
            clip(make(torch.float32), *arguments)
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]


def shared(params: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same parameter twice: torch counts and scales its gradient twice."""
    return [*params, params[0]]


def sparse(params: list[torch.Tensor]) -> list[torch.Tensor]:
    params[0].grad = params[0].grad.to_sparse()  # type: ignore[union-attr]
    return params


def mixed(params: list[torch.Tensor]) -> list[torch.Tensor]:
    return [*params, *make(torch.bfloat16)]


def complex_(params: list[torch.Tensor]) -> list[torch.Tensor]:
    p = torch.zeros(3, dtype=torch.complex64).requires_grad_()
    p.grad = torch.full((3,), 1 + 2j)
    return [*params, p]


@pytest.mark.parametrize("change", [shared, sparse, mixed, complex_])
def test_what_the_engine_does_not_cover_is_torchs(change: Callable[[Any], Any]) -> None:
    ours, theirs = change(make(torch.float32)), change(make(torch.float32))
    assert_same(
        outcome(lambda: clip_grad_norm_(ours, 0.5)), outcome(lambda: torch_clip(theirs, 0.5))
    )
    assert_same(grads(ours), grads(theirs))


def test_dtensors_are_torchs(tmp_path: Any) -> None:
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        results: list[Any] = []
        for clip in (clip_grad_norm_, torch_clip):
            params = make(torch.float32)[:1]
            p = distribute_tensor(params[0].detach(), mesh, [Shard(0)]).requires_grad_()
            p.grad = distribute_tensor(params[0].grad, mesh, [Shard(0)])  # type: ignore[arg-type]
            norm: Any = clip([p], 0.5)
            results.append((norm.full_tensor(), p.grad.to_local()))  # type: ignore[attr-defined]
        assert_same(results[0], results[1])
    finally:
        dist.destroy_process_group()


def test_squares_beyond_float32_are_no_false_alarm(path: str) -> None:
    p = torch.zeros(2, requires_grad=True)
    p.grad = torch.tensor([3e30, 4e30])
    norm = clip_grad_norm_([p], 1.0, error_if_nonfinite=path == "engine")
    if path == "engine":
        torch.testing.assert_close(norm, torch.tensor(5e30))
        torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]))
    else:
        assert norm == INF and not p.grad.any()


def test_no_gradient_is_kept() -> None:
    params = make(torch.float32)
    clip_grad_norm_(params, 1.0)
    lists = list(fastloop.step.grad_list._idle)
    assert not lists[0].tensors
    params[0].grad[0] = NAN  # type: ignore[index]
    with pytest.raises(RuntimeError):
        clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_and_clip_(torch.optim.SGD(params), 1.0)
    lists += [*fastloop.step.grad_list._idle, *scaler._grad_lists.values()]
    assert len(lists) == 3 and not any(grads.tensors for grads in lists)


# ---- GradScaler.unscale_and_clip_


def scaled(scale: float, cls: Any = GradScaler) -> Any:
    scaler = cls("cpu", init_scale=scale)
    scaler.scale(torch.ones(()))
    return scaler


@pytest.mark.parametrize("scale", [2.0**16, 3.0, 1.0])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), DTYPES[:3]], ids=str)
@pytest.mark.parametrize(("max_norm", "norm_type"), [(0.5, 2.0), (1e6, 1), (0.1, INF), (0.5, 3.0)])
def test_unscale_and_clip_is_both(
    path: str, scale: float, dtypes: Any, max_norm: float, norm_type: float
) -> None:
    ours, theirs, before = (
        make(*dtypes, factor=0.01 * scale, norm_type=norm_type) for _ in range(3)
    )
    scaler, reference = scaled(scale), scaled(scale, torch.amp.GradScaler)
    optimizer = torch.optim.SGD(ours, lr=0.1)
    norm = scaler.unscale_and_clip_(optimizer, max_norm, norm_type)
    reference.unscale_(torch.optim.SGD(theirs))
    expected = torch_clip(theirs, max_norm, norm_type)
    assert scaler.last_norm is norm and (norm.dtype, norm.shape) == (expected.dtype, ())
    if engine_runs(path, norm_type) and len(dtypes) == 1:
        exact = [g.double() / scale for g in grads(before) if g is not None]
        assert_clipped(ours, exact, norm, (max_norm, norm_type))
    else:
        assert_same(norm, expected)
        assert_same(grads(ours), grads(theirs))
    clipped = ours[0].grad.clone()  # type: ignore[union-attr]
    scaler.step(optimizer)
    torch.testing.assert_close(ours[0].detach(), -0.1 * clipped)
    assert_same(ours[0].grad, clipped)


def test_unscale_and_clip_is_refused_as_unscale_is() -> None:
    said = []
    for name in ("unscale_and_clip_", "unscale_"):
        args = (1.0,) if name == "unscale_and_clip_" else ()
        optimizer, scaler = torch.optim.SGD(make(torch.float32)), GradScaler("cpu")
        texts = []

        def call(scaler: Any = scaler, args: Any = (optimizer, *args), name: str = name) -> None:
            getattr(scaler, name)(*args)

        def refused(error: type[Exception], texts: list[str] = texts, call: Any = call) -> None:
            with pytest.raises(error) as caught:
                call()
            texts.append(str(caught.value))

        refused(AssertionError)
        scaler.scale(torch.ones(()))
        call()
        refused(RuntimeError)
        scaler.step(optimizer)
        refused(RuntimeError)
        scaler.update()
        optimizer.param_groups[0]["params"][0].grad = torch.ones(5, 3)
        call()
        scaler.update()
        half = torch.optim.SGD(make(torch.float16))
        with pytest.raises(ValueError) as caught:
            getattr(scaler, name)(half, *args)
        texts.append(str(caught.value))
        said.append(texts)
    assert said[0] == said[1] and len(set(said[0])) == 4


@pytest.mark.parametrize("fused", [False, True])
def test_unscale_and_clip_of_what_is_not_finite_skips_the_step(path: str, fused: bool) -> None:
    params = make(torch.float32, factor=4.0)[:-1]
    params[0].grad[0, 0] = INF  # type: ignore[index]
    before = [g / 4 for g in grads(params) if g is not None]
    scaler, optimizer = scaled(4.0), torch.optim.AdamW(params, fused=fused)
    assert scaler.unscale_and_clip_(optimizer, 0.5) == INF
    if path == "engine":
        assert_same(grads(params), before)
    scaler.step(optimizer)
    assert scaler.last_step_skipped() and scaler.skipped_steps == 1
    assert not any(p.detach().any() for p in params)
    scaler.update()
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("norm_type", [2.0, 3.0])
def test_unscale_and_clip_raises_as_torchs_pair_does(norm_type: float) -> None:
    said = []
    for cls in (GradScaler, torch.amp.GradScaler):
        params = make(torch.float32, factor=4.0)[:-1]
        params[1].grad.fill_(NAN)  # type: ignore[union-attr]
        scaler, optimizer = scaled(4.0, cls), torch.optim.SGD(params)
        with pytest.raises(RuntimeError) as caught:
            if cls is GradScaler:
                scaler.unscale_and_clip_(optimizer, 1.0, norm_type, error_if_nonfinite=True)
            else:
                scaler.unscale_(optimizer)
                torch_clip(params, 1.0, norm_type, error_if_nonfinite=True)
        said.append((str(caught.value), [p.grad for p in params]))
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0
    assert_same(said[0], said[1])


def test_unscale_and_clip_raises_for_a_norm_beyond_its_dtype() -> None:
    p = torch.zeros(4, requires_grad=True)
    p.grad = torch.full((4,), 3e38)
    scaler = scaled(1.0)
    with pytest.raises(RuntimeError, match="non-finite"):
        scaler.unscale_and_clip_(torch.optim.SGD([p]), 1.0, error_if_nonfinite=True)
    assert torch.equal(p.grad, torch.full((4,), 3e38))


def test_unscale_and_clip_is_of_one_optimizer() -> None:
    first, second = make(torch.float32), make(torch.float32)
    scaler = scaled(2.0)
    optimizers = [torch.optim.SGD(params, lr=1.0) for params in (first, second)]
    second[0].grad[0, 0] = NAN  # type: ignore[index]
    norms = [scaler.unscale_and_clip_(optimizer, 1e-3) for optimizer in optimizers]
    assert norms[0].isfinite() and norms[1].isnan()
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert scaler.skipped_steps == 1
    step = math.sqrt(sum(float(p.detach().square().sum()) for p in first))
    assert step == pytest.approx(1e-3, rel=1e-3) and not any(p.detach().any() for p in second)
