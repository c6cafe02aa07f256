"""Columns: array data as the C core takes it, and what of torch's tensors it does not take."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import torch
from torch.utils.data import TensorDataset

from fastloop import _core
from fastloop.base.tensors import DTYPES
from fastloop.data.arrays import ArrayDataset
from fastloop.data.field import Array, MappedFile
from fastloop.data.ragged import RaggedField
from fastloop.data.tokens import TokenDataset


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


# Those that C gathers: DLPack's, of which this one is left to torch.
_DTYPES = {dtype for number, dtype in DTYPES.items() if number >= 0} - {torch.float8_e8m0fnu}


def check_tensor(name: str, tensor: object) -> None:
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
    """An alias whose storage cannot be resized, so that threads may read it.

    torch marks a storage that it shares with NumPy as not resizable, for good.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    return tensor.detach()


Origin = torch.Tensor | Array | _core.SequenceColumn | _core.Windows


@dataclass
class Columns:
    """What a table is made of: an item for each column, and the keys of a batch."""

    keys: tuple[Any, ...] | None  # one for each output; None: a batch is a list; (): one tensor
    sources: list[Origin] = dataclass_field(default_factory=list)
    names: list[str] = dataclass_field(default_factory=list)
    files: list[MappedFile | None] = dataclass_field(default_factory=list)
    plans: list[_core.ImagePlan | None] = dataclass_field(default_factory=list)

    def add(
        self,
        name: str,
        source: Origin,
        file: MappedFile | None = None,
        plan: _core.ImagePlan | None = None,
    ) -> None:
        """Raises NotCoveredError for a tensor that C does not gather from."""
        if isinstance(source, torch.Tensor):
            check_tensor(name, source)
        self.sources.append(source)
        self.names.append(name)
        self.files.append(file)
        self.plans.append(plan)


def columns_of(dataset: object) -> Columns:
    """One for each field. Raises NotCoveredError."""
    if type(dataset) is ArrayDataset:
        if dataset._untranslated:
            raise NotCoveredError(dataset._untranslated)
        columns = Columns(dataset._keys)
        for field, plan in zip(dataset._fields, dataset._plans, strict=True):
            if isinstance(field, RaggedField):
                raise NotCoveredError(
                    f"{field.name} is a RaggedArray; pass PadCollate or PackCollate as collate_fn"
                )
            columns.add(field.name, field.source, field.file, plan)
        return columns
    if type(dataset) is TensorDataset:
        columns = Columns(None)
        for i, tensor in enumerate(dataset.tensors):
            columns.add(f"tensor {i}", tensor)
        return columns
    if type(dataset) is TokenDataset:
        is_alone = dataset._keys is None and dataset._arguments.targets is None
        columns = Columns(() if is_alone else dataset._keys)
        columns.add("tokens", dataset._windows)
        return columns
    raise NotCoveredError(f"the dataset is a {type(dataset).__name__}, not plain array data")
