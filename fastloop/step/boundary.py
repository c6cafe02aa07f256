"""One optimizer step at a window's boundary: divide, check, clip, step, update the scaler.

Four kinds of optimizer and scaler meet here: steps that divide by themselves (torch's fused=True)
or not, under fastloop's scaler, torch's or none. The gradients come as `.grad` or as buffers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.base.torch_parts import OptState, is_known
from fastloop.step.fused_optimizer import (
    FusedAttributes,
    StepWatch,
    takes_grad_scale,
    times_of_user,
)
from fastloop.step.grad_buffers import GradBuffers
from fastloop.step.grad_list import GradList, new_flag, parameters_of
from fastloop.step.scaler import GradScaler


def step_checked(
    scaler: GradScaler, optimizer: Optimizer, found_inf: Tensor, grad_scale: Tensor | None
) -> float | None:
    """`scaler.step(optimizer)` where this optimizer's gradients have been collected and checked in
    this step, and unscaled unless grad_scale is given. A disabled scaler steps whatever found_inf.

    Args:
        found_inf: 0-d float32, exactly 0.0 or 1.0; kept for `update` and not changed.
        grad_scale: 0-d float32 by which the optimizer has to divide the gradients (scale and clip
            in one), or None. Only for optimizers of which `takes_grad_scale` is true.

    Raises:
        RuntimeError: the user has called `unscale_` or `step` for it since the last `update`.
    """
    if not scaler.is_enabled():
        return scaler.step(optimizer)
    scaler._check_scale_growth_tracker("step")
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.UNSCALED:
        scaler.unscale_(optimizer)  # raises
    if state["stage"] is OptState.STEPPED:
        return scaler.step(optimizer)  # raises
    state.update(found_inf_per_device={found_inf.device: found_inf}, stage=OptState.UNSCALED)
    if grad_scale is None:
        return scaler.step(optimizer)
    try:
        with FusedAttributes(optimizer, grad_scale=times_of_user(optimizer, grad_scale)):
            return scaler.step(optimizer)
    except BaseException:
        state["stage"] = OptState.READY  # the gradients are scaled as before
        raise


class Outcome(NamedTuple):
    norm: Tensor | None  # 0-d float64, before clipping; None where no pass needed to read
    found_inf: Tensor | bool  # whether the step was skipped; a tensor where the host did not ask


class Boundary:
    """How the gradients of a window become a step of one optimizer."""

    def __init__(
        self, optimizer: Optimizer, scaler: Any, max_norm: float | None, checks: bool
    ) -> None:
        self._optimizer = optimizer
        self._scaler = scaler  # enabled, or None
        self._max_norm = max_norm
        self._checks = checks  # whether a gradient that is not finite skips the step
        self._is_fused = takes_grad_scale(optimizer)
        # A subclass's own unscaling is not passed over.
        self._is_ours = isinstance(scaler, GradScaler) and scaler._owns_unscaling()
        self._grads = GradList()
        self._seen: tuple[Tensor | None, float] | None = None  # the mark of the window's scale
        self.loaded_scale: float | None = None  # that of a window which load_state_dict() brought

    # ---- the scale, which must not change inside a window, or its losses would not add up

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss times the scaler's scale.

        Raises RuntimeError if the window was begun with another scale."""
        scaler = self._scaler
        if scaler is None:
            return loss
        scaled: Tensor = scaler.scale(loss)
        now = self._scale_mark()
        if self._seen is None:
            self._check_loaded_scale()
            self._seen = now
        elif self._seen[0] is not now[0] or self._seen[1] != now[1]:
            raise RuntimeError(
                "the scaler's scale has changed inside a window; leave its step() and update() to "
                "the Stepper"
            )
        return scaled

    def _scale_mark(self) -> tuple[Tensor | None, float]:
        """The same as long as the scale stays: the scale and its version."""
        return self._scaler._scale, self._scaler._scale._version

    def _check_loaded_scale(self) -> None:
        if self.loaded_scale is not None and self.loaded_scale != self._scaler.get_scale():
            raise RuntimeError(
                f"the loaded window was begun with the scale {self.loaded_scale}, and the scaler's "
                f"is {self._scaler.get_scale()}; load the scaler's state_dict() too"
            )

    def forget_scale(self) -> None:
        """The window is over."""
        self._seen = self.loaded_scale = None

    def saved_scale(self) -> float | None:
        """The scale for a saved window (SYNC)."""
        return None if self._scaler is None else self._scaler.get_scale()

    # ---- the step

    def step(self, divisor: float, buffers: GradBuffers | None, has_dropped: bool) -> Outcome:
        """Take the step for gradients / (scale * divisor), then update the scaler.

        SYNC for optimizers that are not fused, if gradients are checked."""
        try:
            if self._scaler is not None and not self._is_ours and buffers is None:
                return self._step_as_torch(divisor)
            return self._step(divisor, buffers, has_dropped)
        except BaseException:
            if self._scaler is not None:
                self._forget_step()
            raise
        finally:
            self._grads.release()

    def back_off(self) -> None:
        """Take no step, and let the scaler back off: no micro-batch had finite gradients."""
        if self._scaler is not None:
            device = parameters_of(self._optimizer)[0].device
            self._record(torch.ones_like(self._scale_on(device)))
            self._scaler.update()

    def _step(self, divisor: float, buffers: GradBuffers | None, has_dropped: bool) -> Outcome:
        reads = self._checks or self._max_norm is not None
        is_one = self._scaler is None and self._max_norm is None and divisor == 1
        if is_one and not reads and buffers is None:
            self._optimizer.step()
            return Outcome(None, False)
        grads = self._grads.collect_grads(self._optimizer) if buffers is None else buffers.sums
        scale = None if self._scaler is None else self._scale_on(grads.device)
        found_inf = new_flag(grads.device)
        norm = grads.norm_check(found_inf, scale=scale, divisor=divisor) if reads else None
        factor: Tensor | float = 1.0
        if not is_one:
            factor = grads.clip_factor(norm, self._max_norm, scale=scale, divisor=divisor)
        found: Tensor | bool = found_inf if self._checks else False
        if self._checks and (not self._is_fused or found_inf.device.type == "cpu"):
            found = bool(found_inf)
        grad_scale = None
        if buffers is not None:
            if found is not True:
                buffers.write(factor, self._grads)
        elif self._is_fused and self._folds():
            grad_scale = factor.reciprocal().float() if isinstance(factor, Tensor) else None
        elif isinstance(factor, Tensor) and found is not True:
            grads.scale_(factor)
        if self._scaler is None:
            self._step_optimizer(found, found_inf, grad_scale)
        else:
            self._step_scaler(found_inf, grad_scale, has_dropped)
        return Outcome(norm, found)

    def _folds(self) -> bool:
        """Whether the optimizer may divide: grad_scale is float32, too coarse for doubles."""
        return self._grads.dtypes.isdisjoint((torch.float64, torch.complex128))

    def _step_optimizer(
        self, found: Tensor | bool, found_inf: Tensor, grad_scale: Tensor | None
    ) -> None:
        attributes: dict[str, Tensor] = {}
        if grad_scale is not None:
            attributes["grad_scale"] = times_of_user(self._optimizer, grad_scale)
        if self._is_fused and found is not False:
            attributes["found_inf"] = found_inf
        if found is not True:
            with FusedAttributes(self._optimizer, gives_back=True, **attributes):
                self._optimizer.step()

    def _step_scaler(self, found_inf: Tensor, grad_scale: Tensor | None, has_dropped: bool) -> None:
        optimizer, scaler = self._optimizer, self._scaler
        with FusedAttributes(optimizer, gives_back=True):  # or a scaler deletes the user's
            if self._is_ours:
                step_checked(scaler, optimizer, found_inf, grad_scale)
            else:
                self._step_recorded(found_inf, grad_scale)
        if has_dropped:
            self._record(torch.ones_like(found_inf))
        scaler.update()

    def _step_as_torch(self, divisor: float) -> Outcome:
        """By the public methods of torch's own scaler: subclasses may override them."""
        scaler, optimizer = self._scaler, self._optimizer
        scaler.unscale_(optimizer)
        grads = self._grads.collect_grads(optimizer)
        norm = None
        if self._max_norm is not None:
            norm = grads.norm_check(new_flag(grads.device), divisor=divisor)
        if divisor != 1 or norm is not None:
            grads.scale_(grads.clip_factor(norm, self._max_norm, divisor=divisor))
        with FusedAttributes(optimizer, gives_back=True), StepWatch(optimizer) as watch:
            scaler.step(optimizer)
        found_inf = watch.found_inf
        scaler.update()
        if isinstance(found_inf, Tensor) and (not self._is_fused or not found_inf.is_cuda):
            found_inf = bool(found_inf)
        return Outcome(norm, found_inf)

    # ---- what torch's scaler has no public methods for

    def _scale_on(self, device: torch.device) -> Tensor:
        """The scaler's; made here on a rank that joins the others' window without a loss."""
        if self._scaler._scale is None:
            self._scaler._lazy_init_scale_growth_tracker(device)
        scale: Tensor = self._scaler._scale
        return scale

    def _step_recorded(self, found_inf: Tensor, grad_scale: Tensor | None) -> None:
        """The scaler's step where the gradients are unscaled already."""
        self._record(found_inf, stage=OptState.UNSCALED)
        self._scaler.step(self._optimizer)

    def _record(self, found_inf: Tensor, **stage: OptState) -> None:
        """What the scaler's update() is to know of this optimizer."""
        state = self._scaler._per_optimizer_states[id(self._optimizer)]
        state.update(found_inf_per_device={found_inf.device: found_inf}, **stage)

    def _forget_step(self) -> None:
        """The scaler forgets what it knows of this optimizer."""
        self._scaler._per_optimizer_states.pop(id(self._optimizer), None)


class PublicBoundary(Boundary):
    """The same where torch's scaler is not the one that fastloop knows, by its public methods."""

    def _scale_mark(self) -> tuple[Tensor | None, float]:
        return None, self._scaler.get_scale()  # SYNC

    def _scale_on(self, device: torch.device) -> Tensor:
        scale: Tensor = self._scaler.scale(torch.ones((), dtype=torch.float32, device=device))
        return scale

    def _step_recorded(self, found_inf: Tensor, grad_scale: Tensor | None) -> None:
        is_left = not self._is_fused or found_inf.device.type == "cpu"
        self._step_optimizer(bool(found_inf) if is_left else found_inf, found_inf, grad_scale)
        self._record(found_inf)

    def _record(self, found_inf: Tensor, **stage: OptState) -> None:
        """The scaler unscales the gradient of a stranger, which is inf where a step is skipped."""
        parameter = torch.zeros_like(found_inf, requires_grad=True)
        parameter.grad = torch.where(found_inf > 0, torch.inf, 0.0).to(found_inf)
        self._stranger = _Stranger([{"params": [parameter]}])
        self._scaler.unscale_(self._stranger)

    def _forget_step(self) -> None:
        with suppress(Exception):  # it has no scale yet
            self._scaler.update(self._scaler.get_scale())  # SYNC


class _Stranger(NamedTuple):
    """No torch optimizer: the user's hooks would see it."""

    param_groups: list[dict[str, Any]]


def make_boundary(
    optimizer: Optimizer, scaler: Any, max_norm: float | None, checks: bool
) -> Boundary:
    is_private = scaler is None or is_known("scaler", "The scaler's part in Stepper is left")
    kind = Boundary if is_private else PublicBoundary
    return kind(optimizer, scaler, max_norm, checks)
