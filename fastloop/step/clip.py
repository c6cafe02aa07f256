"""clip_grad_norm_: torch's, in one pass that reads and one that writes only if there is something
to clip. What the engine does not cover is torch's own function's."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Iterable

from torch import Tensor
from torch.nn.utils.clip_grad import clip_grad_norm_ as torch_clip_grad_norm_

from fastloop.step.grad_list import GradList, new_flag

# What the last call used: gradients seldom change their sizes from call to call.
_idle: list[GradList] = []


class ClipPass:
    """One clipping of gradients that may be scaled: read, then write unless the factor is 1."""

    def __init__(
        self,
        scale: Tensor | None,
        max_norm: float,
        norm_type: float,
        error_if_nonfinite: bool = False,
    ) -> None:
        self.scale, self.max_norm, self.norm_type = scale, max_norm, norm_type
        self.error_if_nonfinite = error_if_nonfinite
        self.total_norm: Tensor | None = None  # of the gradients / scale, in the gradients' dtype

    def can_run(self, grads: GradList) -> bool:
        """Whether the engine computes this norm of these gradients, and it has one dtype."""
        if not grads.is_plain or len(grads.dtypes) != 1:
            return False
        if self.norm_type == math.inf:
            return not grads.has_empty  # torch refuses these
        return self.norm_type in (1.0, 2.0)

    def read(self, grads: GradList, found_inf: Tensor) -> Tensor:
        """Set total_norm and found_inf; returns the norm in double."""
        norm = grads.norm_check(found_inf, scale=self.scale, norm_type=self.norm_type)
        (dtype,) = grads.dtypes
        self.total_norm = norm.to(dtype)
        return norm

    def unscale(self, grads: GradList, scale: Tensor, found_inf: Tensor) -> None:
        """The pass of GradScaler.unscale_and_clip_. Gradients of which one is not finite, or for
        which the caller will raise, are not clipped; where the engine has no such norm, they are
        unscaled and total_norm is None."""
        if not self.can_run(grads):
            grads.unscale_by_(scale, found_inf)
            return
        norm = self.read(grads, found_inf)
        max_norm = None if self.is_error() else self.max_norm
        grads.scale_(grads.clip_factor(norm, max_norm, found_inf=found_inf, scale=scale))

    def is_error(self) -> bool:
        """Whether total_norm is one to raise for (SYNC with error_if_nonfinite)."""
        assert self.total_norm is not None
        return self.error_if_nonfinite and not self.total_norm.isfinite()


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
    whether they have changed since an earlier pass) and written only if the factor is not 1. All
    else is torch's own function.

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
    norm = _clip(parameters, ClipPass(None, float(max_norm), float(norm_type), error_if_nonfinite))
    if norm is not None:
        return norm
    # Bound at import: users put this function in place of torch's public name.
    return torch_clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _clip(parameters: list[Tensor], clip: ClipPass) -> Tensor | None:
    """The total norm, or None where torch's function has to run (or to raise)."""
    grads = _idle.pop() if _idle else GradList()
    grads.collect_grads(parameters)
    try:
        if not clip.can_run(grads):
            return None
        norm = clip.read(grads, new_flag(grads.device))
        if clip.is_error():
            return None
        grads.scale_(grads.clip_factor(norm, clip.max_norm))
        return clip.total_norm
    finally:
        grads.release()
        if not _idle:
            _idle.append(grads)
