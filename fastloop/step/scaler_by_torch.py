"""GradScaler where torch's is not the one that fastloop knows: torch's own passes and rule, and
fastloop's extras by public methods alone. `fastloop.step.scaler` puts it in its class's place."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fastloop.base.torch_parts import TorchScaler, is_known
from fastloop.step.clip import clip_grad_norm_
from fastloop.step.fused_optimizer import StepWatch
from fastloop.step.grad_list import parameters_of
from fastloop.step.outcomes import FlagCounter
from fastloop.step.scale_rule import EXTRAS, bounded, check_bounds, check_extras, check_finite

_OWN = (*EXTRAS, "skipped_steps", "_bad_steps")  # entries of the state dict that torch's lacks


class GradScaler(TorchScaler):
    """As fastloop.step.scaler.GradScaler, which see. Bounds and hysteresis SYNC at each update."""

    __module__ = "fastloop.step.scaler"  # for pickles, which go from one torch to another
    last_norm: Tensor | None = None
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    _last_skipped: Tensor | bool = False
    _bad_steps: int = 0

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
        check_extras(min_scale, max_scale, hysteresis)
        self.min_scale, self.max_scale, self.hysteresis = min_scale, max_scale, hysteresis
        self._skips = FlagCounter()
        if self.is_enabled():
            check_finite("init_scale", self.get_scale())
            check_bounds(self.get_scale(), min_scale, max_scale)

    def _owns_unscaling(self) -> bool:
        return False

    def unscale_and_clip_(
        self,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor:
        self.unscale_(optimizer)
        params = parameters_of(optimizer)
        self.last_norm = clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite)
        return self.last_norm

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        with StepWatch(optimizer) as watch:
            result: float | None = super().step(optimizer, *args, **kwargs)
        self._last_skipped = watch.found_inf
        self._skips.add(watch.found_inf)
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
        scale = bounded(scale, self.min_scale, self.max_scale)
        if scale != self.get_scale():
            super().update(scale)

    def last_step_skipped(self) -> bool:
        return bool(self._last_skipped)

    @property
    def skipped_steps(self) -> int:
        return self._skips.read()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = super().state_dict()
        if self.is_enabled():
            state.update({name: getattr(self, name) for name in _OWN})
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.is_enabled() and state_dict:
            check_finite("state_dict['scale']", state_dict["scale"])
            extras = [state_dict.get(name, getattr(self, name)) for name in EXTRAS]
            check_extras(*extras)
            self.min_scale, self.max_scale, self.hysteresis = extras
            self._skips.count = state_dict.get("skipped_steps", self.skipped_steps)
            self._bad_steps = state_dict.get("_bad_steps", self._bad_steps)
        super().load_state_dict({k: v for k, v in state_dict.items() if k not in _OWN})

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_skips", "last_norm"):
            state.pop(name, None)
        read = {"_skipped_steps": self.skipped_steps, "_last_skipped": self.last_step_skipped()}
        return {**state, **read}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_skipped_steps": 0, **state})
        self._skips = FlagCounter(self.__dict__.pop("_skipped_steps"))
