"""PadCollate and PackCollate: samples with sequences of different length as batches.

A batch is taken apart into fields. C writes the sequences (``Collate``) if they are lists of plain
numbers, arrays or tensors; torch's functions do otherwise, with the same results.
docs/sequences-collate.md has the rules in one piece.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from fastloop._core import Collate, pack_rows
from fastloop.base.checks import check_type, make_message, read_choice, read_optional_int, refuse_if
from fastloop.compat.tensors import DTYPES
from fastloop.compat.torch_parts import default_collate
from fastloop.data.collate import make_collate

LABEL_PADDING = -100
_INT32_MAX = 2**31 - 1  # that cu_seqlens can count

# Hugging Face's names, and the padding that its tokenizers and collators give them. Integers of
# these names come out as int64. The user chooses the padding of input_ids and decoder_input_ids.
_PADDING: dict[Hashable, int] = {
    **dict.fromkeys(("labels", "label", "label_ids"), -100),
    **dict.fromkeys(("attention_mask", "decoder_attention_mask"), 0),
    **dict.fromkeys(("token_type_ids", "position_ids"), 0),
    "special_tokens_mask": 1,
}
_INT64 = {"input_ids", "decoder_input_ids", *_PADDING}
_SEQUENCE = "a list of numbers, a 1-D array or a 1-D tensor"


@dataclass
class SampleField:
    """The values of one field in the samples of a batch."""

    key: Hashable  # in samples; 0 for bare sequences
    name: Hashable  # in the batch
    values: list[Any]
    holds_sequences: bool
    is_named: bool  # in dicts, whose names have a meaning

    def of_sample(self, i: int) -> str:
        """Return the name of a value in errors."""
        return f"{self.key!r} of sample {i}" if self.is_named else f"place {self.key} of sample {i}"

    def is_int64(self, mask: str = "") -> bool:
        """Tell whether the integers come out as int64. ``mask``: the name of the mask."""
        return self.is_named and (self.key in _INT64 or self.key == mask)

    def padding(self, given: Any, mask: str = "") -> Any:
        """Return the padding value, of the argument ``padding_value``."""
        if isinstance(given, Mapping):
            if self.key in given or self.name in given:
                return given[self.key if self.key in given else self.name]
            given = 0
        known: dict[Hashable, Any] = {**_PADDING, mask: 0} if self.is_named else {}
        return known.get(self.key, given)

    def lengths(self) -> list[int]:
        """Return the elements of each sequence."""
        try:
            return [len(value) for value in self.values]
        except TypeError:
            as_tensors(self, False)  # names the value that is not a sequence
            raise


@dataclass
class Fields:
    """A batch, taken apart."""

    kind: type  # of a sample: dict; list for tuples and lists; object for bare sequences
    all: list[SampleField]

    def main(self) -> SampleField:
        """Return the field that gives a batch its mask, lengths and segments."""
        sequences = [field for field in self.all if field.holds_sequences]
        keys, rule = [field.key for field in self.all], f"of fields with {_SEQUENCE}"
        check_type("samples", keys, sequences, rule, "for others, use torch's default collate")
        return next((field for field in sequences if field.key == "input_ids"), sequences[0])

    def has(self, name: str) -> bool:
        """Tell whether the batch has a field of this name."""
        return self.kind is dict and any(field.name == name for field in self.all)

    def join(self, outputs: dict[Hashable, Any]) -> Any:
        """Return the batch of these outputs."""
        if self.kind is dict:
            return outputs
        values = list(outputs.values())
        return values[0] if self.kind is object and len(values) == 1 else values


def is_number(value: object) -> bool:
    """Tell a number that a sequence may hold, bools and 0-d tensors included."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0
    return isinstance(value, (int, float, np.number, np.bool_))


def is_sequence(value: object) -> bool:
    """Tell a sequence; of a list, the first element decides."""
    if isinstance(value, (list, tuple)):
        return not value or is_number(value[0])
    return isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 1


def _describe(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if hasattr(type(value), "shape") else ""
    return f"a {type(value).__name__}{shape}"


def _kind_of(samples: Sequence[Any]) -> type:
    first: Any = samples[0]
    if isinstance(first, Mapping):
        return dict
    if isinstance(first, tuple):
        return list
    if isinstance(first, list):  # a sequence, or fields: an empty list leaves it to the next
        full = next((sample for sample in samples if not isinstance(sample, list) or sample), [])
        # The types of a long list are found ten times as fast as each number is looked at.
        is_plain = isinstance(full, list) and set(map(type, full)) <= {int, float, bool}
        is_bare = is_plain or (isinstance(full, list) and all(map(is_number, full)))
        return object if is_bare else list
    if is_sequence(first):
        return object
    rule = f"a dict or a tuple of fields, or {_SEQUENCE}"
    raise TypeError(f"sample 0 must be {rule}, got {_describe(first)}")


def _take_key(samples: Sequence[Any], key: Hashable) -> list[Any]:
    try:
        return [sample[key] for sample in samples]
    except (KeyError, TypeError, IndexError):
        odd = (i for i, one in enumerate(samples) if not (isinstance(one, Mapping) and key in one))
        i = next(odd, 0)
        error = KeyError if isinstance(samples[i], Mapping) else TypeError
        rule = f"a dict with {key!r}, as sample 0 is"
        raise error(f"sample {i} must be {rule}, got {_describe(samples[i])}") from None


def _take_places(samples: Sequence[Any]) -> list[list[Any]]:
    size = len(samples[0])
    for i, sample in enumerate(samples):
        is_tuple = isinstance(sample, (tuple, list))
        if not is_tuple or len(sample) != size:
            got = f"{len(sample)} fields" if is_tuple else _describe(sample)
            rule = f"a tuple or list of {size} fields, as sample 0 is"
            raise (ValueError if is_tuple else TypeError)(f"sample {i} must be {rule}, got {got}")
    return [list(values) for values in zip(*samples, strict=True)]


def take_apart(samples: Sequence[Any]) -> Fields:
    """Return the fields of a batch.

    Raises:
        TypeError: samples that are neither fields nor sequences, or not alike.
        ValueError: no samples, or tuples of different length.
        KeyError: a dict that lacks a key of the first.
    """
    refuse_if(len(samples) == 0, "the batch has no samples")
    kind = _kind_of(samples)
    columns: dict[Hashable, list[Any]]
    if kind is dict:
        columns = {key: _take_key(samples, key) for key in samples[0]}
    else:
        columns = dict(enumerate([list(samples)] if kind is object else _take_places(samples)))
    names = {key: key for key in columns}
    if "input_ids" in names and "labels" not in names:  # as DataCollatorWithPadding names them
        label = [key for key in ("label", "label_ids") if key in names][:1]
        names |= dict.fromkeys(label, "labels")
    fields = [
        SampleField(key, names[key], values, is_sequence(values[0]), kind is dict)
        for key, values in columns.items()
    ]
    return Fields(kind, fields)


# ---- sequences as tensors


def check_element(field: SampleField, value: Any, dtype: torch.dtype) -> Any:
    """Return the padding value as a number that the dtype of the field can hold.

    Raises:
        ValueError: the dtype cannot hold it.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return float(value)
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if np.isfinite(float(value)) and int(value) == value and low <= value <= high:
        return int(value)
    name = str(dtype).removeprefix("torch.")
    fault = f"{field.of_sample(0)} is {name}, which cannot hold its padding {value!r}"
    remedy = f"give it a wider dtype, such as int64, or a padding from {low} to {high}"
    raise ValueError(f"{fault} ({remedy})")


def tensor_of(what: str, value: Any) -> torch.Tensor:
    """Return a sequence as a tensor made by torch's functions.

    Raises:
        TypeError: it is not a sequence of numbers; the text begins with ``what``.
    """
    if not is_sequence(value):
        raise TypeError(f"{what} must be {_SEQUENCE}, got {_describe(value)}")
    try:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)
    except Exception as error:  # torch raises several types for dtypes that it does not have
        raise TypeError(f"{what} cannot be a tensor: {error}") from error


def unify_lists(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give tensors that were lists one dtype: bool, int64 or that of floats or complex numbers."""
    found = [tensor.dtype for tensor in tensors if tensor.numel() > 0]
    dtype = reduce(torch.promote_types, found) if found else torch.int64
    if dtype.is_floating_point:
        dtype = torch.get_default_dtype()  # whichever NumPy's floats have
    elif not (dtype.is_complex or dtype is torch.bool):
        dtype = torch.int64
    return [tensor.to(dtype) for tensor in tensors]


def as_tensors(field: SampleField, is_int64: bool) -> list[torch.Tensor]:
    """Return the sequences of a field as 1-D tensors of one dtype, made by torch's functions.

    Raises:
        TypeError: a value that is not a sequence, or of another dtype than the first.
    """
    tensors = [tensor_of(field.of_sample(i), value) for i, value in enumerate(field.values)]
    are_lists = [isinstance(value, (list, tuple)) for value in field.values]
    if all(are_lists):
        return unify_lists(tensors)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    kinds = list(zip(are_lists, dtypes, strict=True))
    odd = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        first, other = (f"a {type(field.values[i]).__name__} of {dtypes[i]}" for i in (0, odd))
        remedy = "lists alone, or arrays and tensors of one dtype"
        rule = f"like that of sample 0, {first}"
        raise TypeError(f"{field.of_sample(odd)} must be {rule}, got {other} ({remedy})")
    dtype = tensors[0].dtype
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return [tensor.to(torch.int64) for tensor in tensors] if is_int64 and is_integer else tensors


# ---- collates


def element_of(field: SampleField, value: Any, dtype: torch.dtype) -> bytes:
    """Return the bytes of a padding value in the dtype of the field."""
    element = torch.tensor([check_element(field, value, dtype)], dtype=dtype, device="cpu")
    return element.view(torch.uint8).numpy().tobytes()


def _collate_others(field: SampleField, core: Collate | None) -> Any:
    values = field.values if field.is_named else tuple(field.values)
    return default_collate(values) if core is None else core.stack(values)


def _lay(tensors: list[torch.Tensor], starts: list[int], shape: tuple[int, int], value: Any) -> Any:
    """Return a tensor with each of these at its start, rows end to end; the rest is the padding."""
    laid = tensors[0].new_full(shape, value)
    flat = laid.view(-1)
    for start, tensor in zip(starts, tensors, strict=True):
        flat[start : start + len(tensor)] = tensor
    return laid


def _float_bits() -> int:
    return torch.finfo(torch.get_default_dtype()).bits


class SequenceCollate:
    """The base of both classes: where batches are built.

    ``collate`` is given a ``Collate``, in whose memory it makes the tensors; loaders of fastloop
    pass theirs. With None, torch's functions do everything.
    """

    _own: Collate | None = None  # for calls by others

    def __init__(self) -> None:
        self._elements: dict[Any, bytes] = {}  # of padding, by key and dtype

    def __call__(self, samples: Sequence[Any]) -> Any:
        if self._own is None:
            self._own = make_collate()
        return self.collate(self._own, samples)

    def collate(self, core: Collate | None, samples: Sequence[Any]) -> Any:
        """Return the batch of these samples."""
        if core is not None and not core.begin():
            core = None
        fields = take_apart(samples)
        return fields.join(self._make_outputs(core, fields))

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        raise NotImplementedError

    def _fill(self, field: SampleField, value: Any, number: int) -> bytes:
        """Return the bytes of the padding in the dtype of this number."""
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
    """Return the name of an output, or "" for none."""
    if isinstance(value, bool):
        return name if value else ""
    if isinstance(value, str) and value:
        return value
    raise TypeError(make_message(argument, "True, False or a name", value))


class PadCollate(SequenceCollate):
    """A ``collate_fn`` that pads sequences to the longest in a batch.

    Args:
        padding_value: a number, or a dict of numbers by key (by place for tuples). With a number,
            and for keys that the dict lacks, labels are padded with -100, masks with 0; see below.
        padding_side: ``"right"`` or ``"left"``: where padding goes.
        pad_to_multiple_of: widths are rounded up to a multiple of this.
        max_length: sequences are cut to their first ``max_length`` elements.
        return_mask: whether batches have a mask, int64 ``[batch, width]``, 1 at elements and 0 at
            padding. It is called ``"attention_mask"``, or by the name given here.
        return_lengths: whether batches have the lengths, int64 ``[batch]``. They are called
            ``"lengths"``, or by the name given here.

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
            that are not sequences, a padding value that a dtype cannot hold.
    """

    _kind = "PadCollate"

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

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        main = fields.main()
        outputs: dict[Hashable, Any] = {}
        mask = lengths = None
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_others(field, core)
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
        is_left, multiple = self.padding_side == "left", self.pad_to_multiple_of or 1
        if core is not None:
            most = -1 if self.max_length is None else self.max_length
            layout = partial(self._fill, field, value), is_int64, is_left, multiple, most
            result = core.pad(field.values, *layout, has_mask, has_lengths, _float_bits())
            if result is not NotImplemented:
                return result
        tensors = [tensor[: self.max_length] for tensor in as_tensors(field, is_int64)]
        sizes = list(map(len, tensors))
        width = -(-max(sizes) // multiple) * multiple
        value = check_element(field, value, tensors[0].dtype)
        starts = [i * width + (width - size) * is_left for i, size in enumerate(sizes)]
        shape = len(tensors), width
        padded = _lay(tensors, starts, shape, value)
        ones = [padded.new_ones(size, dtype=torch.int64) for size in sizes]
        mask = _lay(ones, starts, shape, 0) if has_mask else None
        return padded, mask, torch.tensor(sizes, device=padded.device) if has_lengths else None


# ---- packing


class Rows(NamedTuple):
    """The places of the sequences of a batch in the rows that are packed."""

    shape: tuple[int, int]
    order: list[int]  # of samples, as they lie there
    starts: list[int]  # of each in that order, in the rows laid end to end
    bounds: list[int]  # of segments, padding too
    longest: int  # of segments


class PackCollate(SequenceCollate):
    """A ``collate_fn`` that lays sequences end to end, without padding between them.

    Args:
        max_tokens: the tokens of a row. Each sample goes into the first row with room for it, and
            rows are filled up with padding. None: one row of all tokens, as
            ``DataCollatorWithFlattening`` makes it.
        return_position_ids: whether batches have positions, int64 of the shape of the rows: 0, 1,
            2, ... in each sequence.
        return_cu_seqlens: whether batches say where sequences begin, for attention of variable
            length: int32 ``[segments + 1]`` over the rows laid end to end, as ``"cu_seq_lens_q"``
            and ``"cu_seq_lens_k"``; the length of the longest as an int, ``"max_length_q"`` and
            ``"max_length_k"``. The padding of a row is a segment of its own.

    Every field of sequences comes out as ``[rows, tokens]``; in a sample they have one length.
    Other fields come out as ``default_collate`` makes them, ``attention_mask`` not at all. Beside
    ``input_ids`` there are ``labels``, made of input_ids if samples have none; the first of each
    sequence, and padding, is -100. Padding of other fields is 0. Samples and dtypes are as for
    ``PadCollate``; from tuples and bare sequences a list is made: fields, position_ids, cu_seqlens
    and the length of the longest, without labels.

    Raises:
        TypeError, ValueError: arguments, when made; when called, samples that are not alike, values
            that are not sequences, fields of different length, a sample longer than
            ``max_tokens``.
    """

    _kind = "PackCollate"

    def __init__(
        self,
        max_tokens: int | None = None,
        return_position_ids: bool = True,
        return_cu_seqlens: bool = True,
    ) -> None:
        super().__init__()
        self.max_tokens = read_optional_int("max_tokens", max_tokens, 1, _INT32_MAX)
        self.return_position_ids = bool(return_position_ids)
        self.return_cu_seqlens = bool(return_cu_seqlens)

    def _make_outputs(self, core: Collate | None, fields: Fields) -> dict[Hashable, Any]:
        main = fields.main()
        outputs: dict[Hashable, Any] = {}
        lengths = main.lengths()
        rows = Rows(*pack_rows(lengths, self.max_tokens or 0))
        for field in fields.all:
            if not field.holds_sequences:
                outputs[field.name] = _collate_others(field, core)
            elif field.key != "attention_mask":
                own = field.lengths()
                if own != lengths:
                    i = next(i for i in range(len(own)) if own[i] != lengths[i])
                    got = f"{own[i]} elements, but {main.key!r} has {lengths[i]}"
                    rule = "sequences of a sample are packed side by side and must have one length"
                    raise ValueError(f"{field.of_sample(i)} has {got}; {rule}")
                outputs[field.name] = self._pack(core, field, rows, own)
        if main.key == "input_ids" and "labels" not in outputs:
            labels = SampleField("labels", "labels", main.values, True, True)
            outputs["labels"] = self._pack(core, labels, rows, lengths)
        return outputs | self._make_segments(core, fields, rows)

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
        if isinstance(first, torch.Tensor):  # on a device, perhaps
            made = {name: each.to(first.device) for name, each in made.items()}
        return made | {f"max_length_{end}": rows.longest for end in ends}


def _segments_by_torch(
    bounds: list[int], rows: int, width: int, copies: int, has_positions: bool
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    cu_seqlens = [torch.tensor(bounds, dtype=torch.int32) for _ in range(copies)]
    if not has_positions:
        return cu_seqlens, None
    pieces = [torch.arange(end - begin) for begin, end in pairwise(bounds)]
    return cu_seqlens, torch.cat(pieces).view(rows, width)
