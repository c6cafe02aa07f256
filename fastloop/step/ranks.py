"""The other processes of a DDP or FSDP job: the moment of each reduction of gradients, and the
messages between ranks.

Every message is one all-reduce of the same small vector. So ranks at different points of their
loops still understand each other, and every rank raises the same error instead of waiting. The
stepper calls this module on the thread that trains. docs/internals/stepper.md lists the
messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import Enum
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from fastloop.base.checks import make_message
from fastloop.compat.torch_parts import difference


class SyncPoint(Enum):
    """A point in the loop of a rank that sends a message."""

    BEGIN = "at the beginning of iterate()"
    FIRST_WEIGHT = "in their first micro-batch"
    BOUNDARY = "at the end of a window"
    FLUSH = "in flush()"
    LEFT = "out of the loop, which they left before its end"


class Totals(NamedTuple):
    """The numbers that one rank sends, and their sums over all ranks."""

    weight: float = 0.0  # the sum over the window's micro-batches
    counted: float = 0.0  # micro-batches with a weight above 0
    has_more: float = 0.0  # 1: the loop has a further batch
    has_dropped: float = 0.0  # 1: a micro-batch was dropped


class Ranks:
    """The process group of a model's parallel modules. Without such a module there is one rank, and
    every method returns at once."""

    def __init__(self, model: Module | Iterable[Module] | None) -> None:
        models: list[Any] = [] if model is None else [model]
        if isinstance(model, Iterable) and not isinstance(model, Module):
            models = list(model)
        if not all(isinstance(whole, Module) for whole in models):
            rule = "the torch.nn.Module that the loop calls, or several"
            raise TypeError(make_message("model", rule, model))
        parts = [part for whole in models for part in whole.modules()]
        # DDP and FSDP1; then FSDP2. Borrowed from the user's model.
        replicated = [part for part in parts if hasattr(type(part), "no_sync")]
        sharded = [part for part in parts if hasattr(type(part), "set_requires_gradient_sync")]
        self._replicated, self._sharded = replicated, sharded
        self.is_parallel = bool(replicated or sharded)
        self._is_synced = True  # whether the sharded modules were told to reduce
        self._contexts: list[AbstractContextManager[Any]] = []  # no_sync() of the micro-batch
        self._leave_notice: tuple[Any, Tensor] | None = None  # a message without an answer yet
        self._ddp: list[Any] = [m for m in replicated if isinstance(m, DistributedDataParallel)]
        # True until DDP has recorded its static graph, in a backward that reduces.
        self._is_static = any(module.static_graph for module in self._ddp)
        self.can_reduce_alone = len(self._ddp) == len(replicated) and not sharded
        kinds = [kind.__name__ for part in replicated for kind in type(part).__mro__]
        self.has_shards = bool(sharded) or "FullyShardedDataParallel" in kinds
        # FSDP1's parameters are this rank's parts.
        self.has_whole_parameters = "FullyShardedDataParallel" not in kinds
        # If every module is FSDP2's, gradients that a backward has reduced can be added up.
        self.can_add_shards = bool(sharded) and not replicated
        with_groups = replicated or sharded[:1]
        groups: list[Any] = [getattr(m, "process_group", None) for m in with_groups] or [None]
        self.group = groups[0]
        self.size = 1
        if self.is_parallel and _is_running():
            sizes = list(dict.fromkeys(map(dist.get_world_size, groups)))
            if len(sizes) > 1:
                rule = "modules of process groups with equally many ranks"
                raise ValueError(make_message("model", rule, sizes, "one Stepper for each group"))
            self.size = sizes[0]
        self._device = _message_device(self.group) if self.size > 1 else torch.device("cpu")

    # ---- when gradients travel

    def enter_micro(self, sync: bool) -> None:
        """Prepare a micro-batch before its forward; its backward reduces gradients if `sync`."""
        if self._sharded and sync != self._is_synced:
            self._set_shards(sync)
        if not sync:
            if self._is_static:
                raise RuntimeError(
                    "DistributedDataParallel(static_graph=True) must reduce in its first backward; "
                    "leave static_graph out, or pass accumulate=lambda step: n if step else 1"
                )
            for module in self._replicated:
                context = module.no_sync()
                context.__enter__()
                self._contexts.append(context)

    def leave_micro(self) -> None:
        """End a micro-batch, after its backward."""
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Keep DDP from sending gradients and buffers in this block, so that one rank can fail
        alone. Sharded modules cannot be silent: their forward is a collective."""
        with ExitStack() as stack:
            for module in self._replicated:
                stack.enter_context(module.no_sync())
            for module in self._ddp:
                if module.require_forward_param_sync:
                    module.require_forward_param_sync = False
                    stack.callback(setattr, module, "require_forward_param_sync", True)
            yield

    def can_flush(self) -> bool:
        """Tell whether an open window's gradients can be reduced without a backward."""
        return not self.has_shards or (self.can_add_shards and not difference("fsdp"))

    def check_needs(self, buffers: bool, norm: bool) -> None:
        """Raise ValueError if a Stepper needs buffers or a norm, and FSDP has none for it."""
        if self.has_shards and buffers and not self.can_add_shards:
            raise ValueError(
                "accum_dtype and on_nonfinite='micro' under FSDP need FSDP2 (fully_shard) for all "
                "modules of the model; leave both arguments out"
            )
        if norm and not self.has_whole_parameters:
            raise ValueError(
                "max_norm and max_norm_spike under FSDP need FSDP2 (fully_shard), because FSDP1 "
                "shows each rank the norm of its own part; leave both arguments out"
            )

    def reduce_shards(self) -> None:
        """Reduce the gradients that FSDP2 keeps unreduced, as the end of a backward does for
        modules that the backward did not reach. Every rank must call this method."""
        self._set_shards(True)
        for state in dict.fromkeys(module._get_fsdp_state() for module in self._sharded):
            if state._is_root:
                state._root_post_backward_final_callback()

    def drop_window(self) -> None:
        """Forget gradients that FSDP2 keeps unreduced, and let the next backward reduce."""
        self.leave_micro()
        if not self._is_synced:
            self._set_shards(True)
            states = [m._get_fsdp_state() for m in self._sharded if hasattr(m, "_get_fsdp_state")]
            groups: Any = (group for state in states for group in state._fsdp_param_groups)
            for param in (param for group in groups for param in group.fsdp_params):
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None

    def backward_of_nothing(self, loss: Tensor) -> None:
        """Replace the backward of a window's last micro-batch with weight 0: add nothing, and
        reduce the gradients.

        If a module is not DDP's, run the backward of 0 · loss, which can give NaN."""
        if not self.can_reduce_alone:
            (loss * 0).backward()  # type: ignore[no-untyped-call]
            return
        for module in self._ddp:
            # DDP's forward makes the same calls for outputs that depend on every parameter.
            sums = [p.sum() for p in module.parameters() if p.requires_grad]
            module.reducer.prepare_for_forward()
            module.reducer.prepare_for_backward(sums if module.find_unused_parameters else [])
            torch.autograd.backward(sums, [torch.zeros_like(s) for s in sums])

    def finish_window(self) -> None:
        """Run the collectives of DDP's next forward now, while all ranks are here. If a rank then
        leaves its loop, no rank waits for it in a forward."""
        self._is_static = False
        for module in self._ddp:
            if module.reducer._rebuild_buckets():
                module._has_rebuilt_buckets = True
            # no_sync() clears this flag, and the window's last forward may have run under it.
            module.require_forward_param_sync = True
            if module._check_sync_bufs_pre_fwd():
                module._sync_buffers()
                module.require_forward_param_sync = False

    def _set_shards(self, sync: bool) -> None:
        for module in self._sharded:
            module.set_requires_gradient_sync(sync)
        self._is_synced = sync

    # ---- messages

    def exchange(self, point: SyncPoint, own: Totals, facts: dict[str, Any]) -> Totals:
        """Return the sums over all ranks. Wait until each rank has sent its message (SYNC).

        Raises RuntimeError on every rank if the ranks are at different points, or their facts
        differ."""
        if self._leave_notice is not None:
            (work, message), self._leave_notice = self._leave_notice, None
            work.wait()
            self._check_points(SyncPoint.LEFT, message.tolist())
        if self.size == 1:
            return own
        digest = crc32(repr(facts).encode()) >> 12  # its square is exact in double
        message = self._message(point, own, digest)
        dist.all_reduce(message, group=self.group)
        *sums, digests, squares = message.tolist()
        self._check_points(point, sums)
        # Sum and sum of squares, so mean and variance: if they fit one rank's digest, all digests
        # are equal, and every rank comes to this answer.
        if digests != self.size * digest or squares != self.size * digest**2:
            self._raise_difference(facts)
        return Totals(*sums[len(SyncPoint) :])

    def send_leave_notice(self) -> None:
        """Tell the other ranks, without waiting, that this rank has left its loop."""
        if self.size > 1 and _is_running():
            message = self._message(SyncPoint.LEFT, Totals(), 0)
            work = dist.all_reduce(message, group=self.group, async_op=True)
            self._leave_notice = (work, message)

    def _message(self, point: SyncPoint, own: Totals, digest: int) -> Tensor:
        points = [float(each is point) for each in SyncPoint]
        numbers = [*points, *own, digest, digest**2]
        return torch.tensor(numbers, dtype=torch.float64, device=self._device)

    def _raise_difference(self, facts: dict[str, Any]) -> None:
        """Raise an error that names the different facts. All ranks call this together."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, facts, group=self.group)
        values = {name: [each.get(name) for each in every] for name in facts}
        differences = [f"{name} {found}" for name, found in values.items() if len(set(found)) > 1]
        raise RuntimeError(
            f"all ranks must agree, got (rank by rank) {'; '.join(differences)} "
            "(give every rank the same model, arguments, state and number of batches)"
        )

    def _check_points(self, point: SyncPoint, sums: list[float]) -> None:
        ranks_at = {p: int(n) for p, n in zip(SyncPoint, sums, strict=False) if n}
        if ranks_at.get(point) == self.size:
            return
        found = [f"{n} of {self.size} ranks are {p.value}" for p, n in ranks_at.items()]
        raise RuntimeError(
            f"all ranks must be at the same point, got {'; '.join(found)} (run the same number of "
            "windows on every rank, and leave a loop, or call flush(), at the same window)"
        )

    def sum_(self, tensor: Tensor) -> None:
        """All-reduce one of the stepper's own buffers in place."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)


def reduce_max(values: Sequence[float]) -> list[float]:
    """Return each value's maximum over the ranks; every rank must call this function (SYNC).
    Without a process group, return the values themselves."""
    if count_ranks() == 1:
        return list(values)
    message = torch.tensor(values, dtype=torch.float64, device=_message_device(None))
    dist.all_reduce(message, dist.ReduceOp.MAX)
    return message.tolist()


def count_ranks() -> int:
    """Return the number of ranks; 1 without a process group."""
    return dist.get_world_size() if _is_running() else 1


def _is_running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _message_device(group: Any) -> torch.device:
    """Choose the CPU if the group has it: reading a message on the CPU waits for no accelerator."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    kinds = [torch.device(kind).type for kind in group._device_types]
    return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])
