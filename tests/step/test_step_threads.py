"""One scaler, one list of gradients and the clipping function in eight threads."""

import itertools
from typing import Any

import pytest
import torch
from many_threads import THREADS, run_threads

from fastloop import GradScaler, clip_grad_norm_
from fastloop.step.grad_list import GradList

ROUNDS = 30


def make_model(number: int) -> tuple[list[torch.nn.Parameter], torch.optim.SGD]:
    rng = torch.Generator().manual_seed(number)
    params = [torch.nn.Parameter(torch.randn(40 + number, generator=rng)) for _ in range(5)]
    return params, torch.optim.SGD(params, lr=0.1)


def set_grads(params: list[torch.nn.Parameter], scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=rng) * scale
    if seed % 7 == 0:
        params[0].grad[3] = float("inf")  # type: ignore[index]


def train(scaler: Any, number: int, model: Any, round: int, scale: float) -> None:
    params, optimizer = model
    set_grads(params, scale, 100 * number + round)
    scaler.unscale_(optimizer)
    if number % 2:
        scaler.step(optimizer)
    else:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)


def test_one_scaler_steps_eight_optimizers() -> None:
    scalers = GradScaler("cpu", growth_interval=3), torch.amp.GradScaler("cpu", growth_interval=3)
    ours, torchs = ([make_model(n) for n in range(THREADS)] for _ in range(2))
    for scaler in scalers:
        scaler.scale(torch.zeros(()))
    for round in range(ROUNDS):
        scale = scalers[1].get_scale()
        assert scalers[0].get_scale() == scale
        run_threads(lambda n, r=round, s=scale: train(scalers[0], n, ours[n], r, s))
        for n in range(THREADS):
            train(scalers[1], n, torchs[n], round, scale)
        for scaler in scalers:
            scaler.update()
    for (params, _), (wanted, _) in zip(ours, torchs, strict=True):
        assert all(map(torch.equal, params, wanted))
    seeds = itertools.product(range(THREADS), range(ROUNDS))
    assert scalers[0].skipped_steps == sum((100 * n + r) % 7 == 0 for n, r in seeds)


def test_clipping_in_eight_threads() -> None:
    def work(number: int) -> None:
        params, _ = make_model(number)
        for round in range(ROUNDS):
            set_grads(params, 2.0, 7 * number + round + 1)
            wanted = [p.grad.clone() for p in params if p.grad is not None]
            clones = [torch.nn.Parameter(torch.zeros_like(g)) for g in wanted]
            for clone, grad in zip(clones, wanted, strict=True):
                clone.grad = grad
            norm = clip_grad_norm_(params, 1.0)
            torch.testing.assert_close(
                norm, torch.nn.utils.clip_grad_norm_(clones, 1.0), equal_nan=True
            )
            for p, clone in zip(params, clones, strict=True):
                torch.testing.assert_close(p.grad, clone.grad, equal_nan=True)

    run_threads(work)


def test_a_list_of_gradients_is_one_threads_at_a_time() -> None:
    """The others are refused, or meet it when that thread is through."""
    grads = GradList()
    sizes = [3, 70_000]  # the second lets go of the interpreter lock
    tensors = [[torch.full((size,), 2.0) for _ in range(3)] for size in sizes]
    norms = [(3 * size) ** 0.5 * 2 for size in sizes]
    refused = []

    def work(number: int) -> None:
        for round in range(200):
            found = torch.zeros(())
            try:
                grads.collect(tensors[(number + round) % 2])
                norm = float(grads.norm_check(found))
                assert grads.dtypes <= {torch.float32}
                grads.release()
            except RuntimeError as error:
                refused.append(str(error))
            else:
                # Of what was collected last: perhaps by another thread, or let go of meanwhile.
                assert any(norm == pytest.approx(wanted) for wanted in [0.0, *norms])

    run_threads(work)
    texts = ("is working on these gradients", "found no plain tensors")
    assert all(any(part in text for part in texts) for text in refused), set(refused)
