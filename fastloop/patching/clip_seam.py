"""The seam of clipping: ``torch.nn.utils.clip_grad_norm_`` rescales gradients by the engine, and
leaves them untouched if there is nothing to clip.

The function that torch's clipping looks up at each call is replaced, so a module that has imported
clipping before is served as well. torch computes the norm: the engine adds up in double, which
changes the last bits.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.utils as utils
from torch import Tensor

from fastloop.base.ranges import named
from fastloop.base.threads import thread_pool
from fastloop.base.torch_parts import clip_module
from fastloop.patching.seams import Function, Seam, has_dispatch_mode
from fastloop.step.grad_list import GradList, take_idle


def make_seam(is_strict: bool) -> Seam:
    seam = Seam("clip_grad_norm", is_strict, _probe, ("clip", "tensors"))
    idle: list[GradList] = []  # gradients seldom change their sizes between calls

    def make_clip(before: Function) -> Function:
        def _clip_grads_with_norm_(
            parameters: Tensor | Iterable[Tensor],
            max_norm: float,
            total_norm: Tensor,
            foreach: bool | None = None,
        ) -> None:
            if torch.compiler.is_compiling() or not seam.is_on:
                before(parameters, max_norm, total_norm, foreach)
                return
            params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            grads = take_idle(idle)
            try:
                grads.collect_parameters(params)
                reason = _why_not(grads, total_norm)
                if not reason:
                    _multiply(grads, float(max_norm), total_norm)
                    seam.count()
                    return
                if grads.tensors:
                    seam.leave("a clip", reason)
            finally:
                grads.release()
                idle[:] = [grads]
            before(params, max_norm, total_norm, foreach)

        return _clip_grads_with_norm_

    name = "_clip_grads_with_norm_"
    seam.add(clip_module, name, make_clip, aliases=[(utils, name.lstrip("_"))])
    return seam


def _why_not(grads: GradList, total_norm: Tensor) -> str:
    """Return why torch must rescale; "" if the engine gives the same bits."""
    if has_dispatch_mode():
        return "a torch dispatch mode is on"
    if not grads.is_plain:
        return grads.why_not_plain()
    if len(grads.dtypes) != 1:
        return "gradients are of several dtypes"
    is_beside = type(total_norm) is Tensor and total_norm.device == grads.device
    if not is_beside or total_norm.ndim != 0 or total_norm.dtype not in grads.dtypes:
        return "the norm is not a 0-d tensor of the gradients' dtype and device"
    return ""


@torch.no_grad()
def _multiply(grads: GradList, max_norm: float, total_norm: Tensor) -> None:
    factor = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
    named("clip", grads.run_scale)(thread_pool(), factor.double())


def _probe(_: bool) -> list[Tensor]:
    """Return norms and gradients, clipped and not."""
    found: list[Tensor] = []
    for max_norm in (0.3, 9.0):
        params = [torch.zeros(shape) for shape in ((3,), (2, 2))]
        for i, p in enumerate(params):
            p.grad = torch.arange(1.0, 1.0 + p.numel()).view_as(p) * (0.1 + i)
        found.append(clip_module.clip_grad_norm_(params, max_norm))
        found += [p.grad for p in params if p.grad is not None]
    return found
