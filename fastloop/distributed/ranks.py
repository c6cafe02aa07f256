"""The other processes of a DDP or FSDP job: when gradients travel, and what ranks tell each other.

Every message is one all-reduce of the same small vector, whatever it is about: ranks that are at
different places still understand each other, and all raise the same error instead of waiting.
Called by the stepper on the thread that trains. docs/stepper.md says what is sent when."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel


class Place(IntEnum):
    """Where in its loop a rank is when it sends a message."""

    BEGIN = 0
    FIRST_WEIGHT = 1
    BOUNDARY = 2
    FLUSH = 3
    LEFT = 4


_PLACES = {
    Place.BEGIN: "at the beginning of iterate()",
    Place.FIRST_WEIGHT: "in their first micro-batch",
    Place.BOUNDARY: "at the end of a window",
    Place.FLUSH: "in flush()",
    Place.LEFT: "out of the loop, which they left before its end",
}


class Reduced(NamedTuple):
    """Sums over all ranks."""

    weight: float
    counted: float  # micro-batches with a weight above 0
    has_more: float  # ranks whose loop has another batch
    has_dropped: float  # ranks that left out a micro-batch


class Ranks:
    """The process group behind a model's parallel modules."""

    def __init__(self, replicated: list[Module], sharded: list[Module]) -> None:
        self._replicated = replicated  # DDP, FSDP1: borrowed from the user's model
        self._sharded = sharded  # FSDP2
        self._is_synced = True  # what the sharded modules were told last
        self._contexts: list[AbstractContextManager[Any]] = []
        self._farewell: tuple[Any, Tensor] | None = None
        self._ddp: list[Any] = [m for m in replicated if isinstance(m, DistributedDataParallel)]
        # Whether DDP has yet to see its static graph, in a backward that reduces.
        self._is_static = any(module.static_graph for module in self._ddp)
        self.can_reduce_alone = len(self._ddp) == len(replicated) and not sharded
        self.has_shards = bool(sharded) or any(map(_is_fsdp1, replicated))
        self.group: Any = getattr((replicated or sharded)[0], "process_group", None)
        self.size = dist.get_world_size(self.group) if _is_running() else 1
        for module in replicated[1:]:
            group = getattr(module, "process_group", None)
            if _is_running() and dist.get_world_size(group) != self.size:
                raise ValueError(
                    f"the modules of model= have process groups of {self.size} and "
                    f"{dist.get_world_size(group)} ranks; make one Stepper for each group"
                )
        self._device = _message_device(self.group) if self.size > 1 else torch.device("cpu")

    # ---- when gradients travel

    def enter(self, sync: bool) -> None:
        """Before a micro-batch's forward: whether its backward reduces gradients."""
        if self._sharded and sync != self._is_synced:
            self._set_shards(sync)
        if not sync:
            if self._is_static:
                raise RuntimeError(
                    "DistributedDataParallel(static_graph=True) cannot run its first backward "
                    "under no_sync(); leave static_graph out, or make the first window one "
                    "micro-batch: accumulate=lambda step: n if step else 1"
                )
            for module in self._replicated:
                context = module.no_sync()  # type: ignore[operator]
                context.__enter__()
                self._contexts.append(context)

    def leave(self) -> None:
        """After it."""
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)

    def drop_window(self) -> None:
        """Forget gradients that FSDP2 keeps unreduced, and let the next backward reduce."""
        self.leave()
        if not self._is_synced:
            self._set_shards(True)
            for param in _sharded_params(self._sharded):
                param.unsharded_accumulated_grad = None
                if hasattr(param, "_unsharded_param"):
                    param._unsharded_param.grad = None

    def backward_of_nothing(self, loss: Tensor) -> None:
        """In place of a last micro-batch's backward: adds nothing, and has gradients reduced.

        Without DDP alone it is the backward of 0 · loss, which can give NaN."""
        if not self.can_reduce_alone:
            (loss * 0).backward()  # type: ignore[no-untyped-call]
            return
        for module in self._ddp:
            # As DDP's forward has done for its output, for one that each parameter is part of.
            sums = [p.sum() for p in module.parameters() if p.requires_grad]
            module.reducer.prepare_for_forward()
            module.reducer.prepare_for_backward(sums if module.find_unused_parameters else [])
            torch.autograd.backward(sums, [torch.zeros_like(s) for s in sums])

    def finish_window(self) -> None:
        """Run, while all ranks are here, what DDP would run in its next forward: a rank that
        leaves its loop then keeps nobody waiting in a forward."""
        self._is_static = False
        for module in self._ddp:
            if module.reducer._rebuild_buckets():
                module._has_rebuilt_buckets = True
            # The window's last forward may have been under no_sync(), which forgets this.
            module.require_forward_param_sync = True
            if module._check_sync_bufs_pre_fwd():
                module._sync_buffers()
                module.require_forward_param_sync = False

    def _set_shards(self, sync: bool) -> None:
        for module in self._sharded:
            module.set_requires_gradient_sync(sync)  # type: ignore[operator]
        self._is_synced = sync

    # ---- messages

    def tell(
        self,
        place: Place,
        *,
        weight: float = 0.0,
        counted: int = 0,
        has_more: bool = False,
        has_dropped: bool = False,
    ) -> Reduced:
        """What all ranks say together. Waits until each has sent its message (SYNC).

        Raises RuntimeError on every rank if they are not all at the same place."""
        self._settle_farewell()
        facts = Reduced(weight, counted, has_more, has_dropped)
        if self.size == 1:
            return facts
        message = self._message(place, facts)
        dist.all_reduce(message, group=self.group)
        sums = message.tolist()
        self._check_places(place, sums)
        return Reduced(*sums[len(Place) :])

    def say_left(self) -> None:
        """Tell the others, without waiting, that this rank has left its loop."""
        if self.size == 1 or not _is_running():
            return
        message = self._message(Place.LEFT, Reduced(0, 0, 0, 0))
        work = dist.all_reduce(message, group=self.group, async_op=True)
        self._farewell = (work, message)

    def _settle_farewell(self) -> None:
        if self._farewell is None:
            return
        (work, message), self._farewell = self._farewell, None
        work.wait()
        self._check_places(Place.LEFT, message.tolist())

    def _message(self, place: Place, facts: Reduced) -> Tensor:
        places = [0.0] * len(Place)
        places[place] = 1.0
        return torch.tensor([*places, *facts], dtype=torch.float64, device=self._device)

    def _check_places(self, place: Place, sums: list[float]) -> None:
        if sums[place] == self.size:
            return
        where = [f"{int(sums[p])} of {self.size} ranks are {_PLACES[p]}" for p in Place if sums[p]]
        raise RuntimeError(
            f"the ranks are at different places: {'; '.join(where)}. Each rank must run the same "
            "number of windows, and all must leave a loop, or call flush(), at the same one"
        )

    def sum_(self, tensor: Tensor) -> None:
        """All-reduce one of the stepper's own buffers in place."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)


def find_ranks(model: Module | Iterable[Module] | None) -> Ranks | None:
    """The ranks that a model's DDP or FSDP modules train with; None if it has no such module."""
    if model is None:
        return None
    models = [model] if isinstance(model, Module) else _as_list(model)
    for part in models:
        if not isinstance(part, Module):
            raise TypeError(
                f"model holds a {type(part).__name__}; pass the torch.nn.Module that the loop "
                "calls, or a list of modules"
            )
    parts = [part for whole in models for part in whole.modules()]
    sharded = [part for part in parts if hasattr(type(part), "set_requires_gradient_sync")]
    replicated = [part for part in parts if hasattr(type(part), "no_sync")]
    return Ranks(replicated, sharded) if replicated or sharded else None


def _as_list(model: object) -> list[Any]:
    if isinstance(model, Iterable):
        return list(model)
    raise TypeError(
        f"model is a {type(model).__name__}; pass the torch.nn.Module that the loop calls, or a "
        "list of modules"
    )


def _is_running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_fsdp1(module: Module) -> bool:
    return any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__)


def _message_device(group: Any) -> torch.device:
    """The CPU if the group can: reading a message then makes nobody wait for an accelerator."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    kinds = [torch.device(kind).type for kind in group._device_types]
    return torch.device("cpu" if "cpu" in kinds or not kinds else kinds[0])


def _sharded_params(modules: list[Module]) -> Iterable[Any]:
    for module in modules:
        state = getattr(module, "_get_fsdp_state", None)
        for group in state()._fsdp_param_groups if state is not None else ():
            yield from group.fsdp_params
