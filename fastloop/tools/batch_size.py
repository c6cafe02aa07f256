"""find_batch_size(): the smallest micro-batch whose throughput is close to the best.
docs/internals/tools.md says how sizes are chosen and tried.

The type of an error tells whether memory ran out. The CPU allocator of torch raises a bare
RuntimeError, so the error's text is read as well. Ranks communicate between attempts and never
during an attempt, so a rank that fails alone keeps no rank waiting.
"""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.nn import Module, SyncBatchNorm
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from fastloop.base import checks
from fastloop.base.machine import available_bytes, own_bytes, reset_own_peak
from fastloop.base.shown import repr_html
from fastloop.compat.torch_parts import TorchScaler, difference
from fastloop.step.ranks import Ranks, count_ranks, reduce_max
from fastloop.tools import text
from fastloop.tools.memory import memory
from fastloop.tools.user_step import explaining_step, keep_random_state, keep_state

_GOOD_ENOUGH = 0.95  # a share of the best throughput
_LARGEST = 8192  # the largest micro-batch that is tried if neither batch_size nor hi limits it


class Attempt(NamedTuple):
    """The measurement of full steps with one size of micro-batch, on all ranks.

    Attributes:
        size: the number of samples in the micro-batch.
        seconds: the median time of a step, on the slowest rank; None if the size does not fit.
        peak_bytes: the memory of the fullest rank: memory reserved on the rank's device, or, on the
            CPU, the growth of the process. None if unknown.
        why: why the size does not fit; empty if the size fits.
    """

    size: int
    seconds: float | None = None
    peak_bytes: int | None = None
    why: str = ""

    @property
    def samples_per_s(self) -> float:
        """Samples that one rank trains on in a second; 0 if the size does not fit."""
        return 0.0 if self.seconds is None else self.size / max(self.seconds, 1e-9)


class BatchPlan(NamedTuple):
    """The suggestion of ``find_batch_size``. ``print(plan)`` shows the suggestion and the evidence.

    Attributes:
        micro_batch: samples that a rank loads at a time: the ``batch_size`` of the rank's loader.
        accumulate: micro-batches in an optimizer step, for ``Stepper(accumulate=)``.
        ranks: the number of processes that train together.
        largest: the largest micro-batch that was tried and fits.
        is_limited: whether a larger micro-batch was tried and did not fit.
        rule: one line on the learning rate if the effective batch changes; empty otherwise.
        attempts: the measurement of each size, the smallest size first.
    """

    micro_batch: int
    accumulate: int
    ranks: int
    largest: int
    is_limited: bool
    rule: str
    attempts: tuple[Attempt, ...]

    def _repr_html_(self) -> str:
        return repr_html(self)

    @property
    def effective_batch(self) -> int:
        """The number of samples in an optimizer step, over all ranks."""
        return self.micro_batch * self.accumulate * self.ranks

    def __str__(self) -> str:
        ends = "larger sizes do not fit" if self.is_limited else "no larger size was tried"
        over = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        lines = [
            f"batch_size={self.micro_batch}, Stepper(optimizer, accumulate={self.accumulate}): "
            f"{self.effective_batch} samples in a step{over}",
            self.rule or "the effective batch is unchanged, so the learning rate stays",
            f"{self.largest} is the largest micro-batch that fits; {ends}",
        ]
        rows = [["size", "a step", "samples/s", "peak", ""]]
        for attempt in self.attempts:
            speed, peak = f"{attempt.samples_per_s:,.0f}", text.size(attempt.peak_bytes)
            rows.append(
                [str(attempt.size), text.seconds(attempt.seconds), speed, peak, attempt.why]
            )
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

    Runs full steps of several sizes and restores everything afterwards: parameters, gradients,
    buffers, optimizer, scaler, scheduler, and all random generators. For example:

        def step(n):
            loss_fn(model(images[:n]), labels[:n]).backward()
            optimizer.step()
            optimizer.zero_grad()

        plan = fastloop.find_batch_size(step, model, optimizer, batch_size=512)
        print(plan)
        loader = fastloop.DataLoader(dataset, plan.micro_batch, shuffle=True)
        stepper = fastloop.Stepper(optimizer, plan.accumulate)

    A size does not fit if a step raises ``torch.OutOfMemoryError``, ``MemoryError`` or the CPU
    allocator's RuntimeError, or if smaller steps show that the host lacks memory. SYNC: the host
    waits for every step.

    If there are several ranks, every rank must call this with equal arguments; the slowest rank's
    time and the fullest rank's memory count. DDP modules in ``state`` send nothing during the
    steps, so the plan leaves out the time of reductions. step_fn must not communicate.

    Args:
        step_fn: a function of a number of samples n that runs one step with n samples: forward,
            backward, the optimizer's step. Take the largest samples that your data have (for
            example, the longest sequences), and exactly n samples for any n.
        state: the objects that the step changes: modules, optimizers, a scaler, schedulers, a
            Stepper, torch.Generators; at least one module and one optimizer. Each object's
            ``state_dict()``, buffers and gradients are restored.
        batch_size: the samples in an optimizer step, over all ranks; required unless keep is None.
        keep: "effective" keeps batch_size by accumulation, so micro-batches are divisors of
            batch_size. None makes the micro-batch the effective batch without accumulation, and
            ``plan.rule`` tells how the learning rate usually changes.
        lo: the smallest micro-batch that is tried. If the divisors allow, each further size is at
            most twice the size before.
        hi: the largest micro-batch; by default a rank's part of batch_size, or 8 192 without keep.
        margin: the share, from 0 to 0.9, of the available memory that no step may use.
        trials: the number of timed steps for each size, after one step to warm up.

    Raises:
        TypeError, ValueError: an argument is wrong; the message names the argument.
        torch.OutOfMemoryError: not even the smallest micro-batch fits.
        RuntimeError: step_fn took no optimizer step, or a different rank raised an error.
    """
    ranks, tried = count_ranks(), list[Attempt]()
    with ExitStack() as undo:
        try:
            sizes = choose_sizes(batch_size, keep, lo, hi, ranks)
            runner = _Runner(undo, step_fn, state, margin, trials)
        except (TypeError, ValueError):
            reduce_max([True, 0, 0, 0, 0, 0])  # or ranks in their first attempt would wait forever
            raise
        show = undo.enter_context(text.progress("find_batch_size", len(sizes)))
        for size in sizes:
            show(f"micro-batch {size}")
            tried.append(runner.run(size))
            if tried[-1].why:
                break
    return _make_plan(tried, ranks, batch_size, keep)


def choose_sizes(
    batch_size: int | None, keep: str | None, lo: int, hi: int | None, ranks: int
) -> list[int]:
    """Return the micro-batches to try: each is the largest up to twice the size before, or else the
    next larger one."""
    checks.read_choice("keep", keep, ("effective", None))
    checks.read_int("lo", lo, 1)
    last = checks.read_optional_int("hi", hi, lo) or max(_LARGEST, lo)
    whole = 0  # divisible by every size
    if batch_size is not None or keep is not None:
        checked = checks.read_int("batch_size", batch_size, 1, remedy="or None, with keep=None")
        if keep is not None:
            whole, last = checked, min(hi or checked, checked // ranks)
    sizes = [n for n in range(lo, last + 1) if whole % (n * ranks) == 0]
    rule = f"divisible by {ranks} ranks x a micro-batch in [{lo}, {last}]"
    checks.check_value("batch_size", batch_size, sizes, rule)
    chosen = sizes[:1]
    while larger := [n for n in sizes if n > chosen[-1]]:
        chosen.append(max((n for n in larger if n <= 2 * chosen[-1]), default=larger[0]))
    return chosen


def _make_plan(tried: list[Attempt], ranks: int, batch: int | None, keep: str | None) -> BatchPlan:
    fitting = [attempt for attempt in tried if not attempt.why]
    if not fitting:
        fault = f"not even a micro-batch of {tried[0].size} fits: {tried[0].why}"
        raise torch.OutOfMemoryError(f"{fault}; make the model or the samples smaller")
    best = max(attempt.samples_per_s for attempt in fitting)
    size = next(t.size for t in fitting if t.samples_per_s >= _GOOD_ENOUGH * best)
    accumulate, rule = 1, ""
    if keep is not None and batch is not None:
        accumulate = batch // (size * ranks)
    elif batch is not None and size * ranks != batch:
        ratio = size * ranks / batch
        rates = f"learning rates are usually × {ratio:g} with SGD, × {ratio**0.5:.4g} with Adam"
        rule = f"the effective batch goes from {batch} to {size * ranks}: {rates}"
        rule += "; nothing was changed"
    is_limited = bool(tried[-1].why)
    return BatchPlan(size, accumulate, ranks, fitting[-1].size, is_limited, rule, tuple(tried))


# ---- attempts


class _Runner:
    """Makes attempts. SYNC.

    Args:
        undo: collects functions that restore everything that steps change.
    """

    def __init__(self, undo: ExitStack, step: Any, state: Any, margin: float, trials: int) -> None:
        modules = [one for one in state if isinstance(one, Module)]
        self._ranks = Ranks(modules)
        if not modules or not any(isinstance(one, Optimizer) for one in state):
            got = ", ".join(type(one).__name__ for one in state) or "nothing"
            raise TypeError(f"state must have a module and an optimizer, got {got} (pass both)")
        # If an attempt fails on one rank alone, a forward that waits for this rank would hang.
        parts = [part for module in modules for part in module.modules() if count_ranks() > 1]
        waits = (isinstance(p, SyncBatchNorm) or checks.look_up(p, "static_graph") for p in parts)
        if self._ranks.has_shards or any(waits):
            rule = "no module that waits for other ranks: FSDP, SyncBatchNorm, static_graph=True"
            remedy = "call find_batch_size() before wrapping"
            raise ValueError(f"state must have {rule}, got a module that waits ({remedy})")
        checks.check_callable("step_fn", step, "a function of the number of samples")
        self._step_fn, self._steps = step, checks.read_int("trials", trials, 1)
        self._margin = checks.read_number("margin", margin, 0.0, 0.9)
        devices = {p.device for module in modules for p in module.parameters()}
        self._devices = {device for device in devices if device.type != "cpu"}
        self._bytes_a_sample = 0.0  # the largest of all attempts on this rank
        # Optimizers that have stepped. A scaler counts at once, because it may skip every step.
        self._stepped = [one for one in state if isinstance(one, TorchScaler)]
        hook = register_optimizer_step_post_hook(lambda one, *_: self._stepped.append(one))
        undo.callback(hook.remove)
        undo.callback(self._release)  # runs after the entries below, because undo is a stack
        undo.callback(keep_random_state())
        # Loading the state of a scheduler or Stepper may change optimizers and modules, so these
        # are restored afterwards.
        for one in sorted(state, key=lambda one: not isinstance(one, (Module, Optimizer))):
            undo.callback(_keep_state(one))
        for device in self._devices:
            use: Any = memory(device)
            if use.limit_fraction is not None:
                undo.callback(memory, device, limit_fraction=use.limit_fraction)
                reachable = (use.reserved_bytes + use.free_bytes) / use.total_bytes
                memory(device, limit_fraction=min(reachable, use.limit_fraction) * (1 - margin))

    def run(self, size: int) -> Attempt:
        """Try one size. SYNC: the host waits for the steps, and for the other ranks."""
        self._release()
        seconds, peak, why, error = 0.0, None, "", None
        try:
            needed = self._bytes_a_sample * size
            if not self._devices and needed > available_bytes() * (1 - self._margin):
                # Without this check Linux would kill the process. A device raises by itself.
                raise MemoryError(f"needs {text.size(needed)}, judged by smaller sizes")
            with self._ranks.silent():
                seconds, peak = self._measure(size)
        except Exception as raised:
            is_memory = isinstance(raised, (torch.OutOfMemoryError, MemoryError))
            if is_memory or "DefaultCPUAllocator: " in str(raised):
                why = f"{type(raised).__name__}: {raised}".partition("\n")[0]
            else:
                error = raised
        own = [error is not None, bool(why), seconds, peak or 0, size, -size]
        has_raised, is_full, slowest, fullest, largest, smallest = reduce_max(own)
        if error is not None:
            raise error
        if has_raised or largest != -smallest:
            fault = "find_batch_size() failed or got different arguments on a different rank"
            raise RuntimeError(f"{fault}; give every rank the same arguments")
        if is_full:
            return Attempt(size, why=why or "out of memory on a different rank")
        self._bytes_a_sample = max(self._bytes_a_sample, (peak or 0) / size)
        return Attempt(size, slowest, None if peak is None else int(fullest))

    def _measure(self, size: int) -> tuple[float, int | None]:
        """Return the seconds of a step and the step's peak of memory on this rank."""
        with explaining_step(f"find_batch_size() called step_fn({size})"):
            self._time_step(size)  # warms up: optimizers make state, libraries make workspaces
        seconds = median([self._time_step(size) for _ in range(self._steps)])
        if not self._stepped:
            raise RuntimeError(
                f"step_fn({size}) has stepped no optimizer; step an optimizer in step_fn"
            )
        if self._devices:
            return seconds, max(map(torch.accelerator.max_memory_reserved, self._devices))
        return seconds, None if self._before is None else (own_bytes("VmHWM") or 0) - self._before

    def _time_step(self, size: int) -> float:
        begin = perf_counter()
        self._step_fn(size)
        for device in self._devices:
            torch.accelerator.synchronize(device)
        return perf_counter() - begin

    def _release(self) -> None:
        """Free garbage and cached memory, and begin a new measurement of the peak. SYNC."""
        gc.collect()
        for device in self._devices:
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats(device)
        self._before = None if self._devices else reset_own_peak()


# ---- state that is restored. The copies are in host memory, so attempts can use the device's.


def _keep_state(one: Any) -> Callable[[], object]:
    """Return a function that restores an object's present state. SYNC."""
    if isinstance(one, torch.Generator):
        return keep_state(one)
    if checks.look_up(one, "load_state_dict") is None:
        raise TypeError(checks.make_message("state", "objects with a state_dict()", one))
    module = one if isinstance(one, Module) else Module()
    buffers, parameters = dict(module.named_buffers()), list(module.parameters())
    grads = [parameter.grad for parameter in parameters]
    saved = io.BytesIO()
    torch.save((one.state_dict(), buffers, grads), saved)

    def restore() -> None:
        saved.seek(0)
        state, old_buffers, old_grads = torch.load(saved, "cpu", weights_only=False)
        one.load_state_dict(state)
        for name, old in old_buffers.items():
            module.get_buffer(name).copy_(old)
        for parameter, grad, old in zip(parameters, grads, old_grads, strict=True):
            parameter.grad = grad
            if grad is not None:
                grad.copy_(old)
        if isinstance(one, TorchScaler) and one.is_enabled() and not difference("scaler"):
            one._per_optimizer_states.clear()  # a step that failed may have unscaled gradients

    return restore
