"""A state on a number of ranks that differs from the number that saved it.

The ranks of an epoch share one order of its samples and take the samples from front to back. New
ranks can continue this order at any sample: ``fit_ranks`` notes in ``LoaderState.dealt`` what
earlier ranks have had, and the rest is dealt out anew. Only its dataset can divide a stream, so the
states of all ranks are joined (``saving.join_states``), and the dataset deals them out to the new
ranks (``read_state``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from fastloop.base.checks import look_up, make_message
from fastloop.data.columns import epochs_within
from fastloop.data.epochs import IteratorEpochs
from fastloop.data.samplers import ORDERS, RankedBatchSampler, is_planned, read_ranks
from fastloop.data.stateful import ReaderStates, fit_readers
from fastloop.loader.resume.epoch import TORCH, LoaderState, count_passed, count_rest, samplers_of
from fastloop.loader.resume.state import check_dict, describe, from_dict, length_of

_T = TypeVar("_T")
_RANKS = "sampler.num_replicas"


def _call(loader: DataLoader[Any], state: LoaderState, count: Callable[[], _T]) -> _T:
    """Call a function that counts batches in the epoch of the state, for datasets whose length
    differs between epochs."""
    differs = look_up(loader.dataset, "_own_order")
    epochs = IteratorEpochs(epochs_within(loader.dataset) if differs else ())
    epochs.enter(state.set_epochs or [None] * len(epochs.epochs), state.random_epoch)
    return epochs.call(count)


def _count(loader: DataLoader[Any], state: LoaderState, ranks: int, size: int) -> int:
    """Return the batches of one rank in an epoch, or in the rest that earlier ranks have left."""
    outer, inner = samplers_of(loader)
    if isinstance(outer, RankedBatchSampler):
        made, number = outer.as_with(ranks, size), state.sampler_epoch
        return _call(loader, state, lambda: made.length_of(number, state.dealt))
    is_batched = type(outer) is BatchSampler
    sampler = inner if is_batched else outer
    rows = _call(loader, state, lambda: count_rest(sampler, ranks, state.dealt))
    return rows // size if is_batched and outer.drop_last else -(-rows // size)


def count_batches(loader: DataLoader[Any], state: LoaderState) -> int | None:
    """Return the number of batches of an epoch, or of the rest that earlier ranks have left; None
    if the sampler has no length."""
    sampler = loader._index_sampler
    if isinstance(sampler, RankedBatchSampler) and state.sampler_epoch >= 0:
        number = state.sampler_epoch
        return _call(loader, state, lambda: sampler.length_of(number, state.dealt))
    if state.dealt:
        return _count(loader, state, *_shape(describe(loader)))
    return _call(loader, state, lambda: length_of(sampler))


def _has_batch(loader: DataLoader[Any], state: LoaderState, ranks: int, size: int) -> bool:
    """Tell whether batches follow those that were yielded, on so many ranks."""
    outer, number = loader._index_sampler, state.sampler_epoch
    if not isinstance(outer, RankedBatchSampler):
        return state.yielded < _count(loader, state, ranks, size)
    made, dealt = outer.as_with(ranks, size), state.dealt
    return _call(loader, state, lambda: made.has_batch(state.yielded, number, dealt))


def is_at_end(loader: DataLoader[Any], state: LoaderState) -> bool:
    """Tell whether all batches of the epoch were yielded; False if the sampler has no length.

    Raises: ValueError: the state counts more batches than there are."""
    if isinstance(loader._index_sampler, RankedBatchSampler) and state.sampler_epoch >= 0:
        return not _has_batch(loader, state, *_shape(describe(loader)))
    length = count_batches(loader, state)
    if length is not None and state.yielded > length:
        rule, remedy = f"an int in [0, {length}]", "pass the state of a loader with as many batches"
        raise ValueError(make_message("state['yielded']", rule, state.yielded, remedy))
    return state.yielded == length


def count_had(loader: DataLoader[Any], state: LoaderState) -> int | None:
    """Return the batches of the whole epoch, less those that are left."""
    whole, left = (count_batches(loader, each) for each in (state.but(dealt=[]), state))
    return None if whole is None or left is None else whole - left + state.yielded


def shorten(loader: DataLoader[Any], state: LoaderState) -> LoaderState:
    """Return the state from which the next batch is found in the least time."""
    (outer, inner), number, dealt = samplers_of(loader), state.sampler_epoch, state.dealt
    if isinstance(outer, RankedBatchSampler):
        dealt = _call(loader, state, lambda: outer.shorten(state.dealt, number, state.yielded))
        row = dealt[0][0] if dealt else 0
    else:
        size, ranks = look_up(outer, "batch_size") or 1, look_up(inner, "num_replicas", 1)
        row = count_passed(dealt) + state.yielded * size * ranks
    state = state.but(dealt=dealt)
    if (find := look_up(loader.dataset, "_place_of")) is None:
        return state
    # With a sampler of an unknown order, rows before `row` may follow: these take longer to find.
    return state.but(place=_call(loader, state, lambda: find(row)))


def take_place(loader: DataLoader[Any], state: LoaderState) -> None:
    """Tell the dataset where the state stands in it."""
    if state.place and (take := look_up(loader.dataset, "_take_place")) is not None:
        _call(loader, state, lambda: take(state.place))


def _shape(facts: dict[str, str]) -> tuple[int, int]:
    """Return the number of ranks, and the samples in a batch (0 if max_tokens limits batches) or a
    CostBatchSampler's ``accumulate``."""
    return int(facts[_RANKS]), int(facts["batch_size"] or not facts["batch_sampler"])


def _is_same_order(loader: DataLoader[Any], there: dict[str, str], here: dict[str, str]) -> bool:
    """Tell whether fastloop knows the sampler, and its order is the saved one's on any ranks."""
    outer, inner = samplers_of(loader)
    sampler = inner if type(outer) is BatchSampler else outer
    length = here["sampler_length"]
    deals_rows = type(sampler) in (DistributedSampler, *ORDERS)
    if not deals_rows and not is_planned(sampler):
        return False
    if deals_rows and length:  # else the length differs between epochs
        length = str(count_rest(sampler, int(there[_RANKS]), ()))
    same = ("sampler", "batch_sampler")
    return there["sampler_length"] == length and all(there[key] == here[key] for key in same)


def _add_to(dealt: list[list[int]], shape: tuple[int, int], batches: int) -> list[list[int]]:
    """Return what has been dealt, if ranks of this shape have had so many batches as well."""
    if dealt and len(dealt[0]) == 2:  # batches before a window do not count for the window
        (begin, before), *rest = dealt
        dealt, batches = [[begin, 0], *rest], batches - before
    return [*dealt, [*shape, batches]] if batches > 0 else dealt


def fit_ranks(loader: DataLoader[Any], state: LoaderState) -> LoaderState:
    """Return the state as the ranks of `loader` would have saved it, if the number of ranks or the
    batch size differs. Other differences are not examined here.

    The batches that all ranks have yielded are left out of the epoch's order, and each rank of R
    takes its share of the rest: rows r, r + R, r + 2R and so on. With buckets each rank takes its
    batch of every step.
    """
    there, here = state.fits, describe(loader)
    if not (there[_RANKS] and here[_RANKS] and _is_same_order(loader, there, here)):
        return state
    saved, wanted = _shape(there), _shape(here)
    if saved == wanted:
        return state
    following = ("batch_size", "batch_sampler_length", "sampler_length", _RANKS)
    fitted = state.but(fits={**there, **{name: here[name] for name in following}})
    if state.yielded == 0:
        return fitted
    if state.not_resumable:
        return fitted.but(yielded=1, dealt=[])
    if _has_batch(loader, state, *saved):
        before, now = (ranks * size for ranks, size in (saved, wanted))
        outer, _ = samplers_of(loader)
        if not isinstance(outer, RankedBatchSampler):
            are_steps = state.yielded * before % now == 0
        else:
            are_steps = outer.max_tokens is None and before == now
        if are_steps:  # the samples yielded are whole steps of the new ranks as well
            return fitted.but(yielded=state.yielded * before // now)
        fitted = fitted.but(yielded=0, dealt=_add_to(state.dealt, saved, state.yielded))
        if _has_batch(loader, fitted, *wanted):
            return fitted
    ended = fitted.but(dealt=[])
    return ended.but(yielded=_count(loader, ended, *wanted))


def read_state(saved: Any, loader: DataLoader[Any]) -> LoaderState:
    """Return the state in a dict. If the state is joined, return the part of this rank.

    Raises: the errors of ``state.from_dict``; WorkerCountError if the dataset cannot divide the
        parts.
    """
    state = from_dict(saved, loader)
    if not state.joined:
        return state
    for i, part in enumerate(state.joined):
        check_dict(f"state['joined'][{i}]", part, {"rank", "generators", "_snapshot"})
    parts = [from_dict({**saved, **part, "joined": []}, loader) for part in state.joined]
    world, rank = read_ranks()
    if len(parts) == world:
        return parts[rank]
    readers = [reader for part in parts for reader in part.readers.readers]
    state = parts[0].but(rank=rank, fits={**state.fits, "ranks": describe(loader)["ranks"]})
    state.readers = fit_readers(loader, ReaderStates(readers, ranks=len(parts)), world, rank)
    state.generators["now"].pop(TORCH, None)  # a generator of a single rank
    return state
