"""How the loss scale of a GradScaler changes: torch's rule, within bounds and with hysteresis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fastloop.base.torch_parts import TorchScaler, refresh_optimizer_state
from fastloop.step.grad_list import empty_list

Flags = dict[Any, Tensor]  # found_inf by device

_INT_MAX = 2**31 - 1
EXTRAS = ("min_scale", "max_scale", "hysteresis")


class BoundedScaler(TorchScaler):
    """``torch.amp.GradScaler`` whose scale is never infinite, NaN or out of bounds."""

    # Defaults are the class's: an instance unpickled from an older version has them all.
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    _bad_steps: Tensor | int = 0  # how many updates in a row have met a found_inf, up to now

    def _set_bounds(self, low: float | None, high: float | None, hysteresis: int) -> None:
        """Take over checked arguments of the constructor, after torch's own."""
        self._set_extras(low, high, hysteresis)
        if not self._enabled:
            return
        check_finite("init_scale", self._init_scale)
        check_bounds(self._init_scale, low, high)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Grow the scale, back off, or set it to new_scale: torch's, within our bounds.

        Does not wait for the device. A new_scale that is not finite leaves the scale as it is where
        only a device other than the CPU could tell.

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
        """What torch's operations do below, in one call, if the scale is a plain tensor."""
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
        # All that a captured step adds to is made with the scale: a graph goes on with what it saw.
        super()._lazy_init_scale_growth_tracker(dev)
        if self.hysteresis > 1:
            self._bad_steps_on(dev)

    def _bad_steps_on(self, device: torch.device) -> Tensor:
        if not isinstance(self._bad_steps, Tensor):
            self._bad_steps = torch.full((), self._bad_steps, dtype=torch.int32, device=device)
        return self._bad_steps

    def _update_by_torch(self, new_scale: float | Tensor | None) -> None:
        scale, _ = self._check_scale_growth_tracker("update")
        if isinstance(new_scale, float):
            check_finite("new_scale", new_scale)
        elif isinstance(new_scale, Tensor) and new_scale.device.type == "cpu":
            for value in new_scale.float().reshape(-1).tolist():
                check_finite("new_scale", value)
        for state in self._per_optimizer_states.values():
            # torch adds all flags into the first, which is not ours to change.
            flags = state["found_inf_per_device"]
            state["found_inf_per_device"] = {d: flag.clone() for d, flag in flags.items()}
        before = scale.clone()
        must_stay = self._count_bad_steps(scale) if new_scale is None else None
        super().update(new_scale)
        is_kept = scale.isfinite().logical_not_()
        if must_stay is not None:
            is_kept.logical_or_(must_stay)
        scale.copy_(torch.where(is_kept, before, scale))
        self._clamp_scale()

    def _count_bad_steps(self, scale: Tensor) -> Tensor | None:
        """Count this update; whether hysteresis keeps the scale from backing off."""
        flags = self._flags()
        if self.hysteresis == 1 or not flags:
            return None
        bad = self._bad_steps_on(scale.device)
        is_bad = as_one_flag(flags, scale.device)[scale.device] > 0
        bad.add_(1).mul_(is_bad)
        return is_bad.logical_and_(bad < self.hysteresis)

    def _clamp_scale(self) -> None:
        if self._scale is not None and (self.min_scale or self.max_scale):
            self._scale.clamp_(self.min_scale, self.max_scale)

    def _set_extras(self, low: float | None, high: float | None, hysteresis: int) -> None:
        check_extras(low, high, hysteresis)
        self.min_scale, self.max_scale, self.hysteresis = low, high, hysteresis

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """torch's entries and min_scale, max_scale, hysteresis, _bad_steps."""
        state = super().state_dict()
        if self._enabled:
            state.update({name: getattr(self, name) for name in EXTRAS})
            state["_bad_steps"] = int(self._bad_steps)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of ours or of torch's scaler."""
        if self._enabled and state_dict:
            check_finite("state_dict['scale']", state_dict["scale"])
            self._set_extras(*(state_dict.get(name, getattr(self, name)) for name in EXTRAS))
        super().load_state_dict(state_dict)
        if self._enabled:
            self._init_scale = bounded(self._init_scale, self.min_scale, self.max_scale)
            self._clamp_scale()
            bad_steps = state_dict.get("_bad_steps", self._bad_steps)
            if isinstance(self._bad_steps, Tensor):
                self._bad_steps.fill_(bad_steps)
            else:
                self._bad_steps = bad_steps

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_bad_steps": int(self._bad_steps)}


def bounded(scale: float, low: float | None, high: float | None) -> float:
    return min(max(scale, low or -math.inf), high or math.inf)


def check_bounds(init_scale: float, low: float | None, high: float | None) -> None:
    nearest = bounded(init_scale, low, high)
    if nearest != init_scale:
        raise ValueError(
            f"init_scale={init_scale} is not between min_scale={low} and "
            f"max_scale={high}; pass init_scale={nearest}"
        )


def check_extras(low: float | None, high: float | None, hysteresis: int) -> None:
    for name, value in (("min_scale", low), ("max_scale", high)):
        if value is not None and not 0 < value <= torch.finfo(torch.float32).max:
            raise ValueError(
                f"{name}={value} is no positive float32 number; pass one, or None for no bound"
            )
    if low is not None and high is not None and low > high:
        raise ValueError(f"min_scale={low} is larger than max_scale={high}; exchange them")
    if hysteresis < 1:
        raise ValueError(
            f"hysteresis={hysteresis} is less than 1; pass 1 to back off at once, as torch does"
        )


def as_one_flag(flags: Iterable[Tensor], device: torch.device) -> Flags:
    """Exactly 0.0 or 1.0, 0-d: fused optimizers skip at 1.0 and at nothing else."""
    total: Any = sum(flag.to(device, non_blocking=True) for flag in flags)
    return {device: (total > 0).to(torch.float32).reshape(())}


def check_finite(name: str, scale: float) -> None:
    if not math.isfinite(scale):
        raise ValueError(f"{name}={scale} is not finite; pass a finite scale, such as 65536.0")
