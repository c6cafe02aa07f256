"""All gradients of an optimizer as one list, and the passes that run over it.

A pass is one call for any number of tensors. The C engine runs it over a *plain* list: every tensor
is exactly a `torch.Tensor`, dense, of a real floating dtype, all are on the CPU or on one CUDA
device, and no two share memory. torch's own functions run it over any other list, with the same
meaning, and over every list on CUDA if the environment has FASTLOOP_DISABLE_CUDA=1.

Numbers that a device computes (norm, factor, found_inf) stay 0-d tensors on the gradients' device,
so that no pass waits for it; Python floats are numbers that the host knows."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from fastloop._core import GradListBase
from fastloop.base.ranges import named
from fastloop.base.requirements import kernels_are_disabled
from fastloop.base.tensors import sparse_parts
from fastloop.base.threads import thread_pool
from fastloop.base.torch_parts import OptState, difference, is_known, torch_clip_grad_norm_
from fastloop.device.availability import fault_of, find_fault

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that it takes
_MAX_LISTS = 16


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def new_flag(device: torch.device) -> Tensor:
    """Make a found_inf: 0-d float32, 0.0 until a pass meets an element that is not finite, then
    1.0."""
    return torch.zeros((), dtype=torch.float32, device=device)


def _new_number(like: Tensor | None) -> Tensor:
    device = torch.device("cpu") if like is None else like.device
    return torch.empty((), dtype=torch.float64, device=device)


def _new_scratch(like: Tensor, size: int) -> Tensor:
    """Make the memory that passes on a device need: `size` bytes, of which the first 16 are 0."""
    scratch = torch.empty(size // 8 + 2, dtype=torch.float64, device=like.device)
    scratch[:2].zero_()
    return scratch


# None: torch's tensors are not laid out as C knows them. No list is plain then, so torch's own
# functions run all passes.
_TENSOR_TYPE = Tensor if is_known("tensors", "Passes over gradients are left") else None


class GradList(GradListBase):
    """The tensors that passes run over, collected anew before the first pass of each step."""

    # Named here too, because reports put something around it.
    clip_parameters = GradListBase.clip_parameters

    def __new__(cls) -> GradList:
        new_scratch = None if kernels_are_disabled() else _new_scratch
        return super().__new__(cls, _TENSOR_TYPE, increment_version, _new_number, new_scratch)

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
        """Say why the engine does not take these tensors."""
        if reason := difference("tensors"):
            return reason
        for t in self.tensors:
            if type(t) is not Tensor:
                return f"a gradient is a {type(t).__qualname__}"
            if t.layout is not torch.strided:
                return "a gradient is sparse"
            if t.dtype not in _DTYPES:
                return f"a gradient is of {t.dtype}"
        devices = {str(t.device) for t in self.tensors}
        if len(devices) > 1 or self.device.type not in ("cpu", "cuda"):
            return f"gradients are on {', '.join(sorted(devices))}"
        if self.device.type == "cuda" and kernels_are_disabled():
            return "FASTLOOP_DISABLE_CUDA=1 is set"
        return fault_of(self.device) or "gradients overlap, have gaps in memory or are traced"

    @property
    def device(self) -> torch.device:
        """The device of norm and factor: the first tensor's, the CPU if there is none."""
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def norm_check(
        self, found_inf: Tensor, scale: Tensor | None = None, divisor: float = 1.0, p: float = 2.0
    ) -> Tensor:
        """Return the p-norm of gradients / (scale * divisor), 0-d float64, and set found_inf.

        The check is of every element as it lies in memory: norms too large for float32 are no
        false alarm."""
        scale = None if scale is None else scale.to(self.device)
        if self.is_plain:
            run = named("check", self.run_norm_check)
            norm: Tensor = run(thread_pool(), p, scale, divisor, found_inf)
            return norm
        with torch.no_grad():
            _check_finite(self.tensors, found_inf)
            # Repeated rows of a sparse gradient are sums.
            tensors = [_values(t.coalesce() if t.is_sparse else t) for t in self.tensors]
            wide = [t.to(torch.promote_types(t.dtype, torch.float64)) for t in tensors]
            norms = [torch.linalg.vector_norm(t, p) for t in wide]  # real, of complex too
            norm = torch.zeros((), dtype=torch.float64, device="cpu")
            if norms:
                joined = torch.stack([_whole(each).to(self.device) for each in norms])
                norm = torch.linalg.vector_norm(joined, p)
            return norm.div_(divisor if scale is None else scale.double() * divisor)

    def clip_factor(
        self, norm: Tensor | None, max_norm: float | None, scale: Tensor | None, divisor: float
    ) -> Tensor:
        """Return the factor for `scale_` that divides by scale * divisor and then clips to max_norm
        as torch does (min(1, max_norm / (norm + 1e-6))): 0-d float64. No clipping without
        max_norm."""
        if max_norm is None:
            norm, max_norm = None, 0.0
        scale = None if scale is None else scale.to(self.device)
        if self.is_plain:
            found: Tensor = self.find_clip_factor(norm, max_norm, None, scale, divisor)
            return found
        factor = torch.ones((), dtype=torch.float64, device=self.device)
        factor.div_(divisor if scale is None else scale.double() * divisor)
        return factor if norm is None else factor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)

    def scale_(self, factor: Tensor) -> None:
        """Multiply every tensor by a 0-d float64; where it is 1 nothing is written."""
        if self.is_plain:
            named("unscale_and_clip", self.run_scale)(thread_pool(), factor)
            return
        with torch.no_grad():
            for t in self.tensors:
                if t.is_sparse and difference("sparse"):
                    t.copy_(t.coalesce())  # the public values() of repeated rows are a copy
                _values(t).mul_(factor.to(t.device))

    def combine_(
        self,
        source: GradList,
        found_inf: Tensor | None = None,
        *,
        alpha: float | Tensor = 1.0,
        beta: float = 1.0,
    ) -> None:
        """Compute self = beta * self + alpha * source, tensor by tensor, in float32 (float64 where
        one is, complex where they are) and rounded once. Sets found_inf by the elements of source.
        beta 0 does not read self."""
        if source.is_plain and self.is_plain:
            host, device = (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)
            if self.run_combine(thread_pool(), source, host, device, beta, found_inf):
                return
        with torch.no_grad():
            if found_inf is not None:
                _check_finite(source.tensors, found_inf)
            for into, t in zip(self.tensors, source.tensors, strict=True):
                wide = torch.promote_types(torch.promote_types(into.dtype, t.dtype), torch.float32)
                sum = t.to(wide) * (alpha.to(t.device) if isinstance(alpha, Tensor) else alpha)
                if beta != 0:
                    sum = sum + into.to(wide) * beta
                into.copy_(sum)


empty_list = cache(GradList)  # for what needs no tensors


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
    """Return a list that no other thread has."""
    try:  # its length is not asked for first: another thread may come between
        return lists.pop()
    except IndexError:
        return GradList()


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
    is_generator = isinstance(parameters, types.GeneratorType)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if is_generator and not parameters:
        # Warned of here, where the line of the user is one frame away.
        warnings.warn(
            "`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2
        )
    limits = float(max_norm), float(norm_type)
    grads = take_idle(_idle)
    clip = named("clip", grads.clip_parameters)
    norm: Tensor | None = clip(thread_pool(), parameters, *limits, error_if_nonfinite)
    if norm is None:
        grads.warn_of_fallback()
        grads.release()
    _idle[:] = [grads]
    if norm is None:
        # Bound at import: users put this function in place of torch's public name.
        norm = torch_clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return norm


# ---- what torch's GradScaler does to an optimizer's gradients, for any scaler of its class


def unscale_at_once(
    scaler: Any, optimizer: Any, grads: GradList, clip: tuple[float, float, bool] | None = None
) -> Tensor | bool:
    """Do the work of an enabled scaler's unscale_, and clip in the same pass, in one call of C.

    Returns:
        False if nothing is done, because torch's unscale_ has to run, or to raise; True if the
        gradients are unscaled alone; else their norm before clipping.
    """
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
    """Do the work of `_unscale_grads_`, into found_inf. Returns False, and does nothing, if torch's
    method has to run, or to raise."""
    is_here = grads.device == inv_scale.device == found_inf.device
    are_numbers = _is_plain_number(inv_scale) and _is_plain_number(found_inf)
    is_plain = grads.is_plain and len(grads.tensors) > 0
    is_refused = not allow_fp16 and torch.float16 in grads.dtypes
    if not is_here or not are_numbers or not is_plain or is_refused:
        return False
    named("unscale", grads.run_unscale)(thread_pool(), inv_scale, found_inf)
    return True


def _is_plain_number(number: Tensor) -> bool:
    is_covered = type(number) is _TENSOR_TYPE and number.device.type in ("cpu", "cuda")
    return is_covered and number.dtype is torch.float32 and number.ndim == 0


# ---- the same by torch's functions


def _values(tensor: Tensor) -> Tensor:
    return sparse_parts(tensor)[1] if tensor.is_sparse else tensor


def _whole(norm: Any) -> Tensor:
    """Return a DTensor's value on every rank."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _check_finite(tensors: list[Tensor], found_inf: Tensor) -> None:
    for t in map(_values, tensors):
        found_inf.logical_or_(_whole(torch.logical_not(torch.isfinite(t).all())).to(found_inf))
