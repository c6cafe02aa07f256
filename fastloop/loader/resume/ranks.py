"""A state on another number of ranks than saved it.

The ranks of an epoch share one order of its samples and take it from front to back. Other ranks go
on with it at any sample: ``fit_ranks`` notes in ``State.dealt`` what ranks before have had, and the
rest is dealt out anew. Nobody but its dataset can divide a stream, so the states of all ranks are
joined (``join_states``) and the dataset deals them out to the new ones (``read_state``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from fastloop.base.checks import make_message, refuse_if
from fastloop.data.samplers import (
    Dealt,
    LengthBucketBatchSampler,
    ShuffleSampler,
    distributed_order,
    read_ranks,
)
from fastloop.data.stateful import ReaderStates, fit_readers
from fastloop.loader.resume.state import TORCH, State, check_dict, describe, length_of, samplers_of

_RANKS = "sampler.num_replicas"
_OF_A_RANK = ("rank", "generators", "dataset_state", "fetcher_state", "_snapshot")


# ---- the rest of an order


def _count_passed(dealt: Dealt) -> int:
    return sum(ranks * size * batches for ranks, size, batches in dealt)


def _count_rest(sampler: Any, ranks: int, dealt: Dealt) -> int:
    """Return the rows of each rank."""
    is_ours = type(sampler) is ShuffleSampler
    rest = (sampler.length if is_ours else len(sampler.dataset)) - _count_passed(dealt)
    return rest // ranks if getattr(sampler, "drop_last", False) else -(-rest // ranks)


def blocks_after(sampler: Any, dealt: Dealt, first: int) -> Iterator[torch.Tensor]:
    """Yield the rows of a rank, without the first ones, after what ranks before have had. Padding
    is the beginning of the epoch's order, as torch's is."""
    passed = _count_passed(dealt)
    if type(sampler) is ShuffleSampler:
        yield from sampler.blocks(first, passed)
        return
    order, ranks = distributed_order(sampler), sampler.num_replicas
    rounds = torch.arange(first, max(_count_rest(sampler, ranks, dealt), first), device="cpu")
    yield order[(passed + sampler.rank + rounds * ranks) % len(order)]


def items_after(sampler: Any, dealt: Dealt, first: int) -> Iterator[Any]:
    """Return the items of a sampler as ``blocks_after`` does its rows."""
    if isinstance(sampler, LengthBucketBatchSampler):
        return sampler.iter_from(first, dealt)
    is_batched = type(sampler) is BatchSampler
    inner: Any = sampler.sampler if is_batched else sampler
    blocks = blocks_after(inner, dealt, first * (sampler.batch_size if is_batched else 1))
    rows = chain.from_iterable(block.tolist() for block in blocks)
    return iter(BatchSampler(rows, sampler.batch_size, sampler.drop_last)) if is_batched else rows


def _count(loader: DataLoader[Any], state: State, ranks: int, size: int) -> int:
    """Return the batches of one rank in an epoch, or in the rest that ranks before have left."""
    outer, inner = samplers_of(loader)
    if isinstance(outer, LengthBucketBatchSampler):
        return outer.as_with(ranks, size).length_of(state.sampler_epoch, state.dealt)
    is_batched = type(outer) is BatchSampler
    rows = _count_rest(inner if is_batched else outer, ranks, state.dealt)
    return rows // size if is_batched and outer.drop_last else -(-rows // size)


def count_batches(loader: DataLoader[Any], state: State) -> int | None:
    """Return the number of batches of an epoch, or of the rest that ranks before have left; None
    if the sampler has no length."""
    sampler = loader._index_sampler
    if isinstance(sampler, LengthBucketBatchSampler) and state.sampler_epoch >= 0:
        return sampler.length_of(state.sampler_epoch, state.dealt)
    return _count(loader, state, *_shape(describe(loader))) if state.dealt else length_of(sampler)


def _shape(facts: dict[str, str]) -> tuple[int, int]:
    """Return the number of ranks, and the samples in a batch; 0: as many as max_tokens takes."""
    return int(facts[_RANKS]), int(facts["batch_size"] or not facts["batch_sampler"])


def _is_same_order(loader: DataLoader[Any], there: dict[str, str], here: dict[str, str]) -> bool:
    """Tell whether the sampler is known here, and would be the saved one with as many ranks."""
    outer, inner = samplers_of(loader)
    sampler = inner if type(outer) is BatchSampler else outer
    length = here["sampler_length"]
    if type(sampler) in (DistributedSampler, ShuffleSampler):
        length = str(_count_rest(sampler, int(there[_RANKS]), ()))
    elif type(sampler) is not LengthBucketBatchSampler:
        return False
    same = ("sampler", "batch_sampler")
    return there["sampler_length"] == length and all(there[key] == here[key] for key in same)


def fit_ranks(loader: DataLoader[Any], state: State) -> State:
    """Return the state as the ranks of `loader` would have saved it, where it is of another number
    of ranks or another batch size. Other differences than in those are not looked at.

    The batches that all ranks have yielded are left out of the epoch's order, and each rank of R
    takes its share of the rest: places r, r + R, r + 2R and so on, or of each step of buckets.
    """
    there, here = state.fits, describe(loader)
    if not (there[_RANKS] and here[_RANKS] and _is_same_order(loader, there, here)):
        return state
    saved, wanted = _shape(there), _shape(here)
    if saved == wanted:
        return state
    following = ("batch_size", "batch_sampler_length", "sampler_length", _RANKS)
    fitted = replace(state, fits={**there, **{name: here[name] for name in following}})
    if state.yielded == 0:
        return fitted
    if state.not_resumable:
        return replace(fitted, yielded=1, dealt=[])
    if state.yielded != _count(loader, state, *saved):
        before, now = (ranks * size for ranks, size in (saved, wanted))
        outer, _ = samplers_of(loader)
        if not isinstance(outer, LengthBucketBatchSampler):
            are_steps = state.yielded * before % now == 0
        else:
            are_steps = outer.max_tokens is None and before == now
        if are_steps:  # those of these ranks, too
            return replace(fitted, yielded=state.yielded * before // now)
        fitted = replace(fitted, yielded=0, dealt=[*state.dealt, [*saved, state.yielded]])
        if _count(loader, fitted, *wanted) > 0:
            return fitted
    ended = replace(fitted, dealt=[])
    return replace(ended, yielded=_count(loader, ended, *wanted))


# ---- the states of all ranks


def join_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state for those of all ranks, as ``DataLoader.join_states``."""
    if not isinstance(states, list | tuple) or not states:
        raise ValueError(make_message("states", "a list of the states of all ranks", states))
    for i, state in enumerate(states):
        check_dict(f"states[{i}]", state)
    first = states[0]
    places = ("dataset_state", "fetcher_state")
    are_places = any(
        state["_snapshot"] or any(state.get(key) is not None for key in places) for state in states
    )
    faults = []
    if (count := first["fits"].get("ranks")) and int(count) != len(states):
        faults.append(f"fits.ranks is {count} in states, which are {len(states)}")
    for i, state in enumerate(states):
        if state["joined"]:
            faults.append(f"states[{i}] is a joined state itself")
        if are_places and state["rank"] != i:
            faults.append(f"states[{i}] is of rank {state['rank']}")
        for key in first.keys() - (_OF_A_RANK if are_places else ()) - {"joined"}:
            faults += _disagreements(key, first[key], state.get(key), i)
    refuse_if(faults, f"the states of ranks disagree: {'; '.join(sorted(faults))}")
    parts = [{key: state[key] for key in _OF_A_RANK if key in state} for state in states]
    return deepcopy({**first, "joined": parts if are_places else []})


def _disagreements(name: str, first: Any, other: Any, rank: int) -> list[str]:
    if first == other:
        return []
    if isinstance(first, dict) and isinstance(other, dict):
        found = (_disagreements(f"{name}.{k}", v, other.get(k), rank) for k, v in first.items())
        return list(chain.from_iterable(found))
    shown, others = (value if len(repr(value)) < 80 else "another" for value in (first, other))
    return [f"{name} is {shown!r} on rank 0 and {others!r} on rank {rank}"]


def read_state(saved: Any, loader: DataLoader[Any]) -> State:
    """Return the state in a dict, of a joined one the part of this rank.

    Raises: as ``State.from_dict``; WorkerCountError where the dataset cannot divide the parts.
    """
    state = State.from_dict(saved, loader)
    if not state.joined:
        return state
    for i, part in enumerate(state.joined):
        check_dict(f"state['joined'][{i}]", part, {"rank", "generators", "_snapshot"})
    parts = [State.from_dict({**saved, **part, "joined": []}, loader) for part in state.joined]
    world, rank = read_ranks()
    if len(parts) == world:
        return parts[rank]
    readers = [reader for part in parts for reader in part.readers.readers]
    state = replace(parts[0], rank=rank, fits={**state.fits, "ranks": describe(loader)["ranks"]})
    state.readers = fit_readers(loader, ReaderStates(readers, ranks=len(parts)), world, rank)
    state.generators["now"].pop(TORCH, None)  # that of one rank
    return state
