"""The seam of loaders: ``torch.utils.data.DataLoader`` makes the iterators of ``fast_iterator``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import MutableMapping
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.weak import WeakIdKeyDictionary

from fastloop.adapters import accelerate
from fastloop.base.checks import look_up
from fastloop.compat.late_import import after_import
from fastloop.compat.seams import Function, Seam, find_subclasses
from fastloop.compat.torch_parts import call_as_torch
from fastloop.loader import dataloader as fastloop_loader
from fastloop.loader.route import PIPES, fast_iterator, iterate_without_broken_workers
from fastloop.loader.shared import open_shared
from fastloop.loader.stats import describe_iterator

# The one class known whose __init__ does not call torch's.
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def _overrides(loader: DataLoader[Any]) -> bool:
    """Tell whether the loader's class makes iterators itself."""
    return type(loader)._get_iterator is not DataLoader._get_iterator


class LoaderSeam(Seam):
    """Puts functions into torch's DataLoader, each made around the function that it replaces."""

    def __init__(self, is_strict: bool) -> None:
        super().__init__("dataloader", is_strict, _probe)
        # The loaders of subclasses that have reached torch's __iter__.
        self._seen: MutableMapping[Any, None] = WeakIdKeyDictionary()
        self._reached = 0  # how often torch's __iter__ was called
        self._watched: set[type] = set()  # classes with an __iter__ of their own
        self.add(DataLoader, "_get_iterator", self._make_get_iterator)
        self.add(DataLoader, "__iter__", self._make_iter)
        self.add(DataLoader, "__init__", self._make_init)
        self._watch_all()
        if _STATEFUL not in sys.modules:
            after_import(_STATEFUL, self._watch_all)
        after_import(accelerate.MODULE, self._add_accelerate)

    def _add_accelerate(self) -> None:
        module = sys.modules[accelerate.MODULE]
        for name in filter(vars(module).__contains__, accelerate.MAKERS):
            patch = self.add(module, name, functools.partial(accelerate.make_maker, self))
            patch.is_shared = True
            if self.is_on:
                patch.put_in()

    def _leave(self, loader: DataLoader[Any], reason: str = "") -> None:
        reason = reason or f"{type(loader).__qualname__} makes its own iterators"
        self.leave(f"a {type(loader).__qualname__}", reason)

    def _make_get_iterator(self, before: Function) -> Function:
        def _get_iterator(loader: DataLoader[Any]) -> Any:
            if not self.is_on or _overrides(loader):
                return before(loader)
            if isinstance(loader.dataset, PIPES):
                self._leave(loader, "the dataset is a data pipe")
                return before(loader)
            self.native += 1
            if loader.num_workers > 0:
                is_many = loader.num_workers > len(os.sched_getaffinity(0))
                check = loader.check_worker_number_rationality
                call_as_torch("DataLoader._get_iterator", check, may_warn=is_many)
            shared = open_shared(loader)
            make_torch_iterator = functools.partial(before, loader)
            iterator = fast_iterator(loader, "auto", shared, None, make_torch_iterator)
            # describe_iterator() reads these, and what no program changes between epochs.
            is_collated = getattr(iterator, "is_collated", None)
            facts = type(iterator), is_collated, loader.num_workers, shared.why
            is_new = False
            if (how := shared.noted.get(facts)) is None:
                how = describe_iterator(loader, iterator, shared.why)
                is_new = how not in shared.noted.values()
                shared.noted[facts] = how
            loaders, epochs = self.served.get(how, (0, 0))
            self.served[how] = loaders + is_new, epochs + 1
            return iterator

        return _get_iterator

    def _make_iter(self, before: Function) -> Function:
        def __iter__(loader: DataLoader[Any]) -> Any:  # noqa: N807
            self._reached += 1
            if not self.is_on or isinstance(loader, fastloop_loader.DataLoader):
                return before(loader)
            if type(loader) is not DataLoader:
                self._seen.setdefault(loader)
                if _overrides(loader):
                    self._leave(loader)
            if look_up(loader, "_iterator") is None:
                return before(loader)
            return iterate_without_broken_workers(loader, functools.partial(before, loader))

        return __iter__

    def _make_init(self, before: Function) -> Function:
        def __init__(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:  # noqa: N807
            self._watch(type(loader))
            before(loader, *args, **kwargs)

        return __init__

    # ---- classes whose iterators may not come from torch's method

    def _watch_all(self) -> None:
        for cls in find_subclasses(DataLoader):
            self._watch(cls)

    def _watch(self, cls: type) -> None:
        """Replace the ``__iter__`` of a class and its bases: loaders count as left if that method
        never reaches torch's."""
        if issubclass(cls, fastloop_loader.DataLoader):
            return
        for owner in cls.__mro__[: cls.__mro__.index(DataLoader)]:
            is_new = owner not in self._watched and issubclass(owner, DataLoader)
            if is_new and "__iter__" in vars(owner):
                self._watched.add(owner)
                patch = self.add(owner, "__iter__", self._make_own_iter)
                if self.is_on:
                    patch.put_in()

    def _make_own_iter(self, before: Function) -> Function:
        names = look_up(look_up(before, "__code__"), "co_names", ())
        calls_torchs = {"super", "__iter__", "_get_iterator"} & set(names)

        def __iter__(loader: DataLoader[Any]) -> Any:  # noqa: N807
            reached = self._reached
            iterator = before(loader)
            is_late = isinstance(iterator, GeneratorType) and calls_torchs  # once it is started
            # Ray Train's class iterates a second loader, which counts for itself.
            is_apart = loader not in self._seen and self._reached == reached
            if self.is_on and not is_late and is_apart:
                self._leave(loader)
            return iterator

        return __iter__


def _probe(is_alone: bool) -> list[torch.Tensor]:
    """Return the batches of an epoch and the random states on the way. They come from
    torch's own generator, unless a second thread may be drawing from that generator."""
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
