"""torch's pad_sequence() behind patch(): bits, strides and errors of torch alone; what is left to
torch; compiled, traced and scripted functions; and a program that has imported the function."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.utils.rnn as rnn
from compare import assert_identical
from torch.nn.utils.rnn import pad_sequence  # bound before patch()

import fastloop
from fastloop.adapters import torch_pad
from fastloop.compat import seams, verdicts, verification

SEED = int(os.environ.get("FASTLOOP_FUZZ_SEED", "20261129"))
RUNS = int(os.environ.get("FASTLOOP_FUZZ", "400"))
DTYPES = [torch.bool, torch.uint8, torch.int16, torch.int64, torch.bfloat16, torch.float32]
DTYPES += [torch.float16, torch.float64, torch.complex64, torch.uint32, torch.float8_e5m2]


@pytest.fixture(autouse=True)
def seam(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is known of torch's function before a test."""
    monkeypatch.setattr(verdicts, "_read", {})
    torch_pad.find_unknown.cache_clear()
    verification.verification_of.cache_clear()
    with fastloop.patched("texts"):
        yield
    torch_pad.find_unknown.cache_clear()
    verification.verification_of.cache_clear()


def native() -> int:
    return fastloop.patch_status().seams["texts"].native


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def sequences_of(any_of: random.Random) -> Any:
    steps = any_of.choice(((), (), (4,), (2, 1, 3), (1, 1), (0,)))
    dtype, alone = any_of.choice(DTYPES), any_of.choice((1, 3, 9))
    made = [torch.randint(0, 99, (any_of.randrange(9), *steps)).to(dtype) for _ in range(alone)]
    odd: tuple[Callable[[Any], Any], ...] = (
        lambda t: t.double(),
        lambda t: t[::2],
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: t[:1].expand(7, *t.shape[1:]),
        lambda t: t.sum(),
        lambda t: t.tolist(),
        lambda t: t.float().requires_grad_(),
        lambda t: t.to("meta"),
        lambda t: torch.nn.Parameter(t, False),
        lambda t: torch._neg_view(t.float()),
        lambda t: t[:, :1] if t.ndim > 1 else t,
        lambda t: t.to_sparse() if t.dtype is torch.float32 else None,
    )
    if any_of.random() < 0.2:
        at = any_of.randrange(alone)
        made[at] = outcome(lambda: any_of.choice(odd)(made[at]))
    kind = any_of.choice((*[list] * 9, tuple, iter, lambda _: None, lambda ts: ts[:0]))
    return lambda: kind(made)


def test_random_calls() -> None:
    any_of = random.Random(SEED)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        for number in range(RUNS):
            make, given = sequences_of(any_of), {}
            values = *[0, 1.5, 1.0] * 3, -1, -0.0, float("nan"), 300, 1e9, 2**70, True, "x"
            for name, choices in (
                ("batch_first", (True, True, False, False, 1, None)),
                ("padding_value", values),
                ("padding_side", ("left", "left", "left", "right", "middle", 3)),
            ):
                if any_of.random() < 0.6:
                    given[name] = any_of.choice(choices)
            ours = outcome(lambda: rnn.pad_sequence(make(), **given))  # noqa: B023
            with verification.running_original():
                theirs = outcome(lambda: rnn.pad_sequence(make(), **given))  # noqa: B023
            try:
                assert_identical(ours, theirs)
            except AssertionError as error:
                raise AssertionError(f"seed {SEED}, case {number}: {make()}, {given}") from error
    assert native() > RUNS // 5


def test_tensors_that_carry_more_are_left() -> None:
    a, b = torch.ones(3), torch.ones(2)
    pad_sequence([a, b])  # compared
    before = native()
    wanted = pad_sequence([a.requires_grad_(), b])
    assert wanted.requires_grad
    wanted.sum().backward()
    assert a.grad is not None
    a = a.detach()
    with torch.inference_mode():
        assert pad_sequence([b, b]).is_inference()
    assert native() == before + 1
    seen = []

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        pad_sequence([a, b])
    assert seen
    # torch has no rule for a batch of batches: the same error, with nothing before it.
    with pytest.raises(RuntimeError, match="Batching rule") as caught:
        torch.func.vmap(lambda x: pad_sequence([x]))(torch.ones(2, 2))
    assert caught.value.__context__ is None
    assert native() == before + 1


def pad(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return pad_sequence([a, b * 2], batch_first=True)


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated
def test_compiled_traced_and_scripted_functions_are_torchs() -> None:
    a, b = torch.ones(3), torch.ones(2)
    wanted = pad(a, b)
    before = native()
    assert_identical(torch.compile(pad, backend="eager", fullgraph=True)(a, b), wanted)
    traced = torch.jit.trace(pad, (a + 1, b + 1), check_trace=False)
    for function in (traced, torch.jit.script(pad)):
        assert_identical(function(a, b), wanted)
    assert_identical(torch.jit.script(rnn.pad_sequence)([a, b * 2], True), wanted)
    assert native() == before


def test_program_that_has_imported_the_function_is_served_until_unpatch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Loaders of earlier tests may have asked for the function, which then stays in.
    monkeypatch.setattr(seams.opened["texts"], "serves_some", False)
    wanted = pad_sequence([torch.arange(3), torch.arange(2)])
    assert native() == 0  # the first call is compared
    assert_identical(pad_sequence([torch.arange(3), torch.arange(2)]), wanted)
    assert native() == 1
    fastloop.unpatch("texts")
    assert pad_sequence.__code__.co_filename == torch.nn.utils.rnn.__file__
    assert rnn.pad_sequence is pad_sequence


def test_function_that_pads_otherwise_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*args: Any) -> torch.Tensor:
        return plain(*args) + 1

    plain = torch._C._nn.pad_sequence
    monkeypatch.setattr(torch._C._nn, "pad_sequence", other)
    assert "differs" in torch_pad.find_unknown().why
    assert_identical(rnn.pad_sequence([torch.ones(2)]), torch.full((2, 1), 2.0))
    (reason,) = fastloop.patch_status().seams["texts"].fallbacks
    assert "differs" in reason


def test_batch_that_differs_ends_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_pad.find_unknown()
    monkeypatch.setattr(torch_pad, "_make", lambda *args: torch.zeros(()))
    with pytest.warns(RuntimeWarning, match="differ from torch's"):
        pad_sequence([torch.ones(2)])
    assert_identical(pad_sequence([torch.ones(2)]), torch.ones(2, 1))
    assert native() == 0


def test_first_call_under_a_mode_says_nothing_about_torch() -> None:
    a = torch.ones(2)
    with torch.device("meta"):
        assert pad_sequence([a]).is_cpu
    with torch.inference_mode():
        pad_sequence([a])
    pad_sequence([a])
    assert native() > 0
