"""All gradients of an optimizer as one list, and the passes that run over it.

A pass is one call for any number of tensors. The C engine runs it over a *plain* list: every tensor
is exactly a `torch.Tensor`, dense, of a real floating dtype, all are on the CPU or on one CUDA
device, and no two share memory. torch's own functions run it over any other list, with the same
meaning, and over every list on CUDA if the environment has FASTLOOP_DISABLE_CUDA=1.

Numbers that a device computes (norm, factor, found_inf) stay 0-d tensors on the gradients' device,
so that no pass waits for it; Python floats are what the host knows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from fastloop._core import GradListBase
from fastloop.base.openmp import thread_pool
from fastloop.base.ranges import named
from fastloop.base.requirements import kernels_are_disabled
from fastloop.base.tensors import sparse_parts
from fastloop.base.torch_parts import difference, is_known
from fastloop.device.availability import fault_of, find_fault
from fastloop.step.no_engine import NoEngine

_NORM_TYPES = (1.0, 2.0, float("inf"))  # that the engine computes
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that it takes


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def new_flag(device: torch.device) -> Tensor:
    """A found_inf: 0-d float32, 0.0 until a pass meets an element that is not finite, then 1.0."""
    return torch.zeros((), dtype=torch.float32, device=device)


def _new_number(like: Tensor | None) -> Tensor:
    device = torch.device("cpu") if like is None else like.device
    return torch.empty((), dtype=torch.float64, device=device)


def _new_scratch(like: Tensor, size: int) -> Tensor:
    """Memory that passes on a device need: `size` bytes, of which the first 16 are 0."""
    scratch = torch.empty(size // 8 + 2, dtype=torch.float64, device=like.device)
    scratch[:2].zero_()
    return scratch


if TYPE_CHECKING or is_known("tensors", "Passes over gradients are left"):
    _Engine = GradListBase
else:
    _Engine = NoEngine


class GradList(_Engine):
    """The tensors that passes run over, collected anew before the first pass of each step."""

    # Named here too, because reports put something around it.
    clip_parameters = _Engine.clip_parameters

    def __new__(cls) -> GradList:
        new_scratch = None if kernels_are_disabled() else _new_scratch
        return super().__new__(cls, Tensor, increment_version, _new_number, new_scratch)

    def __reduce__(self) -> tuple[type[GradList], tuple[()]]:
        return GradList, ()  # copies and pickles begin empty

    def collect_grads(self, source: Optimizer | Iterable[Tensor]) -> GradList:
        """Hold the `.grad` of every parameter of an optimizer or iterable that has one.

        As in torch, whatever has param_groups is an optimizer."""
        groups = getattr(source, "param_groups", None)
        if groups is not None:
            self.collect_groups(groups)
        else:
            self.collect_parameters(source)  # type: ignore[arg-type]
        self.warn_of_fallback()
        return self

    def collect(self, tensors: Iterable[Tensor]) -> GradList:
        """Hold these tensors; until `release` they stay alive."""
        self.collect_tensors(tensors)
        self.warn_of_fallback()
        return self

    def warn_of_fallback(self) -> None:
        """Warn, once a process, if torch runs the passes because CUDA kernels cannot."""
        if not self.is_plain and self.tensors:
            find_fault(self.device, "runs the passes over gradients")

    def why_not_plain(self) -> str:
        """What about these tensors the engine does not take."""
        if reason := difference("tensors"):
            return reason
        for t in self.tensors:
            if type(t) is not Tensor:
                return f"a gradient is a {type(t).__qualname__}"
            if t.layout is not torch.strided:
                return "a gradient is sparse"
            if t.dtype not in _DTYPES:
                return f"a gradient is of {t.dtype}"
        if len({t.device for t in self.tensors}) > 1:
            return "gradients are on several devices"
        if self.device.type not in ("cpu", "cuda"):
            return f"gradients are on {self.device.type}"
        if self.device.type == "cuda" and kernels_are_disabled():
            return "FASTLOOP_DISABLE_CUDA=1 is set"
        return fault_of(self.device) or "gradients overlap, have gaps in memory or are traced"

    @property
    def device(self) -> torch.device:
        """Where norm and factor are: the first tensor's device, the CPU if there is none."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

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
        scale = self._beside(scale)
        if self.is_plain and norm_type in _NORM_TYPES:
            run = named("check", self.run_norm_check)
            norm: Tensor = run(thread_pool(), norm_type, scale, divisor, found_inf)
            return norm
        norm = _norm_check(self.tensors, found_inf, norm_type, self.device)
        return norm.div_(divisor if scale is None else scale.double() * divisor)

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
        scale = self._beside(scale)
        if self.is_plain:
            found: Tensor = self.find_clip_factor(norm, max_norm, found_inf, scale, divisor)
            return found
        factor = torch.ones((), dtype=torch.float64, device=self.device)
        factor.div_(divisor if scale is None else scale.double() * divisor)
        if norm is None:
            return factor
        clipped = factor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        return clipped if found_inf is None else torch.where(found_inf > 0, factor, clipped)

    def _beside(self, number: Tensor | None) -> Tensor | None:
        """A number on the device of the gradients."""
        if number is None or number.device == self.device:
            return number
        return number.to(self.device)

    def scale_(self, factor: Tensor) -> None:
        """Multiply every tensor by a 0-d float64; where it is 1 nothing is written."""
        if self.is_plain:
            named("unscale_and_clip", self.run_scale)(thread_pool(), factor)
            return
        with torch.no_grad():
            for t in map(_values, self.tensors):
                t.mul_(factor.to(t.device))

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
            if self.run_combine(thread_pool(), source, host, device, beta, found_inf):
                return
        _combine(self.tensors, source.tensors, found_inf, alpha, beta)


empty_list = cache(GradList)  # for what needs no tensors

_MAX_LISTS = 16


def grads_of(lists: dict[int, GradList], optimizer: Any) -> GradList:
    """Return the list that collected this optimizer's gradients last. By its id: a list is a cache
    of sizes, so it does no harm that a later optimizer may get that of one which is gone."""
    grads = lists.get(id(optimizer))
    if grads is None:
        if len(lists) >= _MAX_LISTS:
            lists.clear()
        grads = lists[id(optimizer)] = GradList()
    return grads


def take_idle(lists: list[GradList]) -> GradList:
    """One that no other thread has."""
    try:
        return lists.pop()
    except IndexError:
        return GradList()


# ---- the same by torch's functions


@torch.no_grad()
def _norm_check(
    tensors: list[Tensor], found_inf: Tensor, norm_type: float, device: torch.device
) -> Tensor:
    _check_finite(tensors, found_inf)
    tensors = [t.coalesce() if t.is_sparse else t for t in tensors]  # repeated rows are sums
    wide = [t.to(torch.promote_types(t.dtype, torch.float64)) for t in map(_values, tensors)]
    norms = [torch.linalg.vector_norm(t, norm_type) for t in wide]  # real, of complex ones too
    if not norms:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    norms = [_whole(norm).to(device) for norm in norms]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    return norm


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
    return sparse_parts(tensor)[1] if tensor.is_sparse else tensor


def _whole(norm: Any) -> Tensor:
    """A DTensor's value on every rank."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _check_finite(tensors: list[Tensor], found_inf: Tensor) -> None:
    for t in map(_values, tensors):
        found_inf.logical_or_(_whole(torch.logical_not(torch.isfinite(t).all())).to(found_inf))
