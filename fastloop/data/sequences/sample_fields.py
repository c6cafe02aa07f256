"""Batches of samples taken apart into fields: which of them hold sequences, what they are called in
a batch, and with what they are padded. docs/sequences-collate.md says so in one piece."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.base.tensors import DTYPES

# Hugging Face's names, and the padding that its tokenizers and collators give them. Integers of
# these names come out as int64; padding of input_ids and decoder_input_ids is the user's.
_PADDING = {
    "labels": -100,
    "label": -100,
    "label_ids": -100,
    "attention_mask": 0,
    "decoder_attention_mask": 0,
    "token_type_ids": 0,
    "position_ids": 0,
    "special_tokens_mask": 1,
}
_INT64 = {"input_ids", "decoder_input_ids", *_PADDING}


@dataclass
class SampleField:
    """The values at one place of the samples of a batch."""

    key: Hashable  # in samples; 0 for bare sequences
    name: Hashable  # in the batch
    values: list[Any]
    holds_sequences: bool
    is_named: bool  # in dicts, where names have a meaning

    def of_sample(self, i: int) -> str:
        """How errors call a value."""
        return f"{self.key!r} of sample {i}" if self.is_named else f"place {self.key} of sample {i}"

    def is_int64(self, mask: str = "") -> bool:
        """Whether its integers come out as int64. ``mask``: the name of the mask."""
        return self.is_named and (self.key in _INT64 or self.key == mask)

    def padding(self, given: Any, mask: str = "") -> Any:
        """The value, of what is given as ``padding_value``."""
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
        """Whose mask, lengths and segments a batch has."""
        sequences = [field for field in self.all if field.holds_sequences]
        if not sequences:
            keys = ", ".join(repr(field.key) for field in self.all) or "none"
            raise TypeError(
                f"no field of the samples holds sequences (fields: {keys}); a sequence is a list "
                "of numbers, a 1-D array or a 1-D tensor. Use torch's default collate without any"
            )
        named = (field for field in sequences if field.is_named and field.key == "input_ids")
        return next(named, sequences[0])

    def has(self, name: str) -> bool:
        """Whether the batch has a field of this name."""
        return self.kind is dict and any(field.name == name for field in self.all)

    def join(self, outputs: dict[Hashable, Any]) -> Any:
        if self.kind is dict:
            return outputs
        values = list(outputs.values())
        return values[0] if self.kind is object and len(values) == 1 else values


def is_number(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.ndim == 0
    return isinstance(value, (int, float, np.number, np.bool_))


def _are_numbers(values: list[Any]) -> bool:
    return set(map(type, values)) <= {int, float, bool} or all(map(is_number, values))


def is_sequence(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return not value or is_number(value[0])
    return isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim == 1


def _kind_of(samples: Sequence[Any]) -> type:
    first: Any = samples[0]
    if isinstance(first, Mapping):
        return dict
    if isinstance(first, tuple):
        return list
    if isinstance(first, list):
        full = next((sample for sample in samples if not isinstance(sample, list) or sample), [])
        return object if isinstance(full, list) and _are_numbers(full) else list
    if is_sequence(first):
        return object
    shape = f" of shape {tuple(first.shape)}" if hasattr(first, "shape") else ""
    raise TypeError(
        f"sample 0 is a {type(first).__name__}{shape}; a sample is a dict or a tuple of fields, or "
        "one sequence: a list of numbers, a 1-D array or a 1-D tensor"
    )


def _names_of(keys: Sequence[Hashable]) -> dict[Hashable, Hashable]:
    """As DataCollatorWithPadding names them."""
    names = {key: key for key in keys}
    if "input_ids" in names and "labels" not in names:
        label = next((key for key in ("label", "label_ids") if key in names), None)
        if label is not None:
            names[label] = "labels"
    return names


def _take_key(samples: Sequence[Any], key: Hashable) -> list[Any]:
    try:
        return [sample[key] for sample in samples]
    except (KeyError, TypeError, IndexError):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise TypeError(
                    f"sample {i} is a {type(sample).__name__}, but sample 0 is a dict; samples of "
                    "a batch must be alike"
                ) from None
            if key not in sample:
                raise KeyError(f"sample {i} has no {key!r}, but sample 0 has") from None
        raise


def _take_places(samples: Sequence[Any]) -> list[list[Any]]:
    size = len(samples[0])
    for i, sample in enumerate(samples):
        if not isinstance(sample, (tuple, list)):
            raise TypeError(
                f"sample {i} is a {type(sample).__name__}, but sample 0 is a "
                f"{type(samples[0]).__name__}; samples of a batch must be alike"
            )
        if len(sample) != size:
            raise ValueError(
                f"sample {i} has {len(sample)} fields, but sample 0 has {size}; samples of a "
                "batch must be alike"
            )
    return [list(values) for values in zip(*samples, strict=True)]


def take_apart(samples: Sequence[Any]) -> Fields:
    """The fields of a batch.

    Raises:
        TypeError: samples that are neither fields nor sequences, or not alike.
        ValueError: no samples, or tuples of different length.
        KeyError: a dict that lacks a key of the first.
    """
    if len(samples) == 0:
        raise ValueError("the batch has no samples")
    kind = _kind_of(samples)
    if kind is dict:
        names = _names_of(list(samples[0]))
        values = {key: _take_key(samples, key) for key in names}
        fields = [
            SampleField(key, name, values[key], is_sequence(values[key][0]), True)
            for key, name in names.items()
        ]
        return Fields(kind, fields)
    places = [list(samples)] if kind is object else _take_places(samples)
    return Fields(
        kind, [SampleField(i, i, v, is_sequence(v[0]), False) for i, v in enumerate(places)]
    )


def check_padding(what: str, value: object) -> None:
    """TypeError unless it is a number."""
    if not is_number(value):
        raise TypeError(
            f"{what} is {value!r}, a {type(value).__name__}; pass a number, or a dict of numbers "
            "by key"
        )


def check_element(what: str, value: Any, dtype: torch.dtype, is_label: bool = False) -> Any:
    """The padding value as a number of the dtype. ValueError if it is none; that of PackCollate's
    labels is no argument."""
    name = str(dtype).removeprefix("torch.")
    if dtype.is_floating_point or dtype.is_complex:
        return float(value)
    whole = int(value) if np.isfinite(float(value)) else None
    low, high = (0, 1) if dtype is torch.bool else _range_of(dtype)
    if whole is None or whole != value or not low <= whole <= high:
        if is_label:
            raise ValueError(
                f"{what} is {name}, which cannot hold {value}, the padding of labels; pass labels "
                "of integers, such as labels.long(), or name the field otherwise"
            )
        raise ValueError(
            f"padding_value={value!r} is no {name}, which {what} holds; pass an integer from {low} "
            f"to {high}, by key as in padding_value={{'input_ids': 0, 'labels': -100}}"
        )
    return whole


def _range_of(dtype: torch.dtype) -> tuple[int, int]:
    info = torch.iinfo(dtype)
    return int(info.min), int(info.max)


def make_fill(
    field: SampleField, value: Any, known: dict[Any, bytes], is_label: bool = False
) -> Callable[[int], bytes]:
    """A function that gives the bytes of the padding for the number of a dtype.

    Args:
        field: that is padded.
        value: its padding value.
        known: what has been found so far, by key and dtype.
        is_label: the value is PackCollate's own.
    """

    def fill(number: int) -> bytes:
        found = known.get((field.key, number))
        if found is None:
            dtype = DTYPES[number]
            whole = check_element(field.of_sample(0), value, dtype, is_label)
            element = torch.tensor([whole], dtype=dtype, device="cpu")
            found = known[field.key, number] = element.view(torch.uint8).numpy().tobytes()
        return found

    return fill


def _tensor_of(what: str, value: Any) -> torch.Tensor:
    if not is_sequence(value):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise TypeError(
            f"{what} is a {type(value).__name__}{shape}, no sequence, but sample 0 has one there; "
            "a sequence is a list of numbers, a 1-D array or a 1-D tensor"
        )
    if isinstance(value, torch.Tensor):
        return value
    try:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        return torch.tensor(value)
    except Exception as error:  # torch has several for what it has no dtype for
        raise TypeError(f"{what} cannot be a tensor: {error}") from error


def _dtype_of_lists(tensors: list[torch.Tensor]) -> torch.dtype:
    found = {tensor.dtype for tensor in tensors if tensor.numel() > 0}
    if any(dtype.is_complex for dtype in found):
        return torch.complex64 if torch.get_default_dtype() != torch.float64 else torch.complex128
    if any(dtype.is_floating_point for dtype in found):
        return torch.get_default_dtype()
    return torch.bool if found == {torch.bool} else torch.int64


def as_tensors(field: SampleField, is_int64: bool) -> list[torch.Tensor]:
    """The sequences of a field as 1-D tensors of one dtype, by torch's own functions.

    Raises:
        TypeError: a value that is no sequence, or of another dtype than the first.
    """
    tensors = [_tensor_of(field.of_sample(i), value) for i, value in enumerate(field.values)]
    are_lists = [isinstance(value, (list, tuple)) for value in field.values]
    if all(are_lists):
        dtype = _dtype_of_lists(tensors)
        return [tensor.to(dtype) for tensor in tensors]
    for i, tensor in enumerate(tensors):
        if are_lists[i] != are_lists[0] or tensor.dtype != tensors[0].dtype:
            kinds = [
                f"a {type(field.values[k]).__name__} of {str(tensors[k].dtype)[6:]}" for k in (i, 0)
            ]
            raise TypeError(
                f"{field.of_sample(i)} is {kinds[0]}, but that of sample 0 is {kinds[1]}; the "
                "sequences of a field must all be lists, or arrays and tensors of one dtype"
            )
    is_integer = not tensors[0].is_floating_point() and not tensors[0].is_complex()
    if is_int64 and is_integer and tensors[0].dtype is not torch.bool:
        return [tensor.to(torch.int64) for tensor in tensors]
    return tensors


def read_count(name: str, value: Any, least: int) -> int | None:
    """An optional argument that counts something. TypeError, ValueError."""
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is no integer; pass one, or None")
    if not least <= count < 2**63:
        raise ValueError(f"{name}={value!r} is not at least {least}; pass such an integer, or None")
    return count
