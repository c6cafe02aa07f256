"""torch's GradScaler with fastloop's extras, over its public methods alone: bounds and hysteresis
of the scale, counts of skipped steps, checkpoints of both. `scaler.py` builds the engine's passes
on it. Where torch's scaler is not the one that fastloop knows, it is `fastloop.GradScaler`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.base.checks import make_message, read_int
from fastloop.base.torch_parts import TorchScaler, is_known
from fastloop.step.clip import clip_grad_norm_
from fastloop.step.grad_list import parameters_of
from fastloop.step.outcomes import FlagCounter, StepWatch

Flags = dict[Any, Tensor]  # found_inf by device

_EXTRAS = ("min_scale", "max_scale", "hysteresis")
_OWN = (*_EXTRAS, "skipped_steps", "_bad_steps")  # entries of the state dict that torch's lacks
_LARGEST = torch.finfo(torch.float32).max


class BoundedScaler(TorchScaler):
    """``torch.amp.GradScaler`` whose scale is never infinite, NaN or out of bounds. Bounds and
    hysteresis SYNC at each update."""

    # Defaults are the class's: an instance unpickled from torch's scaler has them all.
    last_norm: Tensor | None = None  # the result of the last unscale_and_clip_; None in copies
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    _bad_steps: Tensor | int = 0  # how many updates in a row have met a found_inf, up to now
    _last_skipped: Tensor | bool = False

    def __init__(
        self,
        *args: Any,
        min_scale: float | None = None,
        max_scale: float | None = None,
        hysteresis: int = 1,
        **kwargs: Any,
    ) -> None:
        is_known("scaler", "GradScaler's passes are left")
        super().__init__(*args, **kwargs)
        self._set_extras(min_scale, max_scale, hysteresis)
        self._skips = FlagCounter()
        if self.is_enabled():
            scale = self.get_scale()
            check_finite("init_scale", scale)
            if self._bounded(scale) != scale:
                rule = f"within min_scale={min_scale} and max_scale={max_scale}"
                raise ValueError(make_message("init_scale", rule, scale))

    def _set_extras(self, low: float | None, high: float | None, hysteresis: int) -> None:
        for name, value in (("min_scale", low), ("max_scale", high)):
            if value is not None and not 0 < value <= _LARGEST:
                rule = "a positive float32 number"
                raise ValueError(make_message(name, rule, value, "or None: no bound"))
        if low is not None and high is not None and low > high:
            raise ValueError(make_message("min_scale", f"<= max_scale={high}", low))
        hysteresis = read_int("hysteresis", hysteresis, 1, remedy="1 backs off at once, as torch")
        self.min_scale, self.max_scale, self.hysteresis = low, high, hysteresis

    def _bounded(self, scale: float) -> float:
        return min(max(scale, self.min_scale or -math.inf), self.max_scale or math.inf)

    def _owns_unscaling(self) -> bool:
        return False

    def _unscale_at_once(
        self, optimizer: Optimizer, clip: tuple[float, float, bool] | None
    ) -> Tensor | bool:
        """Unscale, and clip, in one call of the engine, as grad_list.unscale_at_once."""
        return False

    # ---- the step

    def unscale_and_clip_(
        self,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor:
        """`unscale_(optimizer)` and `clip_grad_norm_` of all its parameters, in one or two passes.

        Args:
            optimizer: whose gradients; `step` is then called as after `unscale_`.
            max_norm, norm_type, error_if_nonfinite: as `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The total norm of the unscaled gradients before they were clipped, a 0-d tensor of the
            dtype and on the device that torch's function gives; also kept as `last_norm`.

        Gradients are read once, then multiplied once by min(1, max_norm / (norm + 1e-6)) / scale,
        and not written where that is 1. If one is not finite, `step` will skip; until then they are
        unscaled but not clipped, so that one can see which it was (where torch's functions run they
        hold what torch's clipping leaves: zeros and NaN). A disabled scaler only clips.

        Does not wait for the device, unless error_if_nonfinite (SYNC, as in torch).

        Raises:
            RuntimeError: called twice, or after `step`, without `update` between; with
                error_if_nonfinite, the total norm is not finite (the gradients are unscaled then).
            ValueError: a gradient is float16, as in `unscale_`.
        """
        clip = float(max_norm), float(norm_type), error_if_nonfinite
        norm = self.is_enabled() and self._unscale_at_once(optimizer, clip)
        if norm is False:
            self.unscale_(optimizer)
        if isinstance(norm, bool) or (error_if_nonfinite and not norm.isfinite()):
            norm = clip_grad_norm_(parameters_of(optimizer), *clip)
        self.last_norm = norm
        return norm

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        with StepWatch(optimizer) as watch:
            result: float | None = super().step(optimizer, *args, **kwargs)
        self._note_step(watch.found_inf)
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        if not self.is_enabled():
            return
        is_plain = self.hysteresis == 1 and not self.min_scale and not self.max_scale
        if isinstance(new_scale, float):
            check_finite("new_scale", new_scale)
        before = 0.0 if is_plain else self.get_scale()
        super().update(new_scale)
        if is_plain:
            return
        scale = self.get_scale()
        if new_scale is None and self.hysteresis > 1:
            self._bad_steps = self._bad_steps + 1 if self.last_step_skipped() else 0
            if 0 < self._bad_steps < self.hysteresis:
                scale = before
        if self._bounded(scale) != self.get_scale():
            super().update(self._bounded(scale))

    def _note_step(self, flag: Tensor | bool) -> None:
        is_on_host = isinstance(flag, bool) or flag.device.type == "cpu"
        self._last_skipped = bool(flag) if is_on_host else flag
        self._skips.add(self._last_skipped)

    def last_step_skipped(self) -> bool:
        """Return whether the last `step`, of any optimizer, was skipped. SYNC on CUDA."""
        return bool(self._last_skipped)

    @property
    def skipped_steps(self) -> int:
        """The number of optimizer steps that were skipped. SYNC on CUDA."""
        return self._skips.read()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return torch's five entries and min_scale, max_scale, hysteresis, skipped_steps,
        _bad_steps, all numbers or None; {} where disabled. SYNC on CUDA."""
        state: dict[str, Any] = super().state_dict()
        if self.is_enabled():
            state.update({name: getattr(self, name) for name in _OWN})
            state["_bad_steps"] = int(self._bad_steps)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class, or of torch's scaler, which has no extras: those here
        stay.

        Raises:
            RuntimeError: it is empty, being that of a disabled scaler.
            ValueError: its scale is not finite.
        """
        if self.is_enabled() and state_dict:
            check_finite("state_dict['scale']", state_dict["scale"])
            self._set_extras(*(state_dict.get(name, getattr(self, name)) for name in _EXTRAS))
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in _OWN})
        if self.is_enabled():
            self._skips.count = state_dict.get("skipped_steps", self.skipped_steps)
            bad_steps = state_dict.get("_bad_steps", self._bad_steps)
            if isinstance(self._bad_steps, Tensor):  # stays, for graphs
                self._bad_steps.fill_(bad_steps)
            else:
                self._bad_steps = bad_steps

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_grad_lists", "_skips", "last_norm"):
            state.pop(name, None)
        return {
            **state,
            "_bad_steps": int(self._bad_steps),
            "_skipped_steps": self.skipped_steps,
            "_last_skipped": self.last_step_skipped(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_skipped_steps": 0, **state})
        self._skips = FlagCounter(self.__dict__.pop("_skipped_steps"))


def as_one_flag(flags: Iterable[Tensor], device: torch.device) -> Flags:
    """Join flags to one, exactly 0.0 or 1.0, 0-d: fused optimizers skip at 1.0 alone."""
    total: Any = sum(flag.to(device, non_blocking=True) for flag in flags)
    return {device: (total > 0).to(torch.float32).reshape(())}


def check_finite(name: str, scale: float) -> None:
    if not math.isfinite(scale):
        raise ValueError(make_message(name, "finite", scale))
