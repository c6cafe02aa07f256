"""clip_grad_norm_: torch's, in one pass that reads and one that writes only if there is something
to clip. torch's own function does what the engine does not cover."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable

from torch import Tensor

from fastloop.base.openmp import thread_pool
from fastloop.base.ranges import named
from fastloop.base.torch_parts import torch_clip_grad_norm_
from fastloop.step.grad_list import GradList, take_idle

# The list of the last call: gradients seldom change their sizes from call to call.
_idle: list[GradList] = []


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Clip the norm of all gradients together, in place: ``torch.nn.utils.clip_grad_norm_``.

    Args:
        parameters: an iterable of tensors, or one, of which each ``.grad`` that is not None counts.
        max_norm: gradients are multiplied by min(1, max_norm / (norm + 1e-6)).
        norm_type: the p of the norm; ``math.inf`` is the largest absolute value.
        error_if_nonfinite: raise if the norm is inf or NaN (SYNC on CUDA), which otherwise makes
            all gradients 0 or NaN.
        foreach: as in torch; the engine, which has no use for it, runs in every case it covers.

    Returns:
        The norm before clipping: 0-d, on the first gradient's device, of the gradients' dtype.

    For norms 1, 2 and inf of ordinary tensors of one dtype, on the CPU or on one CUDA device, sums
    and the factor are of double precision, the gradients are read once (always: nothing tells
    whether they have changed since an earlier pass) and written only if the factor is not 1.
    torch's own function does the rest.

    Raises:
        RuntimeError: error_if_nonfinite and the norm is inf or NaN, the gradients being unchanged;
            or foreach is True where torch has no such functions.
    """
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    else:
        is_generator = isinstance(parameters, types.GeneratorType)
        parameters = list(parameters)
        if is_generator and not parameters:
            # Warned of here, where the line of the user is one frame away.
            warnings.warn(
                "`parameters` is an empty generator, no gradient clipping will occur.",
                stacklevel=2,
            )
    limits = float(max_norm), float(norm_type)
    grads = take_idle(_idle)
    clip = named("clip", grads.clip_parameters)
    norm: Tensor | None = clip(thread_pool(), parameters, *limits, error_if_nonfinite)
    if norm is None:
        grads.warn_of_fallback()
        grads.release()
    _idle[:] = [grads]
    if norm is not None:
        return norm
    # Bound at import: users put this function in place of torch's public name.
    norm = torch_clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return norm
