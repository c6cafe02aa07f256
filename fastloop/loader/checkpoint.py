"""The dict that says where a loader stands: how it is made, checked, and loaded.

It holds numbers, strings and dicts only. Its keys and types are the same for every loader at all
times, because torch.distributed.checkpoint loads into a state that is there. Its size depends on
the number of generators alone: the state of each takes about 10 KB of hex digits.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastloop.base.schema import Schema
from fastloop.data.samplers import LengthBucketBatchSampler
from fastloop.loader.dataset_epochs import (
    epochs_within,
    is_set_by_user,
    restore_set,
    set_by_user,
)
from fastloop.loader.epoch import (
    GENERATORS,
    TORCHS,
    Epoch,
    Generators,
    Position,
    State,
    find_generators,
    from_hex,
    read_states,
    sampler_with_epoch,
    samplers_of,
    with_random_epoch,
    without_torchs,
)
from fastloop.loader.lightning_resume import Rest, rest_for_caller

VERSION = 3

_UNCHANGED = "pass what state_dict() of a fastloop.DataLoader returned, unchanged"
_FIELDS = {
    "version": int,
    "epoch": int,
    "yielded": int,
    "begun": bool,
    "draws_base_seed": bool,
    "not_resumable": str,  # why the epoch cannot go on in the middle; "": it can
    "sampler_epoch": int,  # -1: the sampler has none
    "random_epoch": int,  # of datasets' random numbers; of an epoch to come the lowest it may have
    "set_epochs": str,  # what set_epoch() has told each dataset, in place of it
    "fits": dict,
    "generators": dict,
}
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


def _why_not_resumable(loader: DataLoader[Any], epoch: Epoch, yielded: int) -> str:
    if isinstance(loader.dataset, IterableDataset):
        return f"only the dataset ({type(loader.dataset).__name__}) knows where it stands"
    size = getattr(epoch.sampler, "batch_size", None)
    if size != epoch.batch_size:
        return (
            f"batch_size was changed from {epoch.batch_size} to {size} in the middle of the "
            "epoch, so the number of batches does not say which samples came"
        )
    is_ordered = loader.in_order or loader.num_workers <= 1
    if not is_ordered and yielded != _batches(epoch.sampler, epoch.sampler_epoch):
        return "with in_order=False the number of batches does not say which came"
    return ""


def _as_hex(states: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {
        name: states[name].numpy().tobytes().hex() if name in states else "" for name in GENERATORS
    }


def save_state(loader: DataLoader[Any], position: Position) -> State:
    if position.pending is not None:
        return deepcopy(position.pending)
    now = read_states(without_torchs(find_generators(loader)))
    sampler = sampler_with_epoch(loader)
    sampler_epoch = None if sampler is None else sampler.epoch
    number, yielded, why_not = position.number, 0, ""
    random_epoch = position.random_epoch
    set_epochs = set_by_user(epochs_within(loader.dataset))
    at_iter: dict[str, torch.Tensor] = {}
    at_next: dict[str, torch.Tensor] = {}
    epoch = position.current
    is_begun = epoch is not None and not epoch.is_over
    if epoch is not None and is_begun:
        number, yielded, sampler_epoch = epoch.number, epoch.count(), epoch.sampler_epoch
        random_epoch, set_epochs = epoch.random_epoch, epoch.set_epochs
        if yielded > 0:
            why_not = _why_not_resumable(loader, epoch, yielded)
        at_iter, at_next = epoch.at_iter, {**now, **epoch.at_next}
    return {
        "version": VERSION,
        "epoch": number,
        "yielded": yielded,
        "begun": is_begun,
        "draws_base_seed": loader._iterator is None,
        "not_resumable": why_not,
        "sampler_epoch": -1 if sampler_epoch is None else sampler_epoch,
        "random_epoch": random_epoch,
        "set_epochs": set_epochs,
        "fits": _describe(loader),
        "generators": {"now": _as_hex(now), "iter": _as_hex(at_iter), "next": _as_hex(at_next)},
    }


# ---- loading


def _upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """A state of version 1, which left out what a loader does not have, as one of version 2."""
    fits, moments = state.get("fits"), state.get("generators")
    changed: dict[str, Any] = {"version": 2, "not_resumable": ""}
    changed["sampler_epoch"] = state.get("sampler_epoch", -1)
    if isinstance(fits, dict):
        changed["fits"] = {name: _text(fits.get(name)) for name in _FACTS}
    if isinstance(moments, dict):
        given = {moment: moments.get(moment, {}) for moment in _MOMENTS}
        changed["generators"] = {
            moment: {**dict.fromkeys(GENERATORS, ""), **texts} if isinstance(texts, dict) else texts
            for moment, texts in given.items()
        }
    return {**state, **changed}


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
    version = state.get("version")
    if version == 1:
        state = _upgraded(state)
    if version in (1, 2):
        state = with_random_epoch({**state, "version": VERSION})
    elif version != VERSION:
        raise ValueError(
            f"state['version'] is {version!r}, and this version of fastloop reads {VERSION} and "
            f"before; {_UNCHANGED}"
        )
    _check_parts(_SCHEMA.check(state, "state"))
    return {key: deepcopy(state[key]) for key in _FIELDS}


def _find_differences(loader: DataLoader[Any], state: State) -> list[str]:
    def differs(name: str, there: object, here: object) -> str:
        return f"{name} is {there or 'absent'} in the state and {here or 'absent'} here"

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


def _start_anew(loader: DataLoader[Any], position: Position, state: State, what: str) -> None:
    warnings.warn(
        f"{what}: epoch {state['epoch']} starts anew, in a new order; load_state_dict(state, "
        "strict=True) makes this an error",
        stacklevel=4,
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
        changed = {"epoch": state["epoch"] + 1, "yielded": 0, "begun": False, "not_resumable": ""}
        changed["sampler_epoch"] = state["sampler_epoch"] + (state["sampler_epoch"] >= 0)
        changed["random_epoch"] = state["random_epoch"] + 1
        return {**state, **changed}, False
    return {**state, "yielded": max(state["yielded"] - untrained, 0)}, rest is Rest.NOTHING


def _from_its_start(state: State, strict: bool) -> State:
    """A state that cannot be resumed where it was saved, as one of the epoch's start."""
    what = (
        f"the state was saved after {state['yielded']} batches of an epoch, and cannot be resumed "
        f"there: {state['not_resumable']}"
    )
    if strict:
        raise ValueError(f"{what}; save between epochs")
    warnings.warn(f"{what}; epoch {state['epoch']} starts anew", stacklevel=4)
    return {**state, "yielded": 0, "not_resumable": ""}


def load_state(loader: DataLoader[Any], position: Position, state: Any, strict: bool) -> None:
    state, is_spent = _as_caller_counts(_checked(state))
    differences = _find_differences(loader, state)
    if differences:
        what = f"the state does not fit this loader: {'; '.join(differences)}"
        if strict:
            raise ValueError(
                f"{what}; make the loader as it was when the state was saved, or do not load it "
                "and begin an epoch afresh"
            )
        _start_anew(loader, position, state, what)
        return
    length = _batches(loader._index_sampler, state["sampler_epoch"])
    if length is not None and state["yielded"] > length:
        raise ValueError(f"state['yielded'] is {state['yielded']} of {length} batches")
    generators = find_generators(loader)
    now = _decode_moments(generators, state)
    if state["not_resumable"] and state["yielded"] > 0 and not is_spent:
        state = _from_its_start(state, strict)
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
