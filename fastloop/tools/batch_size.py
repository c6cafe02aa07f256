"""find_batch_size(): the smallest micro-batch that is as good as the fastest. docs/see.md says how
sizes are chosen and tried.

Out of memory is told by an exception's type; torch's allocator of the CPU raises a bare
RuntimeError, which is told by its text. Ranks talk between trials, not inside: a rank that fails on
its own keeps nobody waiting.
"""

from __future__ import annotations

import gc
import io
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn import Module, SyncBatchNorm
from torch.optim import Optimizer

from fastloop.base import checks
from fastloop.base.machine import available_bytes, own_bytes, reset_own_peak
from fastloop.base.torch_parts import TorchScaler, difference
from fastloop.step.ranks import Ranks, count_ranks, reduce_max
from fastloop.tools import text
from fastloop.tools.memory import memory

_Step = Callable[[int], object]

_GOOD_ENOUGH = 0.95  # of the best throughput
_LARGEST = 8192  # micro-batch that is tried if nothing else ends the search
_FITS, _NO_ROOM, _RAISED = range(3)  # outcomes on one rank; the largest counts for all ranks


@dataclass(frozen=True)
class Trial:
    """Full steps with one micro-batch, on all ranks.

    Attributes:
        size: samples of a micro-batch.
        seconds: the median time of a step, on the slowest rank; None if it does not fit.
        peak_bytes: the largest memory of a rank: reserved on its device, or what the process grew
            by on the CPU. None if unknown.
        why: why it does not fit; empty if it does.
    """

    size: int
    seconds: float | None = None
    peak_bytes: int | None = None
    why: str = ""

    @property
    def fits(self) -> bool:
        """True if all ranks ran the steps."""
        return not self.why

    @property
    def samples_per_s(self) -> float:
        """Samples a second of one rank; 0 if the size does not fit."""
        return 0.0 if self.seconds is None else self.size / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class BatchPlan:
    """The suggestion of ``find_batch_size``. ``print(plan)`` shows it with its evidence.

    Attributes:
        micro_batch: samples a rank loads at a time: the ``batch_size`` of its loader.
        accumulate: micro-batches in an optimizer step, for ``Stepper(accumulate=)``.
        ranks: processes that train together.
        largest: the largest micro-batch tried that fits.
        is_limited: whether a larger one was tried, and did not fit.
        rule: one line on the learning rate if the effective batch changes; empty otherwise.
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
        rows = [["size", "a step", "samples/s", "peak", ""]]
        for trial in self.trials:
            speed, peak = f"{trial.samples_per_s:,.0f}", text.size(trial.peak_bytes)
            rows.append([str(trial.size), text.seconds(trial.seconds), speed, peak, trial.why])
        lines = [
            f"batch_size={self.micro_batch}, Stepper(optimizer, accumulate={self.accumulate}): "
            f"{self.effective_batch} samples in a step{over}",
            self.rule or "the effective batch is unchanged, so the learning rate stays",
            f"{self.largest} is the largest micro-batch that fits; {ends}",
        ]
        return "\n".join([*lines, *text.table(rows)])


def find_batch_size(
    step_fn: Callable[[int], object],
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

    A size does not fit if a step raises ``torch.OutOfMemoryError``, ``MemoryError`` or the CPU
    allocator's RuntimeError, or if the host lacks the memory that smaller steps have shown it to
    need. SYNC: every step is waited for.

    Every rank of a process group calls this, with equal arguments; the slowest and the fullest rank
    count. DDP modules in ``state`` send nothing meanwhile, so the time of reductions is not in the
    plan; step_fn itself must not communicate.

    Args:
        step_fn: is called with a number of samples n, and runs one step with them: forward,
            backward, the optimizer's step. Samples should be the largest there are (the longest
            sequences), and n of them, however large n is.
        state: the objects that the step changes: modules, optimizers, a scaler, schedulers, a
            Stepper, torch.Generators. At least one module and one optimizer. What their
            ``state_dict()`` holds, buffers and gradients are put back.
        batch_size: samples in an optimizer step, over all ranks, that the learning rate was chosen
            for. May be left out with ``keep=None`` alone.
        keep: "effective" keeps batch_size by accumulation: micro-batches are divisors of it. With
            None the micro-batch is the effective batch, nothing is accumulated, and ``plan.rule``
            tells what that means for the learning rate.
        lo: the smallest micro-batch that is tried; the next ones are up to twice as large each.
        hi: the largest; by default all of batch_size, or 8 192 with ``keep=None``.
        margin: the share of the memory left for this process that no step may touch.
        trials: timed steps for each size, after one to warm up.

    Raises:
        TypeError, ValueError: an argument is not one of the above; the message says which.
        torch.OutOfMemoryError: not even the smallest micro-batch fits.
        RuntimeError: step_fn took no optimizer step; another rank has raised.
    """
    ranks = count_ranks()
    tried: list[Trial] = []
    with ExitStack() as undo:
        try:
            sizes = choose_sizes(batch_size, keep, lo, hi, ranks)
            runner = _Trials(undo, step_fn, state, margin, trials)
        except (TypeError, ValueError):
            _agree(_RAISED, 0, 0.0, 0.0)  # the other ranks wait in their first trial
            raise
        for size in sizes:
            tried.append(runner.run(size))
            if not tried[-1].fits:
                break
    return _make_plan(tried, ranks, batch_size, keep)


def choose_sizes(
    batch_size: int | None, keep: str | None, lo: int, hi: int | None, ranks: int
) -> list[int]:
    """Return the micro-batches to try, each up to twice as large as the one before."""
    checks.read_choice("keep", keep, ("effective", None))
    checks.read_int("lo", lo, 1)
    top = checks.read_optional_int("hi", hi, lo) or max(_LARGEST, lo)
    if batch_size is not None or keep is not None:
        remedy = "with keep='effective' it is the samples in an optimizer step"
        checks.read_int("batch_size", batch_size, 1, remedy=remedy)
    sizes: Sequence[int] = range(lo, top + 1)
    if keep is not None and batch_size is not None:
        share = batch_size // ranks
        last = share if hi is None else min(hi, share)
        sizes = [n for n in range(lo, last + 1) if batch_size % (n * ranks) == 0]
        if not sizes:
            rule = f"divisible by {ranks} ranks x a micro-batch in [{lo}, {last}]"
            raise ValueError(checks.make_message("batch_size", rule, batch_size))
    at, chosen = 0, [sizes[0]]
    while at < len(sizes) - 1:
        at = max(at + 1, bisect_right(sizes, 2 * sizes[at]) - 1)
        chosen.append(sizes[at])
    return chosen


def _check_state(state: Sequence[Any], modules: Sequence[Module], ranks: Ranks) -> None:
    if not modules or not any(isinstance(one, Optimizer) for one in state):
        raise TypeError(
            "state must have a module and an optimizer, got "
            f"{', '.join(type(one).__name__ for one in state) or 'nothing'} (pass all that step_fn "
            "changes: find_batch_size(step_fn, model, optimizer, ...))"
        )
    # A trial may fail on one rank alone, so the forward of a module must not wait for other ranks.
    waiting = ["a module under FSDP"] if ranks.has_shards else []
    for part in (part for module in modules for part in module.modules()):
        if getattr(part, "static_graph", False):
            waiting.append("DistributedDataParallel(static_graph=True)")
        if isinstance(part, SyncBatchNorm) and count_ranks() > 1:
            waiting.append("a SyncBatchNorm")
    if waiting:
        raise ValueError(
            f"state must have modules that wait for no other rank, got {waiting[0]} (find the "
            "batch size before the module is wrapped or converted)"
        )


def _make_plan(
    tried: list[Trial], ranks: int, batch_size: int | None, keep: str | None
) -> BatchPlan:
    fitting = [trial for trial in tried if trial.fits]
    if not fitting:
        raise torch.OutOfMemoryError(
            f"not even a micro-batch of {tried[0].size} fits: {tried[0].why}. Make the model or "
            "the samples smaller, or use a lower precision or activation checkpointing"
        )
    best = max(trial.samples_per_s for trial in fitting)
    size = next(t.size for t in fitting if t.samples_per_s >= _GOOD_ENOUGH * best)
    accumulate, rule = 1, ""
    if keep is not None and batch_size is not None:
        accumulate = batch_size // (size * ranks)
    elif batch_size is not None and size * ranks != batch_size:
        ratio = size * ranks / batch_size
        rule = (
            f"the effective batch goes from {batch_size} to {size * ranks}: learning rates are "
            f"usually × {ratio:g} with SGD, × {math.sqrt(ratio):.4g} with Adam; nothing was changed"
        )
    largest, is_limited = fitting[-1].size, not tried[-1].fits
    return BatchPlan(size, accumulate, ranks, largest, is_limited, rule, tuple(tried))


# ---- trials


class _Trials:
    """Runs trials. SYNC.

    Args:
        undo: gets functions that put back the changes of steps.
    """

    def __init__(
        self, undo: ExitStack, step_fn: _Step, state: Sequence[Any], margin: float, steps: int
    ) -> None:
        modules = [one for one in state if isinstance(one, Module)]
        self._ranks = Ranks(modules)
        _check_state(state, modules, self._ranks)
        checks.check_callable("step_fn", step_fn, "a function of the number of samples")
        checks.read_number("margin", margin, 0.0, 0.9)
        checks.read_int("trials", steps, 1)
        self._step_fn, self._state, self._margin, self._steps = step_fn, state, margin, steps
        devices = {p.device for module in modules for p in module.parameters()}
        self._devices = sorted((d for d in devices if d.type != "cpu"), key=str)
        self._bytes_a_sample = 0.0  # in the fullest trial on this rank
        self._stepped: list[Optimizer] = []
        undo.callback(self._release)  # the last entry is undone first
        undo.callback(keep_random_state())
        # Loading the state of a scheduler or Stepper may reach into optimizers and modules.
        for one in sorted(state, key=lambda one: not isinstance(one, (Module, Optimizer))):
            undo.callback(_keep_state(one))
        for one in state:
            if isinstance(one, Optimizer):
                hook = one.register_step_post_hook(lambda one, *_: self._stepped.append(one))
                undo.callback(hook.remove)
        for device in self._devices:
            use = memory(device)
            if use.limit_fraction is not None and use.total_bytes:
                undo.callback(memory, device, limit_fraction=use.limit_fraction)
                reachable = ((use.reserved_bytes or 0) + (use.free_bytes or 0)) / use.total_bytes
                memory(device, limit_fraction=min(reachable, use.limit_fraction) * (1 - margin))

    def run(self, size: int) -> Trial:
        """Try one size. SYNC: waits for the steps, and for the other ranks."""
        self._release()
        seconds, peak, why, error = 0.0, None, "", None
        try:
            needed = int(self._bytes_a_sample * size)
            if not self._devices and needed > available_bytes() * (1 - self._margin):
                # The kernel would kill the process; devices refuse by themselves.
                have = f"needs {text.size(needed)} judged by smaller ones, more than there is"
                raise MemoryError(have)
            with self._ranks.silent():
                seconds, peak = self._measure(size)
        except Exception as raised:
            is_memory = isinstance(raised, (torch.OutOfMemoryError, MemoryError))
            if is_memory or "DefaultCPUAllocator: " in str(raised):
                line = str(raised).partition("\n")[0]
                why = f"{type(raised).__name__}: {line}"
            else:
                error = raised
        outcome = _RAISED if error else _NO_ROOM if why else _FITS
        worst, slowest, fullest = _agree(outcome, size, seconds, peak or 0)
        if error is not None:
            raise error
        if worst == _RAISED:
            raise RuntimeError("find_batch_size() raised on another rank; see the error there")
        if worst == _NO_ROOM:
            return Trial(size, why=why or "out of memory on another rank")
        self._bytes_a_sample = max(self._bytes_a_sample, (peak or 0) / size)
        return Trial(size, slowest, None if peak is None else int(fullest))

    def _measure(self, size: int) -> tuple[float, int | None]:
        """Return the seconds of a step and its peak of memory on this rank."""
        with explaining_step(f"find_batch_size() called step_fn({size})"):
            self._time_step(size)  # the optimizer makes its state, libraries their workspaces
        seconds = median([self._time_step(size) for _ in range(self._steps)])
        if not self._stepped and not any(isinstance(one, TorchScaler) for one in self._state):
            raise RuntimeError(
                f"step_fn({size}) must step an optimizer of state, but none has stepped (let it "
                "run a whole step, optimizer.step() included)"
            )
        if self._devices:
            return seconds, max(map(torch.accelerator.max_memory_reserved, self._devices))
        peak = own_bytes("VmHWM")
        if peak is None or self._before is None:
            return seconds, None
        return seconds, max(0, peak - self._before)

    def _time_step(self, size: int) -> float:
        begin = perf_counter()
        self._step_fn(size)
        for device in self._devices:
            torch.accelerator.synchronize(device)
        return perf_counter() - begin

    def _release(self) -> None:
        """Free garbage and cached memory, and measure the peak from here on. SYNC."""
        gc.collect()
        for device in self._devices:
            with torch.accelerator.device_index(device.index):
                torch.accelerator.empty_cache()
                torch.accelerator.reset_peak_memory_stats(device)
        self._before = None if self._devices else reset_own_peak()


def _agree(outcome: int, size: int, seconds: float, peak: float) -> tuple[float, float, float]:
    """Return the worst outcome, time and memory of all ranks, which try the same size. SYNC."""
    worst, slowest, fullest, largest, smallest = reduce_max([outcome, seconds, peak, size, -size])
    if worst != _RAISED and largest != -smallest:
        raise ValueError(
            "the ranks call find_batch_size() with different arguments; pass the same batch_size, "
            "keep, lo and hi on every rank"
        )
    return worst, slowest, fullest


# ---- state that is put back. Copies lie in host memory, to leave a device what it has.


def _keep_state(one: Any) -> Callable[[], object]:
    """Return a function that gives an object the state that it has now. SYNC."""
    if isinstance(one, torch.Generator):
        return partial(one.set_state, one.get_state())
    if not all(callable(getattr(one, name, None)) for name in ("state_dict", "load_state_dict")):
        remedy = "pass modules, optimizers, scalers, schedulers and torch.Generators"
        raise TypeError(checks.make_message("state", "objects with a state_dict()", one, remedy))
    is_module = isinstance(one, Module)
    buffers = dict(one.named_buffers()) if is_module else {}  # some are not part of the state
    parameters = list(one.parameters()) if is_module else []
    grads = [parameter.grad for parameter in parameters]
    saved = io.BytesIO()
    torch.save((one.state_dict(), buffers, grads), saved)

    def restore() -> None:
        saved.seek(0)
        state, old_buffers, old_grads = torch.load(saved, "cpu", weights_only=False)
        one.load_state_dict(state)
        for name, old in old_buffers.items():
            one.get_buffer(name).copy_(old)
        for parameter, grad, old in zip(parameters, grads, old_grads, strict=True):
            parameter.grad = grad
            if grad is not None:
                grad.copy_(old)
        if isinstance(one, TorchScaler) and one.is_enabled() and not difference("scaler"):
            one._per_optimizer_states.clear()  # a step that failed had unscaled its gradients

    return restore


def keep_random_state() -> Callable[[], None]:
    """Return a function that puts back the generators of Python, NumPy and torch devices. SYNC."""
    undo = ExitStack()
    undo.callback(random.setstate, random.getstate())
    undo.callback(np.random.set_state, np.random.get_state())
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    module: Any = accelerator and torch.get_device_module(accelerator)
    if hasattr(module, "get_rng_state_all"):
        undo.callback(module.set_rng_state_all, module.get_rng_state_all())
    return undo.close


@contextmanager
def explaining_step(call: str) -> Iterator[None]:
    """Add to an error of a wrong argument how the step is called; for the first call of a step.

    Args:
        call: the call, which begins the message.
    """
    try:
        yield
    except (TypeError, AttributeError) as error:
        kind = TypeError if isinstance(error, TypeError) else AttributeError
        raise kind(
            f"{call}; it raised {type(error).__name__}: {error}. find_batch_size() calls its step "
            "with a number of samples, tune() with a batch of the loader"
        ) from error
