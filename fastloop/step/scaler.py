"""GradScaler: torch's, with the engine's passes over the gradients (fastloop.step.grad_list).

State machine, messages, private fields and pickling are inherited from torch. `BoundedScaler` adds
fastloop's extras by torch's public methods only: bounds and hysteresis of the scale, counts of
skipped steps, checkpoints of both. If fastloop does not know this torch's scaler, `BoundedScaler`
is `GradScaler`.

Else `GradScaler` overrides methods that torch's methods call: `_unscale_grads_` (the pass) and
`_maybe_opt_step` (whether a step is skipped). `GradScaler` also replaces the branch of `step` for
fused optimizers, and `update`: the engine applies the rule of the scale."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.base.checks import check_value, make_message, read_int
from fastloop.compat.ranges import named
from fastloop.compat.torch_parts import OptState, TorchScaler, difference, is_known
from fastloop.step import grad_list

Flags = dict[Any, Tensor]  # found_inf by device

_EXTRAS = ("min_scale", "max_scale", "hysteresis")
_OWN = (*_EXTRAS, "skipped_steps", "_bad_steps")  # entries that torch's state dict lacks
_FUSED = ("grad_scale", "found_inf")  # attributes of fused optimizers
_LARGEST = torch.finfo(torch.float32).max
_INT_MAX = 2**31 - 1


# ---- steps of optimizers. torch's fused optimizers unscale gradients and skip steps themselves:
# during a step they read their own attributes `grad_scale` and `found_inf`.


def takes_grad_scale(optimizer: Optimizer) -> bool:
    """Tell whether the optimizer divides by a `grad_scale` attribute. torch's fused optimizers do;
    the step() of a few foreign optimizers takes the scaler as an argument instead."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    step: Any = optimizer.step
    while hasattr(step, "__wrapped__") and not hasattr(step, "__signature__"):
        step = step.__wrapped__
    code = None if hasattr(step, "__signature__") else getattr(step, "__code__", None)
    if code is None:
        return "grad_scaler" not in inspect.signature(step).parameters
    # inspect.signature would give the same answer, in ten times the time.
    return "grad_scaler" not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


@contextmanager
def fused_attributes(
    optimizer: Optimizer, grad_scale: Any = None, found_inf: Any = None, gives_back: bool = False
) -> Iterator[None]:
    """Set an optimizer's `grad_scale` and `found_inf` for the time of a step. As in torch, a
    grad_scale that the user has set counts as well, and both attributes are gone after the step. If
    the step raises, or with gives_back, the optimizer gets its former attributes back."""
    fields, of_user = vars(optimizer), getattr(optimizer, "grad_scale", None)
    had = {name: fields[name] for name in _FUSED if name in fields}
    if grad_scale is not None:
        fields["grad_scale"] = grad_scale if of_user is None else grad_scale * of_user
    elif found_inf is not None:
        fields["grad_scale"] = of_user
    if found_inf is not None:
        fields["found_inf"] = found_inf
    try:
        yield
        had = had if gives_back else {}
    finally:
        for name in _FUSED:
            fields.pop(name, None)
        fields.update(had)


@contextmanager
def watch_step(optimizer: Any) -> Iterator[list[Tensor | bool]]:
    """Watch an optimizer's step in a block. The list's one element says whether the step was
    skipped: the optimizer's found_inf during the step; True if step() was not called."""
    skipped: list[Tensor | bool] = [True]
    fields, before = vars(optimizer), optimizer.step
    had = {"step": fields["step"]} if "step" in fields else {}

    @functools.wraps(before)
    def step(*args: Any, **kwargs: Any) -> Any:
        found = getattr(optimizer, "found_inf", None)
        # A new tensor, because torch adds more flags to the optimizer's tensor.
        skipped[0] = False if found is None else (found > 0).to(torch.float32).reshape(())
        return before(*args, **kwargs)

    fields["step"] = step
    try:
        yield skipped
    finally:
        del fields["step"]
        fields.update(had)


class BoundedScaler(TorchScaler):
    """``torch.amp.GradScaler`` whose scale is never infinite, NaN or out of bounds. Bounds and
    hysteresis SYNC at each update."""

    # Defaults stand in the class: an instance unpickled from torch's scaler has none of its own.
    last_norm: Tensor | None = None  # the result of the last unscale_and_clip_; None in copies
    min_scale: float | None = None
    max_scale: float | None = None
    hysteresis: int = 1
    _bad_steps: Tensor | int = 0  # the number of last updates in a row that met a found_inf
    _last_skipped: Tensor | bool = False

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
        is_known("scaler", "GradScaler's passes are left")
        is_missing = torch.cuda.amp.common.amp_definitely_not_available
        if device == "cuda" and enabled and is_missing():  # type: ignore[no-untyped-call]
            # From here, stacklevel=2 names the user's line.
            warnings.warn(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
                stacklevel=2,
            )
            enabled = False
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._set_extras(min_scale, max_scale, hysteresis)
        self._skips = grad_list.FlagCounter()
        self._grad_lists: grad_list.Lists = {}
        if self.is_enabled():
            _check_finite("init_scale", init_scale)
            if self._bounded(init_scale) != init_scale:
                rule = f"in [min_scale={min_scale}, max_scale={max_scale}]"
                raise ValueError(make_message("init_scale", rule, init_scale))

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
        """Call grad_list.unscale_at_once if no subclass has replaced the unscaling."""
        if not self.is_enabled() or not self._owns_unscaling():
            return False
        return grad_list.unscale_at_once(self, optimizer, self._grad_lists, clip)

    # ---- the step

    def unscale_and_clip_(
        self,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
    ) -> Tensor:
        """Run `unscale_(optimizer)` and `clip_grad_norm_` of its parameters in one or two passes.

        Args:
            optimizer: has the gradients. Call `step` afterwards, as after `unscale_`.
            max_norm, norm_type, error_if_nonfinite: as in `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The total norm of the unscaled gradients before clipping: a 0-d tensor with the dtype
            and device of torch's result; also kept as `last_norm`.

        Gradients are read once, then multiplied once by min(1, max_norm / (norm + 1e-6)) / scale,
        and not written if this factor is 1. If a gradient is not finite, `step` will skip; until
        then the gradients are unscaled and not clipped, so you can find that gradient. (If torch's
        functions run, clipping has made the gradients 0 or NaN.) A disabled scaler only clips.

        SYNC only with error_if_nonfinite, as in torch.

        Raises:
            RuntimeError: called twice, or after `step`, without `update` between; with
                error_if_nonfinite, the total norm is not finite (the gradients are unscaled then).
            ValueError: a gradient is float16, as in `unscale_`.
        """
        clip = float(max_norm), float(norm_type), error_if_nonfinite
        norm = self._unscale_at_once(optimizer, clip)
        if norm is False:
            self.unscale_(optimizer)
        if isinstance(norm, bool) or (error_if_nonfinite and not norm.isfinite()):
            norm = grad_list.clip_grad_norm_(grad_list.parameters_of(optimizer), *clip)
        self.last_norm = norm
        return norm

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        with watch_step(optimizer) as skipped:
            result: float | None = super().step(optimizer, *args, **kwargs)
        self._note_step(skipped[0])
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        if not self.is_enabled():
            return
        has_extras = self.hysteresis > 1 or self.min_scale or self.max_scale
        if new_scale is None and not has_extras:
            super().update()
            return
        before = self.get_scale()
        super().update(new_scale)
        wanted = found = self.get_scale()
        if not math.isfinite(found):
            super().update(before)
            _check_finite("new_scale", found)
        if new_scale is None and self.hysteresis > 1:
            self._bad_steps = self._bad_steps + 1 if self.last_step_skipped() else 0
            if 0 < self._bad_steps < self.hysteresis:
                wanted = before
        if self._bounded(wanted) != found:
            super().update(self._bounded(wanted))

    def _note_step(self, flag: Tensor | bool) -> None:
        is_on_host = isinstance(flag, bool) or flag.device.type == "cpu"
        self._last_skipped = bool(flag) if is_on_host else flag
        self._skips.add(self._last_skipped)

    def last_step_skipped(self) -> bool:
        """Tell whether the last `step`, with any optimizer, was skipped. SYNC on CUDA."""
        return bool(self._last_skipped)

    @property
    def skipped_steps(self) -> int:
        """The number of optimizer steps that were skipped. SYNC on CUDA."""
        return self._skips.read()

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return torch's five entries and min_scale, max_scale, hysteresis, skipped_steps,
        _bad_steps: numbers or None. A disabled scaler returns {}. SYNC on CUDA."""
        state: dict[str, Any] = super().state_dict()
        if self.is_enabled():
            state.update({name: getattr(self, name) for name in _OWN})
            state["_bad_steps"] = int(self._bad_steps)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's scaler. torch's has no extras: this
        scaler's extras then stay.

        Raises:
            RuntimeError: the state dict is empty, because a disabled scaler made it.
            ValueError: the state dict's scale is not finite.
        """
        if not self.is_enabled():
            super().load_state_dict(state_dict)  # does nothing
            return
        torchs = {k: v for k, v in state_dict.items() if k not in _OWN}
        if state_dict:
            _check_finite("state_dict['scale']", state_dict["scale"])
            self._set_extras(*(state_dict.get(name, getattr(self, name)) for name in _EXTRAS))
            torchs["scale"] = self._bounded(state_dict["scale"])
        super().load_state_dict(torchs)
        self._skips.count = state_dict.get("skipped_steps", self.skipped_steps)
        bad_steps = state_dict.get("_bad_steps", self._bad_steps)
        if isinstance(self._bad_steps, Tensor):  # a captured graph may hold the tensor
            self._bad_steps.fill_(bad_steps)
        else:
            self._bad_steps = bad_steps

    def __getstate__(self) -> dict[str, Any]:
        state = {
            **super().__getstate__(),
            "_bad_steps": int(self._bad_steps),
            "_last_skipped": self.last_step_skipped(),
            "_grad_lists": {},
        }
        state.pop("last_norm", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_skips": grad_list.FlagCounter(), "_grad_lists": {}, **state})


class GradScaler(BoundedScaler):
    """``torch.amp.GradScaler`` with fewer passes over the gradients.

    Args:
        device, init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.
        min_scale: the lowest scale. None: the scale may fall to 0, as in torch.
        max_scale: the highest scale. None: the scale stops before infinity.
        hysteresis: n: the scale backs off at the n-th step in a row with a gradient that is not
            finite, and at each such step after that; a finite step resets the count. The rule is
            ``update_scale_hysteresis`` of NVIDIA's apex. 1: back off at the first such step, as in
            torch.

    If every gradient is an ordinary tensor, and all are on the CPU or on one CUDA device, fastloop
    runs the passes, on CUDA as one kernel each. Else torch's own passes run. The state dict holds
    torch's five keys, so that torch's scaler can load the dict, and fastloop's keys.

    Raises:
        ValueError: init_scale is not finite or not within the bounds; min_scale or max_scale is not
            a positive number; min_scale is larger than max_scale; hysteresis is less than 1.
        TypeError: hysteresis is not an int.
        AssertionError: from torch, for growth_factor and backoff_factor.
    """

    # ---- the passes

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, with torch's results and errors. No SYNC.

        Raises:
            RuntimeError: called twice, or after `step`, without `update` between.
            ValueError: a gradient is float16.
        """
        if not self._unscale_at_once(optimizer, None):
            super().unscale_(optimizer)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> Flags:
        grads = grad_list.grads_of(self._grad_lists, optimizer).collect_grads(optimizer)
        try:
            if grad_list.unscale_collected(grads, inv_scale, found_inf, allow_fp16):
                return {grads.device: found_inf}
        finally:
            grads.release()
        flags = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return flags if len(flags) < 2 else _join_flags(flags.values(), inv_scale.device)

    def _owns_unscaling(self) -> bool:
        """Tell whether neither a subclass nor the user has replaced the methods of this class."""
        unscale = getattr(self.unscale_, "__func__", None)
        inner = getattr(self._unscale_grads_, "__func__", None)
        return unscale is GradScaler.unscale_ and inner is GradScaler._unscale_grads_

    # ---- the step

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale the gradients unless they are unscaled, then call `optimizer.step(*args,
        **kwargs)` unless a gradient is not finite; with torch's results, errors and warnings.

        A fused optimizer skips by itself, on the device. For any other optimizer the host reads one
        flag (SYNC, as in torch). If a fused step raises, fastloop removes the attributes that torch
        leaves on the optimizer.

        Returns:
            The result of `optimizer.step`; None if the step was skipped."""
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
        """Do the work of torch's `step` for fused optimizers, without torch's inspect.signature at
        each step and the two tensors that torch leaves on an optimizer that raises."""
        is_unscaled = state["stage"] is OptState.UNSCALED
        if not is_unscaled:
            self._check_inf_per_device(optimizer)
        scale: Any = self._scale
        flags = state["found_inf_per_device"]
        # A subclass's flags may be sums over ranks.
        if len(flags) > 1 or (flags and not self._owns_unscaling()):
            flags = state["found_inf_per_device"] = _join_flags(flags.values(), scale.device)
        found_inf = next((flag.to(scale.device) for flag in flags.values()), 0)
        with fused_attributes(optimizer, None if is_unscaled else scale, found_inf):
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
        """Grow the scale, back off, or set the scale to new_scale: torch's rule, within the bounds.

        SYNC with a new_scale. Bounds and hysteresis SYNC only if fastloop cannot update the scale
        (FASTLOOP_DISABLE_CUDA, devices other than the CPU and CUDA).

        Raises:
            ValueError: new_scale is inf or NaN.
        """
        if not self._enabled:
            return
        if new_scale is None and self._update_at_once():
            states: Any = self._per_optimizer_states
            self._per_optimizer_states = defaultdict(states.default_factory)
            return
        for state in self._per_optimizer_states.values():
            # Copies, because torch adds all flags into the first tensor, and users may hold that.
            of_device = state["found_inf_per_device"]
            state["found_inf_per_device"] = {d: flag.clone() for d, flag in of_device.items()}
        super().update(new_scale)

    def _update_at_once(self) -> bool:
        """Do the work of torch's operations in one call, if the scale is a plain tensor."""
        scale, tracker = self._check_scale_growth_tracker("update")
        states = self._per_optimizer_states.values()
        flags = [flag for state in states for flag in state["found_inf_per_device"].values()]
        is_covered = scale.device.type in ("cpu", "cuda") and type(self._growth_interval) is int
        if not flags or not is_covered:
            return False
        found = flags[0] if len(flags) == 1 else _join_flags(flags, scale.device)[scale.device]
        counts = min(self._growth_interval, _INT_MAX), min(self.hysteresis, _INT_MAX)
        bounds = self.min_scale or -math.inf, self.max_scale or math.inf
        rule = (self._growth_factor, self._backoff_factor, *counts, *bounds)
        misses = self._bad_steps_on(scale.device) if self.hysteresis > 1 else tracker
        try:
            grad_list.empty_list().update_scale(found, rule, scale, tracker, misses)
        except (TypeError, ValueError):
            return False  # the engine takes neither this dtype of the scale nor these devices
        return True

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        # A captured step adds to these tensors, so they are made together with the scale: replays
        # of the graph keep adding to them.
        super()._lazy_init_scale_growth_tracker(dev)
        self._skips.prepare(dev)
        if self.hysteresis > 1:
            self._bad_steps_on(dev)

    def _bad_steps_on(self, device: torch.device) -> Tensor:
        if not isinstance(self._bad_steps, Tensor):
            self._bad_steps = torch.full((), self._bad_steps, dtype=torch.int32, device=device)
        return self._bad_steps


def _join_flags(flags: Iterable[Tensor], device: torch.device) -> Flags:
    """Join flags to one 0-d flag, exactly 0.0 or 1.0: fused optimizers skip at 1.0 only."""
    total: Any = sum(flag.to(device, non_blocking=True) for flag in flags)
    return {device: (total > 0).to(torch.float32).reshape(())}


def _check_finite(name: str, scale: float) -> None:
    check_value(name, scale, math.isfinite(scale), "finite")


if difference("scaler") and not TYPE_CHECKING:
    # The same name, so that a pickle can be read with any torch.
    BoundedScaler.__name__ = BoundedScaler.__qualname__ = "GradScaler"
    BoundedScaler.__module__ = __name__
    GradScaler = BoundedScaler
