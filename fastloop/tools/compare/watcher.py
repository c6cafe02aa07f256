"""TrialObserver: what the first steps of a program cost and compute, and their end.

It watches the loop as a report does, and every root of a backward pass besides. After the last step
it ends the program, by an exception that looks like ``sys.exit()``. Until then nothing is
synchronised.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastloop._core import version
from fastloop.base.machine import cpu_seconds_of_all, pss_bytes_of_all
from fastloop.patching.patch import patch_status
from fastloop.patching.seams import Function, Place
from fastloop.tools.report.hooks import close_hooks, open_hooks
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.recorder import NOT_MEASURED, Step

_MAX_ELEMENTS = 4096  # of a root that are kept; a loss has one


class EnoughSteps(SystemExit):
    """Ends the program quietly: its ``finally`` blocks and exit handlers run."""


class _Loss(NamedTuple):
    step: int  # from 0
    value: Tensor


class _Usage(NamedTuple):
    cpu_seconds: float
    pss_bytes: int | None


def _use() -> _Usage:
    return _Usage(cpu_seconds_of_all(), pss_bytes_of_all())


def _has_gpu() -> bool:
    """Whether the program uses CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class TrialObserver(LoopObserver):
    """Of the thread that makes it.

    Args:
        limit: steps after which the program ends.
        began: when the program did, by ``perf_counter()``.
    """

    def __init__(self, limit: int, began: float) -> None:
        super().__init__()
        self._limit = limit
        self._began = began
        self._total = 0.0  # seconds until the last step was done
        self._is_open = self._is_stopped = False
        self._losses: list[_Loss] = []
        self._optimizers: dict[int, Any] = {}  # that have stepped; their parameters must not die
        self._begin: _Usage | None = None  # at the end of the first step, which warms up
        self._end: _Usage | None = None
        self._drain = 0.0  # seconds until a GPU has done what is queued after the last step
        self._backward = Place(torch.autograd, "backward", self._watch)

    def open(self) -> None:
        self._is_open = True
        self._backward.put_in()
        open_hooks(self)

    def _watch(self, before: Function) -> Function:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_open and get_ident() == self.thread:
                self._note_roots(args[0] if args else kwargs.get("tensors"))
            return before(*args, **kwargs)

        return backward

    def _note_roots(self, roots: Any) -> None:
        for root in (roots,) if isinstance(roots, Tensor) else tuple(roots or ()):
            if isinstance(root, Tensor) and root.layout == torch.strided:
                with torch.no_grad():
                    kept = root.detach().flatten()[:_MAX_ELEMENTS].clone()
                self._log.append((self._note_loss, kept))

    def _note_loss(self, value: Tensor) -> None:
        self._losses.append(_Loss(self._recorder.current, value))

    # ---- where the first step ends, and the last

    def enter_next(self, iterator: Any) -> None:
        super().enter_next(iterator)
        self._stop_after_last()

    def enter_step(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        super().enter_step(optimizer)
        self._stop_after_last()

    def leave_update(self, token: int) -> None:
        self._use_after_first()  # its time is the first step's
        super().leave_update(token)

    def note_skip(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        super().note_skip(optimizer)
        self._use_after_first()

    def _use_after_first(self) -> None:
        if self._begin is None and self.steps_decided > 0:
            self._begin = _use()

    def _stop_after_last(self) -> None:
        # Each step has an optimizer's at least, so the recorder need not be asked before.
        if self.steps_decided >= self._limit and self.recorder.steps.count >= self._limit:
            self._is_stopped = True
            self.finish()
            raise EnoughSteps

    def finish(self) -> None:
        """Nothing is watched any more."""
        if not self._is_open:
            return
        self._is_open = False
        close_hooks(self)
        self._backward.take_out()
        self.end()
        now = perf_counter()
        if _has_gpu():
            torch.cuda.synchronize()
            self._drain = perf_counter() - now
        self._total = now + self._drain - self._began
        self._end = _use()

    # ---- what was found

    def to_dict(self) -> dict[str, Any]:
        """After ``finish()``. Waits for the GPU. ``docs/compare.md`` has the keys; what was not
        measured is None."""
        steps = list(self._recorder.steps)[: self._limit]
        later = steps[1:]  # the first warms up
        epochs = sum(step.is_first for step in later)
        seconds = sum(step.total for step in later) / 1e9 + self._drain
        totals = self._recorder.totals
        return {
            "fastloop": version,
            "torch": str(torch.__version__),
            "steps": len(steps),
            "is_stopped": self._is_stopped,
            "step_ms": [step.total / 1e6 for step in steps],
            "steps_per_second": len(later) / seconds if seconds else None,
            "data_wait_s": _mean_wait(later),
            "first_batch_s": totals.first_batch / 1e9 if totals.first_batch else None,
            "between_epochs_s": totals.between_epochs / epochs / 1e9 if epochs else None,
            "total_s": self._total,
            **self._usage_of(len(later)),
            "losses": [[loss.step, *_describe(loss.value)] for loss in self._kept_losses()],
            "parameters": self._digest(),
            "patched": str(patch_status()),
            "calls_of_other_threads": self.elsewhere,
        }

    def _usage_of(self, steps: int) -> dict[str, Any]:
        looks = [look for look in (self._begin, self._end) if look is not None]
        memory = [look.pss_bytes for look in looks if look.pss_bytes is not None]
        cpu = None
        if steps and self._begin is not None and self._end is not None:
            cpu = (self._end.cpu_seconds - self._begin.cpu_seconds) / steps
        on_gpu = torch.cuda.max_memory_allocated() if _has_gpu() else None
        return {
            "cpu_s": cpu,
            "pss_bytes": max(memory, default=None),
            "gpu_bytes": on_gpu,
        }

    def _kept_losses(self) -> Iterable[_Loss]:
        return (loss for loss in self._losses if loss.step < self._limit)

    def _digest(self) -> str | None:
        """Of the parameters of all optimizers that have stepped, in their order; None: there are
        none, or some have no bytes to read."""
        digest = hashlib.sha256()
        groups = (g for optimizer in self._optimizers.values() for g in optimizer.param_groups)
        try:
            for parameter in (parameter for group in groups for parameter in group["params"]):
                digest.update(str((parameter.dtype, tuple(parameter.shape))).encode())
                digest.update(_bits(parameter))
        except (NotImplementedError, RuntimeError, TypeError):
            return None
        return digest.hexdigest() if self._optimizers else None


def _mean_wait(steps: list[Step]) -> float | None:
    waits = [step.wait for step in steps if step.wait != NOT_MEASURED]
    return sum(waits) / len(waits) / 1e9 if waits else None


def _describe(root: Tensor) -> tuple[str, float | str | None, str]:
    """dtype; the value, if it is one number; the bits."""
    bits = _bits(root)
    shown = bits.hex() if len(bits) <= 16 else hashlib.sha256(bits).hexdigest()
    value = repr(root.item()) if root.numel() == 1 else None
    return str(root.dtype).removeprefix("torch."), value, shown


def _bits(tensor: Tensor) -> memoryview:
    """Its bytes. All NaN are one: which of them a sum gives is left open by IEEE 754."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.is_floating_point() and flat.element_size() > 1 and bool(flat.isnan().any()):
        flat = flat.masked_fill(flat.isnan(), float("nan"))
    return flat.view(torch.uint8).numpy().data
