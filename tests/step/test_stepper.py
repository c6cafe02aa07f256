"""Stepper: windows, boundaries, schedulers, scalers. The numbers themselves are in
test_stepper_exact.py, exceptions and states in test_stepper_errors.py, ranks in
test_stepper_ddp.py."""

import gc
import io
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers import ShufflingSampler, bits, small_dataset
from stepper_runs import INF, Run, scalers
from torch.optim.lr_scheduler import LambdaLR, StepLR
from tqdm import tqdm

from fastloop import DataLoader, Stepper


class Unsized:
    """Batches without a length; `fails_at` raises in that batch's place."""

    def __init__(self, n: int, fails_at: int | None = None) -> None:
        self.n, self.fails_at, self.asked = n, fails_at, 0

    def __iter__(self) -> Iterator[int]:
        for i in range(self.n):
            self.asked += 1
            if i == self.fails_at:
                raise OSError("unreadable")
            yield i


# ---- windows


def test_steps_when_the_window_is_full() -> None:
    run = Run(3)
    before, boundaries = run.parameters(), []
    for i in range(7):
        run.micro(i)
        boundaries.append(run.stepper.is_boundary)
        assert run.has_gradients() == (i % 3 != 2)
        assert (run.parameters() != before) == (i >= 2)
    assert boundaries == [False, False, True, False, False, True, False]
    assert (run.stepper.stepped, run.stepper.skipped) == (2, 0)
    run.stepper.flush()
    assert run.stepper.stepped == 3 and not run.has_gradients()
    run.stepper.flush()
    assert run.stepper.stepped == 3


@pytest.mark.parametrize("kind", ["sized", "unsized", "loader"])
def test_iterate_closes_the_last_window(kind: str) -> None:
    for n in range(9):
        run, steps = Run(4), []
        loader: Any = list(range(n)) if kind == "sized" else Unsized(n)
        if kind == "loader":
            loader = DataLoader(small_dataset(n), batch_size=1) if n else []
        for _ in run.stepper.iterate(loader):
            run.micro()
            steps.append(run.stepper.stepped)
        assert steps == [(i + 1) // 4 if i + 1 < n else -(-n // 4) for i in range(n)]


def test_sized_loaders_are_not_read_ahead() -> None:
    taken = []

    class Sized:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            for i in range(3):
                taken.append(i)
                yield i

    run = Run(2)
    for i in run.stepper.iterate(Sized()):
        assert taken == list(range(i + 1))
        run.micro()
    loader = DataLoader(small_dataset(6), batch_size=2, sampler=ShufflingSampler(6))
    torch.manual_seed(1)
    ours = [
        (batch[1].tolist(), bits(torch.get_rng_state())) for batch in run.stepper.iterate(loader)
    ]
    torch.manual_seed(1)
    assert ours == [(batch[1].tolist(), bits(torch.get_rng_state())) for batch in loader]


def test_the_loop_has_the_loaders_length() -> None:
    run = Run()
    loader = DataLoader(small_dataset(), 4)
    for sized in (range(5), loader):
        batches = run.stepper.iterate(sized)
        assert len(batches) == len(sized)
        bar = tqdm(batches, file=io.StringIO())
        assert bar.total == len(sized)
        for _ in bar:
            run.micro()
        assert bar.n == len(sized)
        assert list(batches) == []
    unsized = run.stepper.iterate(Unsized(3))
    with pytest.raises(TypeError, match=r"'Unsized' has no len\(\)"):
        len(unsized)
    assert tqdm(unsized, file=io.StringIO()).total is None
    assert list(unsized) == [0, 1, 2]


def test_a_length_that_is_not_implemented_is_none() -> None:
    class Loader(Unsized):
        def __len__(self) -> int:
            raise NotImplementedError("as long as it takes")

    batches = Run().stepper.iterate(Loader(3))
    with pytest.raises(TypeError, match="as long as it takes"):
        len(batches)
    assert list(batches) == [0, 1, 2]  # which asks for the length, too


def test_the_loop_is_an_iterator() -> None:
    run = Run()
    batches = run.stepper.iterate(range(3))
    assert next(batches) == 0
    run.micro()
    assert next(iter(batches)) == 1
    with pytest.warns(UserWarning, match="left early.*1 complete") as caught:
        batches.close()
    assert caught[0].filename == __file__
    assert list(batches) == []


def test_unsized_loaders_are_read_one_batch_ahead() -> None:
    loader, run = Unsized(3), Run(2)
    asked = []
    for _ in run.stepper.iterate(loader):
        before = loader.asked
        run.micro()
        asked.append((before, loader.asked))
    assert asked == [(1, 2), (2, 2), (3, 3)] and run.stepper.stepped == 2


def test_an_error_read_ahead_comes_after_the_batch_before_it() -> None:
    run, seen = Run(2), []
    with pytest.warns(UserWarning, match=r"left early.*1 complete"), pytest.raises(OSError):
        for i in run.stepper.iterate(Unsized(5, fails_at=3)):
            seen.append(i)
            run.micro()
    assert seen == [0, 1, 2] and run.stepper.stepped == 1 and not run.has_gradients()


def test_a_length_that_lies_is_survived() -> None:
    class Guess(Unsized):
        def __len__(self) -> int:
            return 3

    for n in range(8):
        run = Run(2)
        for _ in run.stepper.iterate(Guess(n)):
            run.micro()
        assert not run.has_gradients()
        assert run.stepper.stepped == {0: 0, 1: 1, 2: 1, 3: 2}.get(n, 2 + -(-(n - 3) // 2))


def test_a_batch_is_not_kept() -> None:
    class Thing:
        alive = 0

        def __init__(self) -> None:
            Thing.alive += 1

        def __del__(self) -> None:
            Thing.alive -= 1

    class Loader:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[Thing]:
            return (Thing() for _ in range(3))

    run = Run(1)
    for thing in run.stepper.iterate(Loader()):
        del thing
        gc.collect()
        assert Thing.alive == 0
        run.micro()


def test_accumulate_may_be_a_function_of_the_step() -> None:
    asked: list[int] = []

    def size(step: int) -> int:
        asked.append(step)
        return step + 1

    run = Run(size)
    for _ in range(6):
        run.micro()
    assert asked == [0, 1, 2] and run.stepper.stepped == 3
    bad = Run(lambda step: 0)
    with pytest.raises(ValueError, match=r"accumulate\(0\) must be an int >= 1, got 0"):
        bad.micro()


def test_batches_without_a_micro_batch_leave_a_window_for_the_end() -> None:
    run = Run(2)
    for i in run.stepper.iterate(range(4)):
        if i != 3:
            run.micro()
    assert run.stepper.stepped == 2


# ---- the boundary


def test_clips_at_the_boundary_as_torch_does() -> None:
    for fused in (False, True):
        run = Run(2, max_norm=0.01, fused=fused)
        reference = Run(2, fused=fused)
        for seed in (1, 2):
            (reference.loss(seed) / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.model.parameters(), 0.01)
        reference.optimizer.step()
        run.micro(1)
        assert run.stepper.last_norm is None
        run.micro(2)
        assert run.stepper.last_norm is not None and run.stepper.last_norm.ndim == 0
        torch.testing.assert_close(run.stepper.last_norm.float(), norm)
        for ours, theirs in zip(run.model.parameters(), reference.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_nothing_is_left_on_a_fused_optimizer() -> None:
    for kind in (None, *scalers()):
        for accum_dtype in (None, torch.float32):
            scaler = None if kind is None else kind("cpu", init_scale=8.0)
            options = {"scaler": scaler, "accum_dtype": accum_dtype, "on_nonfinite": "window"}
            run = Run(2, max_norm=0.1, fused=True, **options)
            run.optimizer.found_inf = mine = torch.tensor(0.0)
            run.micro()
            run.micro(weight=3)
            assert run.optimizer.found_inf is mine and "grad_scale" not in vars(run.optimizer)


def test_a_grad_scale_of_the_users_is_multiplied_in() -> None:
    moved = {}
    for theirs in (1.0, 2.0):
        run = Run(2, fused=True)
        before = [p.detach().clone() for p in run.model.parameters()]
        run.optimizer.grad_scale = torch.tensor(theirs)
        run.micro(weight=1)
        run.micro(weight=2)
        after = run.model.parameters()
        moved[theirs] = [(a - b).detach() for a, b in zip(after, before, strict=True)]
    torch.testing.assert_close([m * 2 for m in moved[2.0]], moved[1.0], rtol=1e-3, atol=1e-6)


def test_equal_weights_need_no_scaling_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastloop.step.grad_list import GradList

    scaled: list[int] = []
    monkeypatch.setattr(GradList, "scale_", lambda self, factor: scaled.append(1))
    for weight in (1, 0.1, 7):
        for accumulate in (1, 3, 7):
            run = Run(accumulate)
            for _ in run.stepper.iterate(range(10)):
                run.micro(weight=weight)
    run = Run(1)
    for weight in (1, 5, 3):
        run.micro(weight=weight)
    assert not scaled
    run = Run(2)
    run.micro(weight=1)
    run.micro(weight=2)
    assert scaled


def test_the_scheduler_follows_real_steps_only() -> None:
    for fused in (False, True):
        run = Run(2, fused=fused, on_nonfinite="window", schedule=0.5)
        scheduler = run.stepper._outcomes.schedulers[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for spoil, rate in ((INF, 0.1), (1.0, 0.05), (INF, 0.05), (1.0, 0.025)):
                run.micro(spoil=spoil)
                run.micro()
                assert scheduler.get_last_lr() == [rate]
        assert (run.stepper.stepped, run.stepper.skipped) == (2, 2)
    run = Run()
    both = [StepLR(run.optimizer, 1, 0.5), LambdaLR(run.optimizer, lambda n: 1.0)]
    stepper = Stepper(run.optimizer, scheduler=both)
    with stepper.micro():
        stepper.backward(run.loss(0))
    assert [s.last_epoch for s in both] == [1, 1]


@pytest.mark.parametrize("fused", [False, True])
def test_on_nonfinite(fused: bool) -> None:
    before = Run().parameters()
    for spoiled in range(3):
        runs = {}
        for choice in ("window", "micro", "ignore"):
            run = runs[choice] = Run(3, fused=fused, on_nonfinite=choice)
            for i in range(3):
                run.micro(i, weight=i + 1, spoil=INF if i == spoiled else 1.0)
        assert runs["window"].parameters() == before
        assert (runs["window"].stepper.stepped, runs["window"].stepper.skipped) == (0, 1)
        assert any(not p.isfinite().all() for p in runs["ignore"].model.parameters())
        assert runs["ignore"].stepper.stepped == runs["micro"].stepper.stepped == 1
        reference = Run(3, fused=fused, on_nonfinite="micro")
        for i in range(3):
            reference.micro(i, weight=0 if i == spoiled else i + 1)
        ours, theirs = (r.model.parameters() for r in (runs["micro"], reference))
        torch.testing.assert_close(list(ours), list(theirs), rtol=1e-6, atol=1e-7)
    run = Run(2, fused=fused, on_nonfinite="micro")
    run.micro(spoil=INF)
    run.micro(spoil=INF)
    assert run.parameters() == before and run.stepper.skipped == 1


def test_a_window_of_weight_zero_is_no_step() -> None:
    for kwargs in ({}, {"accum_dtype": torch.float32}):
        run = Run(2, schedule=0.5, on_nonfinite="window", **kwargs)
        before = run.parameters()
        for spoil in (1.0, INF, float("nan"), 1.0):
            run.micro(weight=0, spoil=spoil)
        assert run.parameters() == before and not run.has_gradients()
        assert (run.stepper.stepped, run.stepper.skipped) == (0, 0)
        run.micro(weight=0, spoil=float("nan"))
        run.micro(weight=2)
        assert run.stepper.stepped == 1 and run.stepper.skipped == 0


# ---- scalers


@pytest.mark.parametrize("fused", [False, True])
def test_the_scale_moves_once_a_window(fused: bool) -> None:
    for kind in scalers():
        for choice in ("window", "micro"):
            scaler = kind("cpu", init_scale=64.0, growth_interval=2)
            run = Run(2, fused=fused, scaler=scaler, on_nonfinite=choice)
            run.micro()  # one finite step: momentum buffers exist (torch's fused SGD needs that)
            run.micro()
            assert (scaler.get_scale(), scaler._get_growth_tracker()) == (64.0, 1)
            run.micro()
            run.micro()
            assert (scaler.get_scale(), scaler._get_growth_tracker()) == (128.0, 0)
            before = run.parameters()
            run.micro(spoil=INF)
            run.micro()
            assert scaler.get_scale() == 64.0
            assert (run.parameters() == before) == (choice == "window")
            assert run.stepper.skipped == (choice == "window")
            run.micro(spoil=INF)
            run.micro(spoil=INF)
            assert scaler.get_scale() == 32.0
            assert run.stepper.skipped == 1 + (choice == "window")


def test_the_scale_is_fixed_inside_a_window() -> None:
    for kind in scalers():
        scaler = kind("cpu", init_scale=64.0)
        run = Run(2, scaler=scaler)
        run.micro()
        scaler.update(32.0)
        warned = pytest.warns(UserWarning, match="discarded")
        with warned, pytest.raises(RuntimeError, match="has changed inside a window"):
            run.micro()
        run.micro()
        run.micro()
        assert run.stepper.stepped == 1


def test_a_failed_step_leaves_the_scaler_usable() -> None:
    for kind in scalers():
        run = Run(1, scaler=kind("cpu", init_scale=64.0))

        def fail(*args: Any) -> None:
            raise OSError

        hook = run.optimizer.register_step_pre_hook(fail)
        with pytest.raises(OSError):
            run.micro()
        hook.remove()
        run.micro()
        assert run.stepper.stepped == 1


# ---- parameters that come and go


def test_parameters_without_a_gradient() -> None:
    """A parameter that no micro-batch uses keeps .grad None: momentum and decay leave it alone."""
    for kwargs in ({}, {"accum_dtype": torch.float64}, {"on_nonfinite": "micro"}):
        a, b, c = (torch.nn.Parameter(torch.full((3,), i)) for i in (1.0, 2.0, 3.0))
        optimizer = torch.optim.SGD([a, b, c], 0.1, weight_decay=0.5)
        stepper = Stepper(optimizer, 3, **kwargs)
        for loss in (a.sum(), b.sum(), (a * 2).sum()):
            with stepper.micro():
                stepper.backward(loss)
        torch.testing.assert_close(a.detach(), torch.full((3,), 1.0 - 0.1 * (1.0 + 0.5)))
        torch.testing.assert_close(b.detach(), torch.full((3,), 2.0 - 0.1 * (1 / 3 + 1.0)))
        assert c.tolist() == [3.0] * 3


def test_parameter_groups_may_be_added_between_windows() -> None:
    run = Run(2, accum_dtype=torch.float64)
    run.micro()
    extra = torch.nn.Parameter(torch.ones(3))
    run.optimizer.add_param_group({"params": [extra]})
    warned = pytest.warns(UserWarning, match="discarded")
    with warned, pytest.raises(RuntimeError, match="added inside a window; add"):
        run.micro()
    for _ in range(2):
        with run.stepper.micro():
            run.stepper.backward(run.loss(0) + extra.sum())
    assert run.stepper.stepped == 1 and extra.tolist() != [1.0] * 3


def test_fsdp_like_modules_are_told_when_to_reduce() -> None:
    calls: list[bool] = []

    class Sharded(torch.nn.Linear):
        def set_requires_gradient_sync(self, sync: bool) -> None:
            calls.append(sync)

    class FullyShardedDataParallel(torch.nn.Module):
        def no_sync(self) -> nullcontext[None]:
            return nullcontext()

    model = Sharded(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    refused: list[Any] = [{"accum_dtype": torch.float32}, {"on_nonfinite": "micro"}]
    for wrong in [*refused, {"max_norm": 1.0}, {"max_norm_spike": 5.0}]:
        with pytest.raises(ValueError, match="under FSDP need FSDP2"):
            Stepper(optimizer, model=FullyShardedDataParallel(), **wrong)
    stepper = Stepper(optimizer, 3, model=[torch.nn.Sequential(model)])
    for i in stepper.iterate(range(8)):
        with stepper.micro(weight=0 if i == 2 else 1):
            stepper.backward(model(torch.ones(1, 3)).sum())
    assert calls == [False, True, False, True, False, True]
    stepper = Stepper(optimizer, 3, model=FullyShardedDataParallel())
    with stepper.micro():
        stepper.backward(model(torch.ones(1, 3)).sum())
    with pytest.raises(RuntimeError, match="under FSDP needs FSDP2"):
        stepper.flush()
