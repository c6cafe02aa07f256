"""RaggedArray: sequences of different lengths in one array."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np
import torch

from fastloop.base.checks import check_type, check_value, is_sequence, make_message, refuse_if
from fastloop.data.field import Array, Field, MappedFile, check_room, read_row, torch_dtype
from fastloop.data.sequences.fields import tensor_of, unify_lists

Offsets = np.ndarray[Any, np.dtype[np.int32 | np.int64]]


def _read_offsets(offsets: object, length: int) -> Offsets:
    """Return a read-only copy of offsets into an array of this length."""
    copy: Offsets = np.array(np.asarray(offsets))
    if copy.size > 0 and copy.dtype not in (np.int32, np.int64):
        remedy = "pass offsets.astype('int64')"
        raise TypeError(f"offsets must be int32 or int64, got {copy.dtype} ({remedy})")
    if copy.ndim != 1 or copy.size == 0:
        raise ValueError(
            f"offsets must be a vector of n + 1 offsets for n sequences, got shape {copy.shape} "
            "(for example, pass [0, 3, 5] for sequences of 3 and 2 values)"
        )
    falls = np.flatnonzero(copy[1:] < copy[:-1])
    if falls.size:
        at = int(falls[0]) + 1
        rule = f">= offsets[{at - 1}]={copy[at - 1]}"
        remedy = "if you have lengths, pass numpy.append(0, numpy.cumsum(lengths))"
        raise ValueError(make_message(f"offsets[{at}]", rule, int(copy[at]), remedy))
    if copy[0] < 0 or copy[-1] > length:
        rule = f"lie in [0, {length}], the range of values"
        raise ValueError(f"offsets must {rule}, got {copy[0]} to {copy[-1]}")
    copy.flags.writeable = False
    return copy


def _as_pairs(offsets: Offsets) -> Array:
    """Return the begin and the end of each sequence, ``[n, 2]``, in the memory of the offsets."""
    shape, strides = (len(offsets) - 1, 2), offsets.strides * 2
    return np.lib.stride_tricks.as_strided(offsets, shape, strides, writeable=False)


def _as_rows(index: Any) -> Array:
    """Return a list, a vector or a mask as an array. NumPy's own indexing would take a tensor of
    one element for a number."""
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
        rule = f"a dtype that holds every number of sequences, such as {values[changed[0]].item()}"
        raise ValueError(make_message("dtype", rule, dtype, "pass a wider dtype, or None"))
    return converted


class _Span:
    """The memory from the first to the last of several arrays, as one array. Only elements of the
    arrays are read: what lies between is not theirs."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays, size = arrays, arrays[0].itemsize  # keeps the memory alive
        places = [address_of(array) for array in arrays]
        first = min(places)
        self.begins = [(place - first) // size for place in places]
        ends = (begin + len(array) for begin, array in zip(self.begins, arrays, strict=True))
        shape = (max(ends),)
        data = first, True  # read-only
        interface = {"version": 3, "typestr": arrays[0].dtype.str, "shape": shape, "data": data}
        self.__array_interface__ = interface


def address_of(array: Array) -> int:
    """Return the address of an array's first element."""
    address: int = array.__array_interface__["data"][0]
    return address


def _is_plain(array: Array) -> bool:
    return array.flags.c_contiguous and address_of(array) % array.itemsize == 0


_ARROW_LISTS = r"(large_)?list<.*: (bool|u?int\d+|halffloat|float|double)( not null)?>"


class RaggedArray(Sequence[torch.Tensor]):
    """Sequences of different lengths, one after the other in a 1-D array.

    Args:
        values: 1-D: an ndarray, a memmap, the path of a ``.npy`` file (opened as a read-only
            memmap) or a tensor on the CPU or a CUDA device, of any dtype that torch has. The values
            are not copied.
        offsets: 1-D, int32 or int64, or a list of integers, ``[n + 1]``: sequence ``i`` is
            ``values[offsets[i]:offsets[i + 1]]``. Offsets may begin anywhere and must not fall.
            They are copied.

    For example, ``RaggedArray([7, 8, 9, 5, 6], [0, 3, 5])`` has the sequences [7, 8, 9] and [5, 6].

    ``array[i]`` is sequence ``i`` as a 1-D tensor. The tensor shares memory with the values, unless
    the values are read-only or mapped. ``array[i:k]`` is a RaggedArray over the same values; a
    slice with a step, a list, a vector or a mask gives a RaggedArray of copies.

    As a field of ``ArrayDataset`` a RaggedArray is collated by ``PadCollate`` and ``PackCollate``.

    Attributes:
        values: as given; for a path, the memmap; with several parts a tuple of each part's.
        offsets: ``[n + 1]``, read-only; with several parts as if their sequences lay one after
            another.
        file: the mapped file that holds the values, or None.

    Raises:
        TypeError: offsets that are not int32 or int64; values of a dtype that torch does not have.
        ValueError: values or offsets that are not vectors; offsets that are negative, fall, or lie
            beyond the end of the values.
        OSError: a file that cannot be opened; later, a mapped file that has become shorter.
    """

    name = "a RaggedArray"  # in errors; a dataset's field has a name of its own
    # With several parts, [n, 2]: where each sequence begins and ends among the values.
    _pairs: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def __init__(self, values: object, offsets: object) -> None:
        field = self._field = Field("values", values, may_be_resident=True)
        self.values: Any = field.source
        self.file = field.file
        shape = tuple(field.source.shape)
        if len(shape) != 1:
            remedy = "pass values.reshape(-1), and offsets that count its elements"
            raise ValueError(f"values must be a vector, got shape {shape} ({remedy})")
        self._offsets: Any = _read_offsets(offsets, shape[0])

    @property
    def offsets(self) -> Offsets:
        """``[n + 1]``. With several parts they are made when they are first asked for."""
        if self._offsets is None:
            self._offsets = np.append(0, np.cumsum(self.lengths))
            self._offsets.flags.writeable = False
        made: Offsets = self._offsets
        return made

    def _over(self, rows: slice, name: str | None = None) -> RaggedArray:
        """Return an array of some of the sequences, with this name in errors."""
        array = type(self).__new__(type(self))
        vars(array).update(vars(self), name=name or self.name)
        if self._pairs is None:
            array._offsets = self.offsets[rows.start : rows.stop + 1]
        else:
            array._pairs, array._offsets = self._pairs[rows], None
        return array

    @classmethod
    def from_parts(cls, parts: Sequence[tuple[object, object] | RaggedArray]) -> RaggedArray:
        """Make one RaggedArray of several, part after part.

        Values of ndarrays and files are not copied; those of tensors are.

        Args:
            parts: pairs of values and offsets, as for the class, or objects of the class; all of
                one dtype, and at least one.

        Raises:
            TypeError: the dtypes differ; a part lies on a device; and the class's errors.
            ValueError: there is no part; and the class's errors.
        """
        rule = "a sequence of at least one pair of values and offsets"
        check_value("parts", parts, is_sequence(parts) and len(parts) > 0, rule)
        arrays = [part if isinstance(part, RaggedArray) else cls(*part) for part in parts]
        if len(arrays) == 1:
            return arrays[0]
        values: list[Array] = []
        for array in arrays:
            found = array._field.source
            if isinstance(found, torch.Tensor):
                is_here, remedy = found.device.type == "cpu", "pass a.to('cpu')"
                check_type("values of parts", found.device, is_here, "on the CPU", remedy)
                found = found.detach().numpy().copy()  # a tensor's memory may move
            values.append(found)
            is_same = found.dtype == values[0].dtype
            check_type("values of parts", found.dtype, is_same, f"of dtype {values[0].dtype}")
        files = [array.file for array in arrays if array.file is not None]
        return cls._join(values, [array._bounds for array in arrays], files)

    @classmethod
    def _join(
        cls, values: Sequence[Array], bounds: Sequence[Array], files: Sequence[MappedFile] = ()
    ) -> RaggedArray:
        """Make an array of several parts. `bounds`, ``[n, 2]``, are of the sequences of each part
        among its values."""
        values = [v if _is_plain(v) else np.array(v) for v in values]
        filled = [(v, b) for v, b in zip(values, bounds, strict=True) if len(v)]
        if not filled:
            return cls(values[0], np.zeros(sum(map(len, bounds)) + 1, np.int64))
        span = _Span([array for array, _ in filled])
        made = cls(np.asarray(span), [0])
        begins, at = iter(span.begins), 0
        pairs = np.zeros((sum(map(len, bounds)), 2), np.int64)
        for v, b in zip(values, bounds, strict=True):
            if len(v):
                np.add(b, np.int64(next(begins)), out=pairs[at : at + len(b)])
            at += len(b)
        pairs.flags.writeable = False
        made._pairs, made._offsets, made.values = pairs, None, tuple(values)
        if files:  # reads are safe; where each file ends is not known
            made._field.file = made.file = files[0][0], 0, None
        return made

    @property
    def _bounds(self) -> Array:
        """The begin and the end of each sequence among the values, ``[n, 2]``."""
        if self._pairs is not None:
            return self._pairs
        return _as_pairs(self.offsets)

    def _read_all(self) -> torch.Tensor:
        """Return the values of all sequences, one after the other."""
        if self._pairs is None:
            return self._field.read_range(*map(int, self.offsets[[0, -1]]))
        begins, ends = self._pairs.T
        cuts = np.flatnonzero(ends[:-1] != begins[1:]) + 1  # where a part ends
        runs = [self._field.read_range(0, 0)]
        for first, last in pairwise([0, *cuts.tolist(), len(self)] if len(self) else []):
            runs.append(self._field.read_range(int(begins[first]), int(ends[last - 1])))
        return torch.cat(runs)

    @classmethod
    def from_list(cls, sequences: Sequence[Any], dtype: Any = None) -> RaggedArray:
        """Copy sequences into a RaggedArray.

        Args:
            sequences: lists or tuples of numbers, 1-D ndarrays or 1-D tensors.
            dtype: a dtype of torch or NumPy. None: the arrays' dtype. None for lists: int64,
                torch's default dtype if a list holds a float, bool if all lists hold only bools.

        Raises:
            TypeError: an element is not a sequence of numbers; a list has an integer beyond int64.
            ValueError: ``dtype`` is of integers or bools and cannot hold one of the numbers.
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
        """Make a RaggedArray from a pyarrow ``Array`` or ``ChunkedArray`` of lists of numbers.

        Values are not copied, also if the column has several chunks, unless they are bools.

        Raises:
            TypeError: the column is not such an array.
            ValueError: the column has nulls.
        """
        kind = str(getattr(column, "type", "no Arrow type"))
        if not re.fullmatch(_ARROW_LISTS, kind):
            rule = "a pyarrow Array or ChunkedArray of lists of numbers"
            got = f"{type(column).__name__} of {kind}"
            raise TypeError(f"column must be {rule} (table.column('input_ids')), got {got}")
        chunks = getattr(column, "chunks", [column]) or [column.combine_chunks()]
        flat = [chunk.flatten() for chunk in chunks]
        lists, numbers = (sum(each.null_count for each in parts) for parts in (chunks, flat))
        got = f"{lists} null lists and {numbers} null values (fill or drop the nulls first)"
        refuse_if(lists or numbers, f"column must have no nulls, got {got}")
        values = [part.to_numpy(zero_copy_only=False) for part in flat]
        lengths = [chunk.value_lengths().to_numpy() for chunk in chunks]
        offsets = [np.append(0, np.cumsum(each, dtype=np.int64)) for each in lengths]
        if len(values) == 1:
            return cls(values[0], offsets[0])
        # Those of a damaged file may be anything.
        pairs = zip(offsets, values, strict=True)
        offsets = [_read_offsets(each, len(part)) for each, part in pairs]
        return cls._join(values, [_as_pairs(each) for each in offsets])

    def bytes_for(self, device: torch.device) -> int:
        """Return the number of bytes that ``to()`` copies."""
        values = self._field.source
        if isinstance(values, torch.Tensor) and values.device == device:
            return 0
        return int(self.offsets[-1] - self.offsets[0]) * values.itemsize

    def to(self, device: torch.device | str | int) -> RaggedArray:
        """Return the array with its values on a device. A view moves only its own sequences.
        Offsets stay on the CPU.

        Experimental: loaders over data on a GPU have run on a simulated device only, not on a GPU.

        Raises:
            MemoryError: a CUDA device has less free memory than the values take.
        """
        device = torch.empty(0, device=device).device
        check_room(device, self.bytes_for(device), "the values")
        values = self._read_all().to(device).contiguous()
        return _make(type(self), values, self.offsets - self.offsets[0], self._extras())

    @property
    def lengths(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """``[n]``, int64."""
        found = np.diff(self._offsets if self._pairs is None else self._pairs)
        return found.reshape(-1).astype(np.int64, copy=False)

    def __len__(self) -> int:
        return len(self._offsets) - 1 if self._pairs is None else len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice | list[Any] | Array | torch.Tensor) -> RaggedArray: ...
    def __getitem__(self, index: Any) -> torch.Tensor | RaggedArray:
        if isinstance(index, slice):
            begin, end, step = index.indices(len(self))
            if step == 1:
                return self._over(slice(begin, max(begin, end)))
        if isinstance(index, (slice, list)) or getattr(index, "ndim", 0) > 0:
            rows = np.arange(len(self))[index if isinstance(index, slice) else _as_rows(index)]
            parts = [*(self[row] for row in rows.tolist()), self._field.read_range(0, 0)]
            return RaggedArray(torch.cat(parts), np.append(0, np.cumsum(self.lengths[rows])))
        row = read_row(index, len(self))
        bounds = self._offsets[row : row + 2] if self._pairs is None else self._pairs[row]
        begin, end = map(int, bounds)
        sequence = self._field.read_range(begin, end)
        if len(sequence) != end - begin:
            got = f"values that were resized to {len(self._field)}"
            raise ValueError(f"sequence {row} must be values[{begin}:{end}], got {got}")
        return sequence

    def _extras(self) -> dict[str, Any]:
        """Return the attributes that ``__init__`` does not set, for example a subclass's."""
        made = ("_field", "values", "file", "_offsets", "_pairs")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the sequences of a view."""
        values, offsets, path = self.values, self.offsets, self._field.opened
        if path is not None:
            return _make, (type(self), path, np.array(offsets), self._extras())
        begin, end = int(offsets[0]), int(offsets[-1])
        if self._pairs is not None:
            values = self._read_all()
        elif isinstance(values, np.ndarray):
            values = np.array(values[begin:end])
        elif (begin, end) != (0, len(values)):
            values = values[begin:end].clone()
        return _make, (type(self), values, offsets - begin, self._extras())

    def __repr__(self) -> str:
        dtype = str(self._field.source.dtype).removeprefix("torch.")
        return f"RaggedArray({len(self)} sequences of {dtype}, {int(self.lengths.sum())} values)"


def _make(cls: type[RaggedArray], values: Any, offsets: Any, extras: dict[str, Any]) -> RaggedArray:
    """Make an array of a class that may have its own ``__init__``."""
    array = cls.__new__(cls)
    RaggedArray.__init__(array, values, offsets)
    vars(array).update(extras)
    return array
