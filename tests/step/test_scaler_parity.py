"""GradScaler in lock-step with torch's: random sequences of calls over two optimizers, after each
of which exceptions, results, scale, tracker, flags, gradients, parameters and optimizer states are
the same, bit for bit (support/scaler_calls.py)."""

import random
from functools import partial

import passes
import pytest
from helpers import assert_same, outcome
from scaler_calls import CALLS, Side, TorchScaler, draw

import fastloop

SEEDS = 12


@pytest.mark.parametrize("path", passes.NAMES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_sequence_of_calls_is_torchs(
    path: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes.choose(path, monkeypatch)
    rng = random.Random(seed)
    ours, theirs = Side(fastloop.GradScaler, seed), Side(TorchScaler, seed)
    for i in range(CALLS):
        name, call = draw(rng)
        where = f"call {i}, {name}"
        assert_same(outcome(partial(call, ours)), outcome(partial(call, theirs)), where)
        assert_same(ours.trace(), theirs.trace(), where)


def test_sequences_meet_every_outcome() -> None:
    """What the sequences are made of: steps done and skipped, growth, back-off, each error."""
    outcomes = set()
    for seed in range(SEEDS):
        rng, side = random.Random(seed), Side(fastloop.GradScaler, seed)
        for _ in range(CALLS):
            name, call = draw(rng)
            result = outcome(partial(call, side))
            if isinstance(result, tuple):
                outcomes.add((name, result[1].__name__))
            if name == "step" and side.scaler.last_step_skipped():  # type: ignore[attr-defined]
                outcomes.add(("step", "skipped"))
            outcomes.add(("scale", str(side.scaler.get_scale() > 1024)))
    errors = {"RuntimeError", "AssertionError"}
    assert {("step", e) for e in errors} | {("unscale", e) for e in errors} <= outcomes
    assert {("update", "AssertionError"), ("update", "AttributeError")} <= outcomes
    assert {("checkpoint", "AssertionError"), ("checkpoint", "RuntimeError")} <= outcomes
    assert {("step", "skipped"), ("scale", "True"), ("scale", "False")} <= outcomes
    assert ("refused", "ValueError") in outcomes
