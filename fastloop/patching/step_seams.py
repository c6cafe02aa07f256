"""The seams of the step: ``torch.amp.GradScaler`` unscales and checks gradients by the engine, and
``torch.nn.utils.clip_grad_norm_`` rescales them by it, or leaves them untouched if there is nothing
to clip.

Two methods of scalers are replaced: ``unscale_``, by one call of the engine, and
``_unscale_grads_``, which ``step`` calls for fused optimizers because they unscale by themselves.
torch's ``step`` and ``update`` stay: the engine would not be faster. A scaler that overrides
``_unscale_grads_`` is left to torch.

For clipping, the inner function that torch looks up at each call is replaced, so a module that has
imported ``clip_grad_norm_`` before is served as well. torch computes the norm: the engine adds up
in double, which changes the last bits.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.utils as utils
from torch import Tensor

from fastloop.base.threads import thread_pool
from fastloop.compat.ranges import named
from fastloop.compat.seams import Function, Seam
from fastloop.compat.torch_parts import TorchScaler, clip_module, count_dispatch_modes
from fastloop.step import grad_list, shards
from fastloop.step.scaler import BoundedScaler

_WHAT = "a GradScaler's step"


def _why_not_plain(grads: grad_list.GradList) -> str:
    """Return why torch must run a pass over these gradients; "" if the engine takes them."""
    if count_dispatch_modes():
        return "a torch dispatch mode is on"
    return "" if grads.can_run else grads.why_not_plain()


# ---- clipping


def make_clip_seam(is_strict: bool) -> Seam:
    seam = Seam("clip_grad_norm", is_strict, _probe_clip, ("clip", "tensors"))
    idle: list[grad_list.GradList] = []  # gradients seldom change their sizes between calls

    def make_clip(before: Function) -> Function:
        def _clip_grads_with_norm_(
            parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None
        ) -> None:
            if torch.compiler.is_compiling() or not seam.is_on:
                before(parameters, max_norm, total_norm, foreach)
                return
            params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            grads = grad_list.take_idle(idle)
            try:
                grads.collect_grads(params)
                reason = _why_not_clip(grads, total_norm)
                if not reason:
                    _multiply(grads, float(max_norm), total_norm)
                    seam.native += 1
                    return
                if grads.tensors:
                    seam.leave("a clip", reason)
            finally:
                grads.release()
                idle[:] = [grads]
            before(params, max_norm, total_norm, foreach)

        return _clip_grads_with_norm_

    name = "_clip_grads_with_norm_"
    seam.add(clip_module, name, make_clip, (utils, name.lstrip("_")))
    return seam


def _why_not_clip(grads: grad_list.GradList, total_norm: Tensor) -> str:
    """Return why torch must rescale; "" if the engine gives the same bits."""
    if reason := _why_not_plain(grads):
        return reason
    if len(grads.dtypes) != 1:
        return "gradients are of several dtypes"
    is_covered = type(total_norm) is Tensor or (
        grads.has_shards and type(total_norm) is shards.dtensor_type()
    )
    is_beside = is_covered and total_norm.device == grads.device
    if not is_beside or total_norm.ndim != 0 or total_norm.dtype not in grads.dtypes:
        return "the norm is not a 0-d tensor of the gradients' dtype and device"
    return ""


@torch.no_grad()
def _multiply(grads: grad_list.GradList, max_norm: float, total_norm: Tensor) -> None:
    factor = grad_list.whole(torch.clamp(max_norm / (total_norm + 1e-6), max=1.0))
    named("clip", grads.run_scale)(thread_pool(), factor.double())


def _probe_clip(_: bool) -> list[Tensor]:
    """Return norms and gradients, clipped and not."""
    found: list[Tensor] = []
    for max_norm in (0.3, 9.0):
        params = [torch.zeros(shape) for shape in ((3,), (2, 2))]
        for i, p in enumerate(params):
            p.grad = torch.arange(1.0, 1.0 + p.numel()).view_as(p) * (0.1 + i)
        found.append(clip_module.clip_grad_norm_(params, max_norm))
        found += [p.grad for p in params if p.grad is not None]
    return found


# ---- scalers


def make_scaler_seam(is_strict: bool) -> Seam:
    seam = Seam("grad_scaler", is_strict, _probe_scaler, ("scaler", "tensors"))
    lists: grad_list.Lists = {}

    def is_served(scaler: Any) -> bool:
        return getattr(scaler._unscale_grads_, "__func__", None) is inner.ours

    def make_unscale(before: Function) -> Function:
        def unscale_(self: Any, optimizer: Any) -> None:
            is_active = not torch.compiler.is_compiling() and seam.is_on and self._enabled
            is_active = is_active and not count_dispatch_modes() and is_served(self)
            if is_active and grad_list.unscale_at_once(self, optimizer, lists):
                seam.native += 1
            else:
                before(self, optimizer)

        return unscale_

    def make_unscale_grads(before: Function) -> Function:
        def _unscale_grads_(
            self: Any, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
        ) -> Any:
            if torch.compiler.is_compiling() or not seam.is_on or not is_served(self):
                return before(self, optimizer, inv_scale, found_inf, allow_fp16)
            grads = grad_list.grads_of(lists, optimizer)
            flag = found_inf.clone()  # torch does not write into the argument either
            try:
                grads.collect_grads(optimizer)
                numbers = inv_scale, flag, allow_fp16
                if not count_dispatch_modes() and grad_list.unscale_collected(grads, *numbers):
                    seam.native += 1
                    return {grads.device: flag}
                is_error = torch.float16 in grads.dtypes and not allow_fp16  # torch raises
                if grads.tensors and not is_error:
                    where = f"the scale on {inv_scale.device} is not a plain 0-d tensor beside them"
                    seam.leave(_WHAT, _why_not_plain(grads) or where)
            finally:
                grads.release()
            return before(self, optimizer, inv_scale, found_inf, allow_fp16)

        return _unscale_grads_

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


def _probe_scaler(_: bool) -> list[Tensor]:
    """Return parameters, gradients and scales over steps; one step meets an infinity."""
    found: list[Tensor] = []
    for is_fused in (False, True):
        params = [torch.zeros(shape) for shape in ((3,), (2, 2))]
        # Not a real optimizer, whose steps hooks of the program would see.
        optimizer: Any = SimpleNamespace(param_groups=[{"params": params}])
        optimizer._step_supports_amp_scaling = is_fused
        optimizer.step = lambda params=params: [p.add_(1) for p in params]
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
