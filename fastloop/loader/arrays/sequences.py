"""What PadCollate and PackCollate make of sequences in arrays, as columns that C gathers.

A column is one output of a batch. docs/sequences-collate.md says what the outputs are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop._core import ImagePlan, SequenceColumn
from fastloop.base.tensors import place_of
from fastloop.base.torch_parts import default_convert
from fastloop.data.arrays import ArrayDataset
from fastloop.data.field import Array, Field, MappedFile, torch_dtype
from fastloop.data.sequences.pad import LABEL_PADDING, PackCollate, PadCollate
from fastloop.data.sequences.ragged import RaggedField
from fastloop.data.sequences.sample_fields import Fields, SampleField, make_fill, take_apart
from fastloop.loader.arrays.columns import (
    Columns,
    NotCoveredError,
    check_tensor,
    list_of,
    pin_storage,
)


@dataclass(frozen=True)
class _Sequences:
    """The sequences of one field, in memory that stays where it is."""

    name: str
    values: torch.Tensor | Array
    offsets: Array
    file: MappedFile | None

    def column(self, output: str, **options: Any) -> SequenceColumn:
        return SequenceColumn(torch.Tensor, output, self.offsets, self.values, **options)


def _flat(name: str, values: torch.Tensor | Array) -> torch.Tensor | Array:
    """The values as a vector, without a copy."""
    if isinstance(values, torch.Tensor):
        check_tensor(name, values)
        is_plain = values.is_contiguous()
        values = pin_storage(values)
    else:
        is_plain = values.flags.c_contiguous and values.flags.aligned
    if not is_plain:
        raise NotCoveredError(f"the values of {name} are not contiguous")
    return values.reshape(-1)


def _sequences_of(field: Field | RaggedField) -> _Sequences:
    """Those of a field of 2-D arrays are of equal length."""
    name = field.name
    if isinstance(field, RaggedField):
        array = field.array
        return _Sequences(name, _flat(name, array.values), array.offsets, array.file)
    rows, width = field.source.shape
    return _Sequences(name, _flat(name, field.source), np.arange(rows + 1) * width, field.file)


def _sample_of(field: Field | RaggedField, plan: object) -> torch.Tensor:
    """Of the dtype and the number of dimensions that samples of the field have."""
    source = field.array.values if isinstance(field, RaggedField) else field.source
    ndim = 1 if isinstance(field, RaggedField) else len(source.shape) - 1
    return torch.empty((1,) * (3 if plan is not None else ndim), dtype=torch_dtype(source))


def _out_dtype(dtype: torch.dtype, is_int64: bool) -> torch.dtype:
    is_integer = not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool
    return torch.int64 if is_int64 and is_integer else dtype


class _Batch:
    """The columns of the batches of a dataset, in the order of their outputs."""

    def __init__(self, dataset: ArrayDataset) -> None:
        keys: Sequence[Hashable] = dataset._keys or range(len(dataset._fields))
        self.dataset = dataset
        self.columns = Columns(None)
        self.names: list[Hashable] = []
        pairs = zip(dataset._fields, dataset._plans, strict=True)
        self.fields: dict[Hashable, tuple[Field | RaggedField, ImagePlan | None]]
        self.fields = dict(zip(keys, pairs, strict=True))

    def take_apart(self) -> Fields:
        samples = {key: _sample_of(*field) for key, field in self.fields.items()}
        return take_apart([samples if self.dataset._keys else tuple(samples.values())])

    def sequences_of(self, field: SampleField) -> _Sequences:
        return _sequences_of(self.fields[field.key][0])

    def add(self, name: Hashable, of: str, source: Any, file: Any = None, plan: Any = None) -> None:
        if name in self.names:
            raise NotCoveredError(f"{name!r} is the name of a field and of another output")
        self.names.append(name)
        self.columns.add(of, source, file, plan)

    def add_rows(self, field: SampleField) -> None:
        source, plan = self.fields[field.key]
        assert isinstance(source, Field)
        self.add(field.name, source.name, source.source, source.file, plan)

    def add_values(
        self, output: str, field: SampleField, value: Any, is_int64: bool, **options: Any
    ) -> None:
        sequences = self.sequences_of(field)
        dtype = torch_dtype(sequences.values)
        out = _out_dtype(dtype, is_int64)
        make = make_fill(field, value, {}, options.get("is_label", False))
        fill = make(place_of(torch.empty(0, dtype=out)).dtype)
        options.update(is_int64=out != dtype, padding=fill)
        column = sequences.column(output, **options)
        self.add(field.name, sequences.name, column, sequences.file)

    def finish(self, is_dict: bool) -> Columns:
        self.columns.structure = dict.fromkeys(self.names) if is_dict else list_of(len(self.names))
        return self.columns


def _pad(dataset: ArrayDataset, collate: PadCollate) -> Columns:
    batch = _Batch(dataset)
    fields = batch.take_apart()
    main, mask = fields.main(), collate._mask
    options: dict[str, Any] = {
        "is_left": collate.padding_side == "left",
        "multiple": collate.pad_to_multiple_of or 1,
    }
    if collate.max_length is not None:
        options["max_length"] = collate.max_length
    for field in fields.all:
        if not field.holds_sequences:
            batch.add_rows(field)
            continue
        value = field.padding(collate.padding_value, mask)
        batch.add_values("padded", field, value, field.is_int64(mask), **options)
    lengths = batch.sequences_of(main)
    for name, output in ((mask, "mask"), (collate._lengths, "lengths")):
        if name and not fields.has(name):
            batch.add(name, lengths.name, lengths.column(output, **options))
    return batch.finish(fields.kind is dict)


class _Packed(_Batch):
    """Those that PackCollate makes: the first makes the packing for the others."""

    def __init__(self, dataset: ArrayDataset, max_tokens: int | None) -> None:
        super().__init__(dataset)
        self.of = self.take_apart()
        self.main = self.of.main()
        self.max_tokens = max_tokens
        self.leader: int | None = None  # where the first lies

    def options(self, field: SampleField) -> dict[str, Any]:
        at = len(self.names)
        if self.leader is None:
            self.leader = at
        kind = "" if field.is_named else "place "
        return {
            "main": self.sequences_of(self.main).offsets,
            "leader": at - self.leader,
            "max_tokens": self.max_tokens or 0,
            "name": f"{kind}{field.key!r}",
            "main_name": repr(self.main.key),
        }

    def add_packed(self, field: SampleField, is_label: bool) -> None:
        value = LABEL_PADDING if is_label else field.padding(0)
        options = self.options(field)
        self.add_values("packed", field, value, field.is_int64(), is_label=is_label, **options)

    def add_made_labels(self) -> None:
        """Of input_ids."""
        labels = SampleField("labels", "labels", self.main.values, True, True)
        self.fields["labels"] = self.fields[self.main.key]
        self.add_packed(labels, True)

    def add_segments(self, output: str, name: Hashable) -> None:
        main = self.sequences_of(self.main)
        self.add(name, main.name, main.column(output, **self.options(self.main)))


def _pack(dataset: ArrayDataset, collate: PackCollate) -> Columns:
    batch = _Packed(dataset, collate.max_tokens)
    fields = batch.of
    is_dict = fields.kind is dict
    for field in fields.all:
        if not field.holds_sequences:
            batch.add_rows(field)
        elif not (field.is_named and field.key == "attention_mask"):
            batch.add_packed(field, field.name == "labels")
    is_hugging_face = batch.main.is_named and batch.main.key == "input_ids"
    if is_hugging_face and "labels" not in batch.names:
        batch.add_made_labels()
    if collate.return_position_ids and not fields.has("position_ids"):
        batch.add_segments("positions", "position_ids")
    ends = ("q", "k") if is_dict else ("q",)
    if collate.return_cu_seqlens:
        for end in ends:
            batch.add_segments("bounds", f"cu_seq_lens_{end}")
        for end in ends:
            batch.add_segments("longest", f"max_length_{end}")
    return batch.finish(is_dict)


def _take_singly(dataset: ArrayDataset) -> Columns:
    """Samples as they are."""
    batch = _Batch(dataset)
    for key, (field, plan) in batch.fields.items():
        if isinstance(field, Field):
            batch.add(key, field.name, field.source, field.file, plan)
            continue
        sequences = _sequences_of(field)
        column = sequences.column("padded", padding=bytes(torch_dtype(sequences.values).itemsize))
        batch.add(key, sequences.name, column, sequences.file)
    return batch.finish(dataset._keys is not None)


def columns_of_sequences(dataset: object, collate_fn: object) -> Columns | None:
    """Those of a dataset whose batches hold sequences; None: they hold none.

    Raises:
        NotCoveredError: fields that C does not gather from.
        TypeError, ValueError: what the collate would refuse.
    """
    is_collate = type(collate_fn) in (PadCollate, PackCollate)
    if type(dataset) is not ArrayDataset or dataset._untranslated:
        if is_collate:
            name = type(collate_fn).__name__
            raise NotCoveredError(
                f"threads of C gather for {name} from an ArrayDataset, and the dataset is a "
                f"{type(dataset).__name__}"
            )
        return None
    if isinstance(collate_fn, PadCollate) and is_collate:
        return _pad(dataset, collate_fn)
    if isinstance(collate_fn, PackCollate) and is_collate:
        return _pack(dataset, collate_fn)
    is_ragged = any(isinstance(field, RaggedField) for field in dataset._fields)
    return _take_singly(dataset) if is_ragged and collate_fn is default_convert else None
