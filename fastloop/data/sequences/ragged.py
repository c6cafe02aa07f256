"""RaggedArray: sequences of different length in one array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, overload

import numpy as np
import torch

from fastloop.base.checks import make_message, refuse_if
from fastloop.data.field import Array, Field, check_room, read_row, torch_dtype
from fastloop.data.sequences.fields import tensor_of, unify_lists

Offsets = np.ndarray[Any, np.dtype[np.int32 | np.int64]]


def _read_offsets(offsets: object, length: int) -> Offsets:
    """Return a read-only copy of offsets into an array of this length."""
    copy: Offsets = np.array(np.asarray(offsets))
    if copy.size > 0 and copy.dtype not in (np.int32, np.int64):
        remedy = "pass offsets.astype('int64')"
        raise TypeError(f"offsets must be int32 or int64, got {copy.dtype} ({remedy})")
    rule = "a vector of n + 1 offsets for n sequences"
    got = f"shape {copy.shape} (as in [0, 3, 5] for sequences of 3 and 2 values)"
    refuse_if(copy.ndim != 1 or copy.size == 0, f"offsets must be {rule}, got {got}")
    falls = np.flatnonzero(copy[1:] < copy[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        rule = f"at least offsets[{at - 1}]={copy[at - 1]}"
        remedy = "of lengths, pass numpy.append(0, numpy.cumsum(lengths))"
        raise ValueError(make_message(f"offsets[{at}]", rule, int(copy[at]), remedy))
    rule, got = f"[0, {length}], the length of values", f"{copy[0]} to {copy[-1]}"
    refuse_if(copy[0] < 0 or copy[-1] > length, f"offsets must lie in {rule}, got {got}")
    copy.flags.writeable = False
    return copy


def _as_rows(index: Any) -> Array:
    """Return a list, a vector or a mask as an array. NumPy alone would take a tensor of one element
    for a number."""
    rows = np.asarray(index)
    if rows.ndim != 1 or (rows.dtype.kind not in "iub" and rows.size):
        rule, got = "a vector of integers or bools", f"shape {rows.shape} and dtype {rows.dtype}"
        raise TypeError(f"index must be an integer, a slice or {rule}, got {got}")
    return rows if rows.size else rows.astype(np.int64)


def _as_dtype(values: torch.Tensor, dtype: Any) -> torch.Tensor:
    is_torchs = isinstance(dtype, torch.dtype)
    converted = values.to(dtype if is_torchs else torch_dtype(np.empty(0, dtype)))
    if converted.is_floating_point() or converted.is_complex():
        return converted
    before = values.float() if values.dtype is torch.bfloat16 else values  # NumPy has no bfloat16
    changed = np.flatnonzero(before.numpy() != converted.numpy())
    if changed.size:
        odd = f"{values[changed[0]].item()} (pass a wider dtype, or None)"
        rule = "hold all numbers of sequences"
        raise ValueError(f"dtype must {rule}, got {dtype!r}, which does not have {odd}")
    return converted


_ARROW_LISTS = r"(large_)?list<.*: (bool|u?int\d+|halffloat|float|double)( not null)?>"


class RaggedArray(Sequence[torch.Tensor]):
    """Sequences of different length, one after the other in a 1-D array.

    Args:
        values: 1-D: an ndarray, a memmap, the path of a ``.npy`` file (opened as a read-only
            memmap) or a tensor on the CPU or a CUDA device, of any dtype that torch has. It is not
            copied.
        offsets: 1-D, int32 or int64, or a list of integers, ``[n + 1]``: sequence ``i`` is
            ``values[offsets[i]:offsets[i + 1]]``. They may begin anywhere and must not fall. They
            are copied.

    ``array[i]`` is sequence ``i`` as a 1-D tensor. It shares memory with the values unless these
    are read-only or mapped. ``array[i:k]`` is a RaggedArray of the same values; a slice with a
    step, a list, a vector or a mask gives one of copies.

    As a field of ``ArrayDataset`` it is collated by ``PadCollate`` and ``PackCollate``.

    Attributes:
        values: as given; of a path, its memmap.
        offsets: ``[n + 1]``, read-only.
        file: the mapped file in which the values lie, or None.

    Raises:
        TypeError: offsets that are not int32 or int64; values of a dtype that torch does not have.
        ValueError: values or offsets that are not vectors; offsets that are negative, fall, or lie
            beyond the end of the values.
        OSError: a file that cannot be opened; later, a mapped file that has become shorter.
    """

    name = "a RaggedArray"  # in errors; as the field of a dataset it has another

    def __init__(self, values: object, offsets: object) -> None:
        field = self._field = Field("values", values, may_be_resident=True)
        self.values, self.file = field.source, field.file
        shape = tuple(self.values.shape)
        remedy = "pass values.reshape(-1), and offsets that count its elements"
        refuse_if(len(shape) != 1, f"values must be a vector, got shape {shape} ({remedy})")
        self.offsets = _read_offsets(offsets, shape[0])

    def _over(self, offsets: Offsets, name: str | None = None) -> RaggedArray:
        """Return an array of the same values with other offsets, or with a name in errors."""
        array = type(self).__new__(type(self))
        vars(array).update(vars(self), offsets=offsets, name=name or self.name)
        return array

    @classmethod
    def from_list(cls, sequences: Sequence[Any], dtype: Any = None) -> RaggedArray:
        """Copy sequences into a RaggedArray.

        Args:
            sequences: lists or tuples of numbers, 1-D ndarrays or 1-D tensors.
            dtype: of torch or NumPy. None: that of the arrays; for lists int64, torch's default
                dtype if they hold a float, bool if they hold bools alone.

        Raises:
            TypeError: an element that is not a sequence of numbers, or, of lists, has an integer
                beyond int64.
            ValueError: ``dtype``, of integers or bools, does not have one of the numbers.
        """
        with torch.device("cpu"):
            tensors = [tensor_of(f"sequences[{i}]", each) for i, each in enumerate(sequences)]
        if all(isinstance(each, (list, tuple)) for each in sequences):
            tensors = unify_lists(tensors)
        values = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.int64, device="cpu")
        offsets = np.array(list(accumulate(map(len, tensors), initial=0)), np.int64)
        return cls(values if dtype is None else _as_dtype(values, dtype), offsets)

    @classmethod
    def from_arrow(cls, column: Any) -> RaggedArray:
        """Make a RaggedArray of a pyarrow ``Array`` or ``ChunkedArray`` of lists of numbers.

        The values of a column of one chunk are not copied, unless they are bools.

        Raises:
            TypeError: a column of another type.
            ValueError: a column with nulls.
        """
        kind = str(getattr(column, "type", "no Arrow type"))
        if not re.fullmatch(_ARROW_LISTS, kind):
            rule = "a pyarrow Array or ChunkedArray of lists of numbers"
            got = f"{type(column).__name__} of {kind}"
            raise TypeError(f"column must be {rule} (table.column('input_ids')), got {got}")
        chunks = getattr(column, "chunks", [column]) or [column.combine_chunks()]
        flat = [chunk.flatten() for chunk in chunks]
        lists, numbers = (sum(each.null_count for each in parts) for parts in (chunks, flat))
        got = f"{lists} null lists and {numbers} null values (fill or drop them first)"
        refuse_if(lists or numbers, f"column must have no nulls, got {got}")
        values = [part.to_numpy(zero_copy_only=False) for part in flat]
        lengths = np.concatenate([chunk.value_lengths().to_numpy() for chunk in chunks])
        offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
        return cls(values[0] if len(values) == 1 else np.concatenate(values), offsets)

    def bytes_for(self, device: torch.device) -> int:
        """Return how many bytes ``to()`` copies."""
        values = self.values
        if isinstance(values, torch.Tensor) and values.device == device:
            return 0
        return int(self.offsets[-1] - self.offsets[0]) * values.itemsize

    def to(self, device: torch.device | str | int) -> RaggedArray:
        """Return the array with its values on a device; a view takes along no more than it shows.
        Offsets stay on the CPU.

        Experimental: loaders over data on a GPU have run on a simulated device only, not on a GPU.

        Raises:
            MemoryError: a CUDA device has less free memory than the values take.
        """
        device = torch.empty(0, device=device).device
        check_room(device, self.bytes_for(device), "the values")
        begin, end = map(int, self.offsets[[0, -1]])
        values = self._field.read_range(begin, end).to(device).contiguous()
        return _make(type(self), values, self.offsets - begin, self._others())

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[n]``, int64."""
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice | list[Any] | Array | torch.Tensor) -> RaggedArray: ...
    def __getitem__(self, index: Any) -> torch.Tensor | RaggedArray:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step == 1:
                return self._over(self.offsets[begin : max(begin, end) + 1])
        if isinstance(index, (slice, list)) or getattr(index, "ndim", 0) > 0:
            rows = np.arange(len(self))[index if isinstance(index, slice) else _as_rows(index)]
            parts = [*(self[row] for row in rows.tolist()), self._field.read_range(0, 0)]
            return RaggedArray(torch.cat(parts), np.append(0, np.cumsum(self.lengths[rows])))
        row = read_row(index, len(self))
        begin, end = map(int, self.offsets[row : row + 2])
        sequence = self._field.read_range(begin, end)
        if len(sequence) != end - begin:
            what = f"sequence {row} is values[{begin}:{end}]"
            raise ValueError(f"{what}, but values was resized to {len(self._field)}")
        return sequence

    def _others(self) -> dict[str, Any]:
        """Return the attributes that ``__init__`` does not set, a subclass's too."""
        made = ("_field", "values", "file", "offsets")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __reduce__(self) -> tuple[Any, ...]:
        """A view pickles no more than it shows."""
        values, offsets, path = self.values, self.offsets, self._field.opened
        if path is not None:
            return _make, (type(self), path, np.array(offsets), self._others())
        begin, end = int(offsets[0]), int(offsets[-1])
        if isinstance(values, np.ndarray):
            values = np.array(values[begin:end])
        elif (begin, end) != (0, len(values)):
            values = values[begin:end].clone()
        return _make, (type(self), values, offsets - begin, self._others())

    def __repr__(self) -> str:
        dtype = str(self.values.dtype).removeprefix("torch.")
        return f"RaggedArray({len(self)} sequences of {dtype}, {int(self.lengths.sum())} values)"


def _make(cls: type[RaggedArray], values: Any, offsets: Any, others: dict[str, Any]) -> RaggedArray:
    """Make an array of a class that may have an ``__init__`` of its own."""
    array = cls.__new__(cls)
    RaggedArray.__init__(array, values, offsets)
    vars(array).update(others)
    return array
