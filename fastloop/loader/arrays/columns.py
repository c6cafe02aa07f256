"""Columns: array data in the form that the C core takes, and the tensors that it does not take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop._core import ImagePlan, SequenceColumn, Table, Windows
from fastloop.base.moves import watch
from fastloop.base.tensors import DTYPES
from fastloop.data.field import Array, MappedFile
from fastloop.data.index_blocks import Vector


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


# C gathers the dtypes of DLPack but for this one, which is left to torch.
_DTYPES = {dtype for number, dtype in DTYPES.items() if number >= 0} - {torch.float8_e8m0fnu}


def check_tensor(name: str, tensor: object) -> None:
    """Raise NotCoveredError for a tensor that C does not gather from."""
    if type(tensor) is not torch.Tensor:
        raise NotCoveredError(f"{name} is a {type(tensor).__name__}, not a plain torch.Tensor")
    reasons = {
        f"is on {tensor.device}": tensor.device.type != "cpu",
        f"has layout {tensor.layout}": tensor.layout is not torch.strided,
        "is nested": tensor.is_nested,
        "is quantized": tensor.is_quantized,
        "requires grad": tensor.requires_grad,
        "is a conjugate view": tensor.is_conj(),
        "is a negative view": tensor.is_neg(),
        "has no dimension to index": tensor.ndim == 0,
        f"has dtype {tensor.dtype}": tensor.dtype not in _DTYPES,
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotCoveredError(f"{name} {reason}")


def pin_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias whose storage cannot be resized, so that threads may read it.

    torch marks a storage that it shares with NumPy as not resizable, for good.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return tensor.detach()


# The containers around the outputs of a batch, in the form that C takes: None for the next output,
# a tuple of structures for a list, a dict of structures for a dict.
Structure = Any


class Segment(NamedTuple):
    """Rows of one array: the first `rows`, or those whose numbers are in a vector."""

    array: torch.Tensor | Array
    rows: Vector | int
    file: MappedFile | None

    @property
    def length(self) -> int:
        return self.rows if isinstance(self.rows, int) else len(self.rows)


@dataclass(frozen=True)
class Column:
    """The source of one or more outputs of a batch.

    Attributes:
        is_array: samples are rows of NumPy, which torch collates otherwise than tensors.
        cast: the dtype of batches where it differs from the source: int64 or float32.
    """

    name: str
    source: torch.Tensor | Array | SequenceColumn | Windows | tuple[Segment, ...]
    file: MappedFile | None = None
    plan: ImagePlan | None = None
    is_array: bool = False
    cast: str | None = None

    def segments(self) -> tuple[Segment, ...]:
        """Return the rows as segments. Raises NotCoveredError where C does more than copy rows."""
        source = self.source
        if isinstance(source, tuple):
            return source
        if self.plan is not None or not isinstance(source, (torch.Tensor, np.ndarray)):
            raise NotCoveredError(f"{self.name} is not of plain arrays, within another dataset")
        return (Segment(source, len(source), self.file),)

    def for_core(self, pin: bool) -> tuple[Any, Any]:
        """Return source and file as ``Table`` takes them; `pin` as in ``open_source``."""

        def keep(array: Any) -> Any:
            return pin_storage(array) if pin and isinstance(array, torch.Tensor) else array

        if not isinstance(self.source, tuple):
            return keep(self.source), self.file
        source: list[Any] = []
        for array, rows, _ in self.source:
            source += (keep(array), rows)
        return tuple(source), tuple(segment.file for segment in self.source)


@dataclass
class Columns:
    """The columns of a table, and the structure of the batches that C makes of it.

    Attributes:
        rows: the rows of the table that the dataset has, in its order; None: all.
        kind: the kind of data, for ``stats().why``.
    """

    structure: Structure
    all: list[Column] = field(default_factory=list)
    rows: Vector | None = None
    kind: str = "plain arrays"

    def add(self, name: str, source: Any, *others: Any, **named: Any) -> None:
        """Add a ``Column``. Raises NotCoveredError for a tensor that C does not gather from."""
        if isinstance(source, torch.Tensor):
            check_tensor(name, source)
        self.all.append(Column(name, source, *others, **named))

    def table(self, pin: bool) -> Table:
        """Open the table of all columns; `pin` as in ``open_source``."""
        pairs = [column.for_core(pin) for column in self.all]
        sources, files = tuple(zip(*pairs, strict=True)) or ((), ())
        names, plans, casts = (
            tuple(getattr(column, name) for column in self.all) for name in ("name", "plan", "cast")
        )
        table = Table(sources, torch.Tensor, names, files, plans, casts)
        watch(table)
        return table


def list_of(count: int) -> Structure:
    """Return the structure of a list of `count` outputs."""
    return (None,) * count
