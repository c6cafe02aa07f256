"""A ``LoaderState`` as the dict of ``state_dict()``: the dict is written, checked and compared with
the loader that loads the state.

The dict holds numbers, strings, lists and dicts only. Its keys and types are the same for every
loader at all times, because torch.distributed.checkpoint loads into an existing state. The size
of the dict depends on the number of generators alone: each generator's state takes about 10 KB of
hex digits. The part about the dataset has torchdata's format and contains the user's objects.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from fastloop.base.checks import check_state, look_up, make_message, read_optional_int
from fastloop.data.epochs import EPOCHS
from fastloop.data.samplers import RankedBatchSampler, read_ranks
from fastloop.data.stateful import (
    ReaderState,
    ReaderStates,
    has_cursor,
    is_stream,
    new_reader_state,
)
from fastloop.loader.resume.epoch import (
    GENERATORS,
    TORCH,
    VERSION,
    LoaderState,
    generators_of,
    sampler_with_epoch,
    samplers_of,
)

MOMENTS = ("now", "iter", "next")  # at saving, before iter(sampler), before its first item

_SETTINGS = ("replacement", "shuffle", "num_replicas", "seed", "drop_last", "block", "open_blocks")
_REMEDY = "pass what state_dict() of a fastloop.DataLoader returned, unchanged"
_BATCHING = (BatchSampler, RankedBatchSampler)
_SNAPSHOT = {"_worker_snapshots": {}, "_last_yielded_worker_id": -1, "_base_seed": -1}


# ---- the dict


def to_dict(state: LoaderState) -> dict[str, Any]:
    """Return the dict of ``state_dict()``, which shares no object with this state."""
    readers = _write_readers(state.readers)
    found = {**vars(state), **(deepcopy(readers) if state.readers.readers else readers)}
    del found["readers"], found["is_spent"]
    for name in ("fits", "set_epochs", "joined"):
        found[name] = found[name].copy()  # joined states have parts only inside a dict
    found["dealt"], found["place"] = [list(before) for before in state.dealt], [*state.place]
    found["generators"] = {}
    for moment in MOMENTS:
        states = state.generators.get(moment, {})
        texts = {name: each.numpy().tobytes().hex() for name, each in states.items()}
        found["generators"][moment] = dict.fromkeys(GENERATORS, "") | texts
    return found


def from_dict(saved: Any, loader: DataLoader[Any]) -> LoaderState:
    """Return the state in a dict of ``to_dict()``. Foreign keys, as accelerate's, are ignored.

    Args:
        loader: each state of a generator is tried on a new generator of the same device.

    Raises:
        TypeError: the dict, or a part of the dict, has the wrong type.
        ValueError: the dict was not made by ``to_dict()``, or is damaged.
    """
    like = to_dict(LoaderState(fits=describe(loader)))
    like = {name: part for name, part in like.items() if part is not None}
    if isinstance(saved, dict):  # earlier states have no place
        saved = {"place": [], **saved}
    _check("state", saved, like)
    if saved["version"] != VERSION:
        _refuse("state['version']", str(VERSION), saved["version"])
    if saved["yielded"] > 0 and not saved["begun"]:
        _refuse("state['yielded']", "0 if no epoch has begun", saved["yielded"])
    for number in saved["set_epochs"]:
        read_optional_int("state['set_epochs']: each", number, 0, EPOCHS - 1, _REMEDY)
    for i, before in enumerate(saved["dealt"]):
        are_ints = isinstance(before, list) and all(type(count) is int for count in before)
        is_triple = are_ints and len(before) == 3 and max(before) < 2**31
        is_begin = are_ints and len(before) == 2 and i == 0 and min(before) >= 0
        if is_begin and getattr(loader._index_sampler, "has_windows", False):
            continue
        if not is_triple or min(before[0], before[1] + 1, before[2]) < 1:
            _refuse("state['dealt']: each", "[ranks, batch_size, batches]", before)
    are_numbers = all(type(number) is int and 0 <= number < 2**62 for number in saved["place"])
    if not are_numbers or len(saved["place"]) not in (0, 4):
        _refuse("state['place']", "of 4 numbers, or empty", saved["place"])
    own = {name: deepcopy(saved[name]) for name in like.keys() - {"_snapshot"}}
    state = LoaderState(**own, readers=deepcopy(_read_readers(saved)))
    if saved["generators"].keys() != set(MOMENTS):
        _refuse("state['generators']", f"about {MOMENTS}", [*saved["generators"]])
    generators = {TORCH: torch.default_generator, **generators_of(loader)}
    state.generators = {
        moment: {name: _decode(name, text, generators) for name, text in texts.items() if text}
        for moment, texts in saved["generators"].items()
    }
    return state


def check_dict(name: str, saved: Any, keys: Container[str] | None = None) -> None:
    """Refuse a value that lacks a key of a state, or has a key with a value of the wrong type.

    Args: keys: the keys that the value must have; None: all keys.
    """
    like = {key: part for key, part in to_dict(LoaderState()).items() if part is not None}
    _check(name, saved, {key: like[key] for key in like if keys is None or key in keys})


def _refuse(name: str, rule: str, value: Any) -> None:
    raise ValueError(make_message(name, rule, value, _REMEDY))


def _check(name: str, value: Any, like: Any) -> None:
    check_state(name, value, like, _REMEDY)


def _decode(name: str, text: str, generators: dict[str, torch.Generator]) -> torch.Tensor:
    try:
        state = torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
        if name in generators:  # else find_differences() reports that the generator is absent
            torch.Generator(device=generators[name].device).set_state(state)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"the state of generator {name!r} cannot be read: {error}; {_REMEDY}"
        raise ValueError(message) from error
    return state


def _write_readers(states: ReaderStates) -> dict[str, Any]:
    """Return the keys of a loader's state that are StatefulDataLoader's. Without workers the first
    two keys hold the dataset's position. With workers only the last key is there and holds it."""
    if states.workers == 0:
        reader = states.readers[0] if states.readers else new_reader_state(False)
        return {**reader, "_snapshot": {}}
    workers = {f"worker_{i}": {"worker_id": i, **state} for i, state in enumerate(states.readers)}
    values = (workers, states.last_worker, states.base_seed)
    return {"_snapshot": dict(zip(_SNAPSHOT, values, strict=True)) if workers else {}}


def _read_readers(saved: Mapping[str, Any]) -> ReaderStates:
    snapshot = saved["_snapshot"]
    if not snapshot:
        has_reader = new_reader_state(is_stream=True).keys() & saved.keys()
        reader = _read_reader("state", saved) if has_reader else {}
        return ReaderStates([reader] if any(part is not None for part in reader.values()) else [])
    _check("state['_snapshot']", snapshot, _SNAPSHOT)
    workers, last, seed = (snapshot[name] for name in _SNAPSHOT)
    names = [f"worker_{i}" for i in range(len(workers))]
    if not workers or workers.keys() != set(names) or last >= len(workers):
        found = {**snapshot, "_worker_snapshots": sorted(workers)}
        _refuse("state['_snapshot']", "about all workers", found)
    readers = [_read_reader(f"state of {name}", workers[name]) for name in names]
    return ReaderStates(readers, len(workers), last, seed)


def _read_reader(name: str, saved: Any) -> ReaderState:
    like = new_reader_state(is_stream=True)
    _check(name, saved, dict.fromkeys(like))
    if saved["fetcher_state"] is not None:
        _check(f"{name}['fetcher_state']", saved["fetcher_state"], like["fetcher_state"])
    return {key: saved[key] for key in like}


# ---- facts about a loader


def length_of(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # the user's __len__ may raise anything, and saving must not raise
        return None


def describe(loader: DataLoader[Any]) -> dict[str, str]:
    """Return the facts that must be the same in a loader that resumes; "": the fact is absent."""
    outer, inner = samplers_of(loader)
    is_batched = loader._auto_collation or isinstance(outer, _BATCHING)  # also for batch_size=None
    batches, items = (outer, inner) if is_batched else (None, outer)
    lengths = look_up(loader.dataset, "_source_lengths")  # a MixtureDataset's
    differs = bool(look_up(loader.dataset, "_own_order"))  # the length, between epochs
    facts: dict[str, Any] = {"dataset_length": lengths or length_of(loader.dataset)}
    facts.update({name: look_up(batches, name) for name in ("batch_size", "drop_last")})
    if isinstance(outer, RankedBatchSampler):
        facts["batch_size"] = look_up(outer, "accumulate", facts["batch_size"])
    for name, sampler in (("batch_sampler", batches), ("sampler", items)):
        facts[name] = None if sampler is None else type(sampler).__name__
        # The length of a RankedBatchSampler may differ from epoch to epoch.
        made = look_up(sampler, "fingerprint")
        facts[f"{name}_length"] = made or (None if differs else length_of(sampler))
    facts.update({f"sampler.{name}": look_up(items, name) for name in _SETTINGS})
    has_own = is_stream(loader.dataset) or has_cursor(loader.dataset)
    facts["ranks"] = read_ranks()[0] if has_own else None
    return {n: str(fact) if type(fact) in (bool, int, str) else "" for n, fact in facts.items()}


def find_differences(loader: DataLoader[Any], state: LoaderState) -> list[str]:
    """Return why `state` was not saved by a loader like this one; [] if it may have been."""
    here = describe(loader)

    def differ(name: str, there: object, here: object) -> str:
        text = f"{name} is {there or 'absent'} in the state and {here or 'absent'} here"
        return text + " (load DataLoader.join_states() of all ranks)" * (name == "ranks")

    if state.readers.has_states and not has_cursor(loader.dataset):
        name = type(loader.dataset).__name__
        return [f"the state has states of a dataset, and {name} has no load_state_dict()"]
    found = [differ(n, state.fits[n], here[n]) for n in here if state.fits[n] != here[n]]
    has_epoch = sampler_with_epoch(loader) is not None
    if has_epoch != (state.sampler_epoch >= 0):
        found.append(f"the sampler has an epoch {'here' if has_epoch else 'in the state'} only")
    moments = ("iter", "next") if state.begun else ("now",)
    saved = {name for moment in moments for name in state.generators.get(moment, {})}
    given = set(generators_of(loader))
    if state.yielded == 0:  # nothing has been drawn from torch's generator yet
        saved, given = saved - {TORCH}, given - {TORCH}
    if saved != given:
        found.append(differ("generator", *(", ".join(sorted(names)) for names in (saved, given))))
    return found
