"""patch("clip_grad_norm"): torch's own clipping multiplies by the engine, with torch's bits."""

from __future__ import annotations

import math
import pickle
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import assert_same, outcome
from torch.nn import utils
from torch.nn.utils import clip_grad, clip_grad_norm_  # before patch(), as frameworks do

import fastloop
from fastloop.patching import step_seams

PLACES = [
    (clip_grad, "_clip_grads_with_norm_"),
    (utils, "clip_grads_with_norm_"),
]
TORCHS = [vars(module)[name] for module, name in PLACES]
NORM_TYPES = (2.0, 2, 1.0, 3.0, 0.5, math.inf, "inf", -math.inf, 0.0)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    fastloop.unpatch()
    assert [vars(module)[name] for module, name in PLACES] == TORCHS


def status() -> fastloop.SeamStatus:
    return fastloop.patch_status().seams["clip_grad_norm"]


def params_of(*grads: Any) -> list[torch.Tensor]:
    params = [torch.zeros(g.shape, dtype=g.dtype, device=g.device) for g in grads]
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    return params


def draw_params(rng: random.Random, dtype: torch.dtype) -> list[torch.Tensor]:
    """Gradients of all sizes and layouts, some of which have something special in them."""
    generator, grads = torch.Generator().manual_seed(rng.randrange(1000)), []
    for _ in range(rng.choice([1, 2, 5])):
        shape = rng.choice([(3, 5), (7,), (), (0,), (4, 3, 8, 8), (20000,)])
        wide = torch.randn(shape, generator=generator, dtype=torch.float64)
        grad = (wide * 10.0 ** rng.choice([-40, -3, 0, 2, 19])).to(dtype)
        if grad.ndim == 4 and rng.random() < 0.5:
            grad = grad.to(memory_format=torch.channels_last)
        elif grad.numel() and rng.random() < 0.1:
            grad.view(-1)[0] = rng.choice([math.inf, -math.inf, math.nan, -0.0, 1e-45])
        if grad.ndim == 2 and rng.random() < 0.3:
            grad = grad.t()
        grads.append(grad)
    return [torch.zeros(2, dtype=dtype), *params_of(*grads)]


def clip(params: list[torch.Tensor], *args: Any, **kwargs: Any) -> list[Any]:
    """What a clip returns or raises, and the gradients it leaves."""
    found = outcome(lambda: clip_grad_norm_(params, *args, **kwargs))
    return [found, *(p.grad for p in params)]


def with_one_nan(values: list[Any]) -> list[Any]:
    """Which of the many NaN of a dtype it is, is left open."""
    return [v.nan_to_num(nan=12.5) if isinstance(v, torch.Tensor) else v for v in values]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norms_and_gradients_are_torchs(dtype: torch.dtype) -> None:
    def clip_one(seed: int) -> list[Any]:
        rng = random.Random(seed)
        params, norm_type = draw_params(rng, dtype), rng.choice(NORM_TYPES)
        max_norm = rng.choice([0.0, 1e-3, 1.0, 1e30, math.inf, -1.0, math.nan])
        foreach = rng.choice([None, None, True, False])
        return with_one_nan(clip(params, max_norm, norm_type, rng.random() < 0.2, foreach))

    wanted = [clip_one(seed) for seed in range(150)]
    fastloop.patch("clip_grad_norm")
    for seed, torchs in enumerate(wanted):
        assert_same(clip_one(seed), torchs, f"seed {seed}")
    assert status().native > 100 and not status().fallbacks


def test_nothing_is_written_where_there_is_nothing_to_clip() -> None:
    fastloop.patch("clip_grad_norm")
    (p,) = params_of(torch.ones(4))
    assert p.grad is not None
    assert clip_grad_norm_([p], 2.5) == 2 and p.grad._version == 0
    assert clip_grad_norm_([p], 1.0) == 2 and p.grad._version == 1
    assert status().native == 2


def test_every_name_is_served() -> None:
    fastloop.patch("clip_grad_norm")
    params = params_of(torch.ones(4))
    clip_grad_norm_(params, 1.0)
    utils.clip_grad_norm_(iter(params), 1.0)
    clip_grad.clip_grad_norm_(params[0], 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        utils.clip_grad_norm(params, 1.0)
    utils.clip_grads_with_norm_((p for p in params), 1.0, utils.get_total_norm(params[0]))
    fastloop.clip_grad_norm_(params, 1.0, 3.0)  # a norm that is torch's
    assert status().native == 6
    name = utils.clip_grads_with_norm_
    assert pickle.loads(pickle.dumps(name)) is name
    clip_grad.clip_grad_value_(params, 0.1)
    assert status().native == 6 and not status().fallbacks


def sparse() -> list[torch.Tensor]:
    table = torch.nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1, 1])).sum().backward()
    return [table.weight]


class Tagged(torch.Tensor):
    pass


ONES = torch.ones(3)
LEFT: dict[str, tuple[Callable[[], list[torch.Tensor]], str]] = {
    "sparse": (sparse, "a gradient is sparse"),
    "complex": (lambda: params_of(ONES.to(torch.complex64)), "a gradient is of torch.complex64"),
    "subclass": (lambda: params_of(ONES.clone().as_subclass(Tagged)), "a gradient is a Tagged"),
    "dtypes": (lambda: params_of(ONES.clone(), ONES.double()), "gradients are of several dtypes"),
    "devices": (
        lambda: params_of(ONES.clone(), ONES.to("meta")),
        "gradients are on cpu, meta",
    ),
    "meta": (lambda: params_of(ONES.to("meta")), "gradients are on meta"),
    "gaps": (
        lambda: params_of(torch.ones(6)[::2]),
        "gradients overlap, have gaps in memory or are traced",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_the_engine_does_not_take_is_torchs_and_counted(case: str) -> None:
    make, reason = LEFT[case]
    wanted = clip(make(), 0.5)
    fastloop.patch("clip_grad_norm")
    assert_same(clip(make(), 0.5), wanted)
    is_clipped = wanted[0][0] != "raised" if isinstance(wanted[0], tuple) else True
    assert status().native == 0 and status().fallbacks == ({reason: 1} if is_clipped else {})


@pytest.mark.parametrize(
    "norm", [2.0, torch.ones(1), torch.ones((), dtype=torch.float64), torch.ones((), device="meta")]
)
def test_a_norm_of_another_kind_is_torchs(norm: Any) -> None:
    def clip_with() -> list[Any]:
        params: Any = params_of(torch.full((3,), 0.7))
        found = outcome(lambda: utils.clip_grads_with_norm_(iter(params), 0.3, norm))
        return [found, params[0].grad]

    wanted = clip_with()
    fastloop.patch("clip_grad_norm")
    assert_same(clip_with(), wanted)
    reason = "the norm is not a 0-d tensor of the gradients' dtype and device"
    assert status().fallbacks == {reason: 1}


def test_errors_and_warnings_are_torchs() -> None:
    def tell() -> list[Any]:
        told = clip(params_of(torch.tensor([math.inf, 1.0])), 0.5, math.inf, True)
        told += clip(params_of(ONES.clone()), "much")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told.append(clip_grad_norm_((p for p in ()), 0.5))
        return [*told, [(str(w.message), w.filename) for w in caught]]

    wanted = tell()
    assert wanted[0][1] is RuntimeError and wanted[-1][0][1] == __file__
    fastloop.patch("clip_grad_norm")
    assert_same(tell(), wanted)
    assert status().native == 0 and not status().fallbacks


def clip_compiled(norm_type: float) -> None:
    torch.compiler.reset()
    params = params_of(torch.full((3,), 2.0))
    compiled = torch.compile(clip_grad_norm_, backend="eager", fullgraph=True)
    compiled(params, 1.0, norm_type)
    assert params[0].grad is not None and params[0].grad[0] < 1.1


def test_compiled_clips_are_whole_graphs_of_torchs() -> None:
    try:
        clip_compiled(2.0)
    except torch._dynamo.exc.Unsupported:
        pytest.skip("this torch cannot compile its own clip whole")
    fastloop.patch("clip_grad_norm")
    for norm_type in (2.0, math.inf):
        clip_compiled(norm_type)
    assert status().native == 0 and not status().fallbacks


def test_what_is_traced_is_torchs() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def clip_copy(grad: torch.Tensor) -> Any:
        params = params_of(grad.clone())
        clip_grad_norm_(params, 0.5, math.inf)
        return params[0].grad

    fastloop.patch("clip_grad_norm")
    graph = make_fx(clip_copy)(torch.ones(3))
    assert graph(torch.full((3,), 2.0)).tolist() == pytest.approx([0.5] * 3)
    assert status().fallbacks == {"a torch dispatch mode is on": 1}


def test_gradients_are_let_go() -> None:
    fastloop.patch("clip_grad_norm")
    params = params_of(torch.ones(4))
    clip_grad_norm_(params, 1.0, math.inf)
    reference = weakref.ref(params[0].grad)  # type: ignore[arg-type]
    params[0].grad = None
    assert reference() is None


def test_threads_may_clip_at_once() -> None:
    def run() -> None:
        for i in range(1, 200):
            params = params_of(torch.full((i % 7 + 1,), 3.0), torch.ones(1))
            norm = clip_grad_norm_(params, 1.0)
            grad = params[0].grad
            assert grad is not None
            found.append(abs(grad[0].item() - 3 / (norm.item() + 1e-6)) < 1e-6)

    found: list[bool] = []
    fastloop.patch("clip_grad_norm")
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * 199 and all(found)


@pytest.mark.parametrize("module, name", PLACES)
def test_what_others_have_wrapped_stays_and_passes_on(module: Any, name: str) -> None:
    fastloop.patch("clip_grad_norm")
    ours = vars(module)[name]
    params = params_of(torch.ones(4))
    try:
        setattr(module, name, lambda *args: ours(*args))
        fastloop.unpatch()
        vars(module)[name](params, 1.0, torch.tensor(2.0))
        assert status().native == 0 and params[0].grad is not None
        assert params[0].grad[0].item() == pytest.approx(0.5)
        fastloop.patch("clip_grad_norm")
        vars(module)[name](params, 1.0, torch.tensor(2.0))
        assert status().native == 1 and params[0].grad[0].item() == pytest.approx(0.25)
    finally:
        setattr(module, name, ours)
        fastloop.unpatch()
        setattr(module, name, TORCHS[PLACES.index((module, name))])


def test_a_torch_that_differs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_seams, "_multiply", lambda *args: None)
    found = fastloop.patch(verbose=False).seams["clip_grad_norm"]
    assert not found.is_on and "differs from those that fastloop knows" in found.why
    assert [vars(module)[name] for module, name in PLACES] == TORCHS


def test_a_torch_without_the_functions_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = step_seams.make_clip_seam(False)
    monkeypatch.delattr(clip_grad, "_clip_grads_with_norm_")
    monkeypatch.setattr(fresh, "probe", lambda _: [])
    assert not fresh.put_in() and "_clip_grads_with_norm_" in fresh.status().why


def test_a_seam_is_put_in_again_where_torchs_functions_were_put_back() -> None:
    fresh = step_seams.make_clip_seam(False)
    assert fresh.put_in()
    theirs = vars(clip_grad)["_clip_grads_with_norm_"]
    clip_grad._clip_grads_with_norm_ = lambda *args: theirs(*args)
    fresh.take_out()
    for (module, name), torchs in zip(PLACES, TORCHS, strict=True):
        setattr(module, name, torchs)  # as somebody who has kept them
    assert fresh.put_in()
    fresh.take_out()
    for (module, name), torchs in zip(PLACES, TORCHS, strict=True):
        setattr(module, name, torchs)
