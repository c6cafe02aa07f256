"""The fields of samples with sequences: what a collate takes apart, names, padding and dtypes; and
sequences as tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch

from fastloop.base.checks import check_type, refuse_if

LABEL_PADDING = -100

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


def element_of(field: SampleField, value: Any, dtype: torch.dtype) -> bytes:
    """Return the bytes of a padding value in the dtype of the field."""
    element = torch.tensor([check_element(field, value, dtype)], dtype=dtype, device="cpu")
    return element.view(torch.uint8).numpy().tobytes()
