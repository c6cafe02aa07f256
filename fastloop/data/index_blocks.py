"""Samplers as blocks of int64 indices: the numbers of torch's samplers, drawn at the same moments.

A block is a tensor or, for consecutive indices, a pair (first, count). It is drawn when the first
batch that needs it is asked for, because torch's samplers are generators and draw then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

from fastloop._core import int64_array
from fastloop.base.threads import on_this_thread
from fastloop.base.torch_parts import Methods
from fastloop.data.samplers import ShuffleSampler

Block = torch.Tensor | tuple[int, int]
Vector = np.ndarray[Any, np.dtype[np.int64]]

# torch indexes with bytes and bools as with masks.
_INDEX_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def as_vector(indices: Any) -> Vector | None:
    """Return a sequence of plain integers as a contiguous int64 vector; None for anything else.

    A tensor is copied, because its memory may move."""
    if type(indices) is range:
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    if type(indices) in (list, tuple):
        return int64_array(indices, torch.Tensor)
    if type(indices) is torch.Tensor:
        is_plain = indices.layout is torch.strided and indices.device.type == "cpu"
        if not is_plain or indices.dtype not in _INDEX_DTYPES or indices.is_neg():
            return None
        indices = np.array(indices.numpy())
    if type(indices) is not np.ndarray or indices.ndim != 1:
        return None
    is_integer = indices.dtype.kind in "iu" and indices.dtype != np.uint64
    return np.ascontiguousarray(indices, dtype=np.int64) if is_integer else None


def _permutation(n: int, generator: Any) -> torch.Tensor:
    with on_this_thread():
        return torch.randperm(n, generator=generator).cpu()


def _sequential(sampler: Any) -> Iterator[Block]:
    yield 0, len(sampler.data_source)


def _random(sampler: Any) -> Iterator[Block]:
    n = len(sampler.data_source)
    generator = sampler.generator
    if generator is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(seed)
    whole, rest = divmod(sampler.num_samples, 32 if sampler.replacement else n)
    if sampler.replacement:
        for size in chain(repeat(32, whole), (rest,)):
            draws = torch.randint(high=n, size=(size,), dtype=torch.int64, generator=generator)
            yield draws.cpu()
        return
    for _ in range(whole):
        yield _permutation(n, generator)
    yield _permutation(n, generator)[:rest]


def _subset(sampler: Any) -> Iterator[Block]:
    indices = torch.from_numpy(as_vector(sampler.indices))
    yield indices[_permutation(len(indices), sampler.generator)]


def _weighted(sampler: Any) -> Iterator[Block]:
    indices = torch.multinomial(
        sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator
    )
    yield indices.cpu()


def _distributed(sampler: Any) -> Iterator[Block]:
    n = len(sampler.dataset)
    if sampler.shuffle:
        generator = torch.Generator()
        generator.manual_seed(sampler.seed + sampler.epoch)
        indices = _permutation(n, generator)
    else:
        indices = torch.arange(n, device="cpu")
    if not sampler.drop_last:
        indices = indices.repeat(max(1, math.ceil(sampler.total_size / max(1, n))))
    if sampler.drop_last or n <= sampler.total_size:
        indices = indices[: sampler.total_size]
    if len(indices) != sampler.total_size:
        raise AssertionError(
            f"Number of indices ({len(indices)}) does not match total_size ({sampler.total_size})"
        )
    yield indices[sampler.rank : sampler.total_size : sampler.num_replicas].contiguous()


_BLOCKS: dict[type, Callable[[Any], Iterator[Block]]] = {
    torch_data.SequentialSampler: _sequential,
    torch_data.RandomSampler: _random,
    torch_data.SubsetRandomSampler: _subset,
    torch_data.WeightedRandomSampler: _weighted,
    DistributedSampler: _distributed,
    ShuffleSampler: ShuffleSampler.blocks,
}
_ITERS = Methods(*((cls, "__iter__") for cls in (torch_data.BatchSampler, *_BLOCKS)))


def find_blocks(index_sampler: Any) -> Iterator[Block] | None:
    """Return the blocks of a plain ``BatchSampler`` over a sampler known here, by exact type.

    None for any other; it is then iterated in Python. Nothing is drawn before the first block.
    """
    if type(index_sampler) is not torch_data.BatchSampler or _ITERS.find_replaced():
        return None
    sampler = index_sampler.sampler
    if type(sampler) is torch_data.SubsetRandomSampler and as_vector(sampler.indices) is None:
        return None
    make = _BLOCKS.get(type(sampler))
    return None if make is None else make(sampler)
