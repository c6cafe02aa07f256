"""An epoch of an iterator: how it begins, at its start or in its middle. ``position.py`` decides
where.

A sampler draws from generators. An epoch notes their states twice: before ``iter(sampler)``, and
before the first item is asked for. A resumed epoch draws again from these states and skips the
batches that were yielded; no sample is loaded for that. Everything here runs once an epoch, on the
thread that iterates.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from itertools import chain, islice
from typing import Any, TypeGuard

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fastloop._core import FinalizerBase
from fastloop.base.interrupts import interrupt_later
from fastloop.base.torch_parts import BaseIter, call_as_torch
from fastloop.data.epochs import IteratorEpochs, epochs_within
from fastloop.data.samplers import EpochSampler
from fastloop.data.stateful import DatasetStates, is_stream
from fastloop.loader.resume.state import (
    SEEDED,
    TORCH,
    State,
    generators_of,
    sampler_with_epoch,
    states_of,
)

# Their iter() draws nothing; they draw when asked for the first item.
_LAZY = (BatchSampler, SequentialSampler, *SEEDED)

# Leaves out of the items of a sampler those that the epoch has yielded already.
_Skip = Callable[["LoaderEpoch", Iterator[Any]], Iterator[Any]]


@contextmanager
def _restoring(*generators: torch.Generator) -> Iterator[None]:
    """Give generators back the states that they have now, at the end of the block."""
    before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


# ---- the rest of an epoch


def _begins_anywhere(sampler: Any) -> TypeGuard[EpochSampler[Any]]:
    return isinstance(sampler, EpochSampler) and type(sampler).__iter__ is EpochSampler.__iter__


def skip_items(epoch: LoaderEpoch, items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of a sampler without those of the batches that were yielded."""
    sampler, count = epoch.sampler, epoch.skipped
    if epoch.is_stream or count == 0:
        return items  # those of a stream are all alike
    if _begins_anywhere(sampler):
        return sampler.iter_from(count)
    if type(sampler) is BatchSampler and _begins_anywhere(sampler.sampler):
        rows = sampler.sampler.iter_from(count * sampler.batch_size)
        return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last))
    passed = sum(1 for _ in islice(items, count))
    if passed < count:
        raise ValueError(
            f"the state counts {count} batches, but the sampler ({type(sampler).__name__}) ended "
            f"after {passed}; bring it into the state it had when the epoch began, or iterate "
            "without load_state_dict()"
        )
    return items


@dataclass(eq=False)
class LoaderEpoch:
    """One pass of an iterator over the sampler.

    Args:
        loader: whose iterator it is.
        state: where the epoch begins.
        is_resumed: `state` was saved in this epoch, after its order was drawn.
        draws_seed: whether a base seed is drawn. None: as torch's iterator does by itself.
        kept_seed: the base seed of persistent workers that the iterator replaces; None: none.
        lent: the state of torch's generator for the draws that begin this epoch.
        states: those of the dataset, where it says where it stands.
    """

    loader: InitVar[DataLoader[Any]]
    state: State
    is_resumed: bool
    draws_seed: bool | None
    kept_seed: int | None
    lent: torch.Tensor | None
    states: DatasetStates | None
    is_over: bool = False
    iterator: Callable[[], Any] = lambda: None  # that the loop has

    def __post_init__(self, loader: DataLoader[Any]) -> None:
        self.sampler: Any = loader._index_sampler
        self.batch_size = getattr(self.sampler, "batch_size", None)
        self.with_epoch = sampler_with_epoch(loader)
        self.generators = generators_of(loader)
        self.is_stream = is_stream(loader.dataset)
        self.skipped = self.yielded = self.state.yielded
        self.at_iter = self.state.generators.get("iter", {})
        self.at_next = self.state.generators.get("next", {})

    def _enter_sampler_epoch(self) -> None:
        """Note the sampler's epoch; a resumed one is set again, whatever set_epoch() said since."""
        if self.with_epoch is None:
            return
        if not self.is_resumed:
            self.state.sampler_epoch = self.with_epoch.epoch
        elif self.with_epoch.epoch != self.state.sampler_epoch >= 0:
            self.with_epoch.set_epoch(self.state.sampler_epoch)

    def _set_generators(self, states: Mapping[str, torch.Tensor]) -> None:
        for name, state in states.items():
            self.generators[name].set_state(state)

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Lend torch's generator the state that it had where the state was saved, for draws that
        begin an epoch as it would have begun there."""
        if self.lent is None:
            yield
            return
        with _restoring(torch.default_generator):
            torch.default_generator.set_state(self.lent)
            yield
            self.lent = torch.default_generator.get_state()

    @contextmanager
    def drawing_iter(self) -> Iterator[None]:
        """Surround ``iter(sampler)``; the draw of a base seed may be in it, too."""
        self._enter_sampler_epoch()
        if not self.is_resumed:
            with self.lending():
                if type(self.sampler) not in _LAZY:
                    self.at_iter = states_of(self.generators)
                yield
            return
        # A finished epoch draws nothing: loading has set the states after it.
        over = self.generators.values() if self.state.is_spent else ()
        with _restoring(torch.default_generator, *over):
            if not self.state.is_spent:
                self._set_generators(self.at_iter)
            yield

    def remaining(self, source: Iterator[Any], skip: _Skip) -> Iterator[Iterator[Any]]:
        """Yield one iterator over the rest of `source`; runs when the first item is asked for."""
        if self.state.is_spent:
            return
        # A state saved before the first item was drawn has none of torch's own generator: the
        # draw is then still to come, from the program's numbers.
        is_kept = self.is_resumed and TORCH in self.at_next
        first: list[Any] = []
        with self.lending(), _restoring(*((torch.default_generator,) if is_kept else ())):
            if self.is_resumed or type(self.sampler) in _LAZY:
                self._enter_sampler_epoch()
            self.at_next = {**states_of(self.generators), **self.at_next}
            if self.is_resumed:
                self._set_generators(self.at_next)
                source = skip(self, source)
            if self.skipped == 0 and (self.is_resumed or self.lent is not None):
                first = list(islice(source, 1))
        yield chain(first, source)

    def count(self) -> int:
        """Return the number of batches yielded so far."""
        iterator = self.iterator()
        if iterator is not None and iterator._epoch is self:
            self.yielded = iterator._num_yielded
        return self.yielded


class ResumableIter(FinalizerBase, BaseIter):
    """Base that makes torch's iterators resumable.

    It comes after torch's iterator in the list of bases, so it can replace the sampler's iterator
    after torch's base class has made it and before torch's code asks for the first index.
    ``_begin_epoch`` must be called before ``__init__``.
    """

    _num_yielded = 0
    _has_states = True  # of a dataset that says where it stands
    _shared: Any
    _epoch: LoaderEpoch

    def _begin_epoch(self, loader: DataLoader[Any], in_workers: bool = False) -> None:
        """Decide which epoch this is. ``_shared`` must be set.

        Args:
            in_workers: the iterator is new, and samples are fetched in worker processes.
        """
        if "_datasets" not in self.__dict__:
            self._datasets = IteratorEpochs(epochs_within(loader.dataset), in_workers)
        position = self._shared.position
        self._epoch = position.open_epoch(loader, self._datasets, self._has_states)
        self._epoch.iterator = weakref.ref(self)

    def __init__(self, loader: DataLoader[Any]) -> None:
        epoch = self._epoch
        if epoch.draws_seed is False:
            # torch's __init__ draws a seed in any case; the draw is undone.
            with _restoring(torch.default_generator, *epoch.generators.values()):
                call_as_torch(super().__init__, loader)
            if self._num_workers == 0:  # with workers _reset() does this
                with epoch.drawing_iter():
                    self._sampler_iter = iter(self._index_sampler)
        else:
            with epoch.drawing_iter():
                call_as_torch(super().__init__, loader)
        if epoch.states is not None and epoch.states.base_seed >= 0:
            self._base_seed = epoch.states.base_seed
        elif epoch.kept_seed is not None:
            self._base_seed = epoch.kept_seed
        kind = "MultiProcessing" if self._num_workers > 0 else "SingleProcess"
        self._profile_name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        self._skip_yielded()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if not first_iter:
            self._keep_count()
            self._begin_epoch(loader)
            if self._epoch.draws_seed:
                with self._epoch.lending():
                    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        with self._epoch.drawing_iter():
            super()._reset(loader, first_iter)
        self._skip_yielded()

    def await_states(self) -> None:
        """Wait until all states of the dataset at the beginning of the epoch have come."""

    def _skip_yielded(self) -> None:
        if self._epoch.states is not None:
            self._epoch.states.base_seed = int(self._base_seed)
        remaining = self._epoch.remaining(self._sampler_iter, skip_items)
        self._sampler_iter = chain.from_iterable(remaining)
        self._num_yielded = self._epoch.skipped

    def _keep_count(self) -> None:
        epoch = self.__dict__.get("_epoch")
        if epoch is not None:
            epoch.yielded = self._num_yielded

    def _finalize(self) -> None:
        self._keep_count()

    _interrupt_later = staticmethod(interrupt_later)
