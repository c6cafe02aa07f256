"""The seam of loaders: ``torch.utils.data.DataLoader`` makes the iterators of ``fast_iterator``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, MutableMapping
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, TensorDataset
from torch.utils.weak import WeakIdKeyDictionary

from fastloop.base.late_import import after_import
from fastloop.base.torch_parts import call_as_torch
from fastloop.device.prefetch import Prefetcher
from fastloop.loader import dataloader as fastloop_loader
from fastloop.loader.arrays.iterator import ArrayIter
from fastloop.loader.iterators import iterate_anew, open_iterator
from fastloop.loader.shared import Shared, SyncIter, shared_of
from fastloop.patching.seams import Function, Seam, find_subclasses

# The one class known whose __init__ does not call torch's.
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def _overrides(loader: DataLoader[Any]) -> bool:
    """Tell whether the loader's class makes iterators itself."""
    owner = next(cls for cls in type(loader).__mro__ if "_get_iterator" in vars(cls))
    return owner is not DataLoader


def _describe(loader: DataLoader[Any], iterator: Any) -> str:
    """Name the loader's dataset and how its batches are made."""
    while isinstance(iterator, Prefetcher):
        iterator = iterator._source
    kind, number = type(iterator).__name__, loader.num_workers
    workers = f"{number} worker process{'es' * (number != 1)}"
    if isinstance(iterator, ArrayIter):
        how = "gathered by C"
    elif isinstance(iterator, SyncIter) and iterator._collation.core is not None:
        how = "in this process, collated by C"
    elif isinstance(iterator, SyncIter):
        how = "own collate without workers: torch's speed"
    else:
        how = workers if kind == "ProcessIter" else f"{workers}, torch's own"
    return f"{type(loader.dataset).__name__}: {how}"


def _watch_own_iters(
    seam: Seam, seen: MutableMapping[Any, set[str]], leave: Callable[[DataLoader[Any], str], None]
) -> Callable[[type], None]:
    """Return a function that watches a class, so that its loaders count as left if their
    ``__iter__`` never reaches the ``__iter__`` of torch.

    Args:
        seen: has an entry for each loader that has reached it.
    """
    watched: set[type] = set()

    def watch(cls: type) -> None:
        """Watch a class with an ``__iter__`` of its own."""
        for owner in cls.__mro__[: cls.__mro__.index(DataLoader)]:
            is_known = owner in watched or issubclass(cls, fastloop_loader.DataLoader)
            if is_known or "__iter__" not in vars(owner) or not issubclass(owner, DataLoader):
                continue
            watched.add(owner)
            place = seam.add(owner, "__iter__", make_own_iter)
            if seam.is_on:
                place.put_in()

    def make_own_iter(before: Function) -> Function:
        names = getattr(getattr(before, "__code__", None), "co_names", ())
        calls_torchs = {"super", "__iter__", "_get_iterator"} & set(names)

        def __iter__(self: DataLoader[Any]) -> Any:  # noqa: N807
            iterator = before(self)
            is_late = isinstance(iterator, GeneratorType) and calls_torchs  # once it is started
            if seam.is_on and not is_late and self not in seen:
                leave(self, f"{type(self).__qualname__} makes its own iterators")
            return iterator

        return __iter__

    return watch


def make_seam(is_strict: bool) -> Seam:
    seam = Seam("dataloader", is_strict, _probe)
    # By loader: how its iterators were made.
    seen: MutableMapping[Any, set[str]] = WeakIdKeyDictionary()

    def leave(loader: DataLoader[Any], reason: str) -> None:
        seam.leave(f"a {type(loader).__qualname__}", reason)

    def make_get_iterator(before: Function) -> Function:
        def _get_iterator(self: DataLoader[Any]) -> Any:
            if not seam.is_on or _overrides(self):
                return before(self)
            seen.setdefault(self, set())
            if isinstance(self.dataset, IterDataPipe | MapDataPipe):
                leave(self, "the dataset is a data pipe")
                return before(self)
            seam.count()
            if self.num_workers > 0:
                call_as_torch(self.check_worker_number_rationality)
            torchs_own = functools.partial(before, self)
            iterator = open_iterator(self, shared_of.setdefault(self, Shared()), torchs_own)
            how, noted = _describe(self, iterator), seen.setdefault(self, set())
            seam.note_epoch(how, how not in noted)
            noted.add(how)
            return iterator

        return _get_iterator

    def make_iter(before: Function) -> Function:
        def __iter__(self: DataLoader[Any]) -> Any:  # noqa: N807
            if not seam.is_on or isinstance(self, fastloop_loader.DataLoader):
                return before(self)
            seen.setdefault(self, set())
            if _overrides(self):
                leave(self, f"{type(self).__qualname__} makes its own iterators")
            return iterate_anew(self, functools.partial(before, self))

        return __iter__

    watch = _watch_own_iters(seam, seen, leave)

    def make_init(before: Function) -> Function:
        def __init__(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:  # noqa: N807
            watch(type(self))
            before(self, *args, **kwargs)

        return __init__

    seam.add(DataLoader, "_get_iterator", make_get_iterator)
    seam.add(DataLoader, "__iter__", make_iter)
    seam.add(DataLoader, "__init__", make_init)

    def watch_all() -> None:
        for cls in find_subclasses(DataLoader):
            watch(cls)

    watch_all()
    if _STATEFUL not in sys.modules:
        after_import(_STATEFUL, watch_all)
    return seam


def _probe(is_alone: bool) -> list[torch.Tensor]:
    """Return the batches of an epoch and the random states on the way. They come from
    torch's own generator, unless another thread may be drawing from it."""
    dataset = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.arange(8))
    own = None if is_alone else torch.Generator()
    generator = own or torch.default_generator
    state = generator.get_state()
    try:
        generator.manual_seed(7)
        iterator = iter(DataLoader(dataset, batch_size=3, shuffle=True, generator=own))
        found = [generator.get_state()]
        for batch in iterator:
            found += [*batch, generator.get_state()]
        return found
    finally:
        generator.set_state(state)
