"""An optimizer's gradients as one list, and the passes over the list.

A pass is one call for any number of tensors. fastloop's engine runs passes over a *plain* list:
every tensor is exactly a `torch.Tensor`, dense, of a real floating dtype; all are on the CPU or on
one CUDA device; no two share memory. torch's own functions run the passes over any other list, with
the same meaning, and over every list on CUDA if the environment has FASTLOOP_DISABLE_CUDA=1.

Numbers that a device computes (norm, factor, found_inf) stay 0-d tensors on the gradients' device,
so that no pass waits for the device. Python floats are numbers that the host knows."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from fastloop._core import GradListBase
from fastloop.base.checks import look_up
from fastloop.base.threads import lock_over_forks, thread_pool
from fastloop.compat.ranges import named
from fastloop.compat.requirements import kernels_are_disabled
from fastloop.compat.tensors import sparse_parts
from fastloop.compat.torch_parts import (
    OptState,
    difference,
    is_known,
    torch_clip_grad_norm_,
    without_subclass_functions,
)
from fastloop.device.availability import fault_of, find_fault
from fastloop.step import shards

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that the engine takes
_MAX_LISTS = 16
_counting = lock_over_forks()


def parameters_of(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def new_flag(device: torch.device) -> Tensor:
    """Make a found_inf: 0-d float32, 0.0. A pass that meets an element that is not finite sets 1.0
    there."""
    return torch.zeros((), dtype=torch.float32, device=device)


class FlagCounter:
    """Counts flags that are set. Flags on a device are added up there until `read`."""

    def __init__(self, count: int = 0) -> None:
        self.count = count  # flags that the host has read
        self._unread: Tensor | None = None  # 0-d, on the device: the sum of the remaining flags

    def __reduce__(self) -> tuple[type[FlagCounter], tuple[int]]:
        return FlagCounter, (self.read(),)

    def prepare(self, device: torch.device) -> None:
        """Make the sum on a device, so that a graph that captures `add` keeps adding to this
        tensor."""
        if device.type != "cpu":
            self._unread = torch.zeros((), dtype=torch.float32, device=device)

    def add(self, flag: Tensor | bool) -> None:
        """Count a flag that is False, True, 0.0 or 1.0. Does not wait for a device."""
        if isinstance(flag, bool):
            with _counting:  # optimizers in several threads may share one scaler
                self.count += flag
            return
        if self._unread is None:
            self._unread = torch.zeros_like(flag)
        self._unread.add_(flag.to(self._unread.device, non_blocking=True))

    def read(self) -> int:
        """Return the count. SYNC on a device."""
        if self._unread is not None:
            self.count += int(self._unread.item())
            self._unread.zero_()  # in place, for graphs
        return self.count


class Arrival:
    """Numbers on their way from a device to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._event: Any = None  # None: the host has the numbers
        if numbers.device.type != "cpu":
            self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._event = torch.accelerator.current_stream(numbers.device).record_event()

    def is_here(self) -> bool:
        return self._event is None or self._event.query()

    def read(self) -> Tensor:
        """Return the numbers (SYNC if the device is not yet there)."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers


def _new_number(like: Tensor | None) -> Tensor:
    device = torch.device("cpu") if like is None else like.device
    return torch.empty((), dtype=torch.float64, device=device)


def _new_scratch(like: Tensor, size: int) -> Tensor:
    """Make the memory that passes on a device need: `size` bytes; the first 16 bytes are 0."""
    scratch = torch.empty(size // 8 + 2, dtype=torch.float64, device=like.device)
    scratch[:2].zero_()
    return scratch


# None: this torch's tensors have a layout that the engine does not know. Then no list is plain, and
# torch's own functions run all passes.
_TENSOR_TYPE = Tensor if is_known("tensors", "Passes over gradients are left") else None


class GradList(GradListBase):
    """The tensors that passes run over, collected anew before the first pass of each step."""

    # Reports wrap this method, so the class needs its own entry.
    clip_parameters = GradListBase.clip_parameters

    layouts: Any = None  # shards.Layouts, once there may be DTensors
    _kinds: dict[int, GradList]  # by layout: a list of that layout's tensors

    def __new__(cls) -> GradList:
        new_scratch = None if kernels_are_disabled() else _new_scratch
        return super().__new__(cls, _TENSOR_TYPE, increment_version, _new_number, new_scratch)

    def reading(self) -> AbstractContextManager[None]:
        """Return a context for collecting. Once there may be DTensors, the list takes their parts,
        and the context makes reading a DTensor's `.grad` as fast as a tensor's: torch looks for no
        __torch_function__ in it."""
        if self.layouts is None:
            shard_type = shards.dtensor_type()
            if shard_type is None:
                return nullcontext()
            self.layouts, self._kinds = shards.Layouts(), {}
            self.take_shards(shard_type, self.layouts)
        context: AbstractContextManager[None] = without_subclass_functions()
        return context

    def collect_grads(self, source: Optimizer | Iterable[Tensor]) -> GradList:
        """Hold every `.grad` that is not None, of an optimizer's or an iterable's parameters.

        As in torch, any object with param_groups is an optimizer."""
        groups = look_up(source, "param_groups")
        collect = self.collect_parameters if groups is None else self.collect_groups
        given: Any = list(source) if groups is None else groups  # type: ignore[arg-type]
        with self.reading():
            collect(given)
        self.warn_of_fallback()
        return self

    def collect(self, tensors: Iterable[Tensor]) -> GradList:
        """Hold these tensors, and keep them alive until `release`."""
        with self.reading():
            self.collect_tensors(tensors)
        self.warn_of_fallback()
        return self

    def warn_of_fallback(self) -> None:
        """Warn, once a process, if torch runs the passes because CUDA kernels cannot."""
        if not self.can_run and self.tensors:
            find_fault(self.device, "runs the passes over gradients")

    def why_not_plain(self) -> str:
        """Return the reason why the engine does not take these tensors."""
        if reason := difference("tensors"):
            return reason
        for t in self.tensors:
            if type(t) is shards.dtensor_type():
                reason = shards.why_not_covered(t.device_mesh, t.placements)
                if reason:
                    return reason
                t = t.to_local()
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
    def can_run(self) -> bool:
        """Tell whether the engine takes these tensors, or their parts in this process."""
        return self.is_plain or self.has_shards

    @property
    def device(self) -> torch.device:
        """The device of norm and factor: the first tensor's. If this process has no tensor, the
        device of the DTensors in other processes; else the CPU."""
        if not self.tensors and self.has_shards and self.layouts:
            _, layout = self.layouts[self.kinds[1]][0]
            return torch.empty(0, device=layout.mesh.device_type).device  # a device with its index
        return self.tensors[0].device if self.tensors else torch.device("cpu")

    def norm_check(
        self, found_inf: Tensor, scale: Tensor | None = None, divisor: float = 1.0, p: float = 2.0
    ) -> Tensor:
        """Return the p-norm of gradients / (scale * divisor), 0-d float64, and set found_inf.

        Each element is checked before any arithmetic, so a norm too large for float32 does not set
        found_inf."""
        scale = None if scale is None else scale.to(self.device)
        if self.is_plain:
            run = named("check", self.run_norm_check)
            norm: Tensor = run(thread_pool(), p, scale, divisor, found_inf)
            return norm
        if self.has_shards:
            return shards.norm_check(self, found_inf, scale, divisor, p)
        with torch.no_grad():
            _check_finite(self.tensors, found_inf)
            # Repeated rows of a sparse gradient are sums.
            tensors = [_values(t.coalesce() if t.is_sparse else t) for t in self.tensors]
            wide = [t.to(torch.promote_types(t.dtype, torch.float64)) for t in tensors]
            norms = [torch.linalg.vector_norm(t, p) for t in wide]  # real, even if t is complex
            norm = torch.zeros((), dtype=torch.float64, device="cpu")
            if norms:
                joined = torch.stack([whole(each).to(self.device) for each in norms])
                norm = torch.linalg.vector_norm(joined, p)
            return norm.div_(divisor if scale is None else scale.double() * divisor)

    def norm_of_kind(
        self, kind: int, found_inf: Tensor, scale: Tensor | None, divisor: float, p: float
    ) -> Tensor:
        """Do the work of `norm_check` for one layout's tensors, or their parts in this process."""
        here = self.kinds[0]
        if not here >> kind & 1:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        part: GradListBase = self
        if here != 1 << kind:
            part = self._kinds.setdefault(kind, GradList())
            part.collect_kind(self, kind)
        run = named("check", part.run_norm_check)
        norm: Tensor = run(thread_pool(), p, scale, divisor, found_inf)
        if part is not self:
            part.release()
        return norm

    def clip_factor(
        self, norm: Tensor | None, max_norm: float | None, scale: Tensor | None, divisor: float
    ) -> Tensor:
        """Return the factor for `scale_` that divides by scale * divisor and then clips to max_norm
        as torch does (min(1, max_norm / (norm + 1e-6))): 0-d float64. If max_norm is None, the
        factor does not clip."""
        if max_norm is None:
            norm, max_norm = None, 0.0
        scale = None if scale is None else scale.to(self.device)
        if self.can_run and self.tensors:
            found: Tensor = self.find_clip_factor(norm, max_norm, None, scale, divisor)
            return found
        factor = torch.ones((), dtype=torch.float64, device=self.device)
        factor.div_(divisor if scale is None else scale.double() * divisor)
        return factor if norm is None else factor * torch.clamp(max_norm / (norm + 1e-6), max=1.0)

    def scale_(self, factor: Tensor) -> None:
        """Multiply every tensor by a 0-d float64. If the factor is 1, nothing is written."""
        if self.can_run:
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
        """Compute self = beta * self + alpha * source, tensor by tensor, and round once. The
        arithmetic is in float32, in float64 if one of the two tensors is, and complex if they are.
        Sets found_inf by the elements of source. If beta is 0, self is not read."""
        if source.can_run and self.can_run:
            host, device = (1.0, alpha) if isinstance(alpha, Tensor) else (alpha, None)
            if self.run_combine(thread_pool(), source, host, device, beta, found_inf):
                if found_inf is not None and source.has_shards:
                    shards.share_flag(source, found_inf)
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


empty_list = cache(GradList)  # for calls that need no tensors


Lists = dict[int, GradList]  # caches, by the id of their optimizer


def grads_of(lists: Lists, optimizer: Any) -> GradList:
    """Return the list that collected this optimizer's gradients last. The key is the optimizer's
    id. A list is only a cache of sizes, so a new optimizer with an old id may inherit the list."""
    grads = lists.get(id(optimizer))
    if grads is None:
        if len(lists) >= _MAX_LISTS:
            lists.clear()
        grads = lists[id(optimizer)] = GradList()
    return grads


def take_idle(lists: list[GradList]) -> GradList:
    """Return a list that no other thread has."""
    try:  # without a look at the length, because a second thread may pop in between
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
    """Clip the total norm of the gradients in place: ``torch.nn.utils.clip_grad_norm_``.

    Args:
        parameters: a tensor, or an iterable of tensors. Each ``.grad`` that is not None counts.
        max_norm: gradients are multiplied by min(1, max_norm / (norm + 1e-6)).
        norm_type: the p of the norm; ``math.inf`` is the largest absolute value.
        error_if_nonfinite: raise if the norm is inf or NaN (SYNC on CUDA). If False, such a norm
            makes all gradients 0 or NaN.
        foreach: as in torch. fastloop's engine runs in every case that it covers, and has no use
            for this argument.

    Returns:
        The norm before clipping: 0-d, on the first gradient's device, of the gradients' dtype.

    The engine covers norms 1, 2 and inf of ordinary tensors of one dtype, on the CPU or on one CUDA
    device. It computes sums and the factor in double precision, always reads the gradients once
    (they may have changed since an earlier pass), and writes them only if the factor is not 1.
    torch's own function covers the rest.

    Raises:
        RuntimeError: error_if_nonfinite and the norm is inf or NaN (the gradients are unchanged);
            or foreach is True and torch has no such functions for these tensors.
    """
    is_generator = isinstance(parameters, types.GeneratorType)
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if is_generator and not parameters:
        # From here, stacklevel=2 names the user's line.
        warnings.warn(
            "`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=2
        )
    limits = float(max_norm), float(norm_type)
    grads = take_idle(_idle)
    clip = named("clip", grads.clip_parameters)
    with grads.reading():
        norm: Tensor | None = clip(thread_pool(), parameters, *limits, error_if_nonfinite)
    if norm is None:
        try:
            if shards.can_clip(grads, limits[1]):
                norm = shards.clip(grads, (*limits, error_if_nonfinite))
            grads.warn_of_fallback()
        finally:
            grads.release()
    _idle[:] = [grads]
    if norm is None:
        # Bound at import: users put this function in place of torch's public name.
        norm = torch_clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
    return norm


# ---- the work of torch.amp.GradScaler on an optimizer's gradients, for any scaler of that class


def unscale_at_once(
    scaler: Any, optimizer: Any, lists: Lists, clip: tuple[float, float, bool] | None = None
) -> Tensor | bool:
    """Do the work of an enabled scaler's unscale_, and clip in the same pass, in one native call.

    Returns:
        False if nothing is done, because torch's unscale_ has to run, or to raise; True if the
        gradients are unscaled but not clipped; else the norm before clipping.
    """
    scale = scaler._scale
    if scale is None or not _is_plain_number(scale):
        return False
    state = scaler._per_optimizer_states[id(optimizer)]
    if state["stage"] is not OptState.READY:
        return False
    found_inf, groups = new_flag(scale.device), optimizer.param_groups
    grads = grads_of(lists, optimizer)
    run = named("unscale" if clip is None else "unscale_and_clip", grads.unscale_and_clip)
    with grads.reading():
        done: Tensor | bool = run(thread_pool(), groups, scale, found_inf, clip)
    flags = {scale.device: found_inf}
    if done is False:
        try:
            done = _unscale_shards(grads, scale, found_inf, clip)
            if isinstance(done, Tensor) and not grads.tensors and not done:
                flags = {}  # no rank has a gradient: torch's `step` says so
        finally:
            grads.release()
    if done is not False:
        state["found_inf_per_device"] = flags
        state["stage"] = OptState.UNSCALED
    return done


def _unscale_shards(
    grads: GradList, scale: Tensor, found_inf: Tensor, limits: tuple[float, float, bool] | None
) -> Tensor | bool:
    """Do the work of `unscale_at_once` for a list with DTensors."""
    if not grads.has_shards or grads.device != scale.device or torch.float16 in grads.dtypes:
        return False
    if limits is None or not shards.can_clip(grads, limits[1]):
        return unscale_collected(grads, scale.double().reciprocal().float(), found_inf, False)
    norm: Any = shards.clip(grads, limits, scale, found_inf)
    return norm  # type: ignore[no-any-return]


def unscale_collected(
    grads: GradList, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
) -> bool:
    """Do the work of `_unscale_grads_`, into found_inf. If torch's method has to run, or to raise,
    or if no rank has a gradient, do nothing and return False."""
    is_here = grads.device == inv_scale.device == found_inf.device
    are_numbers = _is_plain_number(inv_scale) and _is_plain_number(found_inf)
    are_covered = grads.has_shards or (grads.is_plain and len(grads.tensors) > 0)
    is_refused = not allow_fp16 and torch.float16 in grads.dtypes
    if not is_here or not are_numbers or not are_covered or is_refused:
        return False
    if grads.tensors:
        named("unscale", grads.run_unscale)(thread_pool(), inv_scale, found_inf)
    return not grads.has_shards or shards.share_flag(grads, found_inf)


def _is_plain_number(number: Tensor) -> bool:
    is_covered = type(number) is _TENSOR_TYPE and number.device.type in ("cpu", "cuda")
    return is_covered and number.dtype is torch.float32 and number.ndim == 0


# ---- helpers of the passes that torch's functions run


def _values(tensor: Tensor) -> Tensor:
    return sparse_parts(tensor)[1] if tensor.is_sparse else tensor


def whole(norm: Any) -> Tensor:
    """Return a DTensor's value on every rank."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


def _check_finite(tensors: list[Tensor], found_inf: Tensor) -> None:
    for t in map(_values, tensors):
        found_inf.logical_or_(whole(torch.logical_not(torch.isfinite(t).all())).to(found_inf))
