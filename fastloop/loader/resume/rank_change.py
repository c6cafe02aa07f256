"""A loader's state that was saved with another number of ranks than the loader that loads it has.

The samplers known here share an epoch's order out in turns: rank r of R takes its places r, r + R,
r + 2R and so on. What all ranks have yielded is then the beginning of that order, and any number
of ranks can go on behind it, where it is a whole number of their batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from fastloop.data.samplers import LengthBucketBatchSampler, ShuffleSampler
from fastloop.loader.resume.epoch import State, samplers_of

# What follows from the number of ranks and may differ with it.
_FOLLOWING = ("batch_size", "batch_sampler_length", "sampler_length", "sampler.num_replicas")


def with_ranks_here(
    loader: DataLoader[Any], state: State, here: Mapping[str, str]
) -> tuple[State, str]:
    """The state as this loader's ranks would have saved it, and "". Where they cannot go on in the
    middle of the epoch: the state as it is, and why. Anything else than ranks is not looked at.

    Args:
        here: what the loader is, as `state["fits"]` says it of the loader that saved.
    """
    there = state["fits"]
    ranks = there["sampler.num_replicas"]
    if not ranks or not here["sampler.num_replicas"] or ranks == here["sampler.num_replicas"]:
        return state, ""
    outer, inner = samplers_of(loader)
    changed = {**state, "fits": {**there, **{name: here[name] for name in _FOLLOWING}}}
    if type(outer) is LengthBucketBatchSampler:
        if there["sampler_length"] != here["sampler_length"]:
            return state, ""
        is_same = outer.max_tokens is None and _whole_batch(there) == _whole_batch(here)
        return (changed, "") if is_same or state["yielded"] == 0 else (state, _fault(state, here))
    if type(outer) is not BatchSampler or not _is_shared_out(inner, there):
        return state, ""
    if str(state["yielded"]) == there["batch_sampler_length"]:
        return {**changed, "yielded": len(outer)}, ""
    yielded, rest = divmod(state["yielded"] * _whole_batch(there), _whole_batch(here))
    return (state, _fault(state, here)) if rest else ({**changed, "yielded": yielded}, "")


def _whole_batch(facts: Mapping[str, str]) -> int:
    """Samples of one batch of every rank."""
    return int(facts["batch_size"] or 0) * int(facts["sampler.num_replicas"])


def _is_shared_out(sampler: Any, there: Mapping[str, str]) -> bool:
    """Whether it is such a sampler, over as many samples as that of the state."""
    ranks = int(there["sampler.num_replicas"])
    if type(sampler) is ShuffleSampler:
        length = -(-sampler.length // ranks)
    elif type(sampler) is DistributedSampler:
        samples = len(sampler.dataset)  # type: ignore[arg-type]
        length = samples // ranks if sampler.drop_last else -(-samples // ranks)
    else:
        return False
    return there["sampler"] == type(sampler).__name__ and there["sampler_length"] == str(length)


def _fault(state: State, here: Mapping[str, str]) -> str:
    before, now = (
        f"batches of {facts['batch_size'] or 'max_tokens'} on {facts['sampler.num_replicas']} ranks"
        for facts in (state["fits"], here)
    )
    return (
        f"{state['yielded']} {before} are no whole number of {now}; choose a batch_size that "
        "leaves batch_size * ranks as it was, or save between epochs"
    )
