"""What each rank of test_stepper_ddp.py runs: `python ranks.py CASE…`, started as by torchrun."""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rank_program import leave_ranks, run_cases
from rank_runs import (
    INF,
    RANK,
    RANKS,
    Counts,
    Reference,
    Run,
    batch_of,
    flat,
    model_of,
    same,
    sizes_of,
)
from time_limits import limit
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fastloop import CostBatchSampler, Stepper


def case_exact() -> None:
    """Unequal weights and tails; every way the gradients can go."""
    ways: list[dict[str, Any]] = [
        {},
        {"ddp": {"gradient_as_bucket_view": True}, "max_norm": 0.05},
        {"fused": True, "max_norm": 0.05},
        {"accum_dtype": torch.float64},
        {"on_nonfinite": "micro", "max_norm": 0.05},
        {"on_nonfinite": "window", "ddp": {"find_unused_parameters": True}},
        {"scaler": "torch"},
    ]
    for way in ways:
        for accumulate, counts in ((1, [3, 3]), (3, [7, 9]), (4, [8, 5]), (4, [2, 3])):
            options = dict(way)
            if "scaler" in options:
                options["scaler"] = torch.amp.GradScaler("cpu", init_scale=256.0)
            run, reference = Run(accumulate, **options), Reference()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # find_unused_parameters found none
                for _ in range(2):
                    run.epoch(counts[RANK], range)
                    reference.epoch(counts, accumulate, way.get("max_norm", INF))
            assert run.stepper.stepped == len(reference.steps)
            if not options.get("fused"):
                same(run.steps, reference.steps)
            same(run.parameters(), flat(reference.model.parameters()))


def case_cost_batches() -> None:
    """Batches with unequal numbers of tokens, which are their weights."""
    lengths = [2 + 7 * i % 23 for i in range(90)]

    def batches_of(**ranks: int) -> CostBatchSampler:
        return CostBatchSampler(lengths, 60, window=40, accumulate=2, **ranks)

    def tokens_of(batch: list[int]) -> Tensor:
        return torch.cat([batch_of(0, i, lengths[i]) for i in batch])

    run, reference = Run(2), Reference()
    for batch in run.stepper.iterate(batches_of()):
        tokens = tokens_of(batch)
        with run.stepper.micro(weight=len(tokens)):
            run.stepper.backward(run.ddp(tokens).square().mean())
    ranks = [list(batches_of(num_replicas=RANKS, rank=rank)) for rank in range(RANKS)]
    for i in range(0, len(ranks[0]), 2):
        reference.step([tokens_of(batch) for batches in ranks for batch in batches[i : i + 2]])
    same(run.steps, reference.steps)


def case_unsized() -> None:
    run, reference = Run(3), Reference()
    counts = [7, 8]
    run.epoch(counts[RANK], lambda n: iter(range(n)))
    reference.epoch(counts, 3)
    same(run.steps, reference.steps)


def case_counts() -> None:
    """Each bucket once a window and one small message; and one as the loop begins."""
    bucket = {"bucket_cap_mb": 1e-4}
    run = Run(3, ddp=bucket)
    counts = Counts(run.ddp)
    run.epoch(6)  # the first windows: DDP regroups its buckets
    per_window = []
    with counts.counting():
        for _ in range(2):
            counts.buckets, counts.sizes = 0, []
            run.epoch(9)
            per_window.append((counts.buckets / 3, counts.sizes))
    buckets, sizes = per_window[-1]
    assert buckets == 2, buckets
    assert sizes == [11] * (3 + 1), sizes

    for options in ({"accum_dtype": torch.float64}, {"on_nonfinite": "micro"}):
        run = Run(3, ddp=bucket, **options)
        counts = Counts(run.ddp)
        run.epoch(6)
        with counts.counting():
            run.epoch(9)
        assert counts.buckets == 0
        messages = [size for size in counts.sizes if size == 11]
        others = [size for size in counts.sizes if size != 11]
        assert len(messages) == 4 and len(others) == 3 and len(set(others)) == 1, counts.sizes


def case_flush() -> None:
    """By hand: ranks flush windows of unequal lengths, or none."""
    for options in ({}, {"fused": True}, {"accum_dtype": torch.float64}):
        run, reference = Run(100, **options), Reference()
        for counts in ([2, 3], [1, 1], [3, 0], [0, 2]):
            for i in range(counts[RANK]):
                run.micro(i, 4)
            run.stepper.flush()
            batches = [batch_of(r, i, 4) for r, n in enumerate(counts) for i in range(n)]
            reference.step(batches)
        run.stepper.flush()  # nothing is open anywhere
        same(run.parameters(), flat(reference.model.parameters()))
        assert run.stepper.stepped == 4


def case_weight_zero() -> None:
    """A last micro-batch of weight 0 and loss NaN, on one rank or on both; a whole window of it."""
    several: list[dict[str, Any]] = [
        {"on_nonfinite": "window"},
        {"ddp": {"find_unused_parameters": True}},
        {"accum_dtype": torch.float64},
    ]
    for options in several:
        for empty in ([1], [0, 1], []):
            run, reference = Run(2, **dict(options)), Reference()
            for first in range(0, 6, 2):
                run.micro(first, 4)
                is_empty = RANK in empty
                run.micro(first + 1, 3, 0 if is_empty else 3, float("nan") if is_empty else 1.0)
                reference.step(
                    [batch_of(r, first, 4) for r in range(RANKS)]
                    + [batch_of(r, first + 1, 3) for r in range(RANKS) if r not in empty]
                )
            same(run.parameters(), flat(reference.model.parameters()))
        before = run.parameters()
        run.micro(0, 3, 0)
        run.micro(0, 3, 0)
        assert run.stepper.stepped == 3 and (run.parameters() == before).all()


class Picks(torch.nn.Module):
    """Uses one of its three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 1) for _ in range(3))

    def forward(self, x: Tensor, which: int) -> Tensor:
        return self.layers[which](x)  # type: ignore[no-any-return]


def case_unused() -> None:
    """A parameter that one rank uses in one window, and one that none does."""
    for options in ({}, {"accum_dtype": torch.float64}):
        torch.manual_seed(1)
        ddp = DistributedDataParallel(Picks(), find_unused_parameters=True)
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1, weight_decay=0.5)
        stepper = Stepper(optimizer, 100, model=ddp, **options)
        before = [p.detach().clone() for p in ddp.parameters()]
        with stepper.micro():
            stepper.backward(ddp(torch.ones(1, 2), RANK).sum())
        stepper.flush()
        after = list(ddp.parameters())
        for i in range(4):
            assert (before[i] * 0.95 - 0.05 - after[i]).abs().max() < 1e-6
        assert all((before[i] == after[i]).all() for i in (4, 5))


def case_buffers_follow() -> None:
    """Statistics of BatchNorm are rank 0's when a window is over, whoever reduced its gradients."""
    for options in ({}, {"accum_dtype": torch.float64}):
        run = Run(2, bn=True, **options)
        for i in range(5):
            run.micro(i, 5)
            mine = run.plain[1].running_mean
            both = [torch.zeros_like(mine) for _ in range(RANKS)]
            dist.all_gather(both, mine)
            assert bool((both[0] == both[1]).all()) == (i % 2 == 1), (i, options)


def case_complex() -> None:
    """Buffers of complex gradients: what ranks use of them travels in the same tensor."""
    for options in ({}, {"accum_dtype": torch.float64}, {"on_nonfinite": "micro"}):
        layer = torch.nn.ParameterList([torch.ones(3, dtype=torch.complex64), torch.ones(2)])
        plain = Weighted(layer)
        ddp = DistributedDataParallel(plain)
        seen: list[Tensor] = []
        optimizer = torch.optim.SGD(plain.parameters(), 0.1)
        optimizer.register_step_pre_hook(
            lambda *_, plain=plain, seen=seen: seen.extend(p.grad for p in plain.parameters())
        )
        stepper = Stepper(optimizer, 2, model=ddp, max_norm=2.5, **options)
        for i in range(2):
            with stepper.micro():
                stepper.backward(ddp(3 + 4j * (1 + RANK) * (1 + i)).real)
        assert stepper.last_norm is not None
        same(stepper.last_norm.item(), (3 * (3**2 + 9**2) + 2 * 3**2) ** 0.5)
        factor = 2.5 / (stepper.last_norm.item() + 1e-6)
        assert (seen[0] - (3 + 9j) * factor).abs().max() < 1e-6, seen
        assert (seen[1] - 3 * factor).abs().max() < 1e-6, seen


class Weighted(torch.nn.Module):
    """Its parameters' gradients are the number it is called with, or its real part."""

    def __init__(self, layer: torch.nn.ParameterList) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, grad: complex) -> Tensor:
        z, x = self.layer
        return (z * grad.conjugate()).sum() + (x * grad.real).sum()


def case_skip() -> None:
    """All ranks skip, or drop, and back off alike when one alone has met inf."""
    kinds: list[Any] = [torch.amp.GradScaler]
    import fastloop

    if "GradScaler" in fastloop.__all__:
        kinds.append(fastloop.GradScaler)
    for kind in kinds:
        for choice in ("window", "micro"):
            for bad in range(RANKS):
                scaler = kind("cpu", init_scale=64.0)
                run = Run(2, scaler=scaler, on_nonfinite=choice)
                before = run.parameters()
                for i in range(2):
                    run.micro(i, 4, spoil=INF if bad == RANK and i == 0 else 1.0)
                assert scaler.get_scale() == 32.0
                assert (run.stepper.stepped, run.stepper.skipped) == (
                    (0, 1) if choice == "window" else (1, 0)
                )
                reference = Reference()
                if choice == "window":
                    assert (run.parameters() == before).all()
                else:
                    kept = [(r, i) for r in range(RANKS) for i in range(2) if (r, i) != (bad, 0)]
                    reference.step([batch_of(r, i, 4) for r, i in kept])
                    same(run.parameters(), flat(reference.model.parameters()))


def raises(text: str, call: Callable[[], Any]) -> float:
    """Both ranks must raise within seconds."""
    begun = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"rank {RANK} did not raise {text!r}")
    return time.monotonic() - begun


def case_unequal() -> None:
    """Unequal numbers of windows: all finish those they share, then all raise."""
    for options in ({}, {"accum_dtype": torch.float64}, {"bn": True}):
        for counts in ([3, 6], [6, 3], [0, 2], [9, 1]):
            for loader in (range, lambda n: iter(range(n))):
                run = Run(3, **options)
                took = raises(
                    "have a further window and the rest have none",
                    lambda run=run, n=counts[RANK], loader=loader: run.epoch(n, loader),
                )
                assert took < limit(60) and run.stepper.stepped == min(-(-n // 3) for n in counts)
    run, reference = Run(3), Reference()  # and go on
    run.epoch(6)
    reference.epoch([6, 6], 3)
    same(run.parameters(), flat(reference.model.parameters()))


def case_left() -> None:
    """One rank leaves its loop: the others hear of it, also in the middle of a window."""

    def leave_at(run: Run, at: int) -> None:
        for i in run.stepper.iterate(range(9)):
            if RANK == 0 and i == at:
                break
            run.micro(i, 4)

    for at in (0, 1, 3, 4, 8):
        run = Run(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the open window is discarded
            if RANK == 0:
                leave_at(run, at)
                raises("at the same point", lambda run=run: leave_at(run, 99))
            else:
                raises("1 of 2 ranks are out of the loop", lambda run=run, at=at: leave_at(run, at))
    for at in (1, 5):  # both leave: nothing is wrong
        run = Run(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for i in run.stepper.iterate(range(9)):
                if i == at:
                    break
                run.micro(i, 4)
        run.epoch(6)
        assert run.stepper.stepped == 2 + at // 3


def case_static_graph() -> None:
    run = Run(2, ddp={"static_graph": True})
    raises("static_graph=True", lambda: run.micro(0, 4))
    run, reference = (
        Run(lambda step: 1 if step == 0 else 3, ddp={"static_graph": True}),
        Reference(),
    )
    for first, end in ((0, 1), (1, 4), (4, 7)):
        for i in range(first, end):
            run.micro(i, 4)
        reference.step([batch_of(r, i, 4) for r in range(RANKS) for i in range(first, end)])
    same(run.parameters(), flat(reference.model.parameters()))


def case_flush_against_boundary() -> None:
    run = Run(2)
    run.micro(0, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = run.stepper.flush if RANK == 0 else lambda: run.micro(1, 4)
        raises("1 of 2 ranks are at the end of a window; 1 of 2 ranks are in flush()", call)


def case_dies() -> None:
    """A rank that dies in the middle ends the others by the process group's own error."""
    run = Run(2)
    run.micro(0, 4)
    dist.barrier()
    if RANK == 1:
        os._exit(0)
    begun = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run.micro(1, 4)
        except RuntimeError:
            pass
        else:
            raise AssertionError("did not raise")
    assert time.monotonic() - begun < limit(60)
    leave_ranks()


def case_resume() -> None:
    """state_dict at a boundary goes on exactly; in the middle of a window, that begins anew."""
    for options in ({}, {"accum_dtype": torch.float64}):
        whole = Run(4, **options)
        whole.epoch(10)
        for at in (4, 5, 8):
            run = Run(4, **options)
            sizes = sizes_of(RANK, 10)
            states: list[Any] = []
            for i in run.stepper.iterate(range(10)):
                run.micro(i, sizes[i])
                if i + 1 == at:
                    parts = (run.plain, run.optimizer, run.stepper)
                    states = [torch.utils._pytree.tree_map(copied, p.state_dict()) for p in parts]
            again = Run(4, **options)
            for part, state in zip(
                (again.plain, again.optimizer, again.stepper), states, strict=True
            ):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    part.load_state_dict(state)
                is_anew = part is again.stepper and at == 5
                assert [w.category for w in caught] == [RuntimeWarning] * is_anew
            for i in again.stepper.iterate(range(at, 10)):
                again.micro(i, sizes[i])
            is_exact = bool((again.parameters() == whole.parameters()).all())
            assert is_exact == (at != 5) and again.stepper.stepped == 3, (at, options)


def case_fsdp() -> None:
    """FSDP2: unequal weights, clipping, a loop left early, a last micro-batch of weight 0."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, model = init_device_mesh("cpu", (RANKS,)), model_of()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    stepper = Stepper(optimizer, 3, model=model, max_norm=0.05, on_nonfinite="window")
    reference = Reference()

    def epoch(n: int, stop: int, empty: int = -1) -> None:
        sizes = sizes_of(RANK, 5)
        for i in stepper.iterate(range(n)):
            with stepper.micro(weight=0 if i == empty else sizes[i]):
                stepper.backward(model(batch_of(RANK, i, sizes[i])).square().mean())
            if i == stop:
                break

    epoch(5, 5)
    reference.epoch([5, 5], 3, 0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the open window is discarded
        epoch(5, 1)
    epoch(3, 5, empty=2)
    reference.step([batch_of(r, i, sizes_of(r, 5)[i]) for r in range(RANKS) for i in (0, 1)], 0.05)
    same(flat(p.full_tensor() for p in model.parameters()), flat(reference.model.parameters()))


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


run_cases(globals())
