"""The dict that says where a loader stands: how it is made, checked, and loaded.

It holds numbers, strings and dicts only. Its keys and types are the same for every loader at all
times, because torch.distributed.checkpoint loads into a state that is there. Its size depends on
the number of generators alone: the state of each takes about 10 KB of hex digits. What a dataset
says of itself is added as it is.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastloop.base.schema import Schema
from fastloop.base.torch_parts import difference
from fastloop.data.samplers import LengthBucketBatchSampler
from fastloop.data.stateful import has_place, is_stream
from fastloop.loader.resume.dataset_epochs import (
    epochs_within,
    is_set_by_user,
    restore_set,
    set_by_user,
)
from fastloop.loader.resume.dataset_states import (
    NOWHERE,
    Places,
    WorkerCountError,
    fit_places,
    fresh_states,
    read_places,
    states_within,
    without_states,
)
from fastloop.loader.resume.epoch import (
    GENERATORS,
    TORCHS,
    Epoch,
    Generators,
    Position,
    State,
    draws_each_epoch,
    find_generators,
    from_hex,
    read_states,
    sampler_with_epoch,
    samplers_of,
    without_torchs,
)
from fastloop.loader.resume.left_batches import read_left, write_left
from fastloop.loader.resume.lightning import Rest, rest_for_caller
from fastloop.loader.resume.rank_change import with_ranks_here

VERSION = 1

_UNCHANGED = "pass what state_dict() of a fastloop.DataLoader returned, unchanged"
_FIELDS = {
    "version": int,
    "epoch": int,
    "yielded": int,
    "begun": bool,
    "draws_base_seed": bool,  # whether the next new epoch does
    "draws_each_epoch": bool,  # whether those after it do
    "not_resumable": str,  # why the epoch cannot go on in the middle; "": it can
    "left": str,  # which batches are, if not all behind those yielded
    "sampler_epoch": int,  # -1: the sampler has none
    "random_epoch": int,  # of datasets' random numbers; of an epoch to come the lowest it may have
    "set_epochs": str,  # what set_epoch() has told each dataset, in place of it
    "fits": dict,
    "generators": dict,
}
_FROM_THE_START: State = {"not_resumable": "", "left": ""}
_SCHEMA = Schema(_FIELDS, _UNCHANGED)
# What must be the same in the loader that resumes, as text; "": the loader has no such thing.
_SETTINGS = ("replacement", "shuffle", "num_replicas", "seed", "drop_last")
_FACTS = (
    "dataset_length",
    "batch_sampler",
    "batch_sampler_length",
    "batch_size",
    "drop_last",
    "sampler",
    "sampler_length",
    *(f"sampler.{name}" for name in _SETTINGS),
)
# When generators are read: at saving, before iter(sampler), before its first item.
_MOMENTS = ("now", "iter", "next")


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # the user's __len__ may raise anything, and saving raises nothing
        return None


def _batches(sampler: Any, epoch: int | None) -> int | None:
    """Of an epoch, where the sampler has several."""
    if isinstance(sampler, LengthBucketBatchSampler) and epoch is not None and epoch >= 0:
        return sampler.length_of(epoch)
    return _length(sampler)


def _length_of_all(sampler: Any) -> int | str | None:
    """What is the same in all epochs of a sampler."""
    if isinstance(sampler, LengthBucketBatchSampler):
        return sampler.fingerprint
    return _length(sampler)


def _text(fact: object) -> str:
    return str(fact) if type(fact) in (bool, int, str) else ""


def _describe(loader: DataLoader[Any]) -> dict[str, str]:
    outer, inner = samplers_of(loader)
    facts: dict[str, Any] = {"dataset_length": _length(loader.dataset)}
    if loader._auto_collation:
        facts["batch_sampler"] = type(outer).__name__
        facts["batch_sampler_length"] = _length_of_all(outer)
        facts["batch_size"] = getattr(outer, "batch_size", None)
        facts["drop_last"] = getattr(outer, "drop_last", None)
    sampler = inner if loader._auto_collation else outer
    if sampler is not None:
        facts["sampler"] = type(sampler).__name__
        facts["sampler_length"] = _length_of_all(sampler)
        for name in _SETTINGS:
            facts[f"sampler.{name}"] = getattr(sampler, name, None)
    return {name: _text(facts.get(name)) for name in _FACTS}


# ---- saving


def _why_not_resumable(loader: DataLoader[Any], epoch: Epoch, yielded: int, places: Places) -> str:
    if isinstance(loader.dataset, IterableDataset):
        return _why_stream_not_resumable(loader, places)
    size = getattr(epoch.sampler, "batch_size", None)
    if size != epoch.batch_size:
        return (
            f"batch_size was changed from {epoch.batch_size} to {size} in the middle of the "
            "epoch, so the number of batches does not say which samples came"
        )
    is_known = loader.in_order or loader.num_workers <= 1 or epoch.left.is_known(yielded)
    if not is_known and yielded != _batches(epoch.sampler, epoch.sampler_epoch):
        return "with in_order=False the number of batches does not say which came"
    return ""


def _why_stream_not_resumable(loader: DataLoader[Any], places: Places) -> str:
    what = f"only the dataset ({type(loader.dataset).__name__}) knows where it stands"
    if not places.sources:
        return f"{what}, and this path's workers do not send that: path='process' does"
    if places.has_lost:
        return (
            f"{what}, and it has no state_dict(); DataLoader(..., resume='skip') loads and drops "
            "what was yielded"
        )
    return ""


def _save_dataset(loader: DataLoader[Any], epoch: Epoch | None, yielded: int) -> State:
    if epoch is None:
        return fresh_states(loader)
    if epoch.states is None:
        return {key: NOWHERE[key] for key in fresh_states(loader)}
    states, iterator = epoch.states, epoch.iterator()
    if iterator is not None and iterator._epoch is epoch:
        iterator.await_states()
    if epoch.is_over and not states.outlive_epoch(loader.persistent_workers):
        return fresh_states(loader)
    return states.save(yielded)


def _as_hex(states: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {
        name: states[name].numpy().tobytes().hex() if name in states else "" for name in GENERATORS
    }


def _seeds_stateful_workers(loader: DataLoader[Any]) -> bool:
    """Whether torch's generator decides what workers draw, of which states are kept."""
    return loader.num_workers > 0 and loader.generator is None and has_place(loader.dataset)


def save_state(loader: DataLoader[Any], position: Position) -> State:
    if position.pending is not None:
        return deepcopy(position.pending)
    generators = find_generators(loader)
    now = read_states(without_torchs(generators))
    sampler = sampler_with_epoch(loader)
    sampler_epoch = None if sampler is None else sampler.epoch
    number, yielded, why_not, left = position.number, 0, "", ""
    random_epoch = position.random_epoch
    set_epochs = set_by_user(epochs_within(loader.dataset))
    at_iter: dict[str, torch.Tensor] = {}
    at_next: dict[str, torch.Tensor] = {}
    epoch = position.current
    is_begun = epoch is not None and not epoch.is_over
    dataset = _save_dataset(loader, epoch, 0 if epoch is None else epoch.count())
    if epoch is not None and is_begun:
        number, yielded, sampler_epoch = epoch.number, epoch.count(), epoch.sampler_epoch
        random_epoch, set_epochs = epoch.random_epoch, epoch.set_epochs
        if yielded > 0:
            why_not = _why_not_resumable(loader, epoch, yielded, read_places(dataset))
        if yielded > 0 and not why_not:
            left = write_left(epoch.left.after(yielded), yielded)
        at_iter, at_next = epoch.at_iter, {**now, **epoch.at_next}
    elif TORCHS in generators or _seeds_stateful_workers(loader):
        now[TORCHS] = torch.get_rng_state()
    draws = position.draws_otherwise(loader)
    return {
        "version": VERSION,
        "epoch": number,
        "yielded": yielded,
        "begun": is_begun,
        "draws_base_seed": loader._iterator is None if draws is None else draws,
        "draws_each_epoch": draws_each_epoch(loader) if draws is None else draws,
        "not_resumable": why_not,
        "left": left,
        "sampler_epoch": -1 if sampler_epoch is None else sampler_epoch,
        "random_epoch": random_epoch,
        "set_epochs": set_epochs,
        "fits": _describe(loader),
        "generators": {"now": _as_hex(now), "iter": _as_hex(at_iter), "next": _as_hex(at_next)},
        **deepcopy(dataset),  # the user's objects may return what changes later
    }


def state_of_unknown() -> State:
    """The state where fastloop does not know torch's iterators: it says so and nothing else."""
    empty = {name: kind() for name, kind in _FIELDS.items()}
    return {**empty, **NOWHERE, "version": VERSION, "not_resumable": difference("torch")}


# ---- loading


def refuse_state(strict: bool) -> None:
    """Where fastloop does not know torch's iterators, no epoch can go on in the middle."""
    text = f"the epoch starts anew, because fastloop does not know {difference('torch')}"
    if strict:
        raise ValueError(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _check_texts(name: str, texts: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(texts, dict):
        raise TypeError(f"{name} is not a dict; {_UNCHANGED}")
    if set(texts) != set(keys):
        raise ValueError(f"{name} has {sorted(texts)}, not {sorted(keys)}; {_UNCHANGED}")
    for key, text in texts.items():
        if type(text) is not str:
            raise TypeError(f"{name}[{key!r}] is {text!r}, not str; {_UNCHANGED}")


def _check_parts(state: State) -> None:
    """What a schema does not say."""
    for key, lowest in (("epoch", 0), ("yielded", 0), ("sampler_epoch", -1), ("random_epoch", 0)):
        if state[key] < lowest:
            raise ValueError(f"state[{key!r}] is {state[key]}, but cannot be negative")
    if state["yielded"] > 0 and not state["begun"]:
        raise ValueError(f"state yields {state['yielded']} batches of no epoch; {_UNCHANGED}")
    try:
        read_left(state["left"], state["yielded"])
    except ValueError as error:
        raise ValueError(f"state['left'] is {state['left']!r}: {error}; {_UNCHANGED}") from None
    _check_texts("state['fits']", state["fits"], _FACTS)
    if not is_set_by_user(state["set_epochs"]):
        raise ValueError(f"state['set_epochs'] is {state['set_epochs']!r}; {_UNCHANGED}")
    moments = state["generators"]
    if set(moments) != set(_MOMENTS):
        raise ValueError(
            f"state['generators'] has {sorted(moments)}, not {sorted(_MOMENTS)}; {_UNCHANGED}"
        )
    for moment, texts in moments.items():
        _check_texts(f"state['generators'][{moment!r}]", texts, GENERATORS)


def _checked(state: object) -> State:
    """A copy of our keys of the state. Others (accelerate) add keys of their own."""
    if not isinstance(state, dict):
        raise TypeError(f"state is a {type(state).__name__}, not a dict; {_UNCHANGED}")
    if state.get("version") != VERSION:
        raise ValueError(
            f"state['version'] must be {VERSION}, got {state.get('version')!r}; {_UNCHANGED}"
        )
    _check_parts(_SCHEMA.check(state, "state"))
    found = {**{key: state[key] for key in _FIELDS}, **states_within(state)}
    read_places(found)
    return deepcopy(found)


def _find_differences(loader: DataLoader[Any], state: State) -> list[str]:
    def differs(name: str, there: object, here: object) -> str:
        return f"{name} is {there or 'absent'} in the state and {here or 'absent'} here"

    if read_places(state).has_states and not has_place(loader.dataset):
        name = type(loader.dataset).__name__
        return [f"the state has states of a dataset, and {name} has no load_state_dict()"]
    there, here = state["fits"], _describe(loader)
    found = [differs(name, there[name], here[name]) for name in _FACTS if there[name] != here[name]]
    has_epoch = sampler_with_epoch(loader) is not None
    if has_epoch != (state["sampler_epoch"] >= 0):
        found.append(f"the sampler has an epoch {'here' if has_epoch else 'in the state'} only")
    generators, moments = find_generators(loader), state["generators"]
    is_drawn_from = state["begun"] and state["yielded"] > 0
    known = ("iter", "next") if state["begun"] else ("now",)
    saved = {name for moment in known for name, text in moments[moment].items() if text}
    given = set(generators if is_drawn_from else without_torchs(generators))
    if not is_drawn_from:
        saved, given = saved - {TORCHS}, given - {TORCHS}
    if saved != given:
        found.append(differs("generator", *(", ".join(sorted(names)) for names in (saved, given))))
    return found


def _decode(generators: Generators, name: str, text: str) -> torch.Tensor:
    try:
        state = from_hex({name: text})[name]
        torch.Generator(device=generators[name].device).set_state(state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"the state of generator {name!r} cannot be read: {error}; {_UNCHANGED}"
        ) from error
    return state


def _decode_moments(generators: Generators, state: State) -> dict[str, torch.Tensor]:
    """The states that generators had at saving. Those of other moments are only checked."""
    decoded = {
        moment: {name: _decode(generators, name, text) for name, text in texts.items() if text}
        for moment, texts in state["generators"].items()
    }
    return decoded["now"]


def _raise_or_warn(strict: bool, what: str, advice: str, instead: str) -> None:
    """From a function that load_state() calls: `what` is wrong; the warning says what is done
    instead."""
    if strict:
        raise ValueError(f"{what}; {advice}")
    warnings.warn(f"{what}{instead}", stacklevel=5)


def _start_anew(
    loader: DataLoader[Any], position: Position, state: State, differences: list[str], strict: bool
) -> None:
    _raise_or_warn(
        strict,
        f"the state does not fit this loader: {'; '.join(differences)}",
        "make the loader as it was when the state was saved, or do not load it and begin an epoch "
        "afresh",
        f": epoch {state['epoch']} starts anew, in a new order; load_state_dict(state, "
        "strict=True) makes this an error",
    )
    sampler = sampler_with_epoch(loader)
    if sampler is not None and state["sampler_epoch"] >= 0:
        sampler.set_epoch(state["sampler_epoch"])
    restore_set(epochs_within(loader.dataset), state["set_epochs"])
    position.restart(state)


def _as_caller_counts(state: State) -> tuple[State, bool]:
    """The state as the caller means it, and whether no batch of its epoch is left."""
    rest, untrained = rest_for_caller() if state["yielded"] > 0 else (Rest.AS_COUNTED, 0)
    if rest is Rest.NEXT_EPOCH:
        changed = {"epoch": state["epoch"] + 1, "yielded": 0, "begun": False, **_FROM_THE_START}
        changed["sampler_epoch"] = state["sampler_epoch"] + (state["sampler_epoch"] >= 0)
        changed["random_epoch"] = state["random_epoch"] + 1
        return {**state, **changed}, False
    if untrained > 0 and state["left"]:
        why_not = "with in_order=False it is not known which batch was not trained"
        return {**state, "not_resumable": state["not_resumable"] or why_not}, False
    return {**state, "yielded": max(state["yielded"] - untrained, 0)}, rest is Rest.NOTHING


def _from_its_start(state: State, strict: bool) -> State:
    """A state that cannot be resumed where it was saved, as one of the epoch's start."""
    what = (
        f"the state was saved after {state['yielded']} batches of an epoch, and cannot be resumed "
        f"there: {state['not_resumable']}"
    )
    _raise_or_warn(strict, what, "save between epochs", f"; epoch {state['epoch']} starts anew")
    return {**state, "yielded": 0, **_FROM_THE_START}


def _as_loader_resumes(loader: DataLoader[Any], state: State) -> State:
    """What cannot be resumed where it was saved can be here, or the other way round."""
    if not is_stream(loader.dataset) or state["yielded"] == 0:
        return state
    places, why_not = read_places(state), state["not_resumable"]
    if loader.num_workers > 0 and getattr(loader, "path", "auto") == "torch":
        why_not = _why_stream_not_resumable(loader, Places([]))
    elif places.sources and getattr(loader, "resume", None) == "skip":
        why_not = ""
    elif places.has_lost or not (places.sources or why_not):
        why_not = _why_stream_not_resumable(loader, places)
    return {**state, "not_resumable": why_not}


def _takes_states(loader: DataLoader[Any]) -> bool:
    """Whether its path's workers load states of the dataset, and send them."""
    path = getattr(loader, "path", "auto")
    return loader.num_workers == 0 or not (
        path == "torch" or (path == "thread" and loader.num_workers > 1)
    )


def _as_path_takes(loader: DataLoader[Any], state: State, strict: bool) -> State:
    """Of a map-style dataset the order is gone on with, at least."""
    if is_stream(loader.dataset) or _takes_states(loader) or not read_places(state).has_states:
        return state
    what = (
        f"the state has states of the dataset ({type(loader.dataset).__name__}), and "
        f"the {loader.num_workers} workers of path={getattr(loader, 'path', 'auto')!r} load none"
    )
    advice = "use path='process', or do not load it"
    _raise_or_warn(strict, what, advice, ": the dataset goes on as it is")
    return {**without_states(state), "_snapshot": {}}


def _check_places(loader: DataLoader[Any], state: State, strict: bool) -> None:
    """Another number of workers may yet be given to the loader before iter(), which raises then."""
    try:
        fit_places(loader, read_places(state))
    except WorkerCountError:
        if strict:
            raise


def load_state(loader: DataLoader[Any], position: Position, state: Any, strict: bool) -> None:
    state, is_spent = _as_caller_counts(_checked(state))
    state, fault = with_ranks_here(loader, state, _describe(loader))
    differences = [fault] if fault else _find_differences(loader, state)
    if differences:
        _start_anew(loader, position, state, differences, strict)
        return
    length = _batches(loader._index_sampler, state["sampler_epoch"])
    if length is not None and state["yielded"] > length:
        raise ValueError(f"state['yielded'] is {state['yielded']} of {length} batches")
    if length is not None and read_left(state["left"], state["yielded"]).first > length:
        raise ValueError(f"state['left'] is {state['left']!r} of {length} batches; {_UNCHANGED}")
    generators = {TORCHS: torch.default_generator, **find_generators(loader)}
    now = without_torchs(_decode_moments(generators, state))
    state = _as_loader_resumes(loader, _as_path_takes(loader, state, strict))
    if state["not_resumable"] and state["yielded"] > 0 and not is_spent:
        state = {**without_states(_from_its_start(state, strict)), **fresh_states(loader)}
    _check_places(loader, state, strict)
    if is_spent or not state["begun"]:
        for name, value in now.items():
            generators[name].set_state(value)
    if state["sampler_epoch"] >= 0:
        sampler_with_epoch(loader).set_epoch(state["sampler_epoch"])
    restore_set(epochs_within(loader.dataset), state["set_epochs"])
    position.load({**state, "not_resumable": ""}, is_spent)


def warn_of_end(loader: DataLoader[Any], position: Position) -> None:
    """Before iter(): without this warning a `for` loop would end silently, without a batch."""
    state = position.pending
    if state is None or position.is_spent or state["yielded"] == 0:
        return
    if state["yielded"] == _batches(loader._index_sampler, state["sampler_epoch"]):
        warnings.warn(
            f"the loaded state stands at the end of epoch {state['epoch']}: this iter() gives no "
            f"batch, the next one begins epoch {state['epoch'] + 1}",
            stacklevel=3,
        )
