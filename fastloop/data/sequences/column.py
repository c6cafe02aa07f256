"""One column of sequences: an output that C makes of a RaggedArray, or of a field of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastloop._core import SequenceColumn
from fastloop.compat.moves import pin_storage
from fastloop.data.columns import check_tensor, leave_if
from fastloop.data.field import Array, Field
from fastloop.data.sequences.ragged import RaggedArray

Source = Field | RaggedArray


def values_of(field: Source) -> torch.Tensor | Array:
    return field.values if isinstance(field, RaggedArray) else field.source


def offsets_of(field: Source) -> Array:
    """Return where sequences begin; those of a field of 2-D arrays are of equal length."""
    if isinstance(field, RaggedArray):
        return field.offsets
    rows, width = field.source.shape
    return np.arange(rows + 1) * width


def sequence_column(field: Source, output: str, **options: Any) -> tuple[Any, ...]:
    """Return the arguments of ``Columns.add`` for an output that C makes of sequences."""
    name, values = field.name, values_of(field)
    # A subclass may override anything.
    leave_if(type(field) not in (Field, RaggedArray), f"{name} is a {type(field).__name__}")
    if isinstance(values, torch.Tensor):
        check_tensor(name, values)
        is_plain = values.is_contiguous()
        if values.device.type == "cpu":
            values = pin_storage(values)
    else:
        is_plain = values.flags.c_contiguous and values.flags.aligned
    leave_if(not is_plain, f"the values of {name} are not contiguous")
    flat, offsets = values.reshape(-1), offsets_of(field)
    return name, SequenceColumn(torch.Tensor, output, offsets, flat, **options), field.file
