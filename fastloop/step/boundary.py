"""One optimizer step at a window's boundary: divide, check, clip, step, update the scaler, count;
and the buffers that can hold a window's sum of gradients.

A fused optimizer (torch's fused=True) divides by itself; the rest do not. The scaler is fastloop's,
torch's or a subclass's, or None. The gradients are in `.grad` or in buffers. The results of the
passes are written into the state of fastloop's scaler. Any other scaler is used by its public
methods only, because subclasses may override them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from operator import is_
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fastloop.base.checks import look_up, make_message
from fastloop.compat.torch_parts import OptState, is_known
from fastloop.step.grad_list import Arrival, FlagCounter, GradList, new_flag, parameters_of
from fastloop.step.norm_guard import NormGuard
from fastloop.step.ranks import Ranks
from fastloop.step.scaler import GradScaler, fused_attributes, takes_grad_scale, watch_step
from fastloop.step.shards import laid_out_as, part_of

_DOUBLES = (torch.float64, torch.complex128)  # a float32 grad_scale is too coarse for these
_ALIGNED_BYTES = 64  # each parameter's part of a flat buffer begins at a multiple of this


class GradBuffers:
    """A gradient-sized sum: one flat tensor for each device and dtype, with a view for each
    parameter.

    A flat tensor ends with one flag for each parameter. After a reduction the flag says whether any
    rank had a gradient. If no rank had one, the parameter's `.grad` stays None, as under DDP."""

    def __init__(self, optimizer: Optimizer, dtype: torch.dtype | None) -> None:
        self._optimizer = optimizer  # borrowed
        self._dtype = dtype  # the sum's dtype; None: the gradients' own
        self._params: list[Tensor] = []
        self._flats: list[tuple[Tensor, list[int]]] = []  # owned; with indices of parameters
        self._views: list[Tensor] = []  # parts of flat tensors, one for each parameter
        self.sums = GradList()  # holds the views
        self._grads = GradList()  # the optimizer's gradients, during a call
        self._used_sums = GradList()  # the views of parameters that were used, during a call
        self.clear()

    def clear(self) -> None:
        """Empty the sum and leave its memory alone: the next `add` overwrites the old sum."""
        self._used: set[int] = set()  # indices of parameters that had a gradient

    def fit(self) -> None:
        """Make memory for the optimizer's present parameters, unless the memory is there.

        Raises:
            RuntimeError: the sum is not empty, and the optimizer's number of parameters has
                changed.
            ValueError: a gradient is sparse.
        """
        params = parameters_of(self._optimizer)
        has_as_many = len(params) == len(self._params)
        if self._used and not has_as_many:
            raise RuntimeError(
                "a parameter group was added inside a window; add groups between windows"
            )
        if self._used or (has_as_many and all(map(is_, self._params, params))):
            return
        kinds: dict[Any, list[int]] = {}
        for i, p in enumerate(params):
            if p.is_sparse or (p.grad is not None and p.grad.is_sparse):
                raise ValueError(
                    f"parameter {i} must have a dense gradient, got a sparse gradient (leave out "
                    "accum_dtype and on_nonfinite='micro', or use sparse=False)"
                )
            dtype = p.dtype if self._dtype is None else torch.promote_types(self._dtype, p.dtype)
            kinds.setdefault((p.device, dtype), []).append(i)
        self._params, self._views = params, params[:]
        self._flats = [(self._flat(indices, *kind), indices) for kind, indices in kinds.items()]
        self.sums.collect(self._views)

    def _flat(self, indices: list[int], device: torch.device, dtype: torch.dtype) -> Tensor:
        """Make a flat tensor for these parameters and their flags, and the parameters' views."""
        step = _ALIGNED_BYTES // dtype.itemsize
        sizes = (-(-part_of(self._params[i]).numel() // step) * step for i in indices)
        *starts, end = accumulate(sizes, initial=0)
        flat = torch.empty(end + len(indices), dtype=dtype, device=device)
        for i, start in zip(indices, starts, strict=True):
            p = part_of(self._params[i])
            # With the gradient's strides, passes over both run straight through memory.
            strides = torch.empty_like(p, device="meta").stride()
            view = flat[start : start + p.numel()].as_strided(p.shape, strides)
            self._views[i] = laid_out_as(self._params[i], view)
        return flat

    def add(self, share: float, *, only_finite: bool = False) -> bool:
        """Compute self += share * the optimizer's gradients, and return True. With only_finite
        (SYNC): if an element is inf or NaN, add nothing and return False."""
        self.fit()
        grads = self._grads.collect_grads(self._optimizer)
        found_inf = new_flag(grads.device) if only_finite else None
        has_all = len(grads.tensors) == len(self._params)
        overwrites = has_all and not self._used
        if overwrites:  # if a gradient is not finite, the next call overwrites the memory again
            self.sums.combine_(grads, found_inf, alpha=share, beta=0.0)
        elif found_inf is not None:
            grads.norm_check(found_inf)
        is_added = found_inf is None or not found_inf
        if is_added and has_all:
            if not overwrites:
                self.sums.combine_(grads, alpha=share)
            self._used.update(range(len(self._params)))
        elif is_added:
            self._zero_if_empty()
            here = [i for i, p in enumerate(self._params) if p.grad is not None]
            self._used_sums.collect(self._views[i] for i in here).combine_(grads, alpha=share)
            self._used_sums.release()
            self._used.update(here)
        grads.release()
        return is_added

    def _zero_if_empty(self) -> None:
        for flat, _ in () if self._used else self._flats:
            flat.zero_()

    def reduce(self, ranks: Ranks) -> None:
        """Average over all ranks; every rank must call this method (SYNC: the host reads the
        flags)."""
        self.fit()
        self._zero_if_empty()
        used: set[int] = set()
        for flat, indices in self._flats:
            flags = flat[flat.numel() - len(indices) :]
            mine = [float(i in self._used) for i in indices]
            flat.div_(ranks.size)
            flags.copy_(torch.tensor(mine))
            ranks.sum_(flat)
            used.update(i for i, n in zip(indices, flags.real.tolist(), strict=True) if n > 0)
        self._used = used

    def write(self, factor: Tensor | float, grads: GradList) -> None:
        """Write factor * self into the parameters' `.grad`, rounded once. `grads` then holds these
        gradients."""
        for i, p in enumerate(self._params):
            if i not in self._used:
                p.grad = None
            elif p.grad is None:
                p.grad = torch.empty_like(p, requires_grad=False)
        grads.collect_grads(self._optimizer)
        sums = self.sums
        if len(self._used) < len(self._params):
            sums = self._used_sums.collect(self._views[i] for i in sorted(self._used))
        grads.combine_(sums, alpha=factor, beta=0.0)
        self._used_sums.release()


# First the norm before clipping, 0-d float64; None if no pass needed to read the gradients. Then
# whether the step was skipped; a tensor if only the device knows.
Outcome = tuple[Tensor | None, Tensor | bool]


class Boundary:
    """Turns the gradients of a window into a step of one optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        scaler: Any,
        max_norm: float | None,
        checks: bool,
        guard: NormGuard | None,
    ) -> None:
        self._optimizer = optimizer
        self._scaler = scaler  # enabled, or None
        self._max_norm = max_norm
        self._checks = checks  # a gradient that is not finite skips the step
        self._guard = guard  # the stepper's; None: a norm of any size takes its step
        self._is_fused = takes_grad_scale(optimizer)
        # If a subclass unscales in its own way, its methods are called.
        self._is_ours = isinstance(scaler, GradScaler) and scaler._owns_unscaling()
        self._knows_scaler = not scaler or is_known(
            "scaler", "The scaler's part in Stepper is left"
        )
        self._grads = GradList()
        self.seen_scale: Any = None  # a mark of the window's scale; None: a window begins

    # ---- the scale. Losses of one window add up only if the scale does not change.

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss times the scaler's scale.

        Raises RuntimeError if the scale has changed since the window began."""
        scaler = self._scaler
        if scaler is None:
            return loss
        scaled: Tensor = scaler.scale(loss)
        # The mark of a scale: the tensor's id and version, or else the number (SYNC).
        scale = scaler._scale if self._knows_scaler else None
        now = scaler.get_scale() if scale is None else (id(scale), scale._version)
        if self.seen_scale not in (None, now):
            raise RuntimeError(
                "the scaler's scale has changed inside a window; leave the scaler's step() and "
                "update() to the Stepper"
            )
        self.seen_scale = now
        return scaled

    def _scale_on(self, device: torch.device) -> Tensor:
        """Return the scaler's scale; make the scale if this rank joins without a loss."""
        scale: Tensor | None = self._scaler._scale if self._knows_scaler else None
        if scale is None:
            scale = self._scaler.scale(torch.ones((), dtype=torch.float32, device=device))
        return scale

    # ---- the step

    def step(self, divisor: float, buffers: GradBuffers | None, has_dropped: bool) -> Outcome:
        """Take the step for gradients / (scale * divisor), then update the scaler.

        SYNC if a step may be skipped and the optimizer is not fused."""
        try:
            if self._scaler is not None and not self._is_ours and buffers is None:
                return self._step_as_torch(divisor)
            return self._step(divisor, buffers, has_dropped)
        except BaseException:
            if self._scaler is not None:
                with suppress(Exception):  # the scaler may have no scale yet
                    self._scaler.update(self._scaler.get_scale())  # forgets the step (SYNC)
            raise
        finally:
            self._grads.release()

    def back_off(self) -> None:
        """Take no step and let the scaler back off, because no micro-batch had finite gradients."""
        if self._scaler is not None:
            device = parameters_of(self._optimizer)[0].device
            self._record(torch.ones_like(self._scale_on(device)))
            self._scaler.update()

    def _step(self, divisor: float, buffers: GradBuffers | None, has_dropped: bool) -> Outcome:
        reads = self._checks or self._max_norm is not None or self._guard is not None
        is_one = self._scaler is None and self._max_norm is None and divisor == 1
        if is_one and not reads and buffers is None:
            self._optimizer.step()
            return None, False
        grads = self._grads.collect_grads(self._optimizer) if buffers is None else buffers.sums
        scale = None if self._scaler is None else self._scale_on(grads.device)
        found_inf = new_flag(grads.device)
        norm = grads.norm_check(found_inf, scale=scale, divisor=divisor) if reads else None
        spike, room = self._watch(norm)
        factor: Tensor | float = 1.0
        if not is_one or room is not None:
            factor = grads.clip_factor(norm, self._max_norm, scale, divisor)
        if room is not None:
            factor = factor * room
        # The scaler must not know that a step is skipped for a spike: its scale is not too large.
        stop = found_inf if self._checks else torch.zeros_like(found_inf)
        stop = stop if spike is None else stop + spike
        found: Tensor | bool = False
        if self._checks or spike is not None:
            found = bool(stop) if not self._is_fused or stop.device.type == "cpu" else stop
        grad_scale = None
        if buffers is not None:
            if found is not True:
                buffers.write(factor, self._grads)
        elif self._is_fused and self._grads.dtypes.isdisjoint(_DOUBLES):
            grad_scale = factor.reciprocal().float() if isinstance(factor, Tensor) else None
        elif isinstance(factor, Tensor) and found is not True:
            grads.scale_(factor)
        flag = stop if self._is_fused and found is not False and not self._is_ours else None
        with fused_attributes(self._optimizer, grad_scale, flag, gives_back=True):
            if self._is_ours:
                self._step_by_scaler(found_inf, stop)
            elif found is not True:
                self._optimizer.step()
        if self._scaler is not None:
            if has_dropped or not self._is_ours:
                self._record(torch.ones_like(found_inf) if has_dropped else found_inf)
            self._scaler.update()
        return norm, found

    def _watch(self, norm: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Show the guard a norm. Returns a flag, 1.0 if the step has to be skipped, or None; and a
        factor that clips what `max_norm` leaves of a spike, or None."""
        guard = self._guard
        if guard is None or norm is None:
            return None, None
        flag, limit = guard.watch(norm)
        if not guard.clips:
            return flag, None
        clipped = norm if self._max_norm is None else norm.clamp(max=self._max_norm)
        return None, torch.where(flag > 0, torch.clamp(limit / (clipped + 1e-6), max=1.0), 1.0)

    def _step_by_scaler(self, found_inf: Tensor, stop: Tensor) -> None:
        """Let fastloop's scaler step, unless `stop` is set. The gradients are checked; they are
        unscaled, or the fused optimizer unscales them. The scaler keeps found_inf for `update` and
        does not change it."""
        state = self._scaler._per_optimizer_states[id(self._optimizer)]
        if state["stage"] is not OptState.READY:
            self._scaler.unscale_(self._optimizer)  # raises: the user has called unscale_ or step
        state.update(found_inf_per_device={found_inf.device: stop}, stage=OptState.UNSCALED)
        self._scaler.step(self._optimizer)
        state["found_inf_per_device"] = {found_inf.device: found_inf}

    def _record(self, found_inf: Tensor) -> None:
        """Show found_inf to the scaler: let the scaler unscale one gradient, inf if found_inf is
        set and 0 if not."""
        parameter = torch.zeros_like(found_inf, requires_grad=True)
        parameter.grad = torch.where(found_inf > 0, torch.inf, 0.0).to(found_inf)
        # The user's hooks would see a torch optimizer, so this is a bare object. The object is kept
        # until the next call, because scalers know an optimizer by its id.
        self._flagged: Any = SimpleNamespace(param_groups=[{"params": [parameter]}])
        self._scaler.unscale_(self._flagged)

    def _step_as_torch(self, divisor: float) -> Outcome:
        """Step by the public methods of torch's own scaler, which subclasses may override."""
        scaler, optimizer = self._scaler, self._optimizer
        scaler.unscale_(optimizer)
        grads = self._grads.collect_grads(optimizer)
        norm = None
        if self._max_norm is not None or self._guard is not None:
            norm = grads.norm_check(new_flag(grads.device), divisor=divisor)
        spike, room = self._watch(norm)
        if divisor != 1 or norm is not None:
            factor = grads.clip_factor(norm, self._max_norm, None, divisor)
            grads.scale_(factor if room is None else factor * room)
        if spike is not None and spike:
            scaler.update()
            return norm, True
        with fused_attributes(optimizer, gives_back=True), watch_step(optimizer) as skipped:
            scaler.step(optimizer)
        found_inf = skipped[0]
        scaler.update()
        if isinstance(found_inf, Tensor) and (not self._is_fused or not found_inf.is_cuda):
            found_inf = bool(found_inf)
        return norm, found_inf


def read_schedulers(scheduler: Any) -> list[LRScheduler]:
    if scheduler is None:
        return []
    several = list(scheduler) if isinstance(scheduler, Iterable) else [scheduler]
    for one in several:
        if isinstance(one, ReduceLROnPlateau):
            remedy = "call its step(metric) yourself"
            rule = "an LRScheduler that steps without a metric"
            raise TypeError(f"scheduler must be {rule}, got ReduceLROnPlateau ({remedy})")
        if not callable(look_up(one, "step")):
            raise TypeError(make_message("scheduler", "one or several LRScheduler", one))
    return several


class Outcomes:
    """Counts the boundaries of a Stepper and steps its schedulers after each step that was taken.

    If only a device knows whether a step was skipped, the schedulers follow at the next boundary:
    they lag by one step. The host waits only if the device lags by more than one step."""

    def __init__(
        self, schedulers: list[LRScheduler], boundaries: int = 0, skipped: int = 0
    ) -> None:
        self.schedulers, self.boundaries = schedulers, boundaries
        self._skips = FlagCounter(skipped)
        self._arriving: Arrival | None = None  # a found_inf on its way to a scheduler

    def add(self, found_inf: Tensor | bool) -> None:
        """Count a boundary; its step was skipped if found_inf. Does not wait for a device. The
        caller has settled the boundary before."""
        assert self._arriving is None
        self.boundaries += 1
        if isinstance(found_inf, Tensor) and self.schedulers:
            self._arriving = Arrival(found_inf)
        else:
            self._count(found_inf)

    def settle(self) -> None:
        """Let the schedulers follow the last boundary (SYNC if the device is not yet there)."""
        if self._arriving is not None:
            arrival, self._arriving = self._arriving, None
            self._count(bool(arrival.read()))

    def _count(self, found_inf: Tensor | bool) -> None:
        self._skips.add(found_inf)
        if found_inf is False:
            for scheduler in self.schedulers:
                scheduler.step()

    def read(self) -> tuple[int, int]:
        """Return the numbers of steps taken and of steps skipped. SYNC on a device."""
        self.settle()
        skipped = self._skips.read()
        return self.boundaries - skipped, skipped
