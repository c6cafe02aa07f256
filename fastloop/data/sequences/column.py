"""One column of sequences: an output that the core makes of a RaggedArray or a field of rows."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop._core import Packing, SequenceColumn
from fastloop.compat.tensors import pin_storage
from fastloop.data.columns import NotCoveredError, check_tensor
from fastloop.data.field import Array, Field, torch_dtype
from fastloop.data.sequences.ragged import RaggedArray

Source = Field | RaggedArray


class SequenceOutput(NamedTuple):
    """The output of a batch that a SequenceColumn makes. The core reads the fields in this order.

    Attributes:
        kind: "padded", "mask" or "lengths" of PadCollate; "packed", "positions", "bounds" or
            "longest" of PackCollate; "documents" with a plan.
        padding: the bytes of an element of the output; or an int, and integers come out as int64.
        ignored: of an int64 output of "padded" in a Table, the value that comes out as padding.
        main: the offsets of the main field, for PackCollate's outputs.
        leader: how many columns before this one PackCollate's first column stands in the table.
        max_tokens: 0 for one row.
        name, main_name: how errors call the fields.
        plan: rows of the batch are rows of this packing, and no sequences.
        bos, eos: with a plan, the element before and after each document; None: there is none.
    """

    kind: str
    padding: bytes | int | None = None
    ignored: int | None = None
    is_int64: bool = False
    pad_left: bool = False
    multiple: int = 1
    max_length: int = sys.maxsize
    is_label: bool = False
    main: Array | None = None
    leader: int = 0
    max_tokens: int = 0
    name: str = ""
    main_name: str = ""
    plan: Packing | None = None
    bos: bytes | None = None
    eos: bytes | None = None


def values_of(field: Source) -> torch.Tensor | Array:
    return field._field.source if isinstance(field, RaggedArray) else field.source


def offsets_of(field: Source) -> Array:
    """Return the begins of sequences, or the bounds of each, ``[n, 2]``. Rows of a 2-D field count
    as sequences of equal length."""
    if isinstance(field, RaggedArray):
        return field._offsets if field._pairs is None else field._pairs
    rows, width = field.source.shape
    return np.arange(rows + 1) * width


def sequence_column(field: Source, output: str, **options: Any) -> tuple[Any, ...]:
    """Return the arguments of ``Columns.add`` for an output that is made of sequences."""
    name, values = field.name, values_of(field)
    if type(field) not in (Field, RaggedArray):  # a subclass may override anything
        raise NotCoveredError(f"{name} is a {type(field).__name__}")
    if isinstance(values, torch.Tensor):
        check_tensor(name, values)
        is_contiguous = values.is_contiguous()
        if values.device.type == "cpu":
            values = pin_storage(values)
    else:
        is_contiguous = values.flags.c_contiguous and values.flags.aligned
    if not is_contiguous:
        raise NotCoveredError(f"the values of {name} are not contiguous")
    flat, offsets = values.reshape(-1), offsets_of(field)
    column = SequenceColumn(torch.Tensor, offsets, flat, SequenceOutput(output, **options))
    return name, column, field.file


def whole_column(field: RaggedArray) -> tuple[Any, ...]:
    """Return the arguments of ``Columns.add`` for single samples: a sequence without padding."""
    padding = bytes(torch_dtype(values_of(field)).itemsize)
    return sequence_column(field, "padded", padding=padding)
