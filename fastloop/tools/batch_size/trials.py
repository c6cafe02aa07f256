"""One trial of a micro-batch: a few full steps, what they took, and whether they fit.

Out of memory is told by an exception's type; torch's allocator of the CPU has none of its own, so
its errors are told by its name. No collective runs inside a trial: ranks fail on
their own, and say so behind it, so that nobody waits for a rank that has failed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from fastloop.base.torch_parts import TorchScaler
from fastloop.step.ranks import find_ranks, reduce_max
from fastloop.tools.batch_size.device_memory import TrialMemory
from fastloop.tools.batch_size.snapshot import Snapshot
from fastloop.tools.user_step import explaining

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)
_CPU_ALLOCATOR = "DefaultCPUAllocator: "  # in the RuntimeError of torch's allocator of the CPU

Step = Callable[[int], object]


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, OUT_OF_MEMORY) or _CPU_ALLOCATOR in str(error)


@dataclass(frozen=True)
class Trial:
    """Full steps with one micro-batch, on all ranks.

    Attributes:
        size: samples of a micro-batch.
        seconds: the median time of a step, on the slowest rank; None if it does not fit.
        peak_bytes: the most memory there was on a rank: reserved on its device, or what the process
            has grown by on the CPU. None where that is not known.
        why: why it does not fit; empty if it does.
    """

    size: int
    seconds: float | None = None
    peak_bytes: int | None = None
    why: str = ""

    @property
    def fits(self) -> bool:
        return not self.why

    @property
    def samples_per_s(self) -> float:
        """Of one rank; 0 if it does not fit."""
        return 0.0 if self.seconds is None else self.size / max(self.seconds, 1e-9)


class _Outcome(IntEnum):
    """Of a trial on one rank. The largest over all ranks is that of all."""

    FITS = 0
    OUT_OF_MEMORY = 1
    RAISED = 2


class TrialRunner:
    """Trials of a step. Use it as a context: leaving it puts back all that steps have changed.

    Args:
        step_fn: runs one step with so many samples.
        state: all that it changes.
        margin: the share of the memory left that no trial may touch.
        steps: timed ones in a trial.
    """

    def __init__(self, step_fn: Step, state: Sequence[Any], margin: float, steps: int) -> None:
        modules = [one for one in state if isinstance(one, Module)]
        self._step_fn, self._steps = step_fn, steps
        self._ranks = find_ranks(modules)
        self._memory = TrialMemory((p.device for m in modules for p in m.parameters()), margin)
        self._optimizers = [one for one in state if isinstance(one, Optimizer)]
        self._scalers = [s for s in state if isinstance(s, TorchScaler) and s.is_enabled()]
        self._bytes_a_sample = 0.0  # of the fullest trial on this rank
        self._snapshot = Snapshot(state)
        self._settings = ExitStack()

    def __enter__(self) -> TrialRunner:
        self._settings.enter_context(self._memory.limited())
        if not gc.get_freeze_count():
            # Trials look for garbage among their own objects alone, which takes no time.
            gc.freeze()
            self._settings.callback(gc.unfreeze)
        return self

    def __exit__(self, *error: object) -> None:
        with self._settings:
            self._snapshot.restore()
            self._memory.release()

    def run(self, size: int) -> Trial:
        """SYNC: waits for the steps, and for the other ranks."""
        own, error = self._try(size)
        outcome = (
            _Outcome.RAISED if error else _Outcome.FITS if own.fits else _Outcome.OUT_OF_MEMORY
        )
        worst, seconds, peak = reduce_max([outcome, own.seconds or 0.0, own.peak_bytes or 0])
        if error is not None:
            raise error
        if worst == _Outcome.RAISED:
            raise RuntimeError(
                f"step_fn({size}) raised on another rank, whose own error says what; every rank "
                "has put its state back"
            )
        if worst == _Outcome.OUT_OF_MEMORY:
            return Trial(size, why=own.why or "out of memory on another rank")
        return Trial(size, seconds, None if own.peak_bytes is None else int(peak))

    def _try(self, size: int) -> tuple[Trial, Exception | None]:
        """On this rank alone."""
        self._memory.release()
        needed = int(self._bytes_a_sample * size)
        if not self._memory.has_room(needed):
            why = f"needs {needed / 2**30:.1f} GiB by what smaller ones took, more than there is"
            return Trial(size, why=why), None
        why = ""
        try:
            with self._ranks.silent():
                trial = self._measure(size)
        except Exception as error:
            if not _is_out_of_memory(error):
                return Trial(size, why="raised"), error
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if why:  # the exception is gone here, and what its traceback held
            self._snapshot.restore()
            self._memory.release()
            return Trial(size, why=why), None
        self._bytes_a_sample = max(self._bytes_a_sample, (trial.peak_bytes or 0) / size)
        return trial, None

    def _measure(self, size: int) -> Trial:
        with self._counted() as count:
            with explaining(f"find_batch_size() has called step_fn({size})"):
                self._step_fn(size)  # the optimizer makes its state, libraries their workspaces
            self._memory.synchronize()
            retries = self._memory.retries()
            seconds = [self._time_step(size) for _ in range(self._steps)]
        if not count():
            raise RuntimeError(
                f"step_fn({size}) took no step of an optimizer that was passed; let it run a whole "
                "step, optimizer.step() included, and pass that optimizer"
            )
        if self._memory.retries() > retries:
            return Trial(size, why="fits only after torch's allocator gives back its cache")
        return Trial(size, median(seconds), self._memory.peak_bytes())

    def _time_step(self, size: int) -> float:
        begin = perf_counter()
        self._step_fn(size)
        self._memory.synchronize()
        return perf_counter() - begin

    @contextmanager
    def _counted(self) -> Iterator[Callable[[], bool]]:
        """Tells whether an optimizer has stepped in the body, or a scaler has skipped its step."""
        stepped: list[Optimizer] = []
        scales = [scaler.get_scale() for scaler in self._scalers]
        hooks = [
            optimizer.register_step_post_hook(lambda one, *_: stepped.append(one))
            for optimizer in self._optimizers
        ]
        try:
            yield lambda: bool(stepped) or scales != [s.get_scale() for s in self._scalers]
        finally:
            for hook in hooks:
                hook.remove()
