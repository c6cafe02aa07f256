"""The seam of grad scalers: ``torch.amp.GradScaler`` unscales and checks gradients by the engine.

Two methods are replaced: ``unscale_``, by one call of the engine, and ``_unscale_grads_``, which
``step`` calls for fused optimizers, which unscale by themselves. torch's ``step`` and ``update``
stay: the engine would not be faster. A scaler that overrides ``_unscale_grads_`` is left to torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastloop.base.torch_parts import TorchScaler
from fastloop.patching.seams import Function, Seam, has_dispatch_mode
from fastloop.step.grad_list import GradList, grads_of, unscale_at_once, unscale_collected
from fastloop.step.scaler import BoundedScaler, Flags

_WHAT = "a GradScaler's step"


def make_seam(is_strict: bool) -> Seam:
    seam = Seam("grad_scaler", is_strict, _probe, ("scaler", "tensors"))
    lists: dict[int, GradList] = {}

    def is_served(scaler: Any) -> bool:
        return getattr(scaler._unscale_grads_, "__func__", None) is inner.ours

    def make_unscale(before: Function) -> Function:
        def unscale_(self: Any, optimizer: Any) -> None:
            is_ours = not torch.compiler.is_compiling() and seam.is_on and self._enabled
            is_ours = is_ours and not has_dispatch_mode() and is_served(self)
            if is_ours and unscale_at_once(self, optimizer, grads_of(lists, optimizer)):
                seam.count()
            else:
                before(self, optimizer)

        return unscale_

    def make_unscale_grads(before: Function) -> Function:
        def _unscale_grads_(
            self: Any, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
        ) -> Flags:
            flags = None
            if not torch.compiler.is_compiling() and seam.is_on and is_served(self):
                flags = unscale(optimizer, inv_scale, found_inf, allow_fp16)
            theirs: Flags = flags or before(self, optimizer, inv_scale, found_inf, allow_fp16)
            return theirs

        return _unscale_grads_

    def unscale(
        optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> Flags | None:
        grads = grads_of(lists, optimizer)
        flag = found_inf.clone()  # torch does not write into the argument either
        try:
            grads.collect_groups(optimizer.param_groups)
            if not has_dispatch_mode() and unscale_collected(grads, inv_scale, flag, allow_fp16):
                seam.count()
                return {grads.device: flag}
            is_error = torch.float16 in grads.dtypes and not allow_fp16  # torch raises
            if grads.tensors and not is_error:
                seam.leave(_WHAT, _why_not(grads, inv_scale))
            return None
        finally:
            grads.release()

    def make_check(before: Function) -> Function:
        def _check_scale_growth_tracker(self: Any, funcname: str) -> tuple[Tensor, Tensor]:
            # Every step begins here, even if a scaler's gradients are not seen above.
            is_torchs = seam.is_on and not isinstance(self, BoundedScaler)
            if funcname == "step" and is_torchs and not is_served(self):
                seam.leave(_WHAT, f"{type(self).__qualname__} unscales gradients by itself")
            numbers: tuple[Tensor, Tensor] = before(self, funcname)
            return numbers

        return _check_scale_growth_tracker

    seam.add(TorchScaler, "unscale_", make_unscale)
    inner = seam.add(TorchScaler, "_unscale_grads_", make_unscale_grads)
    seam.add(TorchScaler, "_check_scale_growth_tracker", make_check)
    return seam


def _why_not(grads: GradList, inv_scale: Tensor) -> str:
    if has_dispatch_mode():
        return "a torch dispatch mode is on"
    if not grads.is_plain:
        return grads.why_not_plain()
    if grads.device != inv_scale.device:
        return f"gradients are on {grads.device}, and the scale on {inv_scale.device}"
    return "the scale or the flag is not a plain 0-d tensor"


class _Optimizer:
    """Stands in for an optimizer: hooks of the program would see the steps of a real one."""

    def __init__(self, params: list[Tensor], is_fused: bool) -> None:
        self.param_groups = [{"params": params}]
        self._step_supports_amp_scaling = is_fused

    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.add_(1)


def _probe(_: bool) -> list[Tensor]:
    """Return parameters, gradients and scales over steps, one of which meets an infinity."""
    found: list[Tensor] = []
    for is_fused in (False, True):
        params = [torch.zeros(shape) for shape in ((3,), (2, 2))]
        optimizer: Any = _Optimizer(params, is_fused)
        scaler: Any = TorchScaler("cpu", init_scale=3.0, growth_interval=2)
        scaler.scale(torch.ones(()))
        for value in (0.1, math.inf, 0.7, 0.3, 0.9):
            params[0].grad = torch.full((3,), 0.1)
            params[1].grad = torch.full((2, 2), value)
            scaler.step(optimizer)
            scaler.update()
            found += [t.clone() for p in params for t in (p, p.grad) if t is not None]
            found += [scaler._scale.clone(), scaler._growth_tracker.clone()]
    return found
