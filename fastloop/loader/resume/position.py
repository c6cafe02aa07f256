"""``Position`` is where one loader stands: its ``save()`` and ``load()`` are ``state_dict()`` and
``load_state_dict()`` of a DataLoader, and each iterator begins with its ``open_epoch()``."""

from __future__ import annotations

import sys
import warnings
import weakref
from copy import copy
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import BaseIter, difference
from fastloop.data import stateful
from fastloop.data.epochs import IteratorEpochs, epochs_within
from fastloop.data.stateful import DatasetStates, ReaderStates, WorkerCountError, fit_readers
from fastloop.loader.resume.epoch import LoaderEpoch
from fastloop.loader.resume.state import (
    TORCH,
    State,
    count_batches,
    describe,
    find_differences,
    fit_ranks,
    generators_of,
    sampler_with_epoch,
    states_of,
)


class Position:
    """The latest epoch of a loader, and the state that the next iter() begins from."""

    def __init__(self) -> None:
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
        epoch: LoaderEpoch | None = getattr(iterator, "_epoch", None)
        if epoch is None:
            return
        self.current = epoch
        epoch.iterator = weakref.ref(iterator)
        number, random_epoch = epoch.state.epoch + 1, epoch.state.random_epoch + 1
        self.start, self.is_loaded = State(number, random_epoch=random_epoch), False
        self.kept_seed = None

    def open_epoch(
        self, loader: DataLoader[Any], datasets: IteratorEpochs, has_states: bool
    ) -> LoaderEpoch:
        """Return the epoch of an iterator that begins.

        Args:
            datasets: the epochs of the iterator's datasets, which begin here.
            has_states: the iterator asks the dataset where it stands.
        """
        start, is_new = self.start, self.is_loaded and not self.start.begun
        set_epochs = [epoch.users for epoch in datasets.epochs]
        if start.begun:
            draws_seed = None  # it was drawn before the state was saved
            state = replace(start)
            if len(state.set_epochs) != len(set_epochs):  # it is of other datasets
                state.set_epochs = set_epochs
        else:
            with_epoch, number = sampler_with_epoch(loader), start.random_epoch
            if with_epoch is not None:
                number = max(number, with_epoch.epoch)
            state = State(start.epoch, begun=True, random_epoch=number, set_epochs=set_epochs)
            draws_seed = self._draws_otherwise(loader) if self.kept_seed is None else False
            if is_new:
                draws_seed = start.draws_base_seed
        lent = self._torch_state_to_lend() if is_new else None
        states = None
        if has_states and stateful.has_place(loader.dataset):
            readers = fit_readers(loader, start.readers) if self.is_loaded else ReaderStates()
            states = DatasetStates(loader, readers, is_new)
        datasets.begin(state.set_epochs, state.random_epoch)
        return LoaderEpoch(loader, state, start.begun, draws_seed, self.kept_seed, lent, states)

    def _draws_otherwise(self, loader: DataLoader[Any]) -> bool | None:
        """Tell whether a base seed is drawn in each epoch, where the loader that saved the loaded
        state differed from this one in that; else None."""
        draws = self._draws_each_epoch
        return None if draws == _draws_each_epoch(loader) else draws

    def _torch_state_to_lend(self) -> torch.Tensor | None:
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
            state.sampler_epoch = -1 if with_epoch is None else with_epoch.epoch
            # The seeds of workers, whose dataset's states are kept, come from torch's generator.
            has_seeds = loader.num_workers > 0 and loader.generator is None
            if torchs is not None or (has_seeds and stateful.has_place(loader.dataset)):
                now[TORCH] = torch.get_rng_state()
            state.generators = {"now": now}
        state.readers = _save_readers(loader, epoch)
        if epoch is not None and state.yielded > 0:
            state.not_resumable = _why_not_resumable(loader, epoch, state)
        draws = self._draws_otherwise(loader)
        state.draws_base_seed = loader._iterator is None if draws is None else draws
        state.draws_each_epoch = _draws_each_epoch(loader) if draws is None else draws
        state.fits = describe(loader)
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
        state = as_lightning_counts(State.from_dict(saved, loader))
        state, differences = fit_ranks(loader, state)
        differences = differences or find_differences(loader, state)
        if differences:
            fault = f"the state does not fit this loader: {'; '.join(differences)}"
            _refuse(strict, fault, f"epoch {state.epoch} starts anew, in a new order")
            self.start = State(state.epoch, random_epoch=state.random_epoch)
            self.is_loaded, self.current, self._draws_each_epoch = False, None, None
            _set_epochs(loader, state)
            return
        length = count_batches(loader, state.sampler_epoch)
        if length is not None and state.yielded > length:
            raise ValueError(f"state['yielded'] is {state.yielded} of {length} batches")
        path, workers = getattr(loader, "path", "auto"), loader.num_workers
        if not stateful.is_stream(loader.dataset):
            takes_none = path == "torch" or (path == "thread" and workers > 1)
            if workers > 0 and takes_none and state.readers.has_states:
                fault = (
                    f"the state has states of the dataset ({type(loader.dataset).__name__}), and "
                    f"the {workers} workers of path={path!r} load none (path='process' does)"
                )
                _refuse(strict, fault, "the dataset is not set to them")
                state = replace(state, readers=ReaderStates(workers=workers))
        elif state.yielded > 0:
            readers = ReaderStates() if path == "torch" and workers > 0 else state.readers
            state.not_resumable = _why_stream_not_resumable(loader, readers)
        if state.not_resumable and state.yielded > 0 and not state.is_spent:
            fault = (
                f"the state was saved after {state.yielded} batches of an epoch, and cannot be "
                f"resumed there: {state.not_resumable}"
            )
            _refuse(strict, fault, f"epoch {state.epoch} starts anew", RuntimeWarning)
            state = replace(state, yielded=0, readers=_new_readers(loader))
        try:
            fit_readers(loader, state.readers)
        except WorkerCountError:  # the loader may yet be given another number before iter()
            if strict:
                raise
        if state.is_spent or not state.begun:
            now = state.generators["now"]
            for name, generator in generators_of(loader).items():
                if name != TORCH and name in now:
                    generator.set_state(now[name])
        _set_epochs(loader, state)
        self.start, self.is_loaded = replace(state, not_resumable=""), True
        self._torch_at_loading = torch.default_generator.get_state()
        self._draws_each_epoch = state.draws_each_epoch

    def warn_of_end(self, loader: DataLoader[Any]) -> None:
        """Warn, before iter(), that a `for` loop will end without a batch."""
        state = self.start
        if state.yielded == 0 or state.is_spent:
            return
        if state.yielded == count_batches(loader, state.sampler_epoch):
            warnings.warn(
                f"the loaded state stands at the end of epoch {state.epoch}: this iter() gives no "
                f"batch, the next one begins epoch {state.epoch + 1}",
                stacklevel=3,
            )


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
    if not stateful.has_place(loader.dataset):
        return ReaderStates()
    return DatasetStates(loader, ReaderStates()).save(0, False, False) or ReaderStates()


def _save_readers(loader: DataLoader[Any], epoch: LoaderEpoch | None) -> ReaderStates:
    if epoch is None:
        return _new_readers(loader)
    if epoch.states is None:
        return ReaderStates(workers=loader.num_workers if stateful.has_place(loader.dataset) else 0)
    iterator = epoch.iterator()
    if iterator is not None and iterator._epoch is epoch:
        iterator.await_states()
    saved = epoch.states.save(epoch.count(), epoch.is_over, loader.persistent_workers)
    return saved or _new_readers(loader)


def _why_not_resumable(loader: DataLoader[Any], epoch: LoaderEpoch, state: State) -> str:
    if loader._dataset_kind != 0:
        return _why_stream_not_resumable(loader, state.readers)
    size = getattr(epoch.sampler, "batch_size", None)
    if size != epoch.batch_size:
        return (
            f"batch_size was changed from {epoch.batch_size} to {size} in the middle of the "
            "epoch, so the number of batches does not tell which samples came"
        )
    is_whole = state.yielded == count_batches(loader, state.sampler_epoch)
    if not loader.in_order and loader.num_workers > 1 and not is_whole:
        return "with in_order=False the number of batches does not tell which came"
    return ""


def _why_stream_not_resumable(loader: DataLoader[Any], readers: ReaderStates) -> str:
    what = f"only the dataset ({type(loader.dataset).__name__}) knows where it stands"
    if not readers.readers:
        return f"{what}, and this path's workers do not send that: path='process' does"
    if readers.has_lost and getattr(loader, "resume", None) != "skip":
        return (
            f"{what}, and it has no state_dict(); DataLoader(..., resume='skip') loads and drops "
            "the samples of the batches yielded"
        )
    return ""


# ---- Lightning

# Lightning makes the calls of a `for` loop: load_state_dict(), iter(), next(). In two places it
# means something else by them. Only the progress that it loads beside the state tells; no argument
# and no hook brings that here, so the stack is searched for the loop that loads.
#
# - The last batch. A `for` loop whose body saved the state has yet to meet the end of that epoch:
#   if next() gave a batch, an epoch would be trained twice. Lightning counts batches and never asks
#   for the end. If it saved in a hook of that batch, it counts the epoch as trained and takes the
#   first iterator for the next one: if that gave no batch, an epoch would be lost. If it saved
#   after those hooks (in or after the validation that follows), it does not use the first iterator.
# - A batch that was fetched and not trained: an exception, or a hook before the step. Lightning
#   trains it again.
_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def as_lightning_counts(state: State) -> State:
    """Return the state as Lightning counts it, if Lightning is loading it on this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (
        frame.f_code.co_name == "_load_combined_loader_states"
        and frame.f_globals.get("__name__") in _FIT_LOOPS
    ):
        frame = frame.f_back
    if frame is None or state.yielded == 0:
        return state
    try:
        progress = frame.f_locals["self"].epoch_loop.batch_progress
        total, is_last = progress.total, progress.is_last_batch
        untrained = total.ready - total.processed
        is_in_hook = total.completed < total.processed
    except AttributeError:  # a loop of another version: iter() warns of an end
        return state
    if untrained > 0:
        return replace(state, yielded=max(state.yielded - untrained, 0))
    if not is_last:
        return state
    return state.next_epoch() if is_in_hook else replace(state, is_spent=True)
