"""The columns of a dataset: its arrays, in the form that the C core gathers from.

Each *taker* returns the columns of one kind of dataset; ``take`` calls the first whose test knows
the dataset. The tests look at exact types, because a subclass may override anything. An attribute
that is assigned to a dataset during an epoch is seen by the next ``iter()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader

from fastloop._core import ImageDraws, ImagePlan, SequenceColumn, Table, Windows, int64_array
from fastloop.base.checks import look_up
from fastloop.compat.moves import pin_storage, watch
from fastloop.compat.tensors import DTYPES
from fastloop.data.collate import below_subsets, kind_of
from fastloop.data.field import Array, Field, MappedFile, torch_dtype
from fastloop.data.samplers import Vector


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


LEFT_COLLATE = "C does not make the batches of "  # begins reasons that hold for any dataset


def leave_if(applies: object, reason: str) -> None:
    """Raise NotCoveredError with this reason if it applies."""
    if applies:
        raise NotCoveredError(reason)


# C gathers the dtypes of DLPack but for this one, which is left to torch.
_DTYPES = {dtype for number, dtype in DTYPES.items() if number >= 0} - {torch.float8_e8m0fnu}


_RESIDENT = ("cuda",)  # devices that gather rows of their own memory
_LONGEST = 2**31 - 1  # bytes of a row there

# torch indexes with bytes and bools as with masks.
_INDEX_DTYPES = (torch.int8, torch.int16, torch.int32, torch.int64)


def check_tensor(name: str, tensor: object) -> None:
    """Raise NotCoveredError for a tensor that C does not gather from."""
    if type(tensor) is not torch.Tensor:
        raise NotCoveredError(f"{name} is a {type(tensor).__name__}, not a plain torch.Tensor")
    reasons = {
        f"is on {tensor.device}": tensor.device.type not in ("cpu", *_RESIDENT),
        f"has layout {tensor.layout}": tensor.layout is not torch.strided,
        "is nested": tensor.is_nested,
        "is quantized": tensor.is_quantized,
        "requires grad": tensor.requires_grad,
        "is a conjugate view": tensor.is_conj(),
        "is a negative view": tensor.is_neg(),
        "has no dimension to index": tensor.ndim == 0,
        f"has dtype {tensor.dtype}": tensor.dtype not in _DTYPES,
    }
    for reason, applies in reasons.items():
        leave_if(applies, f"{name} {reason}")


def as_vector(indices: Any) -> Vector | None:
    """Return a sequence of plain integers as a contiguous int64 vector; None for anything else.

    A tensor is copied, because its memory may move."""
    if type(indices) is range:
        return np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    if type(indices) in (list, tuple):
        return int64_array(indices, torch.Tensor)
    if type(indices) is torch.Tensor and indices.dtype in _INDEX_DTYPES:
        is_plain = indices.layout is torch.strided and indices.is_cpu and not indices.is_neg()
        indices = np.array(indices.numpy()) if is_plain else None
    if type(indices) is not np.ndarray or indices.ndim != 1:
        return None
    is_integer = indices.dtype.kind in "iu" and indices.dtype != np.uint64
    return np.ascontiguousarray(indices, dtype=np.int64) if is_integer else None


def count_from_0(rows: Vector, length: int) -> Vector:
    """Return indices of `length` rows with those below 0 counted from the end, as torch does.

    Raises:
        IndexError: one is out of range. The text is torch's.
    """
    if len(rows) == 0:
        return rows
    low, high = int(rows.min()), int(rows.max())
    if not -length <= low <= high < length:
        index = low if low < -length else high
        raise IndexError(f"index {index} is out of bounds for dimension 0 with size {length}")
    return rows if low >= 0 else np.where(rows < 0, rows + length, rows)


class Segment(NamedTuple):
    """Rows of one array: the first `rows`, or those whose numbers are in a vector."""

    array: torch.Tensor | Array
    rows: Vector | int
    file: MappedFile | None

    @property
    def length(self) -> int:
        return self.rows if isinstance(self.rows, int) else len(self.rows)


@dataclass(frozen=True)
class Column:
    """The source of one or more outputs of a batch.

    Attributes:
        is_array: samples are rows of NumPy, which torch collates otherwise than tensors.
        cast: the dtype of batches where it differs from the source: int64 or float32.
    """

    name: str
    source: torch.Tensor | Array | SequenceColumn | Windows | tuple[Segment, ...]
    file: MappedFile | None = None
    plan: ImagePlan | ImageDraws | None = None
    is_array: bool = False
    cast: str | None = None

    def segments(self) -> tuple[Segment, ...]:
        """Return the rows as segments. Raises NotCoveredError where C does more than copy rows."""
        source = self.source
        if isinstance(source, tuple):
            return source
        if self.plan is not None or not isinstance(source, (torch.Tensor, np.ndarray)):
            raise NotCoveredError(f"{self.name} is not of plain arrays, within another dataset")
        return (Segment(source, len(source), self.file),)

    @property
    def has_gaps(self) -> bool:
        """Tell whether rows have strides that C, which copies them without gaps, does not keep."""
        source: Any = self.source
        arrays = [part.array for part in source] if isinstance(source, tuple) else [source]
        if self.plan is not None:
            return False
        tight_tensors = (a[:1].is_contiguous() for a in arrays if isinstance(a, torch.Tensor))
        tight_arrays = (a[:1].flags.c_contiguous for a in arrays if isinstance(a, np.ndarray))
        return not (all(tight_tensors) and all(tight_arrays))

    def for_core(self, pin: bool) -> tuple[Any, Any]:
        """Return source and file as ``Table`` takes them; `pin` as in ``open_source``."""

        def keep(array: Any) -> Any:
            return pin_storage(array) if pin and isinstance(array, torch.Tensor) else array

        if not isinstance(self.source, tuple):
            return keep(self.source), self.file
        source = tuple(part for array, rows, _ in self.source for part in (keep(array), rows))
        return source, tuple(segment.file for segment in self.source)


@dataclass
class Columns:
    """The columns of a dataset, and the structure of the batches that C makes of them.

    Attributes:
        structure: the containers around the outputs of a batch, in the form that C takes: None for
            the next output, a tuple of structures for a list, a dict of structures for a dict.
        kind: the kind of data, for ``stats().why``.
        maps: the rows that each Subset, or the dataset's own indices, select; innermost first.
        table: the columns as C takes them. ``open_source`` sets it, and the next.
        dataset: the one below all Subsets.
        original: the code that C stands in for (``compared.Original``), or None.
        wrap: turns a batch into what is handed out, or None.
        device: holds all of the data, and gathers batches; None: they are in host memory.
        is_fetched: the device gathers batches, and reads the data in host memory.
    """

    structure: Any
    all: tuple[Column, ...] = ()
    kind: str = "plain arrays"
    maps: tuple[Vector, ...] = ()
    table: Any = None
    dataset: Any = None
    original: Any = None
    wrap: Callable[[Any], Any] | None = None
    device: torch.device | None = None
    is_fetched: bool = False

    def add(self, name: str, source: Any, *others: Any, **named: Any) -> Columns:
        """Add a ``Column``. Raises NotCoveredError for a tensor that C does not gather from."""
        if isinstance(source, torch.Tensor):
            check_tensor(name, source)
        self.all += (Column(name, source, *others, **named),)
        return self


def gives_views(dataset: object, workers: int) -> bool:
    """Tell whether single samples of torch's own code are views of the data."""
    return workers == 0 and kind_of(dataset) not in ("ArrayDataset", "TokenDataset")


# ---- takers of datasets that hold arrays

Taker = Callable[[Any], Columns]


def take(dataset: Any, taker: Taker | None = None) -> Columns:
    """Return the columns of a dataset, by the taker of its kind where none is given. Raises
    NotCoveredError."""
    if "__getitems__" in look_up(dataset, "__dict__", ()):
        raise NotCoveredError(f"a {type(dataset).__name__} has a __getitems__ of its own")
    taker = taker or _TAKERS.get(kind_of(dataset))
    if taker is None:
        raise NotCoveredError(f"the dataset is a {type(dataset).__name__}, not plain array data")
    return taker(dataset)


def take_arrays(dataset: Any, make_ragged: Callable[..., Any] | None = None) -> Columns:
    """Args: make_ragged: the arguments of ``Columns.add`` for a RaggedArray; None: not covered."""
    leave_if(dataset._cut, dataset._cut)
    keys = dataset._keys
    columns = Columns(dict.fromkeys(keys) if keys else (None,) * len(dataset._fields))
    for field, plan in zip(dataset._fields, dataset._plans, strict=True):
        if isinstance(field, Field):
            columns.add(field.name, field.source, field.file, plan)
        elif make_ragged is not None:
            columns.add(*make_ragged(field))
        else:
            raise NotCoveredError(f"{field.name} is a RaggedArray; pass PadCollate or PackCollate")
    return columns


def take_images(dataset: Any) -> Columns:
    if dataset._arrays is None:
        raise NotCoveredError("the files of an ImageFolder without cache= are decoded in Python")
    has_function = dataset.target_transform is not None
    leave_if(has_function, "target_transform of the ImageFolder runs in Python")
    return replace(take_arrays(dataset._arrays), kind="cached images")


def take_tokens(dataset: Any) -> Columns:
    is_alone = dataset._keys is None and dataset._arguments.targets is None
    names = dict.fromkeys(dataset._keys) if dataset._keys else (None,) * 2
    columns = Columns(None if is_alone else names, kind="windows of tokens")
    columns.device = None if dataset._tokens is None else dataset._tokens.device
    return columns.add("tokens", dataset._windows)


def take_tensors(dataset: Any) -> Columns:
    columns = Columns((None,) * len(dataset.tensors))
    for i, tensor in enumerate(dataset.tensors):
        columns.add(f"tensor {i}", tensor)
    return columns


@cache
def _collated(dtype: np.dtype[Any], is_number: bool) -> torch.dtype | None:
    """Return the dtype that torch makes of rows or numbers of NumPy; None: it refuses them."""
    sample = np.zeros(() if is_number else 1, dtype)
    try:
        found: torch.dtype = torch_data.default_collate([sample[()]]).dtype
    except (TypeError, ValueError, RuntimeError):
        return None
    return found


def take_ndarray(dataset: Any) -> Columns:
    """Take an ndarray that is a dataset itself."""
    field = Field("the dataset", dataset)
    array: Any = field.source
    if _collated(array.dtype, array.ndim == 1) is not torch_dtype(array):
        raise NotCoveredError(f"torch makes another dtype of the dataset's {array.dtype}")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides[1:]):
        raise NotCoveredError(f"the dataset has rows of strides {array.strides[1:]}")
    return Columns(None).add(field.name, array, field.file, is_array=True)


# ---- the taker of lists of small samples: worker processes have them as they were at ``iter()``

# More take longer to stack than worker processes do, or than the first batch may take.
_MOST_SAMPLES, _MOST_BYTES = 1 << 16, 1 << 26


def _is_own(part: Any) -> bool:
    """Tell whether a part of a sample is a number, or has no gaps, in memory that torch or NumPy
    allocated for this process alone."""
    if type(part) is np.ndarray:
        owner = part if part.base is None else part.base
        return type(owner) is np.ndarray and owner.flags.owndata and part.flags.carray
    if type(part) is torch.Tensor:
        storage, is_tight = part.untyped_storage(), part.is_contiguous()
        return is_tight and part.is_cpu and storage.resizable() and not storage.is_shared()
    return type(part) in (int, float) or isinstance(part, np.number)


def take_samples(samples: Sequence[Any], loader: DataLoader[Any]) -> Columns:
    """Return the columns of a list of samples, stacked. Raises NotCoveredError.

    Args:
        samples: the list.
        loader: that loads it. torch's own samplers alone are served.
    """
    leave_if(loader.num_workers == 0, "the dataset is a list, which may change without workers")
    is_few = len(loader.sampler) * 2 < len(samples)  # type: ignore[arg-type]
    leave_if(is_few, "an epoch has less than half of the list")
    leave_if(len(samples) == 0, "the list is empty")
    is_tuple = set(map(type, samples)) == {tuple}
    rows = samples if is_tuple else [(sample,) for sample in samples]
    total = len(rows) * sum(look_up(part, "nbytes", 0) for part in rows[0])
    is_large = len(rows) > _MOST_SAMPLES or total > _MOST_BYTES
    leave_if(is_large, f"the list has {len(rows):,} samples of {total:,} bytes")
    kinds = {(type(row), *((type(x), look_up(x, "dtype")) for x in row)) for row in rows}
    leave_if(len(kinds) > 1, "the samples have several types or dtypes")
    parts = list(zip(*rows, strict=True))
    columns = Columns((None,) * len(parts) if is_tuple else None, kind="samples, stacked at iter()")
    for i, part in enumerate(parts):
        are_own = all(map(_is_own, part))
        leave_if(not are_own, "the samples have gaps, or lie in memory that others have, too")
        columns.add(f"part {i} of the samples", torch_data.default_collate(list(part)))
    return columns


# ---- takers of datasets that are made of others


def _rows_of(subset: Any) -> Vector:
    """Return the rows of a Subset. Raises NotCoveredError."""
    rows = as_vector(subset.indices)
    if rows is None:
        raise NotCoveredError("the indices of the Subset are not plain integers")
    return rows


def _pick(column: Column, rows: Vector) -> Column:
    segment, *others = column.segments()
    leave_if(others, "a Subset of a ConcatDataset lies within another dataset")
    length = segment.length
    try:
        rows = count_from_0(rows, length)
    except IndexError:
        reason = f"an index of a Subset is out of range for {length} rows"
        raise NotCoveredError(reason) from None
    taken = rows if isinstance(segment.rows, int) else segment.rows[rows]
    return replace(column, source=(segment._replace(rows=taken),), file=None)


def take_subset(dataset: Any) -> Columns:
    rows = _rows_of(dataset)
    inner = take(dataset.dataset)
    return Columns(inner.structure, tuple(_pick(column, rows) for column in inner.all))


def take_stack(dataset: Any) -> Columns:
    parts: Any = dataset.datasets
    is_dict = isinstance(parts, dict)
    pairs = parts.items() if is_dict else enumerate(parts)
    found = {key: take(part) for key, part in pairs}
    structures = {key: columns.structure for key, columns in found.items()}
    stack = Columns(structures if is_dict else tuple(structures.values()))
    for key, columns in found.items():
        for column in columns.all:
            column.segments()  # refuses more than rows
            stack.all += (replace(column, name=f"datasets[{key!r}], {column.name}"),)
    return stack


def _join(columns: Sequence[Column], lengths: Sequence[int]) -> Column:
    """Join one column of all parts of a ConcatDataset; `lengths` are the rows that each part had
    when that was made."""
    first = columns[0]
    if any(column.is_array is not first.is_array for column in columns):
        raise NotCoveredError("a ConcatDataset has tensors in one dataset, ndarrays in another")
    segments: list[Segment] = []
    for column, length in zip(columns, lengths, strict=True):
        found = column.segments()
        rows = sum(segment.length for segment in found)
        fault = f"{column.name} has {rows} rows, and had {length} rows when"
        leave_if(rows != length, f"{fault} the ConcatDataset was made")
        segments += found
    return replace(first, source=tuple(segments), file=None)


def take_concat(dataset: Any) -> Columns:
    lengths = np.diff(dataset.cumulative_sizes, prepend=0).tolist()
    # torch takes no sample of empty parts, so they may be of other kinds.
    pairs = list(zip(dataset.datasets, lengths, strict=True))
    pairs = [pair for pair in pairs if pair[1] > 0] or pairs[:1]
    parts = [take(part) for part, _ in pairs]
    structure = parts[0].structure
    if any(repr(part.structure) != repr(structure) for part in parts):  # keys in order, too
        raise NotCoveredError("a dataset of the ConcatDataset has samples of other structure")
    columns, rows = zip(*(part.all for part in parts), strict=True), [rows for _, rows in pairs]
    return Columns(structure, tuple(_join(same, rows) for same in columns))


# By kind; these datasets may lie within others.
_TAKERS: dict[Any, Taker] = {
    "ArrayDataset": take_arrays,
    "ImageFolder": take_images,
    "TokenDataset": take_tokens,
    torch_data.TensorDataset: take_tensors,
    torch.Tensor: lambda tensor: Columns(None).add("the dataset", tensor),
    **dict.fromkeys((np.ndarray, np.memmap), take_ndarray),
    torch_data.Subset: take_subset,
    torch_data.StackDataset: take_stack,
    torch_data.ConcatDataset: take_concat,
}


def _tensor_of(column: Column) -> Any:
    """Return the source of a column, of sequences their values."""
    source = column.source
    return source.sources[0] if isinstance(source, SequenceColumn) else source


def _find_device(columns: Columns) -> torch.device | None:
    """Return the device that the data lie on; None: host memory. Raises NotCoveredError."""
    places: dict[torch.device, str] = {}  # and the name of the first column there
    for column in columns.all:
        source, place = _tensor_of(column), torch.device("cpu")
        if isinstance(source, torch.Tensor):
            place = source.device
        segments = source if isinstance(source, tuple) else ()
        inner = [s.array.device for s in segments if isinstance(s.array, torch.Tensor)]
        if any(device.type in _RESIDENT for device in inner):
            raise NotCoveredError(f"{column.name} is on {inner[0]}, within another dataset")
        places.setdefault(place, column.name)
    on = next((device for device in places if device.type in _RESIDENT), None)
    if on is None:
        return None
    names = ", ".join(f"{name} is on {device}" for device, name in places.items())
    leave_if(len(places) > 1, f"the data lie on several devices: {names}")
    for column in columns.all:
        where, row = f"{column.name} is on {on}, and", _tensor_of(column)[:1]
        plan = column.plan
        is_moved = plan is None or (isinstance(plan, ImagePlan) and plan.map_length > 0)
        leave_if(not is_moved, f"{where} its transform computes pixels")
        leave_if(not row.is_contiguous(), f"{where} its rows are not contiguous")
        leave_if(row.nbytes > _LONGEST, f"{where} a row takes {row.nbytes:,} bytes")
        is_wide = isinstance(column.source, SequenceColumn) and row.itemsize > 8
        leave_if(is_wide, f"{where} its sequences are of {row.dtype}")
    return on


def _fetch(columns: Columns, device: torch.device) -> None:
    """Have a device read the columns of an ArrayDataset in host memory."""
    fields = columns.dataset._fields
    pairs = zip(columns.all, fields, strict=True)
    columns.all = tuple(replace(column, source=field.rows) for column, field in pairs)
    columns.device, columns.is_fetched = device, True
    columns.kind = f"arrays in host memory, read by {device}"


def open_source(
    dataset: Any, pin: bool, taker: Taker | None = None, fetcher: torch.device | None = None
) -> Columns:
    """Return the columns of a dataset with their table. Raises NotCoveredError.

    Args:
        dataset: any.
        pin: threads will read ahead, so keep the storages of tensors from being resized.
        taker: takes the dataset below Subsets; None: that of its kind.
        fetcher: the device that reads the dataset, an ArrayDataset, in host memory.
    """
    dataset, subsets = below_subsets(dataset)
    maps = list(map(_rows_of, subsets))
    try:
        columns = take(dataset, taker)
        columns.dataset = dataset
        if fetcher is not None:
            _fetch(columns, fetcher)
        elif (on := columns.device or _find_device(columns)) is not None:
            columns.device, columns.kind = on, f"tensors on {on}"
        if columns.device is not None:
            columns.maps = tuple(maps)
            return columns
        found = [(*each.for_core(pin), each.name, each.plan, each.cast) for each in columns.all]
        sources, files, names, plans, casts = tuple(zip(*found, strict=True)) or ((),) * 5
        columns.table = Table(sources, torch.Tensor, names, files, plans, casts)
        watch(columns.table)
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise NotCoveredError(str(error)) from error
    if columns.original is not None:
        columns.original.check(columns)
    columns.maps += tuple(maps)
    return columns
