"""Lists of small samples: tuples of equal tensors and numbers. They are stacked once at ``iter()``,
because worker processes would have a copy of that moment, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from fastloop.base.torch_parts import default_collate
from fastloop.loader.arrays.columns import Columns, leave_if

_MOST = 1 << 26  # bytes: to stack more takes longer than worker processes do


def _stack(parts: Sequence[Any]) -> Tensor:
    """Return one part of all samples, stacked by torch. Raises NotCoveredError where it would stack
    those of a batch otherwise."""
    kinds = set(map(type, parts))
    leave_if(
        kinds not in ({Tensor}, {int}, {float}),
        "the samples' parts are not all tensors, ints or floats",
    )
    if kinds == {Tensor}:
        leave_if(len({part.dtype for part in parts}) > 1, "the samples have several dtypes")
        leave_if(not all(part.is_contiguous() for part in parts), "the samples have gaps in memory")
        is_shared = any(part.untyped_storage().is_shared() for part in parts)
        leave_if(is_shared, "workers see changes of samples in shared memory")
        leave_if(parts[0].nbytes * len(parts) > _MOST, f"the samples take over {_MOST:,} bytes")
    stacked: Tensor = default_collate(parts)
    leave_if(stacked.device.type != "cpu", f"the samples are on {stacked.device}")
    return stacked


def take_samples(samples: Sequence[Any], loader: DataLoader[Any]) -> Columns:
    """Return the columns of a list of samples. Raises NotCoveredError."""
    leave_if(loader.num_workers == 0, "the dataset is a list, which may change without workers")
    leave_if(not loader._auto_collation, "a single sample of a list is the sample itself")
    is_few = len(loader.sampler) * 2 < len(samples)  # type: ignore[arg-type]
    leave_if(is_few, "an epoch has less than half of the list")
    leave_if(len(samples) == 0, "the list is empty")
    is_tuple = type(samples[0]) is tuple
    lengths = {len(sample) if type(sample) is tuple else 0 for sample in samples}
    leave_if(len(lengths) > 1, "the samples have several lengths")
    parts = list(zip(*samples, strict=True)) if is_tuple else [samples]
    structure = (None,) * len(parts) if is_tuple else None
    columns = Columns(structure, kind="samples, stacked at iter()")
    for i, part in enumerate(parts):
        columns.add(f"part {i} of the samples", _stack(part))
    return columns
