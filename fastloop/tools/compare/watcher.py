"""RunObserver: records the losses and costs of a program's first steps, and then ends the program.

``compare`` starts the program by python, with the settings of the run in the environment. At the
interpreter's start, cli/start.py arranges that ``begin()`` runs as soon as torch is imported. The
observer watches the loop as a report does, and also every root of a backward pass. After the last
step the observer raises an exception that looks like ``sys.exit()``. Until then the observer never
waits for the GPU.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
from itertools import chain
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastloop._core import version
from fastloop.base.machine import cpu_seconds_of_all, pss_bytes_of_all
from fastloop.compat.seams import Function, Patch
from fastloop.patching.patch import patch_status
from fastloop.tools.report.hooks import close_hooks, open_hooks
from fastloop.tools.report.observer import LoopObserver
from fastloop.tools.report.recorder import NOT_MEASURED

_MAX_ELEMENTS = 4096  # elements of a root that are kept; a loss has one


def begin(settings: str, began: float) -> None:
    """Watch this program from now on, and write the record when the interpreter ends.

    Args:
        settings: a JSON object with ``record`` (the file to write), ``steps`` (the number of steps
            after which the program ends) and ``seed`` (the seed of Python, NumPy and torch; null
            sets no seed).
        began: the time at which the program began, by ``perf_counter()``.
    """
    read, process = json.loads(settings), os.getpid()
    if read["seed"] is not None:
        for seed in (random.seed, torch.manual_seed, np.random.seed):
            seed(read["seed"])
    observer = RunObserver(read["steps"], began)

    def end() -> None:
        if os.getpid() == process:  # a forked process must not write the record
            observer.finish()
            Path(read["record"]).write_text(json.dumps(observer.to_dict()))

    atexit.register(end)


class EnoughSteps(SystemExit):
    """Ends the program without a traceback. ``finally`` blocks and exit handlers run."""


class RunObserver(LoopObserver):
    """Watches the thread that makes the observer, until ``finish()``.

    Args:
        limit: the number of steps after which the program ends.
        began: the time at which the program began, by ``perf_counter()``.
    """

    def __init__(self, limit: int, began: float) -> None:
        super().__init__()
        self.next_update = 0  # so that each batch and step comes to enter_next() and enter_step()
        self._limit, self._began = limit, began
        self._is_open, self._is_stopped = True, False
        self._losses: list[tuple[int, Tensor]] = []  # pairs of a step, from 0, and a loss
        # The optimizers that have stepped, by id. The dict keeps their parameters alive.
        self._optimizers: dict[int, Any] = {}
        # CPU seconds and bytes of this process and all its children: after the first step, which
        # warms up, and after the last step.
        self._usage: list[tuple[float, int]] = []
        self._drain = 0.0  # the seconds that the GPU took for its queue after the last step
        self._backward = Patch(torch.autograd, "backward", self._make_backward)
        self._backward.put_in()
        open_hooks(self)

    def _make_backward(self, before: Function) -> Function:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_open and get_ident() == self.thread:
                self._note_roots(args[0] if args else kwargs.get("tensors"))
            return before(*args, **kwargs)

        return backward

    def _note_roots(self, roots: Any) -> None:
        for root in (roots,) if isinstance(roots, Tensor) else tuple(roots or ()):
            if isinstance(root, Tensor) and root.layout == torch.strided:
                kept = root.detach().flatten()[:_MAX_ELEMENTS].clone()
                self.note(self._note_loss, self.clock(), kept)

    def _note_loss(self, now: int, after: int, value: Tensor) -> None:
        self._losses.append((self._recorder.current, value))

    # ---- the ends of the first step and the last step

    def enter_next(self, token: object, args: Any, kwargs: Any) -> None:
        self._read_first_usage()
        super().enter_next(token, args, kwargs)
        self._stop_after_last()

    def enter_step(self, optimizer: Any) -> None:
        self._read_first_usage()
        self._optimizers[id(optimizer)] = optimizer
        super().enter_step(optimizer)
        self._stop_after_last()

    def _read_first_usage(self) -> None:
        """Read the usage once, after the first step. The time of reading counts as the first
        step's."""
        if not self._usage and self.steps_decided > 0:
            self._read_usage()

    def _read_usage(self) -> None:
        self._usage.append((cpu_seconds_of_all(), pss_bytes_of_all()))

    def _stop_after_last(self) -> None:
        # A step of the loop takes at least one optimizer's step. Until the optimizers have stepped
        # often enough, the recorder, which is slower, need not be asked.
        if self.steps_decided >= self._limit and self.recorder.steps.count >= self._limit:
            self._is_stopped = True
            self.finish()
            raise EnoughSteps

    def finish(self) -> None:
        """Stop watching. SYNC: the host waits for the GPU."""
        if not self._is_open:
            return
        self._is_open = False
        close_hooks(self)
        self._backward.take_out()
        self.end()
        now = perf_counter()
        self._has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if self._has_gpu:
            torch.cuda.synchronize()
            self._drain = perf_counter() - now
        self._total = now + self._drain - self._began
        self._read_usage()

    # ---- the record

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the run after ``finish()``. SYNC. ``docs/api/tools.md`` describes
        the keys. Unknown values are None."""
        steps = list(self._recorder.steps)[: self._limit]
        later = steps[1:]  # the first step warms up
        epochs = sum(step.is_first for step in later)
        seconds = sum(step.total for step in later) / 1e9 + self._drain
        waits = [step.data_wait for step in later if step.data_wait != NOT_MEASURED]
        totals = self._recorder.totals
        (cpu, _), (cpu_at_end, _) = self._usage[0], self._usage[-1]
        return {
            "fastloop": version,
            "torch": str(torch.__version__),
            "steps": len(steps),
            "is_stopped": self._is_stopped,
            "step_ms": [step.total / 1e6 for step in steps],
            "steps_per_second": len(later) / seconds if seconds else None,
            "data_wait_s": sum(waits) / len(waits) / 1e9 if waits else None,
            "first_batch_s": totals.first_batch / 1e9 if totals.first_batch else None,
            "between_epochs_s": totals.between_epochs / epochs / 1e9 if epochs else None,
            "total_s": self._total,
            "cpu_s": (cpu_at_end - cpu) / len(later) if later else None,
            "pss_bytes": max(memory for _, memory in self._usage) or None,
            "gpu_bytes": torch.cuda.max_memory_allocated() if self._has_gpu else None,
            "losses": [[at, *_describe(loss)] for at, loss in self._losses if at < self._limit],
            "parameters": self._digest(),
            "patched": str(patch_status()),
            "calls_of_other_threads": self.elsewhere,
        }

    def _digest(self) -> str | None:
        """Return a digest of all parameters whose optimizer has stepped, in the optimizers' order;
        None if no optimizer has stepped or a parameter has no bytes to read."""
        digest = hashlib.sha256()
        groups = (g for optimizer in self._optimizers.values() for g in optimizer.param_groups)
        try:
            for parameter in chain.from_iterable(group["params"] for group in groups):
                digest.update(str((parameter.dtype, tuple(parameter.shape))).encode())
                digest.update(_bits(parameter))
        except (NotImplementedError, RuntimeError, TypeError):
            return None
        return digest.hexdigest() if self._optimizers else None


def _describe(root: Tensor) -> tuple[str, str | None, str]:
    """Return the dtype, the value if the root has one element, and the bits or their digest."""
    bits = _bits(root)
    shown = bits.hex() if len(bits) <= 16 else hashlib.sha256(bits).hexdigest()
    value = repr(root.item()) if root.numel() == 1 else None
    return str(root.dtype).removeprefix("torch."), value, shown


def _bits(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes. All NaNs get the same bits, because IEEE 754 leaves open which NaN a
    sum gives."""
    flat = tensor.detach().cpu().contiguous().flatten()
    if flat.is_floating_point() and flat.element_size() > 1 and bool(flat.isnan().any()):
        flat = flat.masked_fill(flat.isnan(), float("nan"))
    return flat.view(torch.uint8).numpy().data
