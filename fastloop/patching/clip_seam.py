"""The seam of clipping: ``torch.nn.utils.clip_grad_norm_`` rescales gradients by the engine, and
leaves them untouched if there is nothing to clip.

The two functions that it looks up at each call are replaced, so a module that has imported it
before is served as well. torch computes the norm: the engine adds up in double, which changes the
last bits. Only a largest absolute value has no last bits, and torch takes many times as long for it
on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.utils as utils
from torch import Tensor

from fastloop.base.ranges import named
from fastloop.base.threads import thread_pool
from fastloop.base.torch_parts import clip_module
from fastloop.patching.seams import Function, Seam, has_dispatch_mode
from fastloop.step.grad_list import GradList, new_flag, take_idle


def make_seam(is_strict: bool) -> Seam:
    seam = Seam("clip_grad_norm", is_strict, _probe, ("clip", "tensors"))

    def make_clip(before: Function) -> Function:
        idle: list[GradList] = []

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
            with _take(idle) as grads:
                grads.collect_parameters(params)
                reason = _why_not(grads, total_norm)
                if not reason:
                    _multiply(grads, float(max_norm), total_norm)
                    seam.count()
                    return
                if grads.tensors:
                    seam.leave("a clip", reason)
            before(params, max_norm, total_norm, foreach)

        return _clip_grads_with_norm_

    def make_norm(before: Function) -> Function:
        idle: list[GradList] = []

        def _get_total_norm(
            tensors: Tensor | Iterable[Tensor],
            norm_type: float = 2.0,
            error_if_nonfinite: bool = False,
            foreach: bool | None = None,
        ) -> Tensor:
            is_max = not torch.compiler.is_compiling() and seam.is_on and norm_type == math.inf
            if is_max:
                tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
                with _take(idle) as grads:
                    grads.collect_tensors(tensors)
                    norm = _compute_max(grads)
                    if norm is not None and not (error_if_nonfinite and not norm.isfinite()):
                        return norm
            theirs: Tensor = before(tensors, norm_type, error_if_nonfinite, foreach)
            return theirs

        return _get_total_norm

    for name, make in (("_clip_grads_with_norm_", make_clip), ("_get_total_norm", make_norm)):
        seam.add(clip_module, name, make, aliases=[(utils, name.lstrip("_"))])
    return seam


@contextmanager
def _take(idle: list[GradList]) -> Iterator[GradList]:
    """Lend a GradList to one thread inside a clip; gradients seldom change between calls."""
    grads = take_idle(idle)
    try:
        yield grads
    finally:
        grads.release()
        idle[:] = [grads]


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


@torch.no_grad()
def _compute_max(grads: GradList) -> Tensor | None:
    """Return the largest absolute value; None: torch must compute it, or raise."""
    is_covered = grads.is_plain and grads.device.type == "cpu" and len(grads.dtypes) == 1
    if not is_covered or has_dispatch_mode() or not all(t.numel() for t in grads.tensors):
        return None
    found_inf = new_flag(grads.device)
    norm: Tensor = grads.run_norm_check(thread_pool(), math.inf, None, 1.0, found_inf)
    return norm.to(*grads.dtypes)


def _probe(_: bool) -> list[Tensor]:
    """Return norms and gradients, clipped and not."""
    found: list[Tensor] = []
    for max_norm in (0.3, 9.0):
        for norm_type in (2.0, math.inf):
            params = [torch.zeros(shape) for shape in ((3,), (2, 2))]
            for i, p in enumerate(params):
                p.grad = torch.arange(1.0, 1.0 + p.numel()).view_as(p) * (0.1 + i)
            found.append(clip_module.clip_grad_norm_(params, max_norm, norm_type))
            found += [p.grad for p in params if p.grad is not None]
    return found
