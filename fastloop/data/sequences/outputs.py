"""The outputs of PadCollate and PackCollate over arrays, as columns that the array path gathers.

A column is one output of a batch. docs/use/text.md describes the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from fastloop.base.checks import look_up
from fastloop.data.arrays import ArrayDataset
from fastloop.data.columns import Columns, NotCoveredError, Segment, leave_if, own
from fastloop.data.field import Field, torch_dtype
from fastloop.data.sequences.column import offsets_of, sequence_column, values_of
from fastloop.data.sequences.fields import LABEL_PADDING, SampleField, element_of, take_apart
from fastloop.data.sequences.ragged import RaggedArray


def as_jagged(
    batch: dict[Hashable, Any], names: Collection[Hashable], bounds: torch.Tensor, longest: int
) -> dict[Hashable, Any]:
    """Return a batch whose packed outputs with these names are nested tensors over their memory,
    with a component for each segment. They share their offsets, so that torch can combine them."""
    offsets, make = bounds.to(torch.int64), torch.nested.nested_tensor_from_jagged
    jagged = {
        name: make(batch[name].view(-1), offsets, min_seqlen=0, max_seqlen=longest)
        for name in batch
        if name in names
    }
    return {**batch, **jagged}


def wrap_jagged(names: Collection[Hashable], batch: dict[Hashable, Any]) -> dict[Hashable, Any]:
    """Return ``as_jagged`` of a batch that holds its bounds."""
    return as_jagged(batch, names, batch["cu_seq_lens_q"], batch["max_length_q"])


JAGGED = "nested tensors are made of named fields, by their lengths and with cu_seqlens alone"


class _Rows(NamedTuple):
    """The rows of a field in several datasets."""

    name: str
    source: tuple[Segment, ...]
    file: None = None


def join_fields(fields: Sequence[Any]) -> Any:
    """Return one field with the rows of several, field after field."""
    name, kinds = fields[0].name, {type(field) for field in fields}
    leave_if(kinds not in ({Field}, {RaggedArray}), f"{name} is not of one kind in all sources")
    parts = fields
    if kinds == {Field}:
        if len(fields[0].source.shape) != 2:
            segments = (Segment(each.source, len(each), each.file) for each in fields)
            return _Rows(name, tuple(segments))
        # Rows of a 2-D field count as sequences.
        parts = [(values_of(each).reshape(-1), offsets_of(each)) for each in fields]
    # A copy of a tensor would miss changes of the tensor.
    has_tensors = any(isinstance(values_of(each), torch.Tensor) for each in fields)
    leave_if(has_tensors, f"{name} has sequences in tensors, within a mixture")
    joined = RaggedArray.from_parts(parts)
    # Reads of all parts are safe if one is mapped.
    joined.file = joined._field.file = next(filter(None, (f.file for f in (joined, *fields))), None)
    return joined._over(slice(0, len(joined)), name)


class _Batch:
    """The columns of a batch, in the order of its outputs.

    Args:
        dataset: has the structure and the dtypes of samples, and the transforms.
        parts: the fields of each field, which are joined; empty: the dataset's own fields.
        joined: the fields that were joined, by name, which are kept for the next epoch.
    """

    def __init__(
        self, dataset: ArrayDataset, parts: Sequence[Sequence[Any]], joined: dict[Hashable, Any]
    ) -> None:
        self.dataset = dataset
        keys = dataset._keys or range(len(dataset._fields))
        pairs = zip(dataset._fields, dataset._plans, strict=True)
        self.sources: dict[Hashable, Any] = dict(zip(keys, pairs, strict=True))
        samples = {}
        for key, (field, plan) in self.sources.items():
            ndim = 1 if isinstance(field, RaggedArray) else len(field.source.shape) - 1
            dtype = torch_dtype(values_of(field))
            samples[key] = torch.empty((1,) * (3 if plan is not None else ndim), dtype=dtype)
        # The collate's own code decides on names, padding values and dtypes.
        self.fields = take_apart([samples if dataset._keys else tuple(samples.values())])
        self.main = self.fields.main()
        if parts and not joined:
            for key, fields in zip(keys, parts, strict=True):
                joined[key] = join_fields(fields)
        for key, field in joined.items():
            self.sources[key] = field, None
        self.columns = Columns(None)
        self.names: list[Hashable] = []

    def add(self, name: Hashable, *column: Any) -> None:
        leave_if(name in self.names, f"{name!r} is the name of a field and of an output")
        self.names.append(name)
        self.columns.add(*column)

    def add_rows(self, field: SampleField) -> None:
        source, plan = self.sources[field.key]
        self.add(field.name, source.name, source.source, source.file, plan)

    def add_made(self, name: Hashable, output: str, /, **options: Any) -> None:
        """Add an output that depends only on the lengths of the main field's sequences."""
        self.add(name, *sequence_column(self.sources[self.main.key][0], output, **options))

    def add_values(
        self, field: SampleField, output: str, value: Any, is_int64: bool, **options: Any
    ) -> None:
        source, _ = self.sources[field.key]
        dtype = out = torch_dtype(values_of(source))
        is_float = dtype.is_floating_point or dtype.is_complex
        if is_int64 and not is_float and dtype is not torch.bool:
            out = torch.int64
        options["padding"] = element_of(field, value, out)
        self.add(field.name, *sequence_column(source, output, is_int64=out != dtype, **options))

    def finish(self) -> Columns:
        is_dict = self.fields.kind is dict
        self.columns.structure = dict.fromkeys(self.names) if is_dict else (None,) * len(self.names)
        return self.columns


def _open_source(source: Any, name: str) -> tuple[ArrayDataset, list[Any], tuple[Any, ...]]:
    """Return a dataset with the structure and the dtypes of the samples, the fields of each field,
    and the map of rows."""
    if (parts := own(source, "_parts")) is not None:
        return parts(source)  # type: ignore[no-any-return]
    if type(source) is not ArrayDataset:
        kind = type(source).__name__
        raise NotCoveredError(f"the array path of {name} needs an ArrayDataset, got a {kind}")
    leave_if(source._python_reason, source._python_reason)
    return source, [[field] for field in source._fields], ()


def _open_joined(dataset: Any, name: str) -> _Batch:
    """Begin a batch of a mixture, or of a dataset whose fields have several parts."""
    mixed = own(dataset, "_mixed")
    sources, maps, joined = ([dataset], (), {}) if mixed is None else mixed(dataset)
    opened = [_open_source(source, name) for source in sources]
    first, parts, _ = opened[0]
    for source, (_, _, rows) in zip(sources, opened, strict=True):
        leave_if(rows and source is not dataset, "rows of a source of the mixture were chosen")
    for each, fields, _ in opened[1:]:
        is_alike = each._keys == first._keys and len(fields) == len(parts)
        leave_if(not is_alike, "the samples of two sources differ in structure")
        has_transform = first._transforms or each._transforms
        leave_if(has_transform, "a source of the mixture has a transform")
        parts = [[*before, *more] for before, more in zip(parts, fields, strict=True)]
    is_whole = len(sources) == 1 and first is sources[0]
    batch = _Batch(first, () if is_whole else parts, joined)
    batch.columns.maps = maps
    return batch


def _open_batch(collate: Any, dataset: Any) -> _Batch:
    """Begin a batch of a dataset.

    Raises:
        NotCoveredError: the array path does not gather from these fields.
        TypeError, ValueError: errors of the collate itself.
    """
    name = type(collate).__name__
    if type(dataset) is ArrayDataset:
        leave_if(dataset._python_reason, dataset._python_reason)
        batch = _Batch(dataset, (), {})
    else:
        batch = _open_joined(dataset, name)
    first = batch.dataset
    batch.columns.note = ", native transforms" if first._transforms else ""
    if first._gather == "device":
        batch.columns.note += f"; gather='device' has no effect with {name}"
    return batch


def columns_of_padded(collate: Any, dataset: object) -> Columns:
    """Return the columns of the batches that a PadCollate makes. Raises as ``_open_batch``."""
    batch, mask = _open_batch(collate, dataset), collate._mask
    options: dict[str, Any] = {"pad_left": collate.padding_side == "left"}
    options["multiple"] = collate.pad_to_multiple_of or 1
    if collate.max_length is not None:
        options["max_length"] = collate.max_length
    for field in batch.fields.all:
        if field.holds_sequences:
            value = field.padding(collate.padding_value, mask)
            batch.add_values(field, "padded", value, field.is_int64(mask), **options)
        else:
            batch.add_rows(field)
    for name, output in ((mask, "mask"), (collate._lengths, "lengths")):
        if name and not batch.fields.has(name):
            batch.add_made(name, output, **options)
    return batch.finish()


def columns_of_packed(collate: Any, dataset: object) -> Columns:
    """Return the columns of the batches that a PackCollate makes. Raises as ``_open_batch``."""
    if (answer := own(dataset, "_packed_columns")) is not None:
        columns: Columns = answer(dataset, collate)
        columns.wrap = partial(wrap_jagged, look_up(dataset, "_keys"))
        return columns
    batch = _open_batch(collate, dataset)
    fields, main = batch.fields, batch.main
    packed: list[int] = []  # indices of packed outputs; the first one packs for all
    if is_jagged := collate.layout == "jagged":
        is_plain = fields.kind is dict and not fields.has("position_ids")
        leave_if(not (is_plain and collate.return_cu_seqlens), JAGGED)

    def options(field: SampleField) -> dict[str, Any]:
        packed.append(len(batch.names))
        return {
            "main": offsets_of(batch.sources[main.key][0]),
            "leader": packed[-1] - packed[0],
            "max_tokens": collate.max_tokens or 0,
            "name": f"{'' if field.is_named else 'item '}{field.key!r}",
            "main_name": repr(main.key),
        }

    def add_packed(field: SampleField, is_label: bool) -> None:
        value, is_int64 = LABEL_PADDING if is_label else field.padding(0), field.is_int64()
        batch.add_values(field, "packed", value, is_int64, is_label=is_label, **options(field))

    for field in fields.all:
        if not field.holds_sequences:
            batch.add_rows(field)
        elif not (field.is_named and field.key == "attention_mask"):
            add_packed(field, field.name == "labels")
    if main.is_named and main.key == "input_ids" and "labels" not in batch.names:
        batch.sources["labels"] = batch.sources[main.key]
        add_packed(SampleField("labels", "labels", main.values, True, True), True)
    if collate.return_position_ids and not fields.has("position_ids"):
        batch.add_made("position_ids", "positions", **options(main))
    names = [batch.names[i] for i in packed]
    if collate.return_cu_seqlens:
        for name, output in (("cu_seq_lens", "bounds"), ("max_length", "longest")):
            for end in ("q", "k") if fields.kind is dict else ("q",):
                batch.add_made(f"{name}_{end}", output, **options(main))
    columns = batch.finish()
    if is_jagged:
        columns.wrap = partial(wrap_jagged, names)
    return columns
