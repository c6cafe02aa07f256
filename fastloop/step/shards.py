"""DTensors among gradients: the engine passes over this process's part of each DTensor, and one
all-reduce of 8 bytes for each mesh axis that shards joins the numbers of the processes.

A layout is covered if each placement is `Shard`, FSDP's `_StridedShard` (both put every element
into one process of the axis) or `Replicate` (counted once). Layouts are numbered, and the engine
sorts gradients by the numbers. Parameters without gradients have layouts as well: if some processes
lack a gradient, the gradient counts as zeros there.

The flag for "not finite" travels in the sum: if an element is inf or NaN, so is the sum. If a sum
of finite elements overflows, -inf is sent."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fastloop.compat.torch_parts import is_known, new_replica, strided_shard

GradList = Any  # grad_list.GradList; grad_list.py imports this module
Groups = tuple[Any, ...]  # process groups


class Layout(NamedTuple):
    """A distribution of tensors over processes."""

    mesh: Any  # None: ordinary tensors; each process has them whole
    groups: Groups  # along the axes that shard; the mesh's last axis comes first


class Layouts:
    """Numbers the layouts of DTensors, for the engine."""

    def __init__(self) -> None:
        self._found = [Layout(None, ())]
        self._numbers: dict[Any, int] = {}
        self._meshes: list[Any] = []
        self._totals: dict[Any, Any] = {}  # mesh and spec of norms, by bits of layouts and dtype

    def __call__(self, spec: Any) -> int:
        """Return the number of a DTensor's layout; -1 if the engine does not cover the layout."""
        # Meshes of the same ranks compare as equal, and may have different groups.
        key = id(spec.mesh), spec.placements
        if key not in self._numbers:
            self._meshes.append(spec.mesh)  # kept, so that no new mesh gets this id
            self._numbers[key] = self._number_of(spec.mesh, spec.placements)
        return self._numbers[key]

    def _number_of(self, mesh: Any, placements: Any) -> int:
        if why_not_covered(mesh, placements):
            return -1
        axes = [i for i, p in enumerate(placements) if not p.is_replicate() and mesh.size(i) > 1]
        layout = Layout(mesh, tuple(mesh.get_group(i) for i in reversed(axes)))
        if layout not in self._found:
            self._found.append(layout)
        return self._found.index(layout)

    def __getitem__(self, bits: int) -> list[tuple[int, Layout]]:
        """Return the layouts with their numbers; `bits` has 1 << number for each."""
        return [(i, found) for i, found in enumerate(self._found) if bits >> i & 1]

    def reduce(self, number: int, value: Tensor, is_max: bool) -> None:
        """Replace a 0-d value by the sum, or the maximum, over the processes that share the layout
        with this number. One message for each of the layout's groups."""
        for group in self._found[number].groups:
            _reduce(value, is_max, group)

    def as_total_norm(self, here: int, norm: Tensor) -> Tensor:
        """Return the norm of gradients with these layouts as torch does: on their mesh. If the
        gradients have several meshes, torch has no norm, and the result is a plain tensor."""
        if (here, norm.dtype) not in self._totals:
            meshes = {layout.mesh for _, layout in self[here]}
            self._totals[here, norm.dtype] = meshes.pop() if len(meshes) == 1 else None, None
        mesh, spec = self._totals[here, norm.dtype]
        if mesh is None:
            return norm
        total: Tensor
        total, spec = new_replica(norm, mesh, spec)
        self._totals[here, norm.dtype] = mesh, spec
        return total


def dtensor_type() -> Any:
    """Return torch's class DTensor; None if no module has imported the class, so that no DTensor
    exists."""
    module = sys.modules.get("torch.distributed.tensor")
    is_here = hasattr(module, "DTensor") and is_known("shards", "Passes over DTensors are left")
    return getattr(module, "DTensor", None) if is_here else None


def why_not_covered(mesh: Any, placements: Sequence[Any]) -> str:
    """Return why the engine does not cover DTensors of this layout; "" if it does."""
    from torch.distributed.tensor import Replicate, Shard

    if mesh.get_coordinate() is None:
        return "a gradient is a DTensor on a mesh without this process"
    for placement in placements:
        if type(placement) not in (Shard, Replicate, strided_shard()):
            return f"a gradient is a DTensor with placement {placement!r}"
    return ""


def _all_reduce(message: Tensor, op: Any, group: Any) -> None:
    """Call torch's all_reduce. An error names the processes that this process has waited for."""
    try:
        dist.all_reduce(message, op, group=group)
    except RuntimeError as error:
        ranks = [rank for rank in dist.get_process_group_ranks(group) if rank != dist.get_rank()]
        raise RuntimeError(
            f"rank {dist.get_rank()} has sent {message.numel()} number(s) of its gradients, and "
            f"ranks {ranks} have not sent theirs; call the same function on every rank, with "
            "parameters of the same meshes and placements"
        ) from error


def _reduce(value: Tensor, is_max: bool, group: Any) -> None:
    """Replace float64 values by their sums, or maxima, over a group."""
    if is_max:  # as integers, which order NaN above infinity
        _all_reduce(value.view(torch.int64), dist.ReduceOp.MAX, group)
    else:
        _all_reduce(value, dist.ReduceOp.SUM, group)


def _in_order(chains: Iterable[Groups]) -> list[Any]:
    """Return the groups of several chains, each once, in the same order on every process: a mesh's
    last axis comes first."""
    positions: dict[Any, int] = {}
    for groups in chains:
        for position, group in enumerate(groups):
            positions[group] = max(position, positions.get(group, 0))
    return sorted(positions, key=lambda group: (positions[group], str(group.group_name)))


def part_of(t: Any) -> Any:
    """Return this process's part of a DTensor; any other tensor itself."""
    return t.to_local() if hasattr(t, "to_local") else t


def laid_out_as(t: Any, part: Tensor) -> Tensor:
    """Return a DTensor with t's layout and `part` as this process's part; `part` itself if t is an
    ordinary tensor."""
    if not hasattr(t, "to_local"):
        return part
    layout = t.device_mesh, t.placements
    return type(t).from_local(part, *layout, run_check=False, shape=t.shape, stride=t.stride())  # type: ignore[no-any-return]


# ---- numbers over several processes


def norm_check(
    grads: GradList, found_inf: Tensor, scale: Tensor | None, divisor: float, p: float
) -> Tensor:
    """Do the work of `GradList.norm_check` over the processes. Every process must call this
    function."""
    here, missing = grads.kinds
    # Sums are float64: only sums of float64 elements can overflow.
    own = torch.zeros_like(found_inf) if torch.float64 in grads.dtypes else None
    values: dict[Groups, Tensor] = {}
    for number, layout in grads.layouts[here | missing]:
        flag = found_inf if own is None else own
        norm = grads.norm_of_kind(number, flag, None, 1.0, p)
        _add(values, layout.groups, norm.mul_(norm) if p == 2 else norm, p)
    if own is not None and p != math.inf:
        for value in values.values():
            value.masked_fill_(value.isinf().logical_and_(own == 0), -math.inf)
    total = _join(values, p)
    found_inf.logical_or_((total < math.inf).logical_not_())
    total = total.abs_().sqrt_() if p == 2 else total.abs_()
    if divisor == 1:
        return total if scale is None else total.div_(scale)
    return total.div_(divisor if scale is None else scale.double() * divisor)


def _add(values: dict[Groups, Tensor], groups: Groups, value: Tensor, p: float) -> None:
    if groups in values:
        value = torch.maximum(values[groups], value) if p == math.inf else values[groups] + value
    values[groups] = value


def _join(values: dict[Groups, Tensor], p: float) -> Tensor:
    """Return the sum of the values (the maximum for p = inf), each over its groups of processes.
    Each group has one all-reduce of one number, or of several if values differ in the groups that
    remain for them."""
    for group in _in_order(values):
        sent = [groups for groups in values if group in groups]
        sent.sort(key=lambda groups: [str(each.group_name) for each in groups])
        numbers = [values.pop(groups) for groups in sent]
        if () in values:  # a number that is not finite has to reach every process
            rest = {(): numbers[0]}
            _add(rest, (), torch.where(values[()].isfinite(), 0.0, values[()]), p)
            numbers[0] = rest[()]
        message = numbers[0].view(1) if len(numbers) == 1 else torch.stack(numbers)
        _reduce(message.abs_() if p == math.inf else message, p == math.inf, group)
        for groups, value in zip(sent, message.unbind(), strict=True):
            _add(values, tuple(each for each in groups if each is not group), value, p)
    return values[()]


def share_flag(grads: GradList, found_inf: Tensor) -> bool:
    """Set found_inf on every process if it is set on one. Every process must call this function.
    Returns whether any process has a gradient (SYNC on a process without gradients)."""
    if not grads.tensors:
        found_inf.fill_(-1.0)
    layouts = grads.layouts[grads.kinds[0] | grads.kinds[1]]
    for group in _in_order(layout.groups for _, layout in layouts):
        _all_reduce(found_inf, dist.ReduceOp.MAX, group)
    return bool(grads.tensors) or found_inf.item() >= 0


# ---- the passes of clip_grad_norm_ and of scalers


def can_clip(grads: GradList, norm_type: float) -> bool:
    """Tell whether the engine computes this norm as torch does, in one dtype. The answer is the
    same on every process."""
    if not grads.has_shards or len(grads.dtypes) > 1 or norm_type not in (1, 2, math.inf):
        return False
    # torch refuses the maximum of a tensor without elements, and a part may be empty.
    return norm_type != math.inf or all(t.numel() for t in grads.tensors)


def clip(
    grads: GradList,
    limits: tuple[float, float, bool],
    scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Tensor:
    """Divide by the scale and clip in one pass, if `can_clip`. Returns the norm before clipping, as
    torch does. If found_inf is set, gradients are not clipped.

    Raises:
        RuntimeError: error_if_nonfinite and the norm is inf or NaN, on every process. With a scale,
            the gradients are divided instead, and the caller raises.
    """
    max_norm, norm_type, error_if_nonfinite = limits
    layouts: Layouts = grads.layouts
    flag = found_inf if found_inf is not None else torch.zeros((), device=grads.device)
    norm = norm_check(grads, flag, scale, 1.0, norm_type)
    rounded = norm.to(next(iter(grads.dtypes), torch.float32))
    total = layouts.as_total_norm(grads.kinds[0], rounded)
    is_refused = error_if_nonfinite and not rounded.isfinite()
    if is_refused and scale is None:
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, "
            "so it cannot be clipped. To disable this error and scale the gradients by the "
            "non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    if grads.tensors:
        shown = None if is_refused else norm
        grads.scale_(grads.find_clip_factor(shown, max_norm, found_inf, scale, 1.0))
    return total
