"""Moves of tensors' memory are noticed before C reads memory that was freed.

``torch.UntypedStorage.share_memory_()``, which torch also calls when a tensor is pickled for
another process, copies the storage to shared memory and frees the old memory; all tensors over it
change their address. A *keeper* is an object of C that keeps such an address: a ``Table`` or
``Windows``. Once ``watch()`` was called for it, these methods of torch wait until nobody reads
through it, keep readers out, and make it look up its tensors again. docs/threads.md says more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from fastloop._core import SequenceColumn, Table, Windows
from fastloop._core import move as rebase
from fastloop.base.threads import NextLock
from fastloop.base.torch_parts import difference, is_known, parts_of

Keeper = Table | Windows

_keepers: WeakKeyDictionary[Keeper, frozenset[int]] = WeakKeyDictionary()  # and their storages
# Held during a move: watch() sees a tensor before the move or after it.
_lock = NextLock()


def _noticing(move: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(move)
    def call(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        with _lock.of_process():
            found = tuple(keeper for keeper, held in _keepers.items() if self._cdata in held)
            return rebase(found, move, (self, *args), kwargs)

    return call


@functools.cache
def are_noticed() -> bool:
    """Notice moves from now on, and return True. Returns False, after one warning, where this torch
    is not known: then nothing may keep the address of a tensor."""
    if not is_known("moves", "The tensors of datasets are left"):
        return False
    storage = torch.UntypedStorage
    for part in parts_of("moves"):
        name = part.path.rpartition(".")[2]
        if callable(getattr(storage, name)):
            setattr(storage, name, _noticing(getattr(storage, name)))
    return True


def tensors_in(source: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors that a keeper reads."""
    if isinstance(source, torch.Tensor):
        yield source
    elif isinstance(source, tuple):
        for each in source:
            yield from tensors_in(each)
    elif isinstance(source, (Table, Windows, SequenceColumn)):
        yield from tensors_in(source.sources)


def watch(keeper: Keeper) -> None:
    """Keep the addresses in a Table or Windows right, as long as it lives.

    Raises:
        NotImplementedError: fastloop does not know this release of torch.
    """
    storages = frozenset(tensor.untyped_storage()._cdata for tensor in tensors_in(keeper))
    if not storages:
        return
    if not are_noticed():
        raise NotImplementedError(f"a tensor's memory may move unnoticed: {difference('moves')}")
    with _lock.of_process():
        _keepers[keeper] = storages
        rebase((keeper,), bool, (), {})  # it looked when it was made, maybe before a move
