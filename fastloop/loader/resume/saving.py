"""``state_dict()`` and ``load_state_dict()`` of a loader: its ``Position``, saved and loaded."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy, deepcopy
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastloop.base.checks import look_up, make_message
from fastloop.compat.torch_parts import difference
from fastloop.data.columns import adapters, epochs_within
from fastloop.data.samplers import read_ranks
from fastloop.data.stateful import (
    DatasetStates,
    ReaderStates,
    WorkerCountError,
    fit_readers,
    has_cursor,
    is_stream,
)
from fastloop.loader.resume import ranks
from fastloop.loader.resume.epoch import (
    TORCH,
    LoaderEpoch,
    LoaderState,
    Position,
    draws_each_epoch,
    generators_of,
    sampler_with_epoch,
    states_of,
)
from fastloop.loader.resume.state import check_dict, describe, find_differences, to_dict

_OF_A_RANK = ("rank", "generators", "dataset_state", "fetcher_state", "_snapshot")


def save(position: Position, loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the dict of ``state_dict()``.

    Raises: what state_dict() of the dataset or its iterator raised.
    """
    if why := difference("torch"):
        return to_dict(LoaderState(not_resumable=why))
    if position.is_loaded:
        return to_dict(position.start)
    epoch, with_epoch = position.current, sampler_with_epoch(loader)
    now = states_of(generators_of(loader))
    torchs = now.pop(TORCH, None)
    if epoch is not None and not epoch.is_over:
        state = ranks.shorten(loader, epoch.state.but(yielded=epoch.count()))
        state.generators = {"now": now, "iter": epoch.at_iter, "next": {**now, **epoch.at_next}}
    else:
        state = copy(position.start)
        state.set_epochs = [found.users for found in epochs_within(loader.dataset)]
        state.sampler_epoch = look_up(with_epoch, "epoch", -1)
        # For a dataset with a state, torch's generator is saved: workers' seeds come from it.
        has_seeds = loader.num_workers > 0 and loader.generator is None
        if torchs is not None or (has_seeds and has_cursor(loader.dataset)):
            now[TORCH] = torch.get_rng_state()
        state.generators = {"now": now}
    state.readers = _save_readers(loader, epoch)
    state.rank = read_ranks()[1] if has_cursor(loader.dataset) else 0
    if epoch is not None and state.yielded > 0:
        state.not_resumable = _why_not_resumable(loader, epoch, state)
    draws = position.draws_otherwise(loader)
    state.draws_base_seed = loader._iterator is None if draws is None else draws
    state.draws_each_epoch = draws_each_epoch(loader) if draws is None else draws
    state.fits = describe(loader)
    return to_dict(state)


def load(position: Position, loader: DataLoader[Any], saved: Any, strict: bool) -> None:
    """Let the next iter() continue from the point at which the dict was saved.

    Raises:
        TypeError, ValueError: the errors of ``DataLoader.load_state_dict``. Nothing has changed.
    """
    _load(position, loader, saved, strict)
    if has_cursor(loader.dataset):
        loader._iterator = None  # the dataset of persistent workers cannot be repositioned


def _load(position: Position, loader: DataLoader[Any], saved: Any, strict: bool) -> None:
    if why := difference("torch"):
        _refuse(strict, f"fastloop does not know {why}", "a new epoch begins", RuntimeWarning)
        return
    state = adapters().as_counted(ranks.read_state(saved, loader))
    ranks.take_place(loader, state)
    fitted = ranks.fit_ranks(loader, state)
    is_of_others, state = fitted.fits != state.fits and state.begun, fitted
    differences = find_differences(loader, state)
    if differences:
        fault = f"the state does not fit this loader: {'; '.join(differences)}"
        _refuse(strict, fault, f"epoch {state.epoch} starts anew, in a new order")
        position.start = LoaderState(epoch=state.epoch, random_epoch=state.random_epoch)
        position.is_loaded, position.current, position.draws_each_epoch = False, None, None
        _set_epochs(loader, state)
        return
    if state.yielded > 0 and not state.not_resumable:
        ranks.is_at_end(loader, state)  # raises
    path, workers = look_up(loader, "path", "auto"), loader.num_workers
    are_torchs = path == "torch" and workers > 0
    if is_stream(loader.dataset):
        if state.yielded > 0:
            readers = ReaderStates() if are_torchs else state.readers
            state.not_resumable = _why_stream_not_resumable(loader, readers)
    elif (are_torchs or (path == "thread" and workers > 1)) and state.readers.has_states:
        fault = f"the {workers} workers of path={path!r} load no state of the dataset"
        _refuse(strict, f"{fault} (path='process' does)", "the dataset is not set to its state")
        state = state.but(readers=ReaderStates(workers=workers))
    if state.not_resumable and state.yielded > 0 and not state.is_spent:
        fault = f"the state is in mid-epoch and cannot be resumed there: {state.not_resumable}"
        _refuse(strict, fault, f"epoch {state.epoch} starts anew", RuntimeWarning)
        state = state.but(yielded=0, dealt=[], readers=_new_readers(loader))
    try:
        fit_readers(loader, state.readers)
    except WorkerCountError:  # before iter() the loader's number of workers may still change
        if strict:
            raise
    if state.is_spent or not state.begun:
        now = state.generators["now"]
        for name, generator in generators_of(loader).items():
            if name != TORCH and name in now:
                generator.set_state(now[name])
    _set_epochs(loader, state)
    if is_of_others and not state.is_spent:
        adapters().check_count(lambda: ranks.count_had(loader, state))
    position.start, position.is_loaded = state.but(not_resumable=""), True
    position.torch_at_loading = torch.default_generator.get_state()
    position.draws_each_epoch = state.draws_each_epoch


def warn_of_end(position: Position, loader: DataLoader[Any]) -> None:
    """Warn, before iter(), that a `for` loop will end without a batch."""
    state = position.start
    if not state.is_spent and state.yielded > 0 and ranks.is_at_end(loader, state):
        end = f"the loaded state is at the end of epoch {state.epoch}"
        warnings.warn(f"{end}: this iter() gives no batch, the next one will", stacklevel=3)


def _refuse(strict: bool, what: str, instead: str, kind: type[Warning] = UserWarning) -> None:
    """Raise ValueError; if not `strict`, warn the caller of load_state_dict() and say `instead`."""
    if strict:
        raise ValueError(what)
    warnings.warn(f"{what}; {instead}", kind, stacklevel=5)


def _set_epochs(loader: DataLoader[Any], state: LoaderState) -> None:
    """Set the sampler to the epoch of the state, and datasets to the epochs that set_epoch() had
    set, unless set_epoch() has been called meanwhile."""
    sampler = sampler_with_epoch(loader)
    if sampler is not None and state.sampler_epoch >= 0:
        sampler.set_epoch(state.sampler_epoch)
    epochs = epochs_within(loader.dataset)
    if len(epochs) == len(state.set_epochs):
        for epoch, number in zip(epochs, state.set_epochs, strict=True):
            if number is not None and epoch.users is None:
                epoch.set(number)


def _new_readers(loader: DataLoader[Any]) -> ReaderStates:
    """Return the states of readers at the beginning of the dataset."""
    if not has_cursor(loader.dataset):
        return ReaderStates()
    return DatasetStates(loader, ReaderStates()).save(0, False, False) or ReaderStates()


def _save_readers(loader: DataLoader[Any], epoch: LoaderEpoch | None) -> ReaderStates:
    if epoch is None:
        return _new_readers(loader)
    if epoch.states is None:
        return ReaderStates(workers=loader.num_workers if has_cursor(loader.dataset) else 0)
    iterator = epoch.iterator()
    if iterator is not None and iterator._epoch is epoch:
        iterator.await_states()
    saved = epoch.states.save(epoch.count(), epoch.is_over, loader.persistent_workers)
    return saved or _new_readers(loader)


def _why_not_resumable(loader: DataLoader[Any], epoch: LoaderEpoch, state: LoaderState) -> str:
    if loader._dataset_kind != 0:
        return _why_stream_not_resumable(loader, state.readers)
    if look_up(epoch.sampler, "batch_size") != epoch.batch_size:
        return "batch_size was changed in the epoch, so a count does not tell which samples came"
    is_ordered = loader.in_order or loader.num_workers <= 1
    if not is_ordered and not ranks.is_at_end(loader, state):
        return "with in_order=False the number of batches does not tell which came"
    return ""


def _why_stream_not_resumable(loader: DataLoader[Any], readers: ReaderStates) -> str:
    what = f"only the dataset ({type(loader.dataset).__name__}) knows its position"
    if not readers.readers:
        return f"{what}, and this path's workers do not send the position (path='process' does)"
    if readers.has_lost and look_up(loader, "resume") != "skip":
        what += ", and the dataset has no state_dict()"
        return f"{what} (resume='skip' loads and drops the samples of the batches yielded)"
    return ""


# ---- joined states


def join_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for the states of every rank, as ``DataLoader.join_states`` does."""
    if not isinstance(states, list | tuple) or not states:
        raise ValueError(make_message("states", "a list of one state for each rank", states))
    for i, state in enumerate(states):
        check_dict(f"states[{i}]", state)
    first = states[0]
    cursor_keys = ("dataset_state", "fetcher_state")
    have_cursors = any(
        state["_snapshot"] or any(state.get(key) is not None for key in cursor_keys)
        for state in states
    )
    faults = []
    if (count := first["fits"].get("ranks")) and int(count) != len(states):
        faults.append(f"fits.ranks={count} in {len(states)} states")
    for i, state in enumerate(states):
        if state["joined"]:
            faults.append(f"a joined state as states[{i}]")
        if have_cursors and state["rank"] != i:
            faults.append(f"the state of rank {state['rank']} as states[{i}]")
        for key in first.keys() - (_OF_A_RANK if have_cursors else ()) - {"joined"}:
            faults += _disagreements(key, first[key], state.get(key), i)
    if faults:
        remedy = "pass the state that every rank saved at the same batch, in the order of ranks"
        text = f"the states of ranks must agree, got {'; '.join(sorted(faults))}"
        raise ValueError(f"{text} ({remedy})")
    parts = [{key: state[key] for key in _OF_A_RANK if key in state} for state in states]
    return deepcopy({**first, "joined": parts if have_cursors else []})


def _disagreements(name: str, first: Any, other: Any, rank: int) -> list[str]:
    if first == other:
        return []
    if isinstance(first, dict) and isinstance(other, dict):
        found = (_disagreements(f"{name}.{k}", v, other.get(k), rank) for k, v in first.items())
        return list(chain.from_iterable(found))
    shown, others = (value if len(repr(value)) < 80 else "another" for value in (first, other))
    return [f"{name}={shown!r} on rank 0 and {others!r} on rank {rank}"]
