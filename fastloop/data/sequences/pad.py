"""PadCollate and PackCollate: samples with sequences of different lengths as batches.

A batch is taken apart into fields. If the sequences are lists of plain numbers, arrays or tensors,
the native collate (``Collate``) writes them. Else torch's functions do, with the same results.
docs/use/text.md and docs/api/data.md have the rules.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from fastloop._core import Collate, pack_rows
from fastloop.base.checks import check_type, make_message, read_choice, read_optional_int
from fastloop.compat.tensors import DTYPES
from fastloop.compat.torch_parts import default_collate
from fastloop.data.collate import make_collate
from fastloop.data.columns import Columns, Request
from fastloop.data.sequences import outputs
from fastloop.data.sequences.fields import (
    LABEL_PADDING,
    Fields,
    SampleField,
    as_tensors,
    check_element,
    element_of,
    is_number,
    take_apart,
)
from fastloop.data.sequences.outputs import as_jagged

_MADE = ("labels", "position_ids")
_INT32_MAX = 2**31 - 1  # the largest number in cu_seqlens


def _collate_default(field: SampleField, core: Collate | None) -> Any:
    values = field.values if field.is_named else tuple(field.values)
    return default_collate(values) if core is None else core.stack(values)


def _lay(tensors: list[torch.Tensor], starts: list[int], shape: tuple[int, int], value: Any) -> Any:
    """Return a tensor of this shape that holds each tensor from its start on, and `value` in the
    rest. Starts count through all rows."""
    laid = tensors[0].new_full(shape, value)
    flat = laid.view(-1)
    for start, tensor in zip(starts, tensors, strict=True):
        flat[start : start + len(tensor)] = tensor
    return laid


def _float_bits() -> int:
    return torch.finfo(torch.get_default_dtype()).bits


class SequenceCollate:
    """The base of both classes: the owner of a batch's memory.

    fastloop's loaders pass ``collate`` a ``Collate``, which owns the memory of the batch. With
    None, torch's functions do everything.
    """

    _own: Collate | None = None  # for calls outside of fastloop's loaders

    def __init__(self) -> None:
        self._elements: dict[Any, bytes] = {}  # the bytes of padding, by key and dtype

    def __call__(self, samples: Sequence[Any]) -> Any:
        if self._own is None:
            self._own = make_collate()
        return self.collate(self._own, samples)

    def collate(self, core: Collate | None, samples: Sequence[Any]) -> Any:
        """Return the batch that holds these samples."""
        if core is not None and not core.begin():
            core = None
        fields = take_apart(samples)
        return fields.join(self._make_outputs(core, fields))

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        raise NotImplementedError

    def _fill(self, field: SampleField, value: Any, number: int) -> bytes:
        """Return the bytes of one element of padding, in the dtype with this number in DTYPES."""
        key = field.key, number
        if key not in self._elements:
            self._elements[key] = element_of(field, value, DTYPES[number])
        return self._elements[key]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_own"}

    def __repr__(self) -> str:
        state = vars(self).items()
        given = ", ".join(f"{key}={value!r}" for key, value in state if not key.startswith("_"))
        return f"{type(self).__name__}({given})"


def _read_name(argument: str, value: Any, name: str) -> str:
    """Return the name of an output, or "" for no output."""
    if isinstance(value, bool):
        return name if value else ""
    if isinstance(value, str) and value:
        return value
    raise TypeError(make_message(argument, "True, False or a name", value))


class PadCollate(SequenceCollate):
    """A ``collate_fn`` that pads sequences to the longest in a batch.

    Args:
        padding_value: a number, or a dict of numbers by key (by index for tuples). With a number,
            and for keys that the dict lacks, labels are padded with -100 and masks with 0; see
            below.
        padding_side: ``"right"`` or ``"left"``: the side that gets padding.
        pad_to_multiple_of: widths are rounded up to a multiple of this number.
        max_length: sequences are truncated to their first ``max_length`` elements.
        return_mask: whether batches have a mask, int64 ``[batch, width]``, 1 at elements and 0 at
            padding. True names the mask ``"attention_mask"``; a text is its name.
        return_lengths: whether batches have the lengths, int64 ``[batch]``. True names the lengths
            ``"lengths"``; a text is their name.

    A sample is a dict or a tuple of fields, or one sequence. Fields of sequences (lists of numbers,
    1-D arrays or tensors) come out as ``[batch, width]``, each with its own width. Any other field
    comes out as from ``default_collate``. Mask and lengths describe ``input_ids``, or else the
    first field of sequences. Lists of ints become int64, lists with floats torch's default dtype;
    arrays and tensors keep their dtype. Dicts come out as dicts, tuples as lists with mask and
    lengths at the end.

    For example, ``PadCollate(return_mask=True)`` makes ``{"input_ids": ..., "attention_mask":
    ...}`` from samples ``{"input_ids": [5, 6, 7]}``.

    Hugging Face's names have Hugging Face's conventions: ``labels`` (``label``, ``label_ids``) are
    padded with -100, ``attention_mask``, ``token_type_ids`` and ``position_ids`` with 0,
    ``special_tokens_mask`` with 1. These fields and ``input_ids`` are int64. If samples have
    ``input_ids``, ``label`` comes out as ``labels``.

    Raises:
        TypeError, ValueError: when made: a wrong argument; when called: samples that are not alike,
            values that are not sequences, a padding value that a dtype cannot hold.
    """

    _uses_core = True  # the native collate

    def __init__(
        self,
        padding_value: float | Mapping[Any, float] = 0,
        padding_side: str = "right",
        pad_to_multiple_of: int | None = None,
        max_length: int | None = None,
        return_mask: bool | str = False,
        return_lengths: bool | str = False,
    ) -> None:
        super().__init__()
        given = self.padding_value = padding_value
        values = given.values() if isinstance(given, Mapping) else [given]
        rule = "a number, or a dict of numbers by key"
        check_type("padding_value", given, all(map(is_number, values)), rule)
        self.padding_side = read_choice("padding_side", padding_side, ("right", "left"))
        self.pad_to_multiple_of = read_optional_int("pad_to_multiple_of", pad_to_multiple_of, 1)
        self.max_length = read_optional_int("max_length", max_length, 1)
        self.return_mask = return_mask
        self.return_lengths = return_lengths
        self._mask = _read_name("return_mask", return_mask, "attention_mask")
        self._lengths = _read_name("return_lengths", return_lengths, "lengths")

    def _columns(self, dataset: object, request: Request) -> Columns:
        return outputs.columns_of_padded(self, dataset)

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        main = fields.main()
        outputs: dict[Hashable, Any] = {}
        mask = lengths = None
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_default(field, core)
            elif field is main:
                wanted = (bool(n) and not fields.has(n) for n in (self._mask, self._lengths))
                outputs[field.name], mask, lengths = self._pad(core, field, *wanted)
            else:
                outputs[field.name] = self._pad(core, field, False, False)[0]
        extras = ((self._mask, mask), (self._lengths, lengths))
        return outputs | {name: made for name, made in extras if made is not None}

    def _pad(
        self, core: Collate | None, field: SampleField, has_mask: bool, has_lengths: bool
    ) -> Any:
        """Return the tuple (padded, mask or None, lengths or None)."""
        value, is_int64 = field.padding(self.padding_value, self._mask), field.is_int64(self._mask)
        pad_left, multiple = self.padding_side == "left", self.pad_to_multiple_of or 1
        if core is not None:
            most = -1 if self.max_length is None else self.max_length
            layout = partial(self._fill, field, value), is_int64, pad_left, multiple, most
            result = core.pad(field.values, *layout, has_mask, has_lengths, _float_bits())
            if result is not NotImplemented:
                return result
        tensors = [tensor[: self.max_length] for tensor in as_tensors(field, is_int64)]
        sizes = list(map(len, tensors))
        width = -(-max(sizes) // multiple) * multiple
        value = check_element(field, value, tensors[0].dtype)
        starts = [i * width + (width - size) * pad_left for i, size in enumerate(sizes)]
        shape = len(tensors), width
        padded = _lay(tensors, starts, shape, value)
        ones = [padded.new_ones(size, dtype=torch.int64) for size in sizes]
        mask = _lay(ones, starts, shape, 0) if has_mask else None
        return padded, mask, torch.tensor(sizes, device=padded.device) if has_lengths else None


# ---- packing


class Rows(NamedTuple):
    """The layout of a batch's sequences in packed rows."""

    shape: tuple[int, int]
    order: list[int]  # the samples, in the order of the rows
    starts: list[int]  # the first token of each sample in that order, counted through all rows
    bounds: list[int]  # the ends of segments; the padding of a row is a segment
    longest: int  # the length of the longest segment


class PackCollate(SequenceCollate):
    """A ``collate_fn`` that lays sequences end to end, without padding between them.

    Args:
        max_tokens: the number of tokens in a row. Each sample goes into the first row with enough
            room, and rows are filled up with padding. None: one row for all tokens, as from
            ``DataCollatorWithFlattening``.
        return_position_ids: whether batches have positions, int64 with the shape of the rows: 0, 1,
            2, ... in each sequence.
        return_cu_seqlens: whether batches have the bounds of sequences, for attention of variable
            length: int32 ``[segments + 1]``, counted through all rows, as ``"cu_seq_lens_q"`` and
            ``"cu_seq_lens_k"``; and the longest length as an int, ``"max_length_q"`` and
            ``"max_length_k"``. The padding of a row is a segment.
        layout: ``"jagged"``: sequences come out as nested tensors of the layout ``torch.jagged``,
            one component for each segment, over the memory of the rows. If samples have
            ``position_ids``, a segment begins wherever they are 0, as in rows of a
            ``PackedDataset``. ``"strided"``: as ``[rows, tokens]``; each sample is a segment, also
            a row of a ``PackedDataset``, whose documents have no bounds then.

    Every field of sequences comes out in this layout; the sequences of one sample must have
    one length. ``attention_mask`` does not come out. Any other field comes out as from
    ``default_collate``. With ``input_ids`` come ``labels``, which are made from ``input_ids`` if
    samples have no labels; the first label of each sequence, and padding, is -100. All other
    padding is 0. Samples and dtypes are as for ``PadCollate``. For tuples and bare sequences the
    batch is a list: fields, position_ids, cu_seqlens and the longest length, without labels.

    Raises:
        TypeError, ValueError: when made: a wrong argument; when called: samples that are not alike,
            values that are not sequences, fields of different lengths, a sample longer than
            ``max_tokens``.
    """

    _uses_core = True  # the native collate
    layout = "strided"

    def __init__(
        self,
        max_tokens: int | None = None,
        return_position_ids: bool = True,
        return_cu_seqlens: bool = True,
        layout: str = "strided",
    ) -> None:
        super().__init__()
        if read_choice("layout", layout, ("strided", "jagged")) != self.layout:
            self.layout = layout
        self.max_tokens = read_optional_int("max_tokens", max_tokens, 1, _INT32_MAX)
        self.return_position_ids = bool(return_position_ids)
        self.return_cu_seqlens = bool(return_cu_seqlens)

    def _columns(self, dataset: object, request: Request) -> Columns:
        return outputs.columns_of_packed(self, dataset)

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        main = fields.main()
        outputs: dict[Hashable, Any] = {}
        lengths = main.lengths()
        rows = Rows(*pack_rows(lengths, self.max_tokens or 0))
        if self.layout == "jagged":
            rows = _split_segments(fields, rows)
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_default(field, core)
            elif field.key != "attention_mask":
                own = field.lengths()
                if own != lengths:
                    i = next(i for i in range(len(own)) if own[i] != lengths[i])
                    rule = f"{lengths[i]} elements, as {main.key!r} has"
                    raise ValueError(f"{field.name_in(i)} must have {rule}, got {own[i]}")
                outputs[field.name] = self._pack(core, field, rows, own)
        if main.key == "input_ids" and "labels" not in outputs:
            labels = SampleField("labels", "labels", main.values, True, True)
            outputs["labels"] = self._pack(core, labels, rows, lengths)
        made = outputs | self._make_segments(core, fields, rows)
        if self.layout == "strided":
            return made
        if main.key == "input_ids":
            begins = [begin for begin in rows.bounds if begin < rows.bounds[-1]]
            made["labels"].view(-1)[begins] = LABEL_PADDING
        names = {*(field.name for field in fields.all if field.holds_sequences), *_MADE}
        bounds = torch.tensor(rows.bounds, device=made[main.name].device)
        return as_jagged(made, names, bounds, rows.longest)

    def _pack(self, core: Collate | None, field: SampleField, rows: Rows, sizes: list[int]) -> Any:
        is_label = field.name == "labels"
        value, is_int64 = LABEL_PADDING if is_label else field.padding(0), field.is_int64()
        if core is not None:
            ordered = [field.values[i] for i in rows.order]
            layout = rows.starts, [sizes[i] for i in rows.order], *rows.shape
            rule = partial(self._fill, field, value), is_int64, is_label, _float_bits()
            result = core.pack(ordered, *layout, *rule)
            if result is not NotImplemented:
                return result
        tensors = as_tensors(field, is_int64)
        value = check_element(field, value, tensors[0].dtype)
        packed = _lay([tensors[i] for i in rows.order], rows.starts, rows.shape, value)
        if is_label:
            firsts = [start for i, start in zip(rows.order, rows.starts, strict=True) if sizes[i]]
            packed.view(-1)[firsts] = value
        return packed

    def _make_segments(self, core: Collate | None, fields: Fields, rows: Rows) -> dict[str, Any]:
        has_positions = self.return_position_ids and not fields.has("position_ids")
        names = ["q", "k"] if fields.kind is dict else ["q"]
        ends = names if self.return_cu_seqlens else []
        make = _segments_by_torch if core is None else core.segments
        bounds, position_ids = make(rows.bounds, *rows.shape, len(ends), has_positions)
        made: dict[str, Any] = {"position_ids": position_ids} if has_positions else {}
        made |= {f"cu_seq_lens_{end}": each for end, each in zip(ends, bounds, strict=True)}
        first = fields.main().values[0]
        if isinstance(first, torch.Tensor):  # perhaps on a device
            made = {name: each.to(first.device) for name, each in made.items()}
        return made | {f"max_length_{end}": rows.longest for end in ends}


def _split_segments(fields: Fields, rows: Rows) -> Rows:
    """Return rows in which a segment also begins wherever ``position_ids`` of a sample are 0."""
    begins: set[int] = set()
    for field in fields.all:
        if field.is_named and field.key == "position_ids" and field.holds_sequences:
            positions = as_tensors(field, True)
            for i, start in zip(rows.order, rows.starts, strict=True):
                begins.update((positions[i] == 0).nonzero().view(-1).add(start).tolist())
    bounds = sorted([*rows.bounds, *begins.difference(rows.bounds)])
    longest = max(end - begin for begin, end in pairwise(bounds))
    return rows._replace(bounds=bounds, longest=longest)


def _segments_by_torch(
    bounds: list[int], rows: int, width: int, copies: int, has_positions: bool
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    cu_seqlens = [torch.tensor(bounds, dtype=torch.int32) for _ in range(copies)]
    if not has_positions:
        return cu_seqlens, None
    pieces = [torch.arange(end - begin) for begin, end in pairwise(bounds)]
    return cu_seqlens, torch.cat(pieces).view(rows, width)
