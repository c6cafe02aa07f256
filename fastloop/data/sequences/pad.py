"""PadCollate and PackCollate: samples with sequences of different length as batches.

Sequences are written by C (``Collate``) where they are lists of plain numbers, arrays or
tensors, and by torch's functions otherwise; the results are the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from fastloop._core import Collate
from fastloop.base.torch_parts import default_collate
from fastloop.data.collate import make_collate
from fastloop.data.sequences.sample_fields import (
    Fields,
    SampleField,
    as_tensors,
    check_element,
    check_padding,
    make_fill,
    read_count,
    take_apart,
)

LABEL_PADDING = -100
_INT32_MAX = 2**31 - 1


def _float_bits() -> int:
    return torch.finfo(torch.get_default_dtype()).bits


def _collate_others(field: SampleField, core: Collate | None) -> Any:
    values = field.values if field.is_named else tuple(field.values)
    if core is None:
        return default_collate(values)  # type: ignore[no-untyped-call]
    return core.stack(values)


class SequenceCollate:
    """What both classes share: where batches are built.

    ``collate`` is given a ``Collate``, whose memory the tensors are made in; loaders of
    fastloop pass theirs. With None, torch's functions do everything.
    """

    _own: Collate | None = None  # for calls by others

    def __call__(self, samples: Sequence[Any]) -> Any:
        if self._own is None:
            self._own = make_collate()
        return self.collate(self._own, samples)

    def collate(self, core: Collate | None, samples: Sequence[Any]) -> Any:
        if core is not None and not core.begin():
            core = None
        return self._collate(core, take_apart(samples))

    def _collate(self, core: Collate | None, fields: Fields) -> Any:
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_own"}

    def __repr__(self) -> str:
        state = vars(self).items()
        given = ", ".join(f"{key}={value!r}" for key, value in state if not key.startswith("_"))
        return f"{type(self).__name__}({given})"


# ---- padding


def _check_name(argument: str, value: Any, name: str) -> str:
    """The name of an output, or "" for none."""
    if isinstance(value, bool):
        return name if value else ""
    if isinstance(value, str) and value:
        return value
    raise TypeError(f"{argument}={value!r} is no bool and no name; pass True, False or a name")


class PadCollate(SequenceCollate):
    """A ``collate_fn`` that pads sequences to the longest in a batch.

    Args:
        padding_value: a number, or a dict of numbers by key (by place for tuples). Under a number,
            and for keys that a dict does not have, labels are padded with -100, masks with 0; see
            below.
        padding_side: ``"right"`` or ``"left"``: where padding goes.
        pad_to_multiple_of: widths are rounded up to a multiple of this.
        max_length: sequences are cut to their first ``max_length`` elements.
        return_mask: int64 ``[batch, width]``, 1 at elements and 0 at padding, called
            ``"attention_mask"``, or by the name given.
        return_lengths: int64 ``[batch]``, called ``"lengths"``, or by the name given.

    A sample is a dict or a tuple of fields, or one sequence. Fields of sequences (lists of numbers,
    1-D arrays or tensors) come out as ``[batch, width]``, each of its own width; other fields as
    ``default_collate`` makes them. Mask and lengths are those of ``input_ids``, else of the first
    field of sequences. Lists of ints become int64, lists with floats torch's default dtype; arrays
    and tensors keep theirs. Dicts come out as dicts, tuples as lists with mask and lengths at the
    end.

    The names of Hugging Face have its conventions: ``labels`` (``label``, ``label_ids``) are padded
    with -100, ``attention_mask``, ``token_type_ids`` and ``position_ids`` with 0,
    ``special_tokens_mask`` with 1; these and ``input_ids`` are int64; beside ``input_ids``,
    ``label`` comes out as ``labels``.

    Raises:
        TypeError, ValueError: arguments, when made; when called, samples that are not alike, values
            that are no sequences, a padding value that a dtype does not have.
    """

    def __init__(
        self,
        padding_value: float | Mapping[Any, float] = 0,
        padding_side: str = "right",
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        return_mask: bool | str = False,
        return_lengths: bool | str = False,
    ) -> None:
        if isinstance(padding_value, Mapping):
            for key, value in padding_value.items():
                check_padding(f"padding_value[{key!r}]", value)
            padding_value = dict(padding_value)
        else:
            check_padding("padding_value", padding_value)
        if padding_side not in ("right", "left"):
            raise ValueError(f"padding_side={padding_side!r} is not 'right' or 'left'")
        self.padding_value = padding_value
        self.padding_side = padding_side
        self.pad_to_multiple_of = read_count("pad_to_multiple_of", pad_to_multiple_of, 1)
        self.max_length = read_count("max_length", max_length, 1)
        self.return_mask = return_mask
        self.return_lengths = return_lengths
        self._mask = _check_name("return_mask", return_mask, "attention_mask")
        self._lengths = _check_name("return_lengths", return_lengths, "lengths")
        if self._mask and self._mask == self._lengths:
            raise ValueError(f"return_mask and return_lengths have one name, {self._mask!r}")
        self._elements: dict[Any, bytes] = {}  # of padding, by key and dtype

    def _collate(self, core: Collate | None, fields: Fields) -> Any:
        main, outputs = fields.main(), dict[Hashable, Any]()
        has_mask = bool(self._mask) and not fields.has(self._mask)
        has_lengths = bool(self._lengths) and not fields.has(self._lengths)
        mask = lengths = None
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_others(field, core)
            elif field is main:
                outputs[field.name], mask, lengths = self._pad(core, field, has_mask, has_lengths)
            else:
                outputs[field.name] = self._pad(core, field, False, False)[0]
        if has_mask:
            outputs[self._mask] = mask
        if has_lengths:
            outputs[self._lengths] = lengths
        return fields.join(outputs)

    def _pad(
        self, core: Collate | None, field: SampleField, has_mask: bool, has_lengths: bool
    ) -> Any:
        """The tuple (padded, mask or None, lengths or None)."""
        value = field.padding(self.padding_value, self._mask)
        is_int64 = field.is_int64(self._mask)
        if core is not None:
            result = core.pad(
                field.values,
                make_fill(field, value, self._elements),
                is_int64,
                self.padding_side == "left",
                self.pad_to_multiple_of or 1,
                -1 if self.max_length is None else self.max_length,
                has_mask,
                has_lengths,
                _float_bits(),
            )
            if result is not NotImplemented:
                return result
        tensors = [tensor[: self.max_length] for tensor in as_tensors(field, is_int64)]
        value = check_element(field.of_sample(0), value, tensors[0].dtype)
        return self._pad_by_torch(tensors, value, has_mask, has_lengths)

    def _pad_by_torch(
        self, tensors: list[torch.Tensor], value: Any, has_mask: bool, has_lengths: bool
    ) -> Any:
        sizes = [len(tensor) for tensor in tensors]
        multiple = self.pad_to_multiple_of or 1
        width = -(-max(sizes) // multiple) * multiple
        padded = tensors[0].new_full((len(tensors), width), value)
        mask = padded.new_zeros(padded.shape, dtype=torch.int64) if has_mask else None
        for i, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
            begin = width - size if self.padding_side == "left" else 0
            padded[i, begin : begin + size] = tensor
            if mask is not None:
                mask[i, begin : begin + size] = 1
        lengths = torch.tensor(sizes, device=padded.device) if has_lengths else None
        return padded, mask, lengths


# ---- packing


@dataclass(frozen=True)
class Rows:
    """Where the sequences of a batch lie in the rows that are packed."""

    count: int
    width: int
    order: list[int]  # of samples, as they lie there
    starts: list[int]  # of each in that order, in the rows laid end to end
    lengths: list[int]
    bounds: list[int]  # of segments, padding too

    def longest(self) -> int:
        return max((end - begin for begin, end in pairwise(self.bounds)), default=0)


def _lay_in_a_row(lengths: list[int]) -> Rows:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return Rows(1, bounds[-1], list(range(len(lengths))), bounds[:-1], lengths, bounds)


def lay_in_rows(lengths: list[int], max_tokens: int | None) -> Rows:
    """First fit, in order; without ``max_tokens``, one row.

    Raises:
        ValueError: a sequence that is longer than a row.
    """
    if max_tokens is None:
        return _lay_in_a_row(lengths)
    rows: list[list[int]] = [[]]
    used = [0]
    for i, length in enumerate(lengths):
        if length > max_tokens:
            raise ValueError(
                f"sample {i} of the batch has {length} tokens, more than max_tokens={max_tokens}; "
                "cut it, or pass a larger max_tokens"
            )
        row = next((r for r, size in enumerate(used) if size + length <= max_tokens), len(rows))
        if row == len(rows):
            rows.append([])
            used.append(0)
        rows[row].append(i)
        used[row] += length
    starts, bounds = [], [0]
    for row, samples in enumerate(rows):
        for i in samples:
            starts.append(bounds[-1])
            bounds.append(bounds[-1] + lengths[i])
        end = (row + 1) * max_tokens
        if bounds[-1] < end:
            bounds.append(end)
    order = [i for samples in rows for i in samples]
    return Rows(len(rows), max_tokens, order, starts, [lengths[i] for i in order], bounds)


def _lengths_of(field: SampleField) -> list[int]:
    try:
        return [len(value) for value in field.values]
    except TypeError:
        as_tensors(field, False)  # says which is none
        raise


class PackCollate(SequenceCollate):
    """A ``collate_fn`` that lays sequences end to end, without padding between them.

    Args:
        max_tokens: None: one row of all tokens, as ``DataCollatorWithFlattening`` makes it. Else
            rows of so many: each sample goes into the first row that has room for it, and rows are
            filled up with padding.
        return_position_ids: int64, of the shape of the rows: 0, 1, 2, ... in each sequence.
        return_cu_seqlens: where sequences begin, for attention of variable length: int32
            ``[segments + 1]`` over the rows laid end to end, as ``"cu_seq_lens_q"`` and
            ``"cu_seq_lens_k"``; the length of the longest as an int, ``"max_length_q"`` and
            ``"max_length_k"``. The padding of a row is a segment of its own.

    Every field of sequences comes out as ``[rows, tokens]``; in a sample they have one length.
    Other fields come out as ``default_collate`` makes them, ``attention_mask`` not at all. Beside
    ``input_ids`` there are ``labels``, made of input_ids if samples have none; the first of each
    sequence, and padding, is -100. Padding of other fields is 0. Samples and dtypes are as for
    ``PadCollate``; from tuples and bare sequences a list is made: fields, position_ids, cu_seqlens
    and the length of the longest, without labels.

    Raises:
        TypeError, ValueError: arguments, when made; when called, samples that are not alike, values
            that are no sequences, fields of different length, a sample longer than ``max_tokens``.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        return_position_ids: bool = True,
        return_cu_seqlens: bool = True,
    ) -> None:
        self.max_tokens = read_count("max_tokens", max_tokens, 1)
        self.return_position_ids = bool(return_position_ids)
        self.return_cu_seqlens = bool(return_cu_seqlens)
        self._elements: dict[Any, bytes] = {}  # of padding, by key and dtype

    def _collate(self, core: Collate | None, fields: Fields) -> Any:
        main, outputs = fields.main(), dict[Hashable, Any]()
        rows = lay_in_rows(_lengths_of(main), self.max_tokens)
        if rows.count * rows.width > _INT32_MAX:
            raise ValueError(
                f"the batch has {rows.count * rows.width} tokens, more than cu_seqlens can count "
                f"({_INT32_MAX}); make batches smaller"
            )
        is_hugging_face = main.is_named and main.key == "input_ids"
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_others(field, core)
            elif not (field.is_named and field.key == "attention_mask"):
                self._check_lengths(field, main, rows)
                outputs[field.name] = self._pack(core, field, rows, field.name == "labels")
        if is_hugging_face and "labels" not in outputs:
            labels = SampleField("labels", "labels", main.values, True, True)
            outputs["labels"] = self._pack(core, labels, rows, True)
        self._add_segments(core, fields, rows, outputs)
        return fields.join(outputs)

    def _check_lengths(self, field: SampleField, main: SampleField, rows: Rows) -> None:
        if field is main:
            return
        lengths = _lengths_of(field)
        for i, length in zip(rows.order, rows.lengths, strict=True):
            if lengths[i] != length:
                raise ValueError(
                    f"{field.of_sample(i)} has {lengths[i]} elements, but {main.key!r} has "
                    f"{length}; sequences of a sample are packed side by side and must have one "
                    "length"
                )

    def _pack(self, core: Collate | None, field: SampleField, rows: Rows, is_label: bool) -> Any:
        value = LABEL_PADDING if is_label else field.padding(0)
        is_int64 = field.is_int64()
        in_order = [field.values[i] for i in rows.order]
        if core is not None:
            result = core.pack(
                in_order,
                rows.starts,
                rows.lengths,
                rows.count,
                rows.width,
                make_fill(field, value, self._elements, is_label),
                is_int64,
                is_label,
                _float_bits(),
            )
            if result is not NotImplemented:
                return result
        tensors = as_tensors(field, is_int64)
        value = check_element(field.of_sample(0), value, tensors[0].dtype, is_label)
        packed = tensors[0].new_full((rows.count, rows.width), value)
        flat = packed.view(-1)
        for i, start, length in zip(rows.order, rows.starts, rows.lengths, strict=True):
            flat[start : start + length] = tensors[i]
            if is_label and length > 0:
                flat[start] = value
        return packed

    def _add_segments(
        self, core: Collate | None, fields: Fields, rows: Rows, outputs: dict[Hashable, Any]
    ) -> None:
        has_positions = self.return_position_ids and not fields.has("position_ids")
        is_dict = fields.kind is dict
        copies = (2 if is_dict else 1) if self.return_cu_seqlens else 0
        make = _segments_by_torch if core is None else core.segments
        bounds, position_ids = make(rows.bounds, rows.count, rows.width, copies, has_positions)
        if has_positions:
            outputs["position_ids"] = position_ids
        if copies:
            outputs.update(zip(("cu_seq_lens_q", "cu_seq_lens_k"), bounds, strict=False))
            for name in ("max_length_q", "max_length_k")[:copies]:
                outputs[name] = rows.longest()


def _segments_by_torch(
    bounds: list[int], rows: int, width: int, copies: int, has_positions: bool
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    cu_seqlens = [torch.tensor(bounds, dtype=torch.int32) for _ in range(copies)]
    if not has_positions:
        return cu_seqlens, None
    pieces = [torch.arange(end - begin) for begin, end in pairwise(bounds)]
    return cu_seqlens, torch.cat(pieces).view(rows, width)
