"""Moves of tensors' memory are noticed before a thread reads memory that was freed.

``torch.UntypedStorage.share_memory_()``, which torch also calls to pickle a tensor for a process,
copies the storage to shared memory and frees the old memory; all tensors over that storage change
their address. A *keeper* is an object of `_core` that keeps such an address: a ``Table`` or
``Windows``. After ``watch(keeper)`` these methods of torch wait until nobody reads through the
keeper, keep readers out, and make the keeper look up its tensors again. docs/internals/threads.md
says more.

Memory that is registered with the driver of a device (``register``) must not move at all. Linux
copies such memory at each fork.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch

from fastloop._core import HostRange, Table, Windows
from fastloop._core import move as rebase
from fastloop.base.machine import available_bytes, read_memory
from fastloop.base.threads import lock_over_forks
from fastloop.compat.tensors import pin_storage
from fastloop.compat.torch_parts import difference, is_known, parts_of

Keeper = Table | Windows

_keepers: WeakKeyDictionary[Keeper, frozenset[int]] = WeakKeyDictionary()  # and their storages
_host_ranges: WeakSet[HostRange] = WeakSet()
replaced: list[str] = []  # the methods of torch that are replaced for the whole process
os.register_at_fork(after_in_child=_host_ranges.clear)  # they are the parent's
# Held during a move: watch() sees a tensor before or after the move.
_lock = lock_over_forks()


def _noticing(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def call(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        with _lock:
            kept = [each.untyped_storage()._cdata for r in _host_ranges for each in r.sources]
            if self._cdata in kept:
                text = "the memory cannot move to shared memory while a device reads the memory"
                raise RuntimeError(f"{text} (gather='device'); leave gather out")
            found = tuple(keeper for keeper, held in _keepers.items() if self._cdata in held)
            return rebase(found, move, (self, *args), kwargs)

    return call


@functools.cache
def are_noticed() -> bool:
    """Notice moves from now on, and return True. Returns False, after one warning, if fastloop does
    not know this torch: then nothing may keep the address of a tensor."""
    if not is_known("moves", "The tensors of datasets are left"):
        return False
    storage = torch.UntypedStorage
    for part in parts_of("moves"):
        name = part.path.rpartition(".")[2]
        if callable(getattr(storage, name)):
            setattr(storage, name, _noticing(getattr(storage, name)))
            replaced.append(f"torch.UntypedStorage.{name}")
    return True


def tensors_in(source: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors that a keeper reads. A table has fields, and a native object in a field
    lists the arrays that it reads as ``sources``."""
    if isinstance(source, torch.Tensor):
        yield source
        return
    inner = source.fields if isinstance(source, Table) else getattr(source, "sources", ())
    for each in source if isinstance(source, tuple) else inner:
        yield from tensors_in(each)


def _count_locked() -> int:
    with _lock:
        return sum(host_range.locked for host_range in _host_ranges)


@functools.cache
def _warn_of_forks() -> None:
    remedy = (
        "let the loaders of this program start workers with multiprocessing_context='forkserver'"
    )
    warnings.warn(
        f"fork() copies the {_count_locked():,} bytes of host memory that are registered for "
        f"gather='device', for each child; {remedy}",
        RuntimeWarning,
        stacklevel=4,
    )


def _tell_before_fork() -> None:
    if _count_locked() > 0:
        _warn_of_forks()


os.register_at_fork(before=_tell_before_fork)


def check_forks(context: Any, workers: int) -> None:
    """Raise RuntimeError if forks of so many workers would copy more registered memory than half of
    what is free.

    Args:
        context: the loader's multiprocessing context; None: the program's.
    """
    locked = _count_locked()
    if locked == 0 or (context or multiprocessing).get_start_method() != "fork":
        return
    if (needed := locked * workers) > (free := available_bytes()) // 2:
        raise RuntimeError(
            f"num_workers={workers}: each fork copies the {locked:,} bytes of host memory that are "
            f"registered for gather='device', {needed:,} bytes in all, and {free:,} are free; pass "
            "multiprocessing_context='forkserver' or 'spawn', or drop the datasets with "
            "gather='device' first"
        )


def _check_locked(needed: int) -> None:
    locked, most = _count_locked(), read_memory().lockable
    if needed and needed + locked > most:
        text = f"gather='device' would lock {needed + locked:,} bytes of host memory, and {most:,} "
        raise MemoryError(f"{text}may be locked here; leave gather out: the CPU copies the rows")


def register(tensors: Sequence[torch.Tensor], device: int) -> tuple[HostRange, ...]:
    """Return the range of host memory around each tensor, for kernels of a CUDA device to read.
    Datasets share ranges; a range is registered until its last reference goes.

    Raises:
        MemoryError: too much memory would be locked.
        RuntimeError: the driver refuses, or fastloop does not know this release of torch. Nothing
            stays registered.
    """
    if not are_noticed():
        fault = "gather='device' cannot tell when the memory of a tensor moves"
        raise RuntimeError(f"{fault}: {difference('moves')}; leave gather out")
    with _lock:
        new = [each for each in tensors if not any(r.covers(each) for r in _host_ranges)]
        _check_locked(sum({each.data_ptr(): each.nbytes for each in new}.values()))
        host_ranges, kept = list(_host_ranges), tuple(map(pin_storage, new))
        try:
            for i, each in enumerate(kept):
                if not any(r.covers(each) for r in host_ranges):
                    host_ranges.append(HostRange(torch.Tensor, kept, i, device))
        except (MemoryError, RuntimeError) as error:
            host_ranges.clear()  # the traceback keeps this frame
            text = f"gather='device' cannot register {each.nbytes:,} bytes of host memory: {error}"
            remedy = "pass data that are neither pinned nor shared with a different dataset"
            raise RuntimeError(f"{text}; {remedy}; in a container, --ulimit memlock=-1") from error
        _host_ranges.update(host_ranges)
        return tuple(next(r for r in host_ranges if r.covers(each)) for each in tensors)


def watch(keeper: Keeper) -> None:
    """Keep the addresses in a Table or Windows right during its life.

    Raises:
        NotImplementedError: fastloop does not know this release of torch.
    """
    storages = frozenset(tensor.untyped_storage()._cdata for tensor in tensors_in(keeper))
    if not storages:
        return
    if not are_noticed():
        fault = "fastloop cannot tell when the memory of a tensor moves"
        raise NotImplementedError(f"{fault}: {difference('moves')}")
    with _lock:
        _keepers[keeper] = storages
        rebase((keeper,), bool, (), {})  # the keeper has looked before, maybe before a move
