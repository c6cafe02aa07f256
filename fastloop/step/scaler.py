"""GradScaler: torch's, whose passes over the gradients are the engine's (fastloop.step.grad_list).

State machine, messages, private fields and pickling are torch's, inherited. fastloop overrides the
methods that torch's call: `_unscale_grads_` (the pass), `_check_inf_per_device` (that of optimizers
which unscale by themselves), `_maybe_opt_step` (whether a step is skipped); the branch of `step`
for fused optimizers; and `update`, whose rule runs in C."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.base.ranges import named
from fastloop.base.torch_parts import OptState, TorchScaler, difference, refresh_optimizer_state
from fastloop.step.bounded_scaler import BoundedScaler, Flags, as_one_flag, check_finite
from fastloop.step.grad_list import (
    GradList,
    empty_list,
    grads_of,
    unscale_at_once,
    unscale_collected,
)
from fastloop.step.outcomes import fused_attributes, takes_grad_scale, times_of_user

_INT_MAX = 2**31 - 1


class GradScaler(BoundedScaler):
    """``torch.amp.GradScaler`` with fewer passes over the gradients.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: torch's.
        min_scale: the scale never falls below it. None: it may fall to 0, as torch's does.
        max_scale: the scale never rises above it. None: it stops before infinity.
        hysteresis: how many steps in a row must meet a gradient that is not finite before the scale
            backs off (it then does at each, until a step without one starts the count anew), as
            ``update_scale_hysteresis`` of NVIDIA's apex. 1: at the first, as torch.

    Where every gradient is an ordinary tensor on the CPU, or all are on one CUDA device, passes run
    in C or as one kernel each; elsewhere torch's own run. The state dict holds torch's five keys,
    so that torch's scaler loads it, and fastloop's.

    Raises:
        ValueError: init_scale is not finite or not within the bounds; min_scale or max_scale is not
            a positive number, or min_scale is larger; hysteresis is less than 1.
        TypeError: hysteresis is not an int.
        AssertionError: torch's own, for growth_factor and backoff_factor.
    """

    _grad_lists: dict[int, GradList] | None = None  # by id of the optimizer: caches, no more

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
        hysteresis: int = 1,
    ) -> None:
        if device == "cuda" and enabled and not _has_cuda():
            # Warned of here, one frame from the user's line.
            warnings.warn(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
                stacklevel=2,
            )
            enabled = False
        torchs = device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        super().__init__(*torchs, min_scale=min_scale, max_scale=max_scale, hysteresis=hysteresis)

    # ---- the passes

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale: torch's, errors included. No SYNC.

        Raises:
            RuntimeError: called twice, or after `step`, without `update` between.
            ValueError: a gradient is float16.
        """
        if not self._enabled or self._unscale_at_once(optimizer, None) is False:
            super().unscale_(optimizer)

    def _unscale_at_once(
        self, optimizer: Optimizer, clip: tuple[float, float, bool] | None
    ) -> Tensor | bool:
        if not self._owns_unscaling():
            return False
        return unscale_at_once(self, optimizer, self._grads_of(optimizer), clip)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> Flags:
        grads = self._grads_of(optimizer).collect_grads(optimizer)
        try:
            if unscale_collected(grads, inv_scale, found_inf, allow_fp16):
                return {grads.device: found_inf}
        finally:
            grads.release()
        flags = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return flags if len(flags) < 2 else as_one_flag(flags.values(), inv_scale.device)

    def _grads_of(self, optimizer: Optimizer) -> GradList:
        if self._grad_lists is None:
            self._grad_lists = {}
        return grads_of(self._grad_lists, optimizer)

    def _owns_unscaling(self) -> bool:
        """Tell whether neither a subclass nor the user has replaced the methods of this class."""
        return _is_method(self.unscale_, GradScaler.unscale_) and _is_method(
            self._unscale_grads_, GradScaler._unscale_grads_
        )

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[str, Any]:
        flags = super()._check_inf_per_device(optimizer)
        if not flags or _is_method(self._unscale_grads_, GradScaler._unscale_grads_):
            return flags
        return self._merge_flags(self._per_optimizer_states[id(optimizer)])

    def _merge_flags(self, state: dict[str, Any]) -> Flags:
        scale, _ = self._check_scale_growth_tracker("step")
        flags = as_one_flag(state["found_inf_per_device"].values(), scale.device)
        state["found_inf_per_device"] = flags
        return flags

    # Named here too, because reports put something around it.
    unscale_and_clip_ = BoundedScaler.unscale_and_clip_

    # ---- the step

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients unless that is done, then `optimizer.step(*args, **kwargs)` unless
        one of them is not finite: torch's, errors and warnings included.

        Fused optimizers skip by themselves, on the device; for others the host reads one flag
        (SYNC, as in torch). What torch sets on a fused optimizer is gone when its step raises.

        Returns:
            The result of `optimizer.step`, None where it is not called."""
        step = named("step", super(BoundedScaler, self).step)
        is_fused = self._enabled and getattr(optimizer, "_step_supports_amp_scaling", False)
        if not is_fused or "closure" in kwargs:
            return step(optimizer, *args, **kwargs)
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED or not takes_grad_scale(optimizer):
            result = step(optimizer, *args, **kwargs)
        else:
            result = named("step", self._step_fused)(optimizer, state, *args, **kwargs)
        self._note_step(next(iter(state["found_inf_per_device"].values()), False))
        return result

    def _step_fused(
        self, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        """Do one branch of torch's `step`: torch's asks inspect.signature at every step, and leaves
        its two tensors on the optimizer if that raises."""
        is_unscaled = state["stage"] is OptState.UNSCALED
        if not is_unscaled:
            self._check_inf_per_device(optimizer)
        elif not self._owns_unscaling():
            self._merge_flags(state)  # they may be sums over ranks
        scale = self._scale
        assert scale is not None
        flags = [f.to(scale.device) for f in state["found_inf_per_device"].values()]
        of_user = getattr(optimizer, "grad_scale", None)
        grad_scale = of_user if is_unscaled else times_of_user(optimizer, scale)
        found_inf = flags[0] if len(flags) == 1 else sum(flags)
        with fused_attributes(optimizer, grad_scale=grad_scale, found_inf=found_inf):
            result: float | None = optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _maybe_opt_step(
        self, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        flags = optimizer_state["found_inf_per_device"].values()
        is_skipped = sum(flag.item() for flag in flags) != 0
        self._note_step(is_skipped)
        result: float | None = None if is_skipped else optimizer.step(*args, **kwargs)
        return result

    # ---- the scale

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Grow the scale, back off, or set it to new_scale: torch's rule, within the bounds.

        Does not wait for the device. A new_scale that is not finite leaves the scale unchanged
        where only a device other than the CPU could tell.

        Raises:
            ValueError: new_scale is inf or NaN.
        """
        if not self._enabled:
            return
        if new_scale is None and self._update_at_once():
            self._per_optimizer_states = defaultdict(refresh_optimizer_state)
        else:
            self._update_by_torch(new_scale)

    def _flags(self) -> list[Tensor]:
        states = self._per_optimizer_states.values()
        return [flag for state in states for flag in state["found_inf_per_device"].values()]

    def _update_at_once(self) -> bool:
        """Do the work of torch's operations below in one call, if the scale is a plain tensor."""
        scale, tracker = self._check_scale_growth_tracker("update")
        flags = self._flags()
        is_covered = scale.device.type in ("cpu", "cuda") and type(self._growth_interval) is int
        if not flags or not is_covered:
            return False
        found = flags[0] if len(flags) == 1 else as_one_flag(flags, scale.device)[scale.device]
        rule = (
            self._growth_factor,
            self._backoff_factor,
            min(self._growth_interval, _INT_MAX),
            min(self.hysteresis, _INT_MAX),
            self.min_scale or -math.inf,
            self.max_scale or math.inf,
        )
        misses = self._bad_steps_on(scale.device) if self.hysteresis > 1 else tracker
        try:
            empty_list().update_scale(found, rule, scale, tracker, misses)
        except (TypeError, ValueError):
            return False  # a scale of another dtype, a flag on another device, no engine there
        return True

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        # All that a captured step adds to is made with the scale: a graph goes on with these.
        super()._lazy_init_scale_growth_tracker(dev)
        self._skips.prepare(dev)
        if self.hysteresis > 1:
            self._bad_steps_on(dev)

    def _bad_steps_on(self, device: torch.device) -> Tensor:
        if not isinstance(self._bad_steps, Tensor):
            self._bad_steps = torch.full((), self._bad_steps, dtype=torch.int32, device=device)
        return self._bad_steps

    def _update_by_torch(self, new_scale: float | Tensor | None) -> None:
        scale, _ = self._check_scale_growth_tracker("update")
        if isinstance(new_scale, Tensor) and new_scale.device.type == "cpu":
            for value in new_scale.float().reshape(-1).tolist():
                check_finite("new_scale", value)
        elif isinstance(new_scale, float):
            check_finite("new_scale", new_scale)
        flags = self._flags() if new_scale is None else []
        for state in self._per_optimizer_states.values():
            # Copies, because torch adds all flags into the first, which others may hold.
            of_device = state["found_inf_per_device"]
            state["found_inf_per_device"] = {d: flag.clone() for d, flag in of_device.items()}
        before = scale.clone()
        TorchScaler.update(self, new_scale)
        is_kept = scale.isfinite().logical_not_()
        if self.hysteresis > 1 and flags:
            bad = self._bad_steps_on(scale.device)
            is_bad = as_one_flag(flags, scale.device)[scale.device] > 0
            bad.add_(1).mul_(is_bad)
            is_kept.logical_or_(is_bad.logical_and_(bad < self.hysteresis))
        scale.copy_(torch.where(is_kept, before, scale))
        self._clamp_scale()

    def _clamp_scale(self) -> None:
        if self._scale is not None and (self.min_scale or self.max_scale):
            self._scale.clamp_(self.min_scale, self.max_scale)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._enabled:
            self._init_scale = self._bounded(self._init_scale)
            self._clamp_scale()


def _has_cuda() -> bool:
    return not torch.cuda.amp.common.amp_definitely_not_available()  # type: ignore[no-untyped-call]


def _is_method(method: object, function: object) -> bool:
    return getattr(method, "__func__", None) is function


if difference("scaler") and not TYPE_CHECKING:
    # Under the same name, for pickles, which go from one torch to another.
    BoundedScaler.__name__ = BoundedScaler.__qualname__ = "GradScaler"
    BoundedScaler.__module__ = __name__
    GradScaler = BoundedScaler
