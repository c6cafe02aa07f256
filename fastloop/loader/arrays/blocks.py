"""torch's samplers as blocks of int64 indices: their numbers, drawn at the same moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import torch
from torch.utils import data as torch_data

from fastloop.compat.torch_parts import Methods
from fastloop.data.columns import as_vector
from fastloop.data.samplers import ShuffleSampler, distributed_order, permutation

# A tensor or, for consecutive indices, a pair (first, count). It is drawn when the first batch that
# needs it is asked for, because torch's samplers are generators and draw then.
Block = torch.Tensor | tuple[int, int]


def _sequential(sampler: Any) -> Iterator[Block]:
    yield 0, len(sampler.data_source)


def _random(sampler: Any) -> Iterator[Block]:
    n = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator().manual_seed(seed)
    whole, rest = divmod(sampler.num_samples, 32 if sampler.replacement else n)
    if sampler.replacement:
        for size in chain(repeat(32, whole), (rest,)):
            draws = torch.randint(high=n, size=(size,), dtype=torch.int64, generator=generator)
            yield draws.cpu()
        return
    for _ in range(whole):
        yield permutation(n, generator)
    yield permutation(n, generator)[:rest]


def _subset(sampler: Any) -> Iterator[Block]:
    indices = torch.from_numpy(as_vector(sampler.indices))
    yield indices[permutation(len(indices), sampler.generator)]


def _weighted(sampler: Any) -> Iterator[Block]:
    how = sampler.weights, sampler.num_samples, sampler.replacement
    yield torch.multinomial(*how, generator=sampler.generator).cpu()


def _distributed(sampler: Any) -> Iterator[Block]:
    indices, total = distributed_order(sampler), sampler.total_size
    n = len(indices)
    if not sampler.drop_last:
        indices = indices.repeat(max(1, math.ceil(total / max(1, n))))
    if sampler.drop_last or n <= total:
        indices = indices[:total]
    if (count := len(indices)) != total:
        raise AssertionError(f"Number of indices ({count}) does not match total_size ({total})")
    yield indices[sampler.rank : total : sampler.num_replicas].contiguous()


_MAKERS: dict[type, Callable[[Any], Iterator[Block]]] = {
    torch_data.SequentialSampler: _sequential,
    torch_data.RandomSampler: _random,
    torch_data.SubsetRandomSampler: _subset,
    torch_data.WeightedRandomSampler: _weighted,
    torch_data.DistributedSampler: _distributed,
    ShuffleSampler: ShuffleSampler.blocks,
}
_ITERS = Methods(*((cls, "__iter__") for cls in (torch_data.BatchSampler, *_MAKERS)))


def yields_ints(sampler: Any) -> bool:
    """Tell whether a sampler is known here, by exact type, and yields integers alone."""
    has_indices = type(sampler) is torch_data.SubsetRandomSampler
    return type(sampler) in _MAKERS and not (has_indices and as_vector(sampler.indices) is None)


def find_blocks(index_sampler: Any) -> Iterator[Block] | None:
    """Return the blocks of a plain ``BatchSampler`` over a sampler known here.

    None for any other; it is then iterated in Python. Nothing is drawn before the first block.
    """
    if type(index_sampler) is not torch_data.BatchSampler or _ITERS.find_replaced():
        return None
    sampler = index_sampler.sampler
    return _MAKERS[type(sampler)](sampler) if yields_ints(sampler) else None


def rest_of_block(block: Block, rows: int) -> Block:
    """Return a block without its first rows."""
    if isinstance(block, tuple):
        first, count = block
        return first + rows, count - rows
    return block[rows:]
