"""A window of micro-batches: its weights, its arithmetic, and the buffer that may hold its sum.

Pure bookkeeping: nothing here knows the optimizer's step, the scaler or the network.
docs/stepper.md derives the formulas."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fastloop.step.grad_list import GradList, new_flag, parameters_of

_ROUNDING = 1e-15  # a divisor as near to 1 as this is 1: sums of weights are rounded
_ALIGNED_BYTES = 64  # where each parameter's part of a flat buffer begins


class Window:
    """Counts and weights of the micro-batches since the last boundary."""

    def __init__(self, size: int, expected: float | None) -> None:
        self.size = size  # planned number of micro-batches
        self.expected = expected  # w_ref: the weight it is planned to have; None: not known yet
        self.count = 0  # micro-batches so far
        self.counted = 0  # those of a weight above 0, less dropped ones
        self.weight = 0.0  # their sum
        self.has_dropped = False  # whether a micro-batch was left out for a gradient not finite

    def expect(self, mean_weight: float) -> None:
        self.expected = self.size * mean_weight

    def share(self, weight: float) -> float:
        """c = w / w_ref, what a micro-batch's loss is multiplied by."""
        if self.expected is None:
            self.expect(weight)
        assert self.expected is not None
        return weight / self.expected

    def divisor(self, weight: float, ranks: int) -> float:
        """What accumulated gradients are divided by, besides the scale: ΣΣw / (R · w_ref)."""
        assert self.expected is not None
        divisor = weight / (ranks * self.expected)
        return 1.0 if abs(divisor - 1.0) < _ROUNDING else divisor

    def add(self, weight: float) -> None:
        self.count += 1
        if weight > 0:
            self.counted += 1
            self.weight += weight

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Window:
        window = cls(state["size"], state["expected"])
        window.__dict__.update((key, state[key]) for key in window.__dict__)
        return window


class Buffers:
    """A gradient-sized sum: one flat tensor for each device and dtype, parameters are views of it.

    Holds the parameters of one moment; whoever adds a parameter group makes new buffers. Flat
    tensors end with one element a parameter, which says after a reduction whether any rank had a
    gradient for it: a parameter that none has used keeps `.grad` None, as under DDP."""

    def __init__(self, optimizer: Optimizer, dtype: torch.dtype | None) -> None:
        self._optimizer = optimizer  # borrowed
        self._params = parameters_of(optimizer)
        self._flats: list[tuple[Tensor, list[int]]] = []  # owned; the parameters in each
        views: dict[int, Tensor] = {}
        for (device, kind), where in self._kinds(dtype).items():
            self._flats.append((_flat(self._params, where, device, kind, views), where))
        self._views = [views[i] for i in range(len(self._params))]
        self.sums = GradList().collect(self._views)
        self._added = GradList()
        self.clear()

    def _kinds(self, dtype: torch.dtype | None) -> dict[Any, list[int]]:
        kinds: dict[Any, list[int]] = {}
        for i, p in enumerate(self._params):
            if p.is_sparse or (p.grad is not None and p.grad.is_sparse):
                raise ValueError(
                    f"parameter {i} has a sparse gradient, and accumulation buffers are dense; "
                    "leave out accum_dtype and on_nonfinite='micro', or use sparse=False"
                )
            kind = p.dtype if dtype is None else torch.promote_types(dtype, p.dtype)
            kinds.setdefault((p.device, kind), []).append(i)
        return kinds

    def fits(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer still has as many parameters; if empty: the same ones."""
        if len(self._params) != sum(len(g["params"]) for g in optimizer.param_groups):
            return False
        return not self.is_empty or all(map(is_, self._params, parameters_of(optimizer)))

    def clear(self) -> None:
        """Empty, without touching the memory: the next `add` overwrites it."""
        self.is_empty = True
        self._used: set[int] | None = set()  # parameters with a gradient; None: all

    def add(self, grads: GradList, share: float, *, only_finite: bool = False) -> bool:
        """self += share * the gradients, which were collected from the same optimizer; returns
        whether it did. With only_finite (SYNC) it does not if an element is inf or NaN."""
        found_inf = new_flag(grads.device) if only_finite else None
        overwrites = self.is_empty and len(grads.tensors) == len(self._params)
        if found_inf is not None and not overwrites:
            grads.norm_check(found_inf)
            if found_inf:
                return False
            found_inf = None
        if len(grads.tensors) == len(self._params):
            beta = 0.0 if overwrites else 1.0
            self.sums.combine_(grads, found_inf, alpha=share, beta=beta)
            if found_inf is not None and found_inf:
                return False  # what was written is overwritten later
            self._used = None
        else:
            self._add_some(grads, share)
        self.is_empty = False
        return True

    def _add_some(self, grads: GradList, share: float) -> None:
        if self.is_empty:
            self._zero()
        here = [i for i, p in enumerate(self._params) if p.grad is not None]
        self._added.collect(self._views[i] for i in here)
        self._added.combine_(grads, alpha=share)
        self._added.release()
        if self._used is not None:
            self._used.update(here)

    def _zero(self) -> None:
        for flat, _ in self._flats:
            flat.zero_()

    def reduce(self, ranks: Any) -> None:
        """The mean over all ranks; each must call it (SYNC: which parameters are used is read)."""
        if self.is_empty:
            self._zero()
        used: set[int] = set()
        for flat, where in self._flats:
            flags = flat[flat.numel() - len(where) :]
            mine = [float(self._used is None or i in self._used) for i in where]
            flat.div_(ranks.size)
            flags.copy_(torch.tensor(mine))
            ranks.sum_(flat)
            used.update(i for i, n in zip(where, flags.real.tolist(), strict=True) if n > 0)
        self.is_empty = False
        self._used = None if len(used) == len(self._params) else used

    def write(self, factor: Tensor | float, grads: GradList) -> None:
        """factor * self into `.grad` of the parameters, rounded once; `grads` then holds those."""
        used = self._used
        if used is None and len(grads.collect_grads(self._optimizer).tensors) == len(self._params):
            grads.combine_(self.sums, alpha=factor, beta=0.0)
            return
        for i, p in enumerate(self._params):
            if used is not None and i not in used:
                p.grad = None
            elif p.grad is None:
                p.grad = torch.empty_like(p, requires_grad=False)
        grads.collect_grads(self._optimizer)
        sums = (v for i, v in enumerate(self._views) if used is None or i in used)
        grads.combine_(self._added.collect(sums), alpha=factor, beta=0.0)
        self._added.release()

    # ---- saving

    def tensors(self) -> list[Tensor | None]:
        """The sums by parameter; None where there was no gradient."""
        if self.is_empty:
            return [None] * len(self._params)
        used = self._used
        return [v if used is None or i in used else None for i, v in enumerate(self._views)]

    def load(self, tensors: list[Tensor | None]) -> None:
        self._zero()
        for view, tensor in zip(self._views, tensors, strict=True):
            if tensor is not None:
                view.copy_(tensor)
        used = {i for i, tensor in enumerate(tensors) if tensor is not None}
        self.is_empty = not used
        self._used = None if len(used) == len(self._params) else used


def _flat(
    params: list[Tensor],
    where: Iterable[int],
    device: torch.device,
    dtype: torch.dtype,
    views: dict[int, Tensor],
) -> Tensor:
    """A flat tensor for these parameters and their flags; adds the views of it."""
    where = list(where)
    step = _ALIGNED_BYTES // torch.empty((), dtype=dtype).element_size()
    starts, end = [], 0
    for i in where:
        starts.append(end)
        end += -(-params[i].numel() // step) * step
    flat = torch.empty(end + len(where), dtype=dtype, device=device)
    for i, start in zip(where, starts, strict=True):
        p = params[i]
        # Strides as the gradient's, so that passes over both run straight through memory.
        strides = torch.empty_like(p, device="meta").stride()
        views[i] = flat[start : start + p.numel()].as_strided(p.shape, strides)
    return flat
