"""RaggedArray: sequences of different length in one array."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
import torch

from fastloop.data.field import Array, Field, MappedFile

Offsets = np.ndarray[Any, np.dtype[np.int32 | np.int64]]


def _read_offset(offset: Any) -> int:
    try:
        number = operator.index(offset)
    except TypeError:
        kind = type(offset).__name__
        raise TypeError(f"offsets has {offset!r}, a {kind}; pass integers") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"offsets has {number}, which is no int64; pass offsets of values")
    return number


def _read_offsets(offsets: object) -> Offsets:
    """A read-only copy of them."""
    if isinstance(offsets, (list, tuple, range)):
        offsets = np.array([_read_offset(offset) for offset in offsets], np.int64)
    field = Field("offsets", offsets)
    source = field.source
    if len(source.shape) != 1 or len(field) == 0:
        raise ValueError(
            f"offsets has shape {tuple(source.shape)}; pass a vector of n + 1 offsets for n "
            "sequences, as in [0, 3, 5] for one of 3 and one of 2 values"
        )
    dtype = str(source.dtype).removeprefix("torch.")
    if dtype not in ("int32", "int64"):
        raise TypeError(
            f"offsets has dtype {dtype}, not int32 or int64; pass offsets.astype('int64')"
        )
    copy: Offsets = np.array(source.numpy() if isinstance(source, torch.Tensor) else source)
    copy.flags.writeable = False
    return copy


def _check_offsets(offsets: Offsets, length: int) -> None:
    """Of ``length`` values."""
    if offsets[0] < 0:
        raise ValueError(f"offsets[0]={offsets[0]} is negative; offsets count values from 0")
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        i = int(falls[0])
        raise ValueError(
            f"offsets[{i + 1}]={offsets[i + 1]} is smaller than offsets[{i}]={offsets[i]}; "
            f"sequence {i} would end before it begins. If these are lengths, pass "
            "numpy.append(0, numpy.cumsum(lengths))"
        )
    if offsets[-1] > length:
        raise ValueError(
            f"offsets[{len(offsets) - 1}]={offsets[-1]} is beyond the end of values, which has "
            f"{length}; values and offsets do not belong together"
        )


def _as_rows(index: Any) -> Array:
    """Of a list, a vector or a mask. NumPy takes a tensor of one element for a number."""
    rows = np.asarray(index)
    if rows.ndim != 1 or (rows.dtype.kind not in "iub" and rows.size):
        raise TypeError(
            f"index has shape {rows.shape} and dtype {rows.dtype}; pass an integer, a slice, or a "
            "vector of integers or bools"
        )
    return rows if rows.size else rows.astype(np.int64)


def _lengths_of(sequences: list[Any]) -> list[int]:
    try:
        return list(map(len, sequences))
    except TypeError:
        for i, sequence in enumerate(sequences):
            if not hasattr(sequence, "__len__") or getattr(sequence, "ndim", 1) == 0:
                raise TypeError(
                    f"sequence {i} is {sequence!r}, a {type(sequence).__name__}; pass a list of "
                    "numbers, a 1-D array or a 1-D tensor"
                ) from None
        raise


def _fits(number: object) -> bool:
    if isinstance(number, (int, np.integer)):
        return -(2**63) <= int(number) < 2**63
    return isinstance(number, (float, np.floating, np.bool_))


def _join_lists(numbers: list[Any]) -> torch.Tensor | Array:
    """As bools, int64, or torch's default dtype."""
    try:
        array = np.array(numbers) if numbers else np.empty(0, np.int64)
    except ValueError:  # lists among the numbers
        array = np.empty((0, 0))
    if array.dtype.kind in "fu" and all(isinstance(x, (int, np.integer)) for x in numbers):
        # NumPy makes these of integers that are beyond int64, and of its own of several types.
        array = np.array(numbers, np.int64 if all(map(_fits, numbers)) else object)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        odd = next((x for x in numbers if not _fits(x)), numbers[0])
        raise TypeError(
            f"sequences holds {odd!r}, a {type(odd).__name__}; pass sequences of numbers that "
            "one dtype of torch can hold"
        )
    if array.dtype.kind == "f":
        return torch.from_numpy(array).to(torch.get_default_dtype())
    return array if array.dtype.kind == "b" else array.astype(np.int64, copy=False)


def _concatenate(sequences: Sequence[Any]) -> torch.Tensor | Array:
    if all(isinstance(sequence, (list, tuple)) for sequence in sequences):
        return _join_lists(list(chain.from_iterable(sequences)))
    for i, sequence in enumerate(sequences):
        shape = np.shape(sequence) if not isinstance(sequence, torch.Tensor) else sequence.shape
        if len(shape) != 1:
            raise ValueError(f"sequence {i} has shape {tuple(shape)}; pass 1-D sequences")
    if all(isinstance(sequence, np.ndarray) for sequence in sequences):
        return np.concatenate(sequences)
    return torch.cat([torch.as_tensor(sequence) for sequence in sequences])


def _as_dtype(values: torch.Tensor | Array, dtype: Any) -> torch.Tensor | Array:
    if dtype is None:
        return values
    if isinstance(values, torch.Tensor) and values.dtype is torch.bfloat16:
        values = values.float()  # NumPy has no bfloat16
    if isinstance(dtype, torch.dtype):
        converted: torch.Tensor | Array = torch.as_tensor(values).to(dtype)
    else:
        with np.errstate(invalid="ignore"):  # NaN and infinity, which are named below
            converted = np.asarray(values).astype(dtype, copy=False)
    if "int" in str(converted.dtype) or "bool" in str(converted.dtype):
        changed = np.flatnonzero(np.asarray(values) != np.asarray(converted))
        if changed.size:
            raise ValueError(
                f"sequences holds {values[changed[0]].item()}, which dtype={dtype!r} does not "
                "have; pass a wider dtype, or None"
            )
    return converted


_ARROW_NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double".split()
)


def _chunks_of(column: Any) -> list[Any]:
    kind = str(getattr(column, "type", ""))
    is_list = kind.startswith(("list<", "large_list<"))
    if not is_list or str(column.type.value_type) not in _ARROW_NUMBERS:
        raise TypeError(
            f"column is a {type(column).__name__} of {kind or 'no Arrow type'}; pass a pyarrow "
            "Array or ChunkedArray of lists or large_lists of numbers, such as "
            "table.column('input_ids')"
        )
    return list(getattr(column, "chunks", [column]))


def _read_chunk(number: int, chunk: Any) -> tuple[Array, Array]:
    """Values and offsets, as they lie in Arrow's buffers."""
    offsets = chunk.offsets.to_numpy(zero_copy_only=True)
    used = chunk.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    for what, nulls in (("lists", chunk.null_count), ("values", used.null_count)):
        if nulls:
            raise ValueError(
                f"column has {nulls} null {what} in chunk {number}; fill or drop them first"
            )
    return used.to_numpy(zero_copy_only=str(used.type) != "bool"), offsets - offsets[0]


class RaggedArray(Sequence[torch.Tensor]):
    """Sequences of different length, one after the other in a 1-D array.

    Args:
        values: 1-D: an ndarray, a memmap, the path of a ``.npy`` file (opened as a read-only
            memmap) or a CPU tensor, of any dtype that torch has. It is not copied.
        offsets: 1-D, int32 or int64, or a list of integers, ``[n + 1]``: sequence ``i`` is
            ``values[offsets[i]:offsets[i + 1]]``. They may begin anywhere and do not fall. They are
            copied.

    ``array[i]`` is sequence ``i`` as a 1-D tensor. It shares memory with the values, except where
    these are read-only or mapped. ``array[i:k]`` is a RaggedArray of the same values; a slice with
    a step, a list, a vector or a mask gives one that has copies.

    As a field of ``ArrayDataset`` it is collated by ``PadCollate`` and ``PackCollate``.

    Raises:
        TypeError: offsets that are not int32 or int64; values of a dtype that torch does not have.
        ValueError: values or offsets that are not vectors, offsets that are negative, fall, or lie
            beyond the end of the values.
        OSError: a file that cannot be opened; later, a mapped file that has become shorter.
    """

    def __init__(self, values: object, offsets: object) -> None:
        field, offsets = Field("values", values), _read_offsets(offsets)
        if len(field.source.shape) != 1:
            raise ValueError(
                f"values has shape {tuple(field.source.shape)}; pass a vector, such as "
                "values.reshape(-1), and offsets that count its elements"
            )
        _check_offsets(offsets, len(field))
        self._field = field
        self._offsets = offsets

    @classmethod
    def _over(cls, field: Field, offsets: Offsets) -> RaggedArray:
        array = cls.__new__(cls)
        array._field, array._offsets = field, offsets
        return array

    @classmethod
    def from_list(cls, sequences: Sequence[Any], dtype: Any = None) -> RaggedArray:
        """Of sequences, which are copied.

        Args:
            sequences: lists or tuples of numbers, 1-D ndarrays or 1-D tensors.
            dtype: torch's or NumPy's. None: that of the arrays; for lists int64, torch's default
                dtype if there is a float among them, bool if there is nothing else.

        Raises:
            TypeError: what is no sequence of numbers; in lists, an integer beyond int64.
            ValueError: a number that ``dtype``, of integers or bools, does not have; arrays that
                are not vectors.
        """
        if not isinstance(sequences, Iterable):
            raise TypeError(f"sequences is {sequences!r}; pass a list of sequences")
        sequences = list(sequences)
        offsets = np.array(list(accumulate(_lengths_of(sequences), initial=0)), np.int64)
        values = _concatenate(sequences) if sequences else np.empty(0, np.int64)
        return cls(_as_dtype(values, dtype), offsets)

    @classmethod
    def from_arrow(cls, column: Any) -> RaggedArray:
        """Of a pyarrow ``Array`` or ``ChunkedArray`` of lists of numbers.

        The values of a column of one chunk are not copied, unless they are bools.

        Raises:
            TypeError: a column of another type.
            ValueError: a column with nulls.
        """
        parts = [_read_chunk(number, chunk) for number, chunk in enumerate(_chunks_of(column))]
        if len(parts) == 1:
            return cls(*parts[0])
        if not parts:
            return cls(np.empty(0, column.type.value_type.to_pandas_dtype()), [0])
        lengths = np.concatenate([np.diff(offsets) for _, offsets in parts])
        offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
        return cls(np.concatenate([values for values, _ in parts]), offsets)

    @property
    def values(self) -> torch.Tensor | Array:
        """As given; of a path, its memmap."""
        return self._field.source

    @property
    def offsets(self) -> Offsets:
        """``[n + 1]``, read-only."""
        return self._offsets

    @property
    def file(self) -> MappedFile | None:
        """The mapped file in which the values lie."""
        return self._field.file

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[n]``, int64."""
        return np.diff(self._offsets).astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice | list[Any] | Array | torch.Tensor) -> RaggedArray: ...
    def __getitem__(self, index: Any) -> torch.Tensor | RaggedArray:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step == 1:
                return self._over(self._field, self._offsets[begin : max(begin, end) + 1])
        if isinstance(index, (slice, list)) or getattr(index, "ndim", 0) > 0:
            rows = index if isinstance(index, slice) else _as_rows(index)
            return self._take(np.arange(len(self))[rows])
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"index {row} is out of range for {len(self)} sequences")
        row %= len(self)
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        sequence = self._field.read_range(begin, end)
        if len(sequence) != end - begin:
            raise ValueError(
                f"sequence {row} is values[{begin}:{end}], but values has {len(self._field)} now: "
                "it was resized; make the RaggedArray again"
            )
        return sequence

    def _take(self, rows: Array) -> RaggedArray:
        """A copy of some sequences."""
        lengths = self.lengths[rows]
        pieces = [self[row] for row in rows.tolist()]
        values = torch.cat([*pieces, self._field.read_range(0, 0)])
        return RaggedArray(values, np.append(0, np.cumsum(lengths)))

    def __reduce__(self) -> tuple[Any, ...]:
        """A view pickles no more than it shows."""
        field, offsets = self._field, self._offsets
        if field.opened is not None:
            return RaggedArray, (field.opened, np.array(offsets))
        begin, end = int(offsets[0]), int(offsets[-1])
        values = field.source
        if isinstance(values, np.ndarray):
            values = np.array(values[begin:end])
        elif (begin, end) != (0, len(values)):
            values = values[begin:end].clone()
        else:
            begin = 0
        return RaggedArray, (values, offsets - begin)

    def __repr__(self) -> str:
        dtype = str(self.values.dtype).removeprefix("torch.")
        return f"RaggedArray({len(self)} sequences of {dtype}, {int(self.lengths.sum())} values)"


class RaggedField:
    """A RaggedArray as a field of a dataset."""

    def __init__(self, name: str, array: RaggedArray) -> None:
        self.name = name
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __repr__(self) -> str:
        return repr(self.array)
