"""What torch's GradScaler does to an optimizer's gradients, as passes of the engine: for ours, and
for torch's own class where that is patched."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastloop.base.openmp import thread_pool
from fastloop.base.ranges import named
from fastloop.base.torch_parts import OptState
from fastloop.step.grad_list import GradList, new_flag


def unscale_at_once(
    scaler: Any, optimizer: Any, grads: GradList, clip: tuple[float, float, bool] | None = None
) -> Tensor | bool:
    """What an enabled scaler's unscale_ does, in one call of the engine, with the options of
    clipping in the same pass. False, and nothing is done, where torch's has to run, or to raise;
    True where the gradients are unscaled alone; else their norm before clipping."""
    scale = scaler._scale
    if scale is None or not _is_plain_number(scale):
        return False
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is not OptState.READY:
        return False
    found_inf, groups = new_flag(scale.device), optimizer.param_groups
    run = named("unscale" if clip is None else "unscale_and_clip", grads.unscale_and_clip)
    done: Tensor | bool = run(thread_pool(), groups, scale, found_inf, clip)
    if done is not False:
        state["found_inf_per_device"] = {scale.device: found_inf}
        state["stage"] = OptState.UNSCALED
    return done


def unscale_collected(
    grads: GradList, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
) -> bool:
    """What `_unscale_grads_` does, into found_inf. False, and nothing is done, where torch's has to
    run, or to raise."""
    is_here = grads.device == inv_scale.device == found_inf.device
    are_numbers = _is_plain_number(inv_scale) and _is_plain_number(found_inf)
    is_plain = grads.is_plain and len(grads.tensors) > 0
    is_refused = not allow_fp16 and torch.float16 in grads.dtypes
    if not is_here or not are_numbers or not is_plain or is_refused:
        return False
    named("unscale", grads.run_unscale)(thread_pool(), inv_scale, found_inf)
    return True


def _is_plain_number(number: Tensor) -> bool:
    is_covered = type(number) is Tensor and number.device.type in ("cpu", "cuda")
    return is_covered and number.dtype is torch.float32 and number.ndim == 0
