"""The dict that says where a loader stands: made, checked against a loader, and taken over.

It holds numbers, strings and dicts only, and its size depends on nothing but the number of
generators: their states are its bulk, about 10 KB of hex digits each.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastloop._resume import (
    TORCHS,
    Epoch,
    Generators,
    Position,
    State,
    explicit,
    find_generators,
    from_hex,
    read_states,
    sampler_with_epoch,
    samplers_of,
)

VERSION = 1

_KINDS = {
    "version": int,
    "epoch": int,
    "yielded": int,
    "begun": bool,
    "draws_base_seed": bool,
    "fits": dict,
    "generators": dict,
}
_UNCHANGED = "pass what state_dict() of a fastloop.DataLoader returned, unchanged"


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _describe(loader: DataLoader[Any]) -> dict[str, Any]:
    """What must be the same in the loader that resumes."""
    outer, inner = samplers_of(loader)
    facts: dict[str, Any] = {"dataset_length": _length(loader.dataset)}
    if loader._auto_collation:
        facts["batch_sampler"] = type(outer).__name__
        facts["batch_sampler_length"] = _length(outer)
        facts["batch_size"] = getattr(outer, "batch_size", None)
        facts["drop_last"] = getattr(outer, "drop_last", None)
    sampler = inner if loader._auto_collation else outer
    if sampler is not None:
        facts["sampler"] = type(sampler).__name__
        facts["sampler_length"] = _length(sampler)
        for name in ("replacement", "shuffle", "num_replicas", "seed", "drop_last"):
            facts[f"sampler.{name}"] = getattr(sampler, name, None)
    return {name: fact for name, fact in facts.items() if type(fact) in (bool, int, str)}


def _check_map_style(loader: DataLoader[Any], method: str) -> None:
    if isinstance(loader.dataset, IterableDataset):
        raise NotImplementedError(
            f"{method}() of a loader over an IterableDataset ({type(loader.dataset).__name__}): "
            "only the dataset knows where it stands; save a state of the dataset's own, or use "
            "torchdata's StatefulDataLoader"
        )


# ---- saving


def _check_countable(loader: DataLoader[Any], epoch: Epoch) -> None:
    if not loader.in_order and loader.num_workers > 1:
        raise RuntimeError(
            "state_dict() in the middle of an epoch with in_order=False: batches come in any "
            "order, so their number does not say which came; pass in_order=True, or save "
            "between epochs"
        )
    size = getattr(epoch.sampler, "batch_size", None)
    if size != epoch.batch_size:
        raise RuntimeError(
            f"batch_size was changed from {epoch.batch_size} to {size} in the middle of the "
            "epoch, so the number of batches does not say which samples came; save between epochs"
        )


def _as_hex(states: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def save_state(loader: DataLoader[Any], position: Position) -> State:
    _check_map_style(loader, "state_dict")
    if position.pending is not None:
        return deepcopy(position.pending)
    now = _as_hex(read_states(explicit(find_generators(loader))))
    state: State = {
        "version": VERSION,
        "epoch": position.number,
        "yielded": 0,
        "begun": False,
        "draws_base_seed": loader._iterator is None,
        "fits": _describe(loader),
        "generators": {"now": now},
    }
    sampler = sampler_with_epoch(loader)
    sampler_epoch = None if sampler is None else sampler.epoch
    epoch = position.current
    if epoch is not None and not epoch.is_over:
        state |= {"epoch": epoch.number, "yielded": epoch.count(), "begun": True}
        if state["yielded"] > 0:
            _check_countable(loader, epoch)
        state["generators"] = {
            "iter": _as_hex(epoch.at_iter),
            "next": {**now, **_as_hex(epoch.at_next)},
        }
        sampler_epoch = epoch.sampler_epoch
    if sampler_epoch is not None:
        state["sampler_epoch"] = sampler_epoch
    return state


# ---- loading


def _check_kinds(state: object) -> None:
    if not isinstance(state, dict):
        raise TypeError(f"state is a {type(state).__name__}, not a dict; {_UNCHANGED}")
    version = state.get("version")
    if version != VERSION:
        raise ValueError(
            f"state['version'] is {version!r}, and this version of fastloop reads {VERSION}; "
            f"{_UNCHANGED}"
        )
    kinds = {**_KINDS, **({"sampler_epoch": int} if "sampler_epoch" in state else {})}
    for key, kind in kinds.items():
        if key not in state:
            raise ValueError(f"state has no {key!r}; {_UNCHANGED}")
        if type(state[key]) is not kind:
            raise TypeError(f"state[{key!r}] is {state[key]!r}, not {kind.__name__}; {_UNCHANGED}")
        if kind is int and state[key] < 0:
            raise ValueError(f"state[{key!r}] is {state[key]}, but cannot be negative")
    if state["yielded"] > 0 and not state["begun"]:
        raise ValueError(f"state yields {state['yielded']} batches of no epoch; {_UNCHANGED}")


def _check_fit(loader: DataLoader[Any], state: State) -> None:
    there, here = state["fits"], _describe(loader)
    differences = [
        f"{name} is {there.get(name, 'absent')!r} in the state and "
        f"{here.get(name, 'absent')!r} here"
        for name in {**there, **here}
        if there.get(name) != here.get(name)
    ]
    has_epoch = sampler_with_epoch(loader) is not None
    if has_epoch != ("sampler_epoch" in state):
        differences.append(f"the sampler has {'an' if has_epoch else 'no'} epoch here only")
    if differences:
        raise ValueError(
            f"the state does not fit this loader: {'; '.join(differences)}; make the loader as it "
            "was when the state was saved, or do not load it and begin an epoch afresh"
        )
    length = _length(loader._index_sampler)
    if length is not None and state["yielded"] > length:
        raise ValueError(f"state['yielded'] is {state['yielded']} of {length} batches")


def _decode(generators: Generators, name: str, text: Any) -> torch.Tensor:
    try:
        state = from_hex({name: text})[name]
        torch.Generator(device=generators[name].device).set_state(state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"the state of generator {name!r} cannot be read: {error}; {_UNCHANGED}"
        ) from error
    return state


def _check_generators(loader: DataLoader[Any], state: State) -> dict[str, torch.Tensor]:
    """The states to be set at once: those of generators an epoch has not begun with."""
    generators, moments = find_generators(loader), state["generators"]
    wanted = {"iter", "next"} if state["begun"] else {"now"}
    if set(moments) != wanted:
        raise ValueError(
            f"state['generators'] has {sorted(moments)}, not {sorted(wanted)}; {_UNCHANGED}"
        )
    for moment, texts in moments.items():
        if not isinstance(texts, dict):
            raise TypeError(f"state['generators'][{moment!r}] is not a dict; {_UNCHANGED}")
    there = set().union(*moments.values())
    is_drawn_from = state["begun"] and state["yielded"] > 0
    here = set(generators if is_drawn_from else explicit(generators))
    if there - {TORCHS} != here - {TORCHS} or (is_drawn_from and there != here):
        raise ValueError(
            f"the state was saved with the generators {sorted(there)}, and this loader draws from "
            f"{sorted(here)}; pass generator= (to the loader, to its sampler) as it was then"
        )
    decoded = {
        moment: {name: _decode(generators, name, text) for name, text in texts.items()}
        for moment, texts in moments.items()
    }
    return decoded.get("now", {})


def load_state(loader: DataLoader[Any], position: Position, state: Any) -> None:
    _check_map_style(loader, "load_state_dict")
    _check_kinds(state)
    _check_fit(loader, state)
    now = _check_generators(loader, state)
    generators = find_generators(loader)
    for name, value in now.items():
        generators[name].set_state(value)
    if "sampler_epoch" in state:
        sampler_with_epoch(loader).set_epoch(state["sampler_epoch"])
    position.pending = deepcopy(state)
