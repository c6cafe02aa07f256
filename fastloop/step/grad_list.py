"""All gradients of an optimizer as one thing, and the passes that run over them.

A pass is one call for any number of tensors. The C engine runs it where every tensor is plain (an
exact `torch.Tensor`, dense, real floating, on the CPU or all on one CUDA device, sharing memory
with no other in the list); torch's own functions run it otherwise, with the same meaning, and on
CUDA always if the environment has FASTLOOP_DISABLE_CUDA=1.

Scalars that a device computes (norm, factor, found_inf) stay 0-d tensors on the gradients' device,
so that no pass waits for it; Python floats are what the host knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop import _core
from fastloop.base.openmp import team
from fastloop.base.requirements import kernels_are_disabled
from fastloop.device.availability import find_fault

Source = Optimizer | Iterable[Tensor]

_NORMS = {2.0: 0, 1.0: 1, float("inf"): 2}
_TYPES = {1: torch.float64, 2: torch.float32, 4: torch.float16, 8: torch.bfloat16}


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def new_flag(device: torch.device) -> Tensor:
    """A found_inf: 0-d float32, 0.0 until a pass meets an element that is not finite, then 1.0."""
    return torch.zeros((), dtype=torch.float32, device=device)


def _new_number(device: torch.device) -> Tensor:
    return torch.empty((), dtype=torch.float64, device=device)


def _here(number: Tensor | None, device: torch.device) -> Tensor | None:
    return number if number is None or number.device == device else number.to(device)


def _new_scratch(like: Tensor, size: int) -> Tensor:
    """What passes on a device need: `size` bytes, of which the first 16 are 0."""
    scratch = torch.empty(size // 8 + 2, dtype=torch.float64, device=like.device)
    scratch[:2].zero_()
    return scratch


def _make_engine() -> _core.GradList:
    new_scratch = None if kernels_are_disabled() else _new_scratch
    return _core.GradList(Tensor, torch.autograd.graph.increment_version, new_scratch)


_shared_engine = cache(_make_engine)  # for what needs no list


def update_scale(
    found_inf: Tensor,
    growth: tuple[float, float, int, int, float, float],
    scale: Tensor,
    tracker: Tensor,
    misses: Tensor,
) -> None:
    """A loss scale (0-d float32) after a step: torch._amp_update_scale_, within bounds. No SYNC.

    growth: growth_factor, backoff_factor, interval, hysteresis, least and largest scale; tracker
    and misses (int32) count good and bad steps in a row, misses only if hysteresis is above 1.
    TypeError or ValueError, and nothing is done, for tensors that are something else, or not all
    on the CPU or one CUDA device of the engine's."""
    _shared_engine().update_scale(found_inf, growth, scale, tracker, misses)


class GradList:
    """The tensors that passes run over, collected anew before the first pass of each step."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.is_plain = False  # whether the engine runs the passes
        self._core = _make_engine()
        self._inverse: Tensor | None = None

    def __reduce__(self) -> tuple[type[GradList], tuple[()]]:
        return GradList, ()  # copies and pickles begin empty

    def collect_grads(self, source: Source) -> GradList:
        """Hold the `.grad` of every parameter of an optimizer or iterable that has one.

        As in torch, whatever has param_groups is an optimizer."""
        groups = getattr(source, "param_groups", None)
        if groups is not None:
            is_plain = self._core.walk_groups(groups)
            return self._hold(is_plain, [] if is_plain else parameters_of(source))
        parameters = list(cast(Iterable[Tensor], source))
        return self._hold(self._core.walk_parameters(parameters), parameters)

    def collect(self, tensors: Iterable[Tensor]) -> GradList:
        """Hold these tensors; until `release` they stay alive."""
        tensors = list(tensors)
        self.is_plain = self._core.walk_tensors(tensors)
        self.tensors = tensors
        self._tell_of_fallback()
        return self

    def _hold(self, is_plain: bool, parameters: Iterable[Tensor]) -> GradList:
        self.is_plain = is_plain
        if is_plain:
            self.tensors = self._core.tensors
        else:
            self.tensors = [p.grad for p in parameters if p.grad is not None]
        self._tell_of_fallback()
        return self

    def _tell_of_fallback(self) -> None:
        if not self.is_plain and self.tensors:
            find_fault(self.device, "runs the passes over gradients")

    def release(self) -> None:
        self.tensors = []
        self._core.clear()

    @property
    def device(self) -> torch.device:
        """Where norm and factor are: the first tensor's device, the CPU if there is none."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of all tensors."""
        if self.is_plain and not self._core.empty:
            found = self._core.types
            return {dtype for bit, dtype in _TYPES.items() if found & bit}
        return {t.dtype for t in self.tensors}

    @property
    def has_empty(self) -> bool:
        """Whether a tensor has no elements (torch refuses their maximum)."""
        if self.is_plain:
            return self._core.empty > 0
        return any(t.numel() == 0 for t in self.tensors)

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
        device = self.device
        scale = _here(scale, device)
        if self.is_plain and norm_type in _NORMS:
            norm = _new_number(device)
            self._core.norm_check(team(), _NORMS[norm_type], scale, divisor, found_inf, norm)
            return norm
        return _norm_check(self.tensors, found_inf, scale, divisor, norm_type, device)

    def clip_factor(
        self,
        norm: Tensor | None,
        max_norm: float | None,
        *,
        found_inf: Tensor | None = None,
        scale: Tensor | None = None,
        divisor: float = 1.0,
    ) -> Tensor:
        """What `scale_` multiplies by to divide by scale * divisor and then clip to max_norm as
        torch does (min(1, max_norm / (norm + 1e-6))): 0-d float64. No clipping without max_norm or
        where found_inf is set."""
        if max_norm is None:
            norm, max_norm = None, 0.0
        device = self.device
        scale = _here(scale, device)
        if self.is_plain:
            factor = _new_number(device)
            self._core.clip_factor(norm, max_norm, found_inf, scale, divisor, factor)
            return factor
        factor = torch.ones((), dtype=torch.float64, device=device)
        factor.div_(divisor if scale is None else scale.double() * divisor)
        if norm is None:
            return factor
        clipped = factor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return clipped if found_inf is None else torch.where(found_inf > 0, factor, clipped)

    def scale_(self, factor: Tensor) -> None:
        """Multiply every tensor by a 0-d float64; where it is 1 nothing is written."""
        if self.is_plain:
            self._core.scale(team(), factor)
            return
        with torch.no_grad():
            for t in map(_values, self.tensors):
                t.mul_(factor.to(t.device))

    def unscale_(self, inv_scale: Tensor, found_inf: Tensor) -> None:
        """One read and write: multiply by a 0-d float32, bit for bit as torch's unscale_ does, and
        check the elements as they were; by 1 nothing is written. For plain lists."""
        self._core.unscale(team(), inv_scale, found_inf)

    def unscale_by_(self, scale: Tensor, found_inf: Tensor) -> None:
        """The same, by 1 / scale."""
        inverse = self._inverse
        if inverse is None or inverse.device.type != "cpu" or scale.device.type != "cpu":
            # Always anew on a device, where it may be for a graph that is being captured.
            inverse = self._inverse = torch.empty((), dtype=torch.float32, device=scale.device)
        self._core.invert(scale, inverse)
        self._core.unscale(team(), inverse, found_inf)

    def combine_(
        self,
        source: GradList,
        found_inf: Tensor | None = None,
        *,
        alpha: float | Tensor = 1.0,
        beta: float = 1.0,
    ) -> None:
        """self = beta * self + alpha * source, tensor by tensor, in float32 (float64 where one is,
        complex where they are) and rounded once. Sets found_inf by the elements of source. beta 0
        does not read self."""
        if source.is_plain and self.is_plain:
            host, device = (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)
            if self._core.combine(team(), source._core, host, device, beta, found_inf):
                return
        _combine(self.tensors, source.tensors, found_inf, alpha, beta)


# ---- the same by torch's functions


@torch.no_grad()
def _norm_check(
    tensors: list[Tensor],
    found_inf: Tensor,
    scale: Tensor | None,
    divisor: float,
    norm_type: float,
    device: torch.device,
) -> Tensor:
    _check_finite(tensors, found_inf)
    tensors = [t.coalesce() if t.is_sparse else t for t in tensors]  # repeated rows are sums
    wide = [t.to(torch.promote_types(t.dtype, torch.float64)) for t in map(_values, tensors)]
    norms = [torch.linalg.vector_norm(t, norm_type) for t in wide]  # real, of complex ones too
    if not norms:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    norms = [_whole(norm).to(device) for norm in norms]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm.div_(divisor if scale is None else scale.double() * divisor)


@torch.no_grad()
def _combine(
    tensors: list[Tensor],
    sources: list[Tensor],
    found_inf: Tensor | None,
    alpha: float | Tensor,
    beta: float,
) -> None:
    if found_inf is not None:
        _check_finite(sources, found_inf)
    for into, t in zip(tensors, sources, strict=True):
        wide = torch.promote_types(torch.promote_types(into.dtype, t.dtype), torch.float32)
        sum = t.to(wide) * (alpha.to(t.device) if isinstance(alpha, Tensor) else alpha)
        if beta != 0:
            sum = sum + into.to(wide) * beta
        into.copy_(sum)


def _values(tensor: Tensor) -> Tensor:
    return tensor._values() if tensor.is_sparse else tensor


def _whole(norm: Any) -> Tensor:
    """A DTensor's value on every rank."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _check_finite(tensors: list[Tensor], found_inf: Tensor) -> None:
    for t in map(_values, tensors):
        found_inf.logical_or_(_whole(torch.logical_not(torch.isfinite(t).all())).to(found_inf))
