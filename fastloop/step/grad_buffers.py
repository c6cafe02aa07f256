"""Buffers of a Stepper that hold the sum of gradients over a window, in place of `.grad`."""

from __future__ import annotations

from itertools import accumulate
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.step.grad_list import GradList, new_flag, parameters_of
from fastloop.step.ranks import Ranks

_ALIGNED_BYTES = 64  # where each parameter's part of a flat buffer begins


class GradBuffers:
    """A gradient-sized sum: one flat tensor for each device and dtype, parameters are views of it.

    Flat tensors end with one element a parameter, which says after a reduction whether any rank had
    a gradient for it: a parameter that none has used keeps `.grad` None, as under DDP."""

    def __init__(self, optimizer: Optimizer, dtype: torch.dtype | None) -> None:
        self._optimizer = optimizer  # borrowed
        self._dtype = dtype  # of the sum; None: the gradients' own
        self._params: list[Tensor] = []
        self._flats: list[tuple[Tensor, list[int]]] = []  # owned; the parameters in each
        self._views: list[Tensor] = []  # of a flat tensor, one for each parameter
        self.sums = GradList()  # holds the views
        self._grads = GradList()  # the optimizer's, for the time of a call
        self._used_sums = GradList()  # some of the views, likewise
        self.clear()

    def clear(self) -> None:
        """Empty the sum without touching its memory: the next `add` overwrites it."""
        self._used: set[int] = set()  # parameters that had a gradient

    def fit(self) -> None:
        """Make memory for the optimizer's present parameters, unless it is there.

        Raises:
            RuntimeError: the sum is not empty, and the optimizer has another number of parameters.
            ValueError: a gradient is sparse.
        """
        params = parameters_of(self._optimizer)
        has_as_many = len(params) == len(self._params)
        if self._used and not has_as_many:
            raise RuntimeError(
                "a parameter group was added in the middle of a window; add it between windows"
            )
        if self._used or (has_as_many and all(map(is_, self._params, params))):
            return
        kinds: dict[Any, list[int]] = {}
        for i, p in enumerate(params):
            if p.is_sparse or (p.grad is not None and p.grad.is_sparse):
                raise ValueError(
                    f"parameter {i} has a sparse gradient, and accumulation buffers are dense; "
                    "leave out accum_dtype and on_nonfinite='micro', or use sparse=False"
                )
            dtype = p.dtype if self._dtype is None else torch.promote_types(self._dtype, p.dtype)
            kinds.setdefault((p.device, dtype), []).append(i)
        self._params, self._views = params, params[:]
        self._flats = [(self._flat(where, *kind), where) for kind, where in kinds.items()]
        self.sums.collect(self._views)

    def _flat(self, where: list[int], device: torch.device, dtype: torch.dtype) -> Tensor:
        """Make a flat tensor for these parameters and their flags, and the views of it."""
        step = _ALIGNED_BYTES // dtype.itemsize
        sizes = (-(-self._params[i].numel() // step) * step for i in where)
        *starts, end = accumulate(sizes, initial=0)
        flat = torch.empty(end + len(where), dtype=dtype, device=device)
        for i, start in zip(where, starts, strict=True):
            p = self._params[i]
            # Strides as the gradient's, so that passes over both run straight through memory.
            strides = torch.empty_like(p, device="meta").stride()
            self._views[i] = flat[start : start + p.numel()].as_strided(p.shape, strides)
        return flat

    def add(self, share: float, *, only_finite: bool = False) -> bool:
        """Compute self += share * the optimizer's gradients; returns whether it did. With
        only_finite (SYNC) it does not if an element is inf or NaN."""
        self.fit()
        grads = self._grads.collect_grads(self._optimizer)
        found_inf = new_flag(grads.device) if only_finite else None
        has_all = len(grads.tensors) == len(self._params)
        overwrites = has_all and not self._used
        if overwrites:  # and is overwritten later if a gradient is not finite
            self.sums.combine_(grads, found_inf, alpha=share, beta=0.0)
        elif found_inf is not None:
            grads.norm_check(found_inf)
        is_added = found_inf is None or not found_inf
        if is_added and has_all:
            if not overwrites:
                self.sums.combine_(grads, alpha=share)
            self._used.update(range(len(self._params)))
        elif is_added:
            self._zero_if_empty()
            here = [i for i, p in enumerate(self._params) if p.grad is not None]
            self._used_sums.collect(self._views[i] for i in here).combine_(grads, alpha=share)
            self._used_sums.release()
            self._used.update(here)
        grads.release()
        return is_added

    def _zero_if_empty(self) -> None:
        for flat, _ in () if self._used else self._flats:
            flat.zero_()

    def reduce(self, ranks: Ranks) -> None:
        """Average over all ranks; each must call it (SYNC: which parameters are used is read)."""
        self.fit()
        self._zero_if_empty()
        used: set[int] = set()
        for flat, where in self._flats:
            flags = flat[flat.numel() - len(where) :]
            mine = [float(i in self._used) for i in where]
            flat.div_(ranks.size)
            flags.copy_(torch.tensor(mine))
            ranks.sum_(flat)
            used.update(i for i, n in zip(where, flags.real.tolist(), strict=True) if n > 0)
        self._used = used

    def write(self, factor: Tensor | float, grads: GradList) -> None:
        """Write factor * self into `.grad` of the parameters, rounded once. `grads` then holds
        those."""
        for i, p in enumerate(self._params):
            if i not in self._used:
                p.grad = None
            elif p.grad is None:
                p.grad = torch.empty_like(p, requires_grad=False)
        grads.collect_grads(self._optimizer)
        sums = self.sums
        if len(self._used) < len(self._params):
            sums = self._used_sums.collect(self._views[i] for i in sorted(self._used))
        grads.combine_(sums, alpha=factor, beta=0.0)
        self._used_sums.release()
