"""Where a loader stands. Its ``Position`` is saved by ``state_dict()`` and loaded by
``load_state_dict()``. A ``LoaderEpoch`` is one pass of an iterator over the sampler, from the
beginning or from the middle. ``ResumableIter`` is the base of iterators that have one.

A sampler draws from generators. An epoch notes their states twice: before ``iter(sampler)``, and
before the first item is asked for. A resumed epoch draws again from these states and skips the
batches that were yielded; no sample is loaded for that. The epoch's code runs once an epoch, on the
thread that iterates.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import chain, islice
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fastloop._core import FinalizerBase
from fastloop.base.checks import look_up
from fastloop.base.interrupts import interrupt_later
from fastloop.base.threads import NextLock
from fastloop.compat.torch_parts import BaseIter, call_as_torch, difference
from fastloop.data import stateful
from fastloop.data.columns import adapters
from fastloop.data.epochs import IteratorEpochs, epochs_within
from fastloop.data.samplers import EpochSampler, read_ranks
from fastloop.data.stateful import DatasetStates, ReaderStates, fit_readers, has_place, is_stream
from fastloop.loader.resume import ranks
from fastloop.loader.resume import state as loader_state
from fastloop.loader.resume.state import TORCH, State, generators_of, sampler_with_epoch, states_of

# Their iter() draws nothing; they draw when asked for the first item.
_LAZY = (BatchSampler, SequentialSampler, *loader_state.SEEDED)


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


def skip_items(epoch: LoaderEpoch, items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of a sampler without those of the batches that were yielded."""
    sampler, count = epoch.sampler, epoch.skipped
    if epoch.state.dealt:
        return ranks.items_after(sampler, epoch.state.dealt, count)
    if epoch.is_stream or count == 0:
        return items  # those of a stream are all alike
    is_batched = type(sampler) is BatchSampler
    inner = sampler.sampler if is_batched else sampler
    if isinstance(inner, EpochSampler) and type(inner).__iter__ is EpochSampler.__iter__:
        if not is_batched:
            return inner.iter_from(count)
        rows = inner.iter_from(min(count * sampler.batch_size, len(cast(Any, inner))))
        return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last))
    passed = sum(1 for _ in islice(items, count))
    if passed < count:
        name = type(sampler).__name__
        text = f"the state counts {count} batches, but the sampler ({name}) ended after {passed}"
        raise ValueError(f"{text}; set it to where it began, or do not load the state")
    return items


class LoaderEpoch:
    """One pass of an iterator over the sampler.

    Args:
        loader: whose iterator begins.
        position: where the loader stands.
        datasets: the epochs of the iterator's datasets, which begin here.
        has_states: the iterator asks the dataset where it stands, if the loader has a state.

    Attributes:
        state: where the epoch begins.
        is_resumed: `state` was saved in this epoch, after its order was drawn.
        draws_seed: whether a base seed is drawn. None: as torch's iterator does by itself.
        kept_seed: the base seed of persistent workers that the iterator replaces; None: none.
        lent: the state of torch's generator for the draws that begin this epoch.
        states: those of the dataset, where it says where it stands.
        iterator: returns the iterator that the loop has.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        position: Position,
        datasets: IteratorEpochs,
        has_states: bool,
    ) -> None:
        start, self.kept_seed = position.start, position.kept_seed
        is_new = position.is_loaded and not start.begun
        self.sampler: Any = loader._index_sampler
        # If nobody can ask for a state, the user's objects are not asked what resuming alone needs.
        is_asked, is_kept = position.can_be_asked, self.kept_seed is not None
        self.batch_size = look_up(self.sampler, "batch_size") if is_asked else None
        self.with_epoch = sampler_with_epoch(loader) if is_asked or datasets.epochs else None
        self.generators = generators_of(loader) if is_asked or is_kept else {}
        self.is_stream = is_stream(loader.dataset)
        self.is_resumed, self.is_over = start.begun, False
        self.iterator: Callable[[], Any] = lambda: None
        self.draws_seed: bool | None = None  # it was drawn before the state was saved
        set_epochs = [epoch.users for epoch in datasets.epochs]
        if start.begun:
            self.state = replace(start)
            if len(start.set_epochs) != len(set_epochs):  # it is of other datasets
                self.state.set_epochs = set_epochs
        else:
            number = max(start.random_epoch, look_up(self.with_epoch, "epoch", 0))
            self.state = State(start.epoch, begun=True, random_epoch=number, set_epochs=set_epochs)
            draws = position.draws_otherwise(loader) if self.kept_seed is None else False
            self.draws_seed = start.draws_base_seed if is_new else draws
        self.lent = position.torch_state_to_lend() if is_new else None
        self.states: DatasetStates | None = None
        if is_asked and has_states and has_place(loader.dataset):
            readers = fit_readers(loader, start.readers) if position.is_loaded else ReaderStates()
            self.states = DatasetStates(loader, readers, is_new)
        datasets.begin(self.state.set_epochs, self.state.random_epoch)
        self.skipped = self.yielded = self.state.yielded
        self.at_iter = self.state.generators.get("iter", {})
        self.at_next = self.state.generators.get("next", {})

    def _enter_sampler_epoch(self) -> None:
        """Note the sampler's epoch; a resumed one is set again, whatever set_epoch() said since."""
        if self.with_epoch is None:
            return
        if not self.is_resumed:
            self.state.sampler_epoch = look_up(self.with_epoch, "epoch", -1)
        elif look_up(self.with_epoch, "epoch") != self.state.sampler_epoch >= 0:
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

    def remaining(self, source: Iterator[Any], skip: Callable[..., Any]) -> Iterator[Iterator[Any]]:
        """Yield one iterator over the rest of `source`; runs when the first item is asked for.

        Args: skip: takes this epoch and `source`, and leaves out the items yielded already.
        """
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
    _in_processes = False  # samples are fetched in worker processes
    _shared: Any
    _epoch: LoaderEpoch
    _destination: Any = None  # of batches that C copies to another place

    @property
    def is_on_device(self) -> bool:
        """Tell whether batches are on the device when they are handed out."""
        return self._destination is not None and self._destination.is_on_device

    def _begin_epoch(self, loader: DataLoader[Any]) -> None:
        """Decide which epoch this is. ``_shared`` must be set."""
        if "_datasets" not in self.__dict__:
            self._datasets = IteratorEpochs(epochs_within(loader.dataset), self._in_processes)
        before = getattr(self.__dict__.get("_epoch"), "states", None)
        position = self._shared.position
        self._epoch = LoaderEpoch(loader, position, self._datasets, self._has_states)
        self._epoch.iterator = weakref.ref(self)
        if (states := self._epoch.states) is not None:
            states.is_here = not self._in_processes
            if before is not None:
                states.follow(before)

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._next_lock = NextLock()
        epoch, kind = self._epoch, "MultiProcessing" if loader.num_workers > 0 else "SingleProcess"
        caller = f"_{kind}DataLoaderIter.__init__"
        if epoch.draws_seed is False:
            # torch's __init__ draws a seed in any case; the draw is undone.
            with _restoring(torch.default_generator, *epoch.generators.values()):
                call_as_torch(caller, super().__init__, loader)
            if self._num_workers == 0:  # with workers _reset() does this
                with epoch.drawing_iter():
                    self._sampler_iter = iter(self._index_sampler)
        else:
            with epoch.drawing_iter():
                call_as_torch(caller, super().__init__, loader)
        if epoch.states is not None and epoch.states.base_seed >= 0:
            self._base_seed = epoch.states.base_seed
        elif epoch.kept_seed is not None:
            self._base_seed = epoch.kept_seed
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


# ---- the state of a loader


class Position:
    """The latest epoch of a loader, and the state that the next iter() begins from.

    Args: can_be_asked: the loader has a ``state_dict()``; torch's has none.
    """

    def __init__(self, can_be_asked: bool = True) -> None:
        self.can_be_asked = can_be_asked
        self.start = State()
        self.is_loaded = False  # `start` was loaded, and iter() has not been called since
        self.current: LoaderEpoch | None = None
        self.kept_seed: int | None = None  # of persistent workers that the next iterator replaces
        self._torch_at_loading: torch.Tensor | None = None
        self._draws_each_epoch: bool | None = None  # of the loader that saved the loaded state

    def copy(self) -> Position:
        """Return the position of a copy of the loader, which has no iterator."""
        position = copy(self)
        position.current = None
        return position

    def begin(self, iterator: BaseIter) -> None:
        """Note the iterator that iter() is about to return."""
        epoch: LoaderEpoch | None = look_up(iterator, "_epoch")
        if epoch is None:
            return
        epoch.iterator = weakref.ref(iterator)
        self.start = State(epoch.state.epoch + 1, random_epoch=epoch.state.random_epoch + 1)
        self.current, self.is_loaded, self.kept_seed = epoch, False, None

    def draws_otherwise(self, loader: DataLoader[Any]) -> bool | None:
        """Tell whether a base seed is drawn in each epoch, where the loader that saved the loaded
        state differed from this one in that; else None."""
        draws = self._draws_each_epoch
        return None if draws == _draws_each_epoch(loader) else draws

    def torch_state_to_lend(self) -> torch.Tensor | None:
        """Return the state of torch's generator at saving, unless the program has restored it, or
        has seeded that generator or drawn from it since loading."""
        saved = self.start.generators["now"].get(TORCH)
        at_loading, now = self._torch_at_loading, torch.default_generator.get_state()
        is_untouched = at_loading is not None and torch.equal(at_loading, now)
        return saved if is_untouched and saved is not None and not saved.equal(now) else None

    # ---- saving

    def save(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Return the dict of ``state_dict()``.

        Raises: what state_dict() of the dataset or its iterator raised.
        """
        if why := difference("torch"):
            return State(not_resumable=why).to_dict()
        if self.is_loaded:
            return self.start.to_dict()
        epoch, with_epoch = self.current, sampler_with_epoch(loader)
        now = states_of(generators_of(loader))
        torchs = now.pop(TORCH, None)
        if epoch is not None and not epoch.is_over:
            state = replace(epoch.state, yielded=epoch.count())
            state.generators = {"now": now, "iter": epoch.at_iter, "next": {**now, **epoch.at_next}}
        else:
            state = replace(self.start)
            state.set_epochs = [found.users for found in epochs_within(loader.dataset)]
            state.sampler_epoch = look_up(with_epoch, "epoch", -1)
            # The seeds of workers, whose dataset's states are kept, come from torch's generator.
            has_seeds = loader.num_workers > 0 and loader.generator is None
            if torchs is not None or (has_seeds and has_place(loader.dataset)):
                now[TORCH] = torch.get_rng_state()
            state.generators = {"now": now}
        state.readers = _save_readers(loader, epoch)
        state.rank = read_ranks()[1] if has_place(loader.dataset) else 0
        if epoch is not None and state.yielded > 0:
            state.not_resumable = _why_not_resumable(loader, epoch, state)
        draws = self.draws_otherwise(loader)
        state.draws_base_seed = loader._iterator is None if draws is None else draws
        state.draws_each_epoch = _draws_each_epoch(loader) if draws is None else draws
        state.fits = loader_state.describe(loader)
        return state.to_dict()

    # ---- loading

    def load(self, loader: DataLoader[Any], saved: Any, strict: bool) -> None:
        """Let the next iter() go on where the loader that saved the dict stood.

        Raises:
            TypeError, ValueError: as ``DataLoader.load_state_dict``. Nothing has changed then.
        """
        if why := difference("torch"):
            _refuse(strict, f"fastloop does not know {why}", "a new epoch begins", RuntimeWarning)
            return
        state = adapters().as_counted(ranks.read_state(saved, loader))
        fitted = ranks.fit_ranks(loader, state)
        is_of_others, state = fitted.fits != state.fits and state.begun, fitted
        differences = loader_state.find_differences(loader, state)
        if differences:
            fault = f"the state does not fit this loader: {'; '.join(differences)}"
            _refuse(strict, fault, f"epoch {state.epoch} starts anew, in a new order")
            self.start = State(state.epoch, random_epoch=state.random_epoch)
            self.is_loaded, self.current, self._draws_each_epoch = False, None, None
            _set_epochs(loader, state)
            return
        length = ranks.count_batches(loader, state)
        if length is not None and state.yielded > length and not state.not_resumable:
            raise ValueError(f"state['yielded'] is {state.yielded} of {length} batches")
        path, workers = look_up(loader, "path", "auto"), loader.num_workers
        are_torchs = path == "torch" and workers > 0
        if is_stream(loader.dataset):
            if state.yielded > 0:
                readers = ReaderStates() if are_torchs else state.readers
                state.not_resumable = _why_stream_not_resumable(loader, readers)
        elif (are_torchs or (path == "thread" and workers > 1)) and state.readers.has_states:
            fault = f"the {workers} workers of path={path!r} load no state of the dataset"
            _refuse(strict, f"{fault} (path='process' does)", "the dataset is not set to its state")
            state = replace(state, readers=ReaderStates(workers=workers))
        if state.not_resumable and state.yielded > 0 and not state.is_spent:
            fault = f"the state is in mid-epoch and cannot be resumed there: {state.not_resumable}"
            _refuse(strict, fault, f"epoch {state.epoch} starts anew", RuntimeWarning)
            state = replace(state, yielded=0, dealt=[], readers=_new_readers(loader))
        try:
            fit_readers(loader, state.readers)
        except stateful.WorkerCountError:  # before iter() the loader may be given another number
            if strict:
                raise
        if state.is_spent or not state.begun:
            now = state.generators["now"]
            for name, generator in generators_of(loader).items():
                if name != TORCH and name in now:
                    generator.set_state(now[name])
        _set_epochs(loader, state)
        whole = ranks.count_batches(loader, replace(state, dealt=[])) if is_of_others else None
        if whole is not None and length is not None and not state.is_spent:
            adapters().check_count(whole - length + state.yielded)
        self.start, self.is_loaded = replace(state, not_resumable=""), True
        self._torch_at_loading = torch.default_generator.get_state()
        self._draws_each_epoch = state.draws_each_epoch

    def warn_of_end(self, loader: DataLoader[Any]) -> None:
        """Warn, before iter(), that a `for` loop will end without a batch."""
        state = self.start
        if not state.is_spent and 0 < state.yielded == ranks.count_batches(loader, state):
            end = f"the loaded state stands at the end of epoch {state.epoch}"
            warnings.warn(f"{end}: this iter() gives no batch, the next one will", stacklevel=3)


def _draws_each_epoch(loader: DataLoader[Any]) -> bool:
    """Tell whether torch draws a base seed at every iter(). Persistent workers keep their first."""
    return not (loader.persistent_workers and loader.num_workers > 0)


def _refuse(strict: bool, what: str, instead: str, kind: type[Warning] = UserWarning) -> None:
    """Raise ValueError, or warn the caller of load_state_dict() and tell what is done instead."""
    if strict:
        raise ValueError(what)
    warnings.warn(f"{what}; {instead}", kind, stacklevel=4)


def _set_epochs(loader: DataLoader[Any], state: State) -> None:
    """Set the sampler to the epoch of the state, and datasets to those that set_epoch() had set,
    unless it has set others meanwhile."""
    sampler = sampler_with_epoch(loader)
    if sampler is not None and state.sampler_epoch >= 0:
        sampler.set_epoch(state.sampler_epoch)
    epochs = epochs_within(loader.dataset)
    if len(epochs) == len(state.set_epochs):
        for epoch, number in zip(epochs, state.set_epochs, strict=True):
            if number is not None and epoch.users is None:
                epoch.set(number)


def _new_readers(loader: DataLoader[Any]) -> ReaderStates:
    """Return the states of readers that begin where the dataset begins."""
    if not has_place(loader.dataset):
        return ReaderStates()
    return DatasetStates(loader, ReaderStates()).save(0, False, False) or ReaderStates()


def _save_readers(loader: DataLoader[Any], epoch: LoaderEpoch | None) -> ReaderStates:
    if epoch is None:
        return _new_readers(loader)
    if epoch.states is None:
        return ReaderStates(workers=loader.num_workers if has_place(loader.dataset) else 0)
    iterator = epoch.iterator()
    if iterator is not None and iterator._epoch is epoch:
        iterator.await_states()
    saved = epoch.states.save(epoch.count(), epoch.is_over, loader.persistent_workers)
    return saved or _new_readers(loader)


def _why_not_resumable(loader: DataLoader[Any], epoch: LoaderEpoch, state: State) -> str:
    if loader._dataset_kind != 0:
        return _why_stream_not_resumable(loader, state.readers)
    if look_up(epoch.sampler, "batch_size") != epoch.batch_size:
        return "batch_size was changed in the epoch, so a count does not tell which samples came"
    is_ordered = loader.in_order or loader.num_workers <= 1
    if not is_ordered and state.yielded != ranks.count_batches(loader, state):
        return "with in_order=False the number of batches does not tell which came"
    return ""


def _why_stream_not_resumable(loader: DataLoader[Any], readers: ReaderStates) -> str:
    what = f"only the dataset ({type(loader.dataset).__name__}) knows where it stands"
    if not readers.readers:
        return f"{what}, and this path's workers do not send that: path='process' does"
    if readers.has_lost and look_up(loader, "resume") != "skip":
        what += ", and it has no state_dict()"
        return f"{what}; resume='skip' loads and drops the samples of the batches yielded"
    return ""
