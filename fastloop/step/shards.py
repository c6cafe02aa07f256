"""DTensors among gradients: the engine passes over the part of each that this process has, and one
all-reduce of 8 bytes for each mesh axis that shards joins the numbers of all processes.

A layout is covered if each placement is `Shard`, FSDP's `_StridedShard` (both put every element
into one process of the axis) or `Replicate` (counted once). Layouts are numbered, and C sorts
gradients by the numbers. Parameters without gradients name their axes too: a gradient that some
processes lack counts there as zeros.

The flag for "not finite" travels in the sum: it is inf or NaN where an element is. A sum of finite
elements that overflows travels as -inf."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fastloop.compat.torch_parts import is_known, new_replica, strided_shard

GradList = Any  # that of grad_list.py, which imports this module
Groups = tuple[Any, ...]  # process groups


class Layout(NamedTuple):
    """How tensors are spread over processes."""

    mesh: Any  # None: each process has them whole, as it has tensors that are no DTensors
    groups: Groups  # along the axes that shard; the mesh's last axis comes first


class Layouts:
    """Numbers the layouts of DTensors, for C."""

    def __init__(self) -> None:
        self._found = [Layout(None, ())]
        self._numbers: dict[Any, int] = {}
        self._meshes: list[Any] = []
        self._totals: dict[Any, Any] = {}  # mesh and spec of norms, by bits of layouts and dtype

    def __call__(self, spec: Any) -> int:
        """Return the number of a DTensor's layout, -1 if torch has to deal with it."""
        # Meshes of the same ranks are equal, and may have other groups.
        key = id(spec.mesh), spec.placements
        if key not in self._numbers:
            self._meshes.append(spec.mesh)  # so that no other gets its id
            self._numbers[key] = self._number_of(spec.mesh, spec.placements)
        return self._numbers[key]

    def _number_of(self, mesh: Any, placements: Any) -> int:
        if why_not_covered(mesh, placements):
            return -1
        layout = Layout(mesh, _groups_of(mesh, placements))
        if layout not in self._found:
            self._found.append(layout)
        return self._found.index(layout)

    def __getitem__(self, bits: int) -> list[tuple[int, Layout]]:
        """Return the layouts of these bits (1 << number), with their numbers."""
        return [(i, found) for i, found in enumerate(self._found) if bits >> i & 1]

    def reduce(self, number: int, value: Tensor, is_max: bool) -> None:
        """Make a 0-d value the sum, or the maximum, of those of all processes that share the layout
        of this number. One message for each of its groups."""
        for group in self._found[number].groups:
            _reduce(value, is_max, group)

    def as_total_norm(self, here: int, norm: Tensor) -> Tensor:
        """Return the norm of gradients of these layouts as torch does: on their mesh. Where torch
        has no norm, because not all of them are DTensors of one mesh, it is a plain tensor."""
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
    """Return torch's DTensor; None if nobody has imported it, so that there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    is_here = hasattr(module, "DTensor") and is_known("shards", "Passes over DTensors are left")
    return getattr(module, "DTensor", None) if is_here else None


def why_not_covered(mesh: Any, placements: Sequence[Any]) -> str:
    """Say why torch has to deal with DTensors of this layout; "" if the engine may."""
    from torch.distributed.tensor import Replicate, Shard

    if mesh.get_coordinate() is None:
        return "a gradient is a DTensor on a mesh without this process"
    for placement in placements:
        if type(placement) not in (Shard, Replicate, strided_shard()):
            return f"a gradient is a DTensor with placement {placement!r}"
    return ""


def _groups_of(mesh: Any, placements: Sequence[Any]) -> Groups:
    axes = [i for i, p in enumerate(placements) if not p.is_replicate() and mesh.size(i) > 1]
    return tuple(mesh.get_group(i) for i in reversed(axes))


def _all_reduce(message: Tensor, op: Any, group: Any) -> None:
    """Do what torch does. An error tells which processes this one has waited for, and with what."""
    try:
        dist.all_reduce(message, op, group=group)
    except RuntimeError as error:
        others = [rank for rank in dist.get_process_group_ranks(group) if rank != dist.get_rank()]
        text = f"rank {dist.get_rank()} joins {message.numel()} number(s) of its gradients with "
        text += f"ranks {others}, which have not sent theirs: all must call the same function, with"
        raise RuntimeError(f"{text} parameters of the same meshes and placements") from error


def _reduce(value: Tensor, is_max: bool, group: Any) -> None:
    """Make float64 values the sums, or the maxima, of those of a group."""
    if is_max:  # as integers, which order NaN above infinity
        _all_reduce(value.view(torch.int64), dist.ReduceOp.MAX, group)
    else:
        _all_reduce(value, dist.ReduceOp.SUM, group)


def _in_order(chains: Iterable[Groups]) -> list[Any]:
    """Return the groups of several chains, each once, in an order that all processes have: a
    mesh's last axis comes before those in front of it."""
    places: dict[Any, int] = {}
    for groups in chains:
        for place, group in enumerate(groups):
            places[group] = max(place, places.get(group, 0))
    return sorted(places, key=lambda group: (places[group], str(group.group_name)))


def part_of(t: Any) -> Any:
    """Return the part of a DTensor that this process has; any other tensor itself."""
    return t.to_local() if hasattr(t, "to_local") else t


def laid_out_as(t: Any, part: Tensor) -> Tensor:
    """Return a DTensor like t, of which this process has `part`; `part` itself if t is none."""
    if not hasattr(t, "to_local"):
        return part
    where = t.device_mesh, t.placements
    return type(t).from_local(part, *where, run_check=False, shape=t.shape, stride=t.stride())  # type: ignore[no-any-return]


# ---- numbers of all processes


def norm_check(
    grads: GradList, found_inf: Tensor, scale: Tensor | None, divisor: float, p: float
) -> Tensor:
    """Do the work of `GradList.norm_check` for gradients of all processes, which must all call
    it."""
    here, missing = grads.kinds
    # Sums of other elements cannot overflow.
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
    """Return the sum of all values (their maximum for p = inf), each over its groups of processes.
    One all-reduce for each group: of one number, or as many as have other groups to follow."""
    for group in _in_order(values):
        sent = [groups for groups in values if group in groups]
        sent.sort(key=lambda groups: [str(each.group_name) for each in groups])
        numbers = [values.pop(groups) for groups in sent]
        if () in values:  # a number that is not finite has to reach all
            rest = {(): numbers[0]}
            _add(rest, (), torch.where(values[()].isfinite(), 0.0, values[()]), p)
            numbers[0] = rest[()]
        message = numbers[0].view(1) if len(numbers) == 1 else torch.stack(numbers)
        _reduce(message.abs_() if p == math.inf else message, p == math.inf, group)
        for groups, value in zip(sent, message.unbind(), strict=True):
            _add(values, tuple(each for each in groups if each is not group), value, p)
    return values[()]


def share_flag(grads: GradList, found_inf: Tensor) -> bool:
    """Set found_inf on all processes where it is set on one. They must all call it. Returns whether
    one of them has a gradient (SYNC on those that have none)."""
    if not grads.tensors:
        found_inf.fill_(-1.0)
    layouts = grads.layouts[grads.kinds[0] | grads.kinds[1]]
    for group in _in_order(layout.groups for _, layout in layouts):
        _all_reduce(found_inf, dist.ReduceOp.MAX, group)
    return bool(grads.tensors) or found_inf.item() >= 0


# ---- the passes of clip_grad_norm_ and of scalers


def can_clip(grads: GradList, norm_type: float) -> bool:
    """Tell whether the engine computes this norm as torch does, in one dtype. All processes come to
    the same answer."""
    if not grads.has_shards or len(grads.dtypes) > 1 or norm_type not in (1, 2, math.inf):
        return False
    # torch refuses the maximum of a tensor without elements; a part may have none.
    return norm_type != math.inf or all(t.numel() for t in grads.tensors)


def clip(
    grads: GradList,
    limits: tuple[float, float, bool],
    scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Tensor:
    """Divide by the scale and clip in one pass, for `can_clip`. Returns the norm before clipping as
    torch does. Where found_inf is set gradients are not clipped.

    Raises:
        RuntimeError: error_if_nonfinite and the norm is inf or NaN, on all processes. With a scale
            gradients are divided instead, and the caller raises.
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
