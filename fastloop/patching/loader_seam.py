"""The seam of loaders: ``torch.utils.data.DataLoader`` makes the iterators of ``fast_iterator``.

A loader that accelerate has made from one of ours keeps the arguments that torch's class does not
have: ``loader/extras.py``.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, TensorDataset

from fastloop.loader import dataloader as fastloop_loader
from fastloop.loader import extras as loader_extras
from fastloop.loader.iterators import iterate_anew, iterator_with
from fastloop.loader.shared import LoaderProxy, shared_of
from fastloop.patching.fastai_seam import add_fastai
from fastloop.patching.seams import Function, Seam


def _overrides(loader: DataLoader[Any]) -> bool:
    """Whether its class makes iterators itself."""
    owner = next(cls for cls in type(loader).__mro__ if "_get_iterator" in vars(cls))
    return owner is not DataLoader


def _has_pipe(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterDataPipe | MapDataPipe)


def _make_iterator(loader: DataLoader[Any]) -> Any:
    extras = loader_extras.extras_of_torchs(loader)
    others = {name: getattr(extras, name) for name in extras.names_given()}
    seen: Any = LoaderProxy(loader, **others) if others else loader
    return iterator_with(extras, seen, shared_of(loader))


def make_seam(is_strict: bool) -> Seam:
    seam = Seam("dataloader", is_strict, _probe)

    def leave(loader: DataLoader[Any], reason: str) -> None:
        seam.leave(f"a {type(loader).__qualname__}", reason)

    def make_get_iterator(before: Function) -> Function:
        def _get_iterator(self: DataLoader[Any]) -> Any:
            if not seam.is_on or _overrides(self):
                return before(self)
            if _has_pipe(self):
                leave(self, "the dataset is a data pipe")
                return before(self)
            seam.count()
            if self.num_workers > 0:
                self.check_worker_number_rationality()
            return _make_iterator(self)

        return _get_iterator

    def make_iter(before: Function) -> Function:
        def __iter__(self: DataLoader[Any]) -> Any:  # noqa: N807
            if not seam.is_on or isinstance(self, fastloop_loader.DataLoader):
                return before(self)
            if _overrides(self):
                leave(self, f"{type(self).__qualname__} makes its own iterators")
            return iterate_anew(self, functools.partial(before, self))

        return __iter__

    seam.say_lost = loader_extras.say_lost_without_seam
    loader_extras.is_served_as_torchs = lambda loader: seam.is_on and not _has_pipe(loader)
    seam.add(DataLoader, "_get_iterator", make_get_iterator)
    seam.add(DataLoader, "__iter__", make_iter)
    add_fastai(seam, _make_iterator)
    return seam


def _probe() -> list[torch.Tensor]:
    """What an epoch yields, and the random states on the way. Of torch's own generator, unless
    another thread may be drawing from it."""
    dataset = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.arange(8))
    own = None if threading.active_count() == 1 else torch.Generator()
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
