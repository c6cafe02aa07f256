"""The fields of samples with sequences: taking samples apart; names, padding and dtypes; and
sequences as tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from fastloop.base.checks import make_message, refuse_if

LABEL_PADDING = -100

# Hugging Face's names, with the padding of its tokenizers and collators. Integers with these names
# come out as int64. The user chooses the padding of input_ids and decoder_input_ids.
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
    is_named: bool  # samples are dicts, so names have a meaning

    def name_in(self, i: int) -> str:
        """Return the name of sample i's value in errors."""
        return f"{self.key!r} of sample {i}" if self.is_named else f"item {self.key} of sample {i}"

    def is_int64(self, mask: str = "") -> bool:
        """Tell whether the integers come out as int64. ``mask``: the name of the mask."""
        return self.is_named and (self.key in _INT64 or self.key == mask)

    def padding(self, given: Any, mask: str = "") -> Any:
        """Return the field's padding value. ``given``: the argument ``padding_value``."""
        if isinstance(given, Mapping):
            if self.key in given or self.name in given:
                return given[self.key if self.key in given else self.name]
            given = 0
        known: dict[Hashable, Any] = {**_PADDING, mask: 0} if self.is_named else {}
        return known.get(self.key, given)

    def lengths(self) -> list[int]:
        """Return the length of each sequence."""
        try:
            return [len(value) for value in self.values]
        except TypeError:
            as_tensors(self, False)  # names the value that is not a sequence
            raise


@dataclass
class Fields:
    """A batch, taken apart."""

    kind: type  # dict; list if samples are tuples or lists; object for bare sequences
    all: list[SampleField]

    def main(self) -> SampleField:
        """Return the field that gives a batch its mask, lengths and segments."""
        sequences = [field for field in self.all if field.holds_sequences]
        keys, rule = [field.key for field in self.all], f"have a field with {_SEQUENCE}"
        if not sequences:
            remedy = "without sequences, use torch's default collate"
            raise TypeError(f"samples must {rule}, got fields {keys} ({remedy})")
        return next((field for field in sequences if field.key == "input_ids"), sequences[0])

    def has(self, name: str) -> bool:
        """Tell whether the batch has a field with this name."""
        return self.kind is dict and any(field.name == name for field in self.all)

    def join(self, outputs: dict[Hashable, Any]) -> Any:
        """Return the batch that holds these outputs."""
        if self.kind is dict:
            return outputs
        values = list(outputs.values())
        return values[0] if self.kind is object and len(values) == 1 else values


def is_number(value: object) -> bool:
    """Tell whether a sequence may hold this value as a number. Bools and 0-d tensors count."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 0
    return isinstance(value, (int, float, np.number, np.bool_))


def is_sequence(value: object) -> bool:
    """Tell whether a value is a sequence. The first element of a list decides."""
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
    if isinstance(first, list):  # a sequence, or fields; if the list is empty, the next one decides
        full = next((sample for sample in samples if not isinstance(sample, list) or sample), [])
        if not isinstance(full, list):
            return list
        # The types of a long list are found in a tenth of the time that all numbers would take.
        is_bare = set(map(type, full)) <= {int, float, bool} or all(map(is_number, full))
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


def _take_items(samples: Sequence[Any]) -> list[list[Any]]:
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
        TypeError: samples are neither fields nor sequences, or not alike.
        ValueError: no samples, or tuples of different lengths.
        KeyError: a dict lacks a key that sample 0 has.
    """
    refuse_if(len(samples) == 0, "the batch has no samples")
    kind = _kind_of(samples)
    columns: dict[Hashable, list[Any]]
    if kind is dict:
        columns = {key: _take_key(samples, key) for key in samples[0]}
    else:
        columns = dict(enumerate([list(samples)] if kind is object else _take_items(samples)))
    names = {key: key for key in columns}
    if "input_ids" in names and "labels" not in names:  # as in DataCollatorWithPadding
        label = [key for key in ("label", "label_ids") if key in names][:1]
        names |= dict.fromkeys(label, "labels")
    fields = [
        SampleField(key, names[key], values, is_sequence(values[0]), kind is dict)
        for key, values in columns.items()
    ]
    return Fields(kind, fields)


# ---- sequences as tensors


def check_element(field: SampleField, value: Any, dtype: torch.dtype) -> Any:
    """Return the padding value as a number of the field's dtype.

    Raises:
        ValueError: the dtype cannot hold the value.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return float(value)
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if np.isfinite(float(value)) and int(value) == value and low <= value <= high:
        return int(value)
    rule = f"an int in [{low}, {high}] for {str(dtype).removeprefix('torch.')}"
    remedy = "or give the field a wider dtype, for example int64"
    raise ValueError(make_message(f"the padding of {field.name_in(0)}", rule, value, remedy))


def tensor_of(what: str, value: Any) -> torch.Tensor:
    """Return a sequence as a tensor made by torch's functions.

    Raises:
        TypeError: the value is not a sequence of numbers; the text begins with ``what``.
    """
    if not is_sequence(value):
        raise TypeError(f"{what} must be {_SEQUENCE}, got {_describe(value)}")
    try:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)
    except Exception as error:  # for unknown dtypes, torch raises several types
        raise TypeError(f"{what} cannot be a tensor: {error}") from error


def unify_lists(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Give tensors that were lists one dtype: bool, int64, torch's default or a complex dtype."""
    found = [tensor.dtype for tensor in tensors if tensor.numel() > 0]
    dtype = reduce(torch.promote_types, found) if found else torch.int64
    if dtype.is_floating_point:
        dtype = torch.get_default_dtype()  # also for lists with NumPy's floats
    elif not (dtype.is_complex or dtype is torch.bool):
        dtype = torch.int64
    return [tensor.to(dtype) for tensor in tensors]


def as_tensors(field: SampleField, is_int64: bool) -> list[torch.Tensor]:
    """Return the sequences of a field as 1-D tensors of one dtype, made by torch's functions.

    Raises:
        TypeError: a value is not a sequence, or its dtype is not the first value's.
    """
    tensors = [tensor_of(field.name_in(i), value) for i, value in enumerate(field.values)]
    are_lists = [isinstance(value, (list, tuple)) for value in field.values]
    if all(are_lists):
        return unify_lists(tensors)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    kinds = list(zip(are_lists, dtypes, strict=True))
    odd = next((i for i, kind in enumerate(kinds) if kind != kinds[0]), None)
    if odd is not None:
        first, got = (f"a {type(field.values[i]).__name__} of {dtypes[i]}" for i in (0, odd))
        remedy = "pass only lists, or arrays and tensors of one dtype"
        rule = f"{first}, as in sample 0"
        raise TypeError(f"{field.name_in(odd)} must be {rule}, got {got} ({remedy})")
    dtype = tensors[0].dtype
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return [tensor.to(torch.int64) for tensor in tensors] if is_int64 and is_integer else tensors


def element_of(field: SampleField, value: Any, dtype: torch.dtype) -> bytes:
    """Return the bytes of a padding value in the field's dtype."""
    element = torch.tensor([check_element(field, value, dtype)], dtype=dtype, device="cpu")
    return element.view(torch.uint8).numpy().tobytes()
