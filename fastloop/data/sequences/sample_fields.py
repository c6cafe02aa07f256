"""Batches of samples taken apart into fields: which of them hold sequences, their names in a batch,
and the values that pad them. docs/sequences-collate.md has the rules in one piece."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.base.checks import make_message
from fastloop.base.tensors import DTYPES

# Hugging Face's names, and the padding that its tokenizers and collators give them. Integers of
# these names come out as int64. The user chooses the padding of input_ids and decoder_input_ids.
_PADDING = {
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
            for key in (self.key, self.name):
                if key in given:
                    return given[key]
            given = 0
        if not self.is_named:
            return given
        return 0 if self.key == mask else _PADDING.get(str(self.key), given)


@dataclass
class Fields:
    """A batch, taken apart."""

    kind: type  # of a sample: dict; list for tuples and lists; object for bare sequences
    all: list[SampleField]

    def main(self) -> SampleField:
        """Return the field that gives a batch its mask, lengths and segments."""
        sequences = [field for field in self.all if field.holds_sequences]
        if not sequences:
            keys = [field.key for field in self.all]
            remedy = "for other samples, use torch's default collate"
            raise TypeError(make_message("samples", f"of fields with {_SEQUENCE}", keys, remedy))
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


def _are_numbers(values: list[Any]) -> bool:
    # The types of a long list are found ten times as fast as each number is looked at.
    return set(map(type, values)) <= {int, float, bool} or all(map(is_number, values))


def is_sequence(value: object) -> bool:
    """Tell a sequence; of a list, the first element decides."""
    if isinstance(value, (list, tuple)):
        return not value or is_number(value[0])
    return isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 1


def _describe(value: object) -> str:
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return f"{type(value).__name__}{shape}"


def _kind_of(samples: Sequence[Any]) -> type:
    first: Any = samples[0]
    if isinstance(first, Mapping):
        return dict
    if isinstance(first, tuple):
        return list
    if isinstance(first, list):  # a sequence, or fields: an empty list leaves it to the next
        full = next((sample for sample in samples if not isinstance(sample, list) or sample), [])
        return object if isinstance(full, list) and _are_numbers(full) else list
    if is_sequence(first):
        return object
    rule = f"a dict or a tuple of fields, or {_SEQUENCE}"
    raise TypeError(f"sample 0 must be {rule}, got {_describe(first)}")


def _take_key(samples: Sequence[Any], key: Hashable) -> list[Any]:
    try:
        return [sample[key] for sample in samples]
    except (KeyError, TypeError, IndexError):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or key not in sample:
                error = KeyError if isinstance(sample, Mapping) else TypeError
                rule = f"a dict with {key!r}, as sample 0 is"
                raise error(f"sample {i} must be {rule}, got a {_describe(sample)}") from None
        raise


def _take_places(samples: Sequence[Any]) -> list[list[Any]]:
    size = len(samples[0])
    for i, sample in enumerate(samples):
        is_tuple = isinstance(sample, (tuple, list))
        if not is_tuple or len(sample) != size:
            got = f"{len(sample)} fields" if is_tuple else f"a {_describe(sample)}"
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
    if len(samples) == 0:
        raise ValueError("the batch has no samples")
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


# ---- padding


def check_element(
    field: SampleField, value: Any, dtype: torch.dtype, is_label: bool = False
) -> Any:
    """Return the padding value as a number that the dtype of the field can hold.

    Args:
        is_label: the value is PackCollate's, not the user's.

    Raises:
        ValueError: the dtype cannot hold it.
    """
    if dtype.is_floating_point or dtype.is_complex:
        return float(value)
    low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    whole = int(value) if np.isfinite(float(value)) else None
    if whole is not None and whole == value and low <= whole <= high:
        return whole
    remedy = f"pass an integer from {low} to {high}, by key as in padding_value={{'labels': -100}}"
    if is_label:
        remedy = "pass labels of integers, such as labels.long(), or name the field otherwise"
    name = str(dtype).removeprefix("torch.")
    text = f"{field.of_sample(0)} is {name}, which cannot hold its padding {value!r}"
    raise ValueError(f"{text} ({remedy})")


def make_fill(
    field: SampleField, value: Any, known: dict[Any, bytes], is_label: bool = False
) -> Callable[[int], bytes]:
    """Return a function from the number of a dtype to the bytes of the padding.

    Args:
        field: that is padded.
        value: its padding value.
        known: the bytes found so far, by key and dtype.
        is_label: the value is PackCollate's, not the user's.
    """

    def fill(number: int) -> bytes:
        found = known.get((field.key, number))
        if found is None:
            dtype = DTYPES[number]
            whole = check_element(field, value, dtype, is_label)
            element = torch.tensor([whole], dtype=dtype, device="cpu")
            found = known[field.key, number] = element.view(torch.uint8).numpy().tobytes()
        return found

    return fill


# ---- sequences that C does not take


def _tensor_of(what: str, value: Any) -> torch.Tensor:
    if not is_sequence(value):
        raise TypeError(f"{what} must be a sequence, as in sample 0, got a {_describe(value)}")
    try:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        return value if isinstance(value, torch.Tensor) else torch.tensor(value)
    except Exception as error:  # torch raises several types for dtypes that it does not have
        raise TypeError(f"{what} cannot be a tensor: {error}") from error


def _dtype_of_lists(tensors: list[torch.Tensor]) -> torch.dtype:
    found = {tensor.dtype for tensor in tensors if tensor.numel() > 0}
    if any(dtype.is_complex for dtype in found):
        return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128
    if any(dtype.is_floating_point for dtype in found):
        return torch.get_default_dtype()
    return torch.bool if found == {torch.bool} else torch.int64


def as_tensors(field: SampleField, is_int64: bool) -> list[torch.Tensor]:
    """Return the sequences of a field as 1-D tensors of one dtype, made by torch's functions.

    Raises:
        TypeError: a value that is not a sequence, or of another dtype than the first.
    """
    tensors = [_tensor_of(field.of_sample(i), value) for i, value in enumerate(field.values)]
    are_lists = [isinstance(value, (list, tuple)) for value in field.values]
    if all(are_lists):
        dtype = _dtype_of_lists(tensors)
        return [tensor.to(dtype) for tensor in tensors]
    for i, tensor in enumerate(tensors):
        if are_lists[i] != are_lists[0] or tensor.dtype != tensors[0].dtype:
            first, other = (
                f"a {type(field.values[k]).__name__} of {str(tensors[k].dtype)[len('torch.') :]}"
                for k in (0, i)
            )
            name, remedy = field.of_sample(i), "lists alone, or arrays and tensors of one dtype"
            rule = f"like that of sample 0, {first}"
            raise TypeError(f"{name} must be {rule}, got {other} ({remedy})")
    dtype = tensors[0].dtype
    is_integer = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    return [tensor.to(torch.int64) for tensor in tensors] if is_int64 and is_integer else tensors
