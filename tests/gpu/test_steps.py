"""GradScaler, clip_grad_norm_ and Stepper on a CUDA device: torch's results, no host sync where
torch has one, and whole steps in a graph."""

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastloop

CUDA = torch.device("cuda", 0)
Waits = Callable[[str], AbstractContextManager[None]]
SGD = torch.optim.SGD
KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, capturable=True),
    "foreach AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "SGD": lambda p: SGD(p, lr=1e-2, momentum=0.9),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.Linear(65, 3)).to(CUDA)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randn(16, 33, generator=generator).to(CUDA) for _ in range(count)]
    if count > 3:
        made[3][0, 0] = float("inf")
    return made


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.float16):
        loss: Tensor = model(x).float().square().mean()
    return loss


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unscales", [False, True])
def test_scaler_in_lock_step(kind: str, unscales: bool) -> None:
    sides = []
    for cls in (torch.amp.GradScaler, fastloop.GradScaler):
        model = make_model()
        sides.append((model, KINDS[kind](model.parameters()), cls("cuda", growth_interval=3)))
    for x in batches(12):
        for model, optimizer, scaler in sides:
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        (theirs, _, their_scaler), (ours, _, our_scaler) = sides
        assert our_scaler.get_scale() == their_scaler.get_scale()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert sides[1][2].skipped_steps == 1 and not sides[1][2].last_step_skipped()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf"), 3.0])
@pytest.mark.parametrize("max_norm", [1e-3, 1e9])
def test_clip_grad_norm(norm_type: float, max_norm: float) -> None:
    model = make_model()
    loss_of(model, batches(1)[0]).backward()
    twin = copy.deepcopy(model)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p.grad is not None
        q.grad = p.grad.clone()
    ours = fastloop.clip_grad_norm_(model.parameters(), max_norm, norm_type)
    theirs = nn.utils.clip_grad_norm_(twin.parameters(), max_norm, norm_type)
    assert ours.device == theirs.device and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=0)


def test_a_fused_step_never_waits(waits_are: Waits) -> None:
    model = make_model()
    optimizer, scaler = KINDS["fused AdamW"](model.parameters()), fastloop.GradScaler("cuda")
    x = torch.randn(16, 33, device=CUDA)
    with waits_are("error"):
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x)).backward()
            scaler.unscale_and_clip_(optimizer, 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert scaler.skipped_steps == 0


@pytest.mark.parametrize("has_scheduler", [False, True])
def test_a_fused_stepper_never_waits(has_scheduler: bool, waits_are: Waits) -> None:
    """With a scheduler it may, for an event, which torch does not tell of."""
    model = make_model()
    optimizer = KINDS["fused AdamW"](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1) if has_scheduler else None
    stepper = fastloop.Stepper(
        optimizer, 2, scaler=fastloop.GradScaler("cuda"), max_norm=1.0, scheduler=schedule
    )
    x = torch.randn(16, 33, device=CUDA)
    for mode, count in (("default", 4), ("error", 8)):  # everything is made in the first
        with waits_are(mode):
            for _ in range(count):
                with stepper.micro(weight=len(x)):
                    stepper.backward(loss_of(model, x))
    assert stepper.stepped + stepper.skipped == 6


def test_other_optimizers_cost_one_read(waits_are: Waits) -> None:
    model = make_model()
    optimizer, scaler = KINDS["SGD"](model.parameters()), fastloop.GradScaler("cuda")
    x = torch.randn(16, 33, device=CUDA)
    for i in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x)).backward()
        with waits_are("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scaler.unscale_and_clip_(optimizer, 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert i == 0 or len(caught) == 1, [str(w.message) for w in caught]


def test_a_whole_step_in_a_graph() -> None:
    """Forward, backward, unscale and clip, fused step, update: replayed 1 000 times."""
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(16, 33, generator=generator).to(CUDA) for _ in range(10)]
    inputs[7][0, 0] = float("inf")

    def make() -> tuple[nn.Module, Any, Any, Tensor]:
        model = make_model()
        optimizer = KINDS["fused AdamW"](model.parameters())
        scaler = fastloop.GradScaler("cuda", growth_interval=5)  # each tenth step halves it
        return model, optimizer, scaler, torch.zeros(16, 33, device=CUDA)

    def step(model: nn.Module, optimizer: Any, scaler: Any, x: Tensor) -> None:
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss_of(model, x)).backward()
        scaler.unscale_and_clip_(optimizer, 0.5)
        scaler.step(optimizer)
        scaler.update()

    sides = []
    for is_graph in (False, True):
        parts = make()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(*parts)
        torch.cuda.current_stream().wait_stream(stream)
        run: Callable[[], Any]
        if is_graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(*parts)
            run = graph.replay
        else:
            run = lambda parts=parts: step(*parts)  # noqa: E731
        skipped = parts[2].skipped_steps
        for i in range(1000):
            parts[3].copy_(inputs[i % 10])
            run()
            if i % 100 == 99:
                assert parts[2].skipped_steps == skipped + (i + 1) // 10
        sides.append(parts)
    (eager, _, eager_scaler, _), (graphed, _, graph_scaler, _) = sides
    assert eager_scaler.get_scale() == graph_scaler.get_scale()
    for a, b in zip(graphed.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_mixed_devices_are_torchs() -> None:
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, device=CUDA))]
    for p in params:
        p.grad = torch.full_like(p, 3.0)
    norm = fastloop.clip_grad_norm_(params, 1.0)
    assert norm.item() == pytest.approx(54**0.5, rel=1e-6)
    torch.testing.assert_close(params[0].grad, params[1].grad.cpu())  # type: ignore[union-attr]


def test_torchs_functions_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for value in ("0", "1"):
        monkeypatch.setenv("FASTLOOP_DISABLE_CUDA", value)
        model = make_model()
        optimizer, scaler = KINDS["SGD"](model.parameters()), fastloop.GradScaler("cuda")
        for x in batches(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x)).backward()
            scaler.unscale_and_clip_(optimizer, 1e9)
            scaler.step(optimizer)
            scaler.update()
        results.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_a_patched_loop_has_torchs_bits(kind: str, norm_type: float) -> None:
    def train() -> list[Tensor]:
        model, told = make_model(), []
        optimizer = KINDS[kind](model.parameters())
        scaler = torch.amp.GradScaler("cuda", growth_interval=3)
        for i, x in enumerate(batches(12)):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, x)).backward()
            if i % 3:
                scaler.unscale_(optimizer)
                max_norm = (1e-3, 1e3)[i % 2]
                told.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type))
            scaler.step(optimizer)
            scaler.update()
            told += [t.detach().clone() for p in model.parameters() for t in (p, p.grad)]  # type: ignore[union-attr]
        return [*told, torch.tensor(scaler.get_scale())]

    wanted = train()
    with fastloop.patched(("grad_scaler", "clip_grad_norm")):
        found = train()
        seams = fastloop.patch_status().seams
    assert (seams["grad_scaler"].native, seams["clip_grad_norm"].native) == (12, 8)
    for mine, torchs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=0, atol=0, equal_nan=True)
