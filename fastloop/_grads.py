"""All gradients of an optimizer as one thing, and the passes that run over them.

A pass is one call for any number of tensors. The C engine runs it where every tensor is plain (an
exact `torch.Tensor`, dense, real floating, on the CPU, sharing memory with no other in the list);
torch's own functions run it otherwise, with the same meaning.

Scalars that a device computes (norm, factor, found_inf) stay 0-d tensors on the gradients' device,
so that no pass waits for it; Python floats are what the host knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Source = Optimizer | Iterable[Tensor]


def new_flag(device: torch.device) -> Tensor:
    """A found_inf: 0-d float32, 0.0 until a pass meets an element that is not finite, then 1.0."""
    return torch.zeros((), dtype=torch.float32, device=device)


class GradList:
    """The tensors that passes run over, collected anew before the first pass of each step."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.is_plain = False  # whether the engine runs the passes

    def collect_grads(self, source: Source) -> GradList:
        """Hold the `.grad` of every parameter of an optimizer or iterable that has one."""
        return self.collect(p.grad for p in _parameters(source) if p.grad is not None)

    def collect(self, tensors: Iterable[Tensor]) -> GradList:
        """Hold these tensors; until `release` they stay alive."""
        self.tensors = list(tensors)
        return self

    def release(self) -> None:
        self.tensors = []

    @property
    def device(self) -> torch.device:
        """Where norm and factor are: the first tensor's device, the CPU if there is none."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of all tensors."""
        return {t.dtype for t in self.tensors}

    def norm_check(
        self,
        found_inf: Tensor,
        *,
        scale: Tensor | None = None,
        divisor: float = 1.0,
        norm_type: float = 2.0,
    ) -> Tensor:
        """One read: the norm of gradients / (scale * divisor), 0-d float64; sets found_inf.

        The check is of every element as it lies in memory: norms too large for float32 are no
        false alarm."""
        _check_finite(self.tensors, found_inf)
        norms = [
            torch.linalg.vector_norm(t.double(), norm_type) for t in map(_values, self.tensors)
        ]
        if not norms:
            return torch.zeros((), dtype=torch.float64)
        norms = [_whole(norm).to(self.device) for norm in norms]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        return norm.div_(divisor if scale is None else scale.double() * divisor)

    def clip_factor(
        self,
        norm: Tensor | None,
        max_norm: float | None,
        *,
        scale: Tensor | None = None,
        divisor: float = 1.0,
    ) -> Tensor:
        """What `scale_` multiplies by to divide by scale * divisor and then clip to max_norm as
        torch does (min(1, max_norm / (norm + 1e-6))): 0-d float64. No clipping without max_norm."""
        one = torch.ones((), dtype=torch.float64, device=self.device)
        factor = one / (divisor if scale is None else scale.double() * divisor)
        if norm is None or max_norm is None:
            return factor
        return factor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)

    @torch.no_grad()
    def unscale_(self, inv_scale: Tensor, found_inf: Tensor) -> None:
        """Multiply every tensor by inv_scale (0-d float32) and set found_inf by what was there, bit
        for bit as torch.amp.GradScaler does."""
        for t in map(_values, self.tensors):
            torch._amp_foreach_non_finite_check_and_unscale_([t], found_inf, inv_scale)

    @torch.no_grad()
    def scale_(self, factor: Tensor) -> None:
        """Multiply every tensor by a 0-d float64; where it is 1 nothing is written."""
        for t in map(_values, self.tensors):
            t.mul_(factor.to(t.device))

    @torch.no_grad()
    def combine_(
        self,
        source: GradList,
        found_inf: Tensor | None = None,
        *,
        alpha: float | Tensor = 1.0,
        beta: float = 1.0,
    ) -> None:
        """self = beta * self + alpha * source, tensor by tensor, in the wider of both dtypes and
        rounded once. Sets found_inf by the elements of source. beta 0 does not read self."""
        if found_inf is not None:
            _check_finite(source.tensors, found_inf)
        for into, t in zip(self.tensors, source.tensors, strict=True):
            wide = torch.promote_types(into.dtype, t.dtype)
            if wide in (torch.float16, torch.bfloat16):
                wide = torch.float32
            sum = t.to(wide) * alpha
            if beta != 0:
                sum = sum + into.to(wide) * beta
            into.copy_(sum)


def _parameters(source: Source) -> Iterator[Tensor]:
    if isinstance(source, Optimizer):
        return (p for group in source.param_groups for p in group["params"])
    return iter(source)


def _values(tensor: Tensor) -> Tensor:
    return tensor._values() if tensor.is_sparse else tensor


def _whole(norm: Any) -> Tensor:
    """A DTensor's value on every rank."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _check_finite(tensors: list[Tensor], found_inf: Tensor) -> None:
    for t in map(_values, tensors):
        found_inf.logical_or_(_whole(torch.logical_not(torch.isfinite(t).all())).to(found_inf))
