"""find_batch_size: the largest micro-batch that fits, the smallest that is as good as the fastest,
and what both mean for accumulation and the learning rate.

The search is over a sorted list of sizes and knows them by trials alone. A trial is a few full
steps of the user's; ranks agree on its outcome before any of them goes on. docs/see.md says how."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from fastloop.step.ranks import count_ranks, find_ranks, reduce_max
from fastloop.tools.batch_size.learning_rate import learning_rate_rule
from fastloop.tools.batch_size.trials import Step, Trial, TrialRunner
from fastloop.tools.user_step import check_step

_GOOD_ENOUGH = 0.95  # of the best throughput
_LARGEST = 8192  # micro-batch that is tried if nothing else ends the search


@dataclass(frozen=True)
class BatchPlan:
    """What ``find_batch_size`` suggests. ``print(plan)`` shows it with its evidence.

    Attributes:
        micro_batch: samples a rank loads at a time: the ``batch_size`` of its loader.
        accumulate: micro-batches in an optimizer step, for ``Stepper(accumulate=)``.
        ranks: processes that train together.
        largest: the largest micro-batch that fits.
        is_limited: whether a larger one was tried, and did not fit.
        rule: what a changed effective batch means for the learning rate; empty if it is unchanged.
        trials: all that was measured, by size.
    """

    micro_batch: int
    accumulate: int
    ranks: int
    largest: int
    is_limited: bool
    rule: str
    trials: tuple[Trial, ...]

    @property
    def effective_batch(self) -> int:
        """Samples in an optimizer step, over all ranks."""
        return self.micro_batch * self.accumulate * self.ranks

    def __str__(self) -> str:
        over = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        ends = "larger ones do not fit" if self.is_limited else "no larger one was tried"
        lines = [
            f"batch_size={self.micro_batch}, Stepper(optimizer, accumulate={self.accumulate}): "
            f"{self.effective_batch} samples in a step{over}",
            self.rule or "the effective batch is unchanged, so the learning rate stays",
            f"{self.largest} is the largest micro-batch that fits; {ends}",
            f"{'size':>8} {'ms a step':>10} {'samples/s':>10} {'peak':>10}",
        ]
        return "\n".join([*lines, *map(_describe, self.trials)])


def _describe(trial: Trial) -> str:
    if trial.seconds is None:
        return f"{trial.size:>8} {trial.why}"
    peak = "n/a" if trial.peak_bytes is None else f"{trial.peak_bytes / 2**20:,.0f} MiB"
    return f"{trial.size:>8} {trial.seconds * 1e3:>10,.2f} {trial.samples_per_s:>10,.0f} {peak:>10}"


def find_batch_size(
    step_fn: Step,
    *state: Any,
    batch_size: int | None = None,
    keep: str | None = "effective",
    lo: int = 1,
    hi: int | None = None,
    margin: float = 0.08,
    trials: int = 3,
) -> BatchPlan:
    """Find the micro-batch to train with: the smallest within 5 % of the best throughput.

    Runs full steps of several sizes, and then puts everything back: parameters, gradients, buffers,
    optimizer, scaler, scheduler, and all random generators. ::

        def step(n):
            loss_fn(model(images[:n]), labels[:n]).backward()
            optimizer.step()
            optimizer.zero_grad()

        plan = fastloop.find_batch_size(step, model, optimizer, batch_size=512)
        print(plan)
        loader = fastloop.DataLoader(dataset, plan.micro_batch, shuffle=True)
        stepper = fastloop.Stepper(optimizer, plan.accumulate)

    A size does not fit if a step raises ``torch.OutOfMemoryError``, ``MemoryError`` or the
    RuntimeError of torch's allocator of the CPU, if the allocator has to give back its cache to
    find room, or if the host has not the memory that smaller steps have shown it to need. SYNC:
    every step is waited for.

    Every rank of a process group calls this, with equal arguments; the slowest and the fullest rank
    count. DDP modules in ``state`` send nothing meanwhile, so the time of reductions is not in the
    plan; step_fn itself must not communicate.

    Args:
        step_fn: is called with a number of samples n, and runs one step with them: forward,
            backward, the optimizer's step. Samples should be the largest there are (the longest
            sequences), and n of them, however large n is.
        state: what the step changes: modules, optimizers, a scaler, schedulers, a Stepper,
            torch.Generators. At least one module and one optimizer.
        batch_size: samples in an optimizer step, over all ranks, that the learning rate was chosen
            for. May be left out with ``keep=None`` alone.
        keep: "effective" keeps batch_size as it is, by accumulation: micro-batches are divisors of
            it. With None the micro-batch is the effective batch, nothing is accumulated, and
            ``plan.rule`` says what that means for the learning rate; nothing is changed.
        lo: the smallest micro-batch that is tried.
        hi: the largest; by default all of batch_size, or 8 192 with ``keep=None``.
        margin: the share of the memory that is left for this process which no step may touch.
        trials: timed steps for each size, after one to warm up.

    Raises:
        TypeError, ValueError: an argument is not one of the above; the message says which.
        torch.OutOfMemoryError: not even the smallest micro-batch fits.
        RuntimeError: step_fn took no optimizer step; another rank's step_fn has raised.
    """
    ranks = count_ranks()
    error: Exception | None = None
    try:
        sizes = _candidates(batch_size, keep, lo, hi, ranks)
        _check_trials(step_fn, state, margin, trials)
        runner = TrialRunner(step_fn, state, margin, trials)
    except (TypeError, ValueError) as found:
        error = found
    _agree([batch_size or 0, keep is None, lo, hi or 0, margin, trials], error)
    with runner:
        tried = _search(sizes, runner.run)
    return _make_plan(tried, ranks, batch_size, keep, state)


# ---- arguments


def _candidates(
    batch_size: int | None, keep: str | None, lo: int, hi: int | None, ranks: int
) -> Sequence[int]:
    """The micro-batches that may be tried, sorted."""
    if keep not in ("effective", None):
        raise ValueError(f"keep is {keep!r}; pass 'effective', or None to let the batch change")
    _check_number(lo, "lo", 1)
    if hi is not None:
        _check_number(hi, "hi", lo)
    if batch_size is not None:
        _check_number(batch_size, "batch_size", 1)
    if keep is None:
        return range(lo, (max(_LARGEST, lo) if hi is None else hi) + 1)
    if batch_size is None:
        raise TypeError(
            "batch_size is missing: keep='effective' needs the samples in an optimizer step that "
            "are to stay; pass batch_size=, or keep=None"
        )
    if batch_size % ranks:
        raise ValueError(
            f"batch_size is {batch_size}, which {ranks} ranks cannot share equally; pass a "
            f"multiple of {ranks}"
        )
    share = batch_size // ranks
    top = share if hi is None else min(hi, share)
    sizes = [n for n in range(lo, top + 1) if share % n == 0]
    if not sizes:
        raise ValueError(
            f"batch_size is {batch_size}: no micro-batch from lo={lo} to hi={top} divides the "
            f"{share} samples of a rank; widen lo and hi, or pass keep=None"
        )
    return sizes


def _check_number(value: Any, name: str, least: int) -> None:
    try:
        if isinstance(value, bool):
            raise TypeError
        operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; pass an int, at least {least}") from None
    if value < least:
        raise ValueError(f"{name} is {value}; pass at least {least}")


def _check_trials(step_fn: Any, state: Sequence[Any], margin: Any, trials: Any) -> None:
    check_step("step_fn", step_fn, "the number of samples")
    for kind, name in ((Module, "module"), (Optimizer, "optimizer")):
        if not any(isinstance(one, kind) for one in state):
            raise TypeError(
                f"state has no {name}: pass all that step_fn changes, "
                "find_batch_size(step_fn, model, optimizer, ...), so that it can be put back"
            )
    _check_number(trials, "trials", 1)
    if isinstance(margin, bool) or not isinstance(margin, int | float):
        raise TypeError(f"margin is {margin!r}; pass a share of the memory, such as 0.08")
    if not 0 <= margin < 1:
        raise ValueError(f"margin is {margin}; pass a share of the memory, at least 0, below 1")
    _check_modules([one for one in state if isinstance(one, Module)])


def _check_modules(modules: list[Module]) -> None:
    """A trial may fail on one rank alone, so none of its modules may wait for the others."""
    parts = [part for module in modules for part in module.modules()]
    if find_ranks(modules).has_shards:
        raise ValueError(
            "state has a module under FSDP, whose forward waits for the other ranks; find the "
            "batch size of the module before it is sharded, on one rank"
        )
    for part in parts:
        if isinstance(part, DistributedDataParallel) and part.static_graph:
            raise ValueError(
                "state has a DistributedDataParallel(static_graph=True), which must reduce its "
                "first backward; pass ddp.module instead, and call that in step_fn"
            )
        if isinstance(part, torch.nn.SyncBatchNorm) and count_ranks() > 1:
            raise ValueError(
                "state has a SyncBatchNorm, whose forward waits for the other ranks; find the "
                "batch size before convert_sync_batchnorm()"
            )


def _agree(numbers: list[float], error: Exception | None) -> None:
    """Raises on every rank if one has an error, or they have been given different numbers. SYNC."""
    own = [0.0] * len(numbers) if error else [float(number) for number in numbers]
    has_error, *largest = reduce_max([error is not None, *own, *(-number for number in own)])
    if error is not None:
        raise error
    smallest = [-number for number in largest[len(own) :]]
    if has_error or largest[: len(own)] != smallest:
        raise ValueError(
            "the ranks call find_batch_size with different arguments, or one of them has refused "
            "its own; pass the same batch_size, keep, lo, hi, margin and trials on every rank"
        )


# ---- the search


def _search(sizes: Sequence[int], run: Callable[[int], Trial]) -> list[Trial]:
    """Trials, by size, among which are the largest that fits and the smallest that is good.

    Each trial is decided by those before it alone, which are the same on every rank."""
    tried: dict[int, Trial] = {}  # by place in sizes

    def fits(at: int) -> bool:
        tried[at] = run(sizes[at])
        return tried[at].fits

    last, fails = -1, len(sizes)
    while last < fails - 1:
        if fails < len(sizes):  # between what fits and what does not
            at = (last + fails) // 2
        elif last < 0:
            at = 0
        else:  # up to twice as large
            at = max(last + 1, bisect_right(sizes, 2 * sizes[last]) - 1)
        if fits(at):
            last = at
        else:
            fails = at
    if last < 0:
        raise torch.OutOfMemoryError(
            f"not even a micro-batch of {sizes[0]} fits: {tried[0].why}. Make the model or the "
            "samples smaller, or use a lower precision or activation checkpointing"
        )
    while (between := _next_smaller(sizes, tried)) is not None:
        fits(between)
    return [trial for _, trial in sorted(tried.items())]


def _next_smaller(sizes: Sequence[int], tried: dict[int, Trial]) -> int | None:
    """Where a size may lie that is smaller than the smallest good one, and good; None if all are
    tried, or the rest of the gap is no larger than what good means."""
    good = min(at for at, trial in tried.items() if _is_good(trial, tried.values()))
    worse = max((at for at in tried if at < good), default=good)
    gap = sizes[good] - sizes[worse]
    if good - worse < 2 or gap <= (1 - _GOOD_ENOUGH) * sizes[good]:
        return None
    return (good + worse) // 2


def _is_good(trial: Trial, trials: Iterable[Trial]) -> bool:
    best = max(one.samples_per_s for one in trials)
    return trial.fits and trial.samples_per_s >= _GOOD_ENOUGH * best


def _make_plan(
    tried: list[Trial], ranks: int, batch_size: int | None, keep: str | None, state: Sequence[Any]
) -> BatchPlan:
    size = next(trial.size for trial in tried if _is_good(trial, tried))
    accumulate, rule = 1, ""
    if keep is None:
        if batch_size is not None and size * ranks != batch_size:
            optimizers = [one for one in state if isinstance(one, Optimizer)]
            rule = learning_rate_rule(optimizers, batch_size, size * ranks)
    else:
        assert batch_size is not None
        accumulate = batch_size // (size * ranks)
    return BatchPlan(
        micro_batch=size,
        accumulate=accumulate,
        ranks=ranks,
        largest=max(trial.size for trial in tried if trial.fits),
        is_limited=not tried[-1].fits,
        rule=rule,
        trials=tuple(tried),
    )
