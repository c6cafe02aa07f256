"""Batches of a program's own Dataset whose ``__getitem__`` only indexes arrays, tensors and lists.

``closed_world`` runs the function once, with a symbol for the index. Here what the function has
made becomes columns: views of the arrays with a row for each sample, which may overlap.
docs/internals/traced-datasets.md tells the rules.
"""

from __future__ import annotations

import math
import operator
import sys
import weakref
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from fastloop._core import read_numbers
from fastloop.adapters.closed_world import (
    ARRAYS,
    PLAIN,
    Element,
    Function,
    Index,
    World,
    has_index,
    is_one_of,
    note_refusal,
    state_of,
)
from fastloop.adapters.originals import find_obstacle
from fastloop.compat.torch_parts import MapFetcher, default_collate
from fastloop.compat.verification import same_bits, verification_of
from fastloop.data.columns import (
    Column,
    Columns,
    NotCoveredError,
    Request,
    Segment,
    check_tensor,
    leave_if,
)
from fastloop.data.columns import (
    columns_of as columns_of_list,
)
from fastloop.data.field import Field, torch_dtype
from fastloop.data.samplers import as_vector
from fastloop.loader.arrays.compared import FIRST, Original
from fastloop.loader.arrays.iterator import make_batch

# The casts of the core: from integers but uint64, and these floats, to int64 or these floats.
_FLOATS = ("float32", "float64")
_INTS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_NUMBERS = (*_INTS, "int64", *_FLOATS)
_MOST_BYTES = 1 << 28  # that are copied at iter() for workers

# ---- one sample, made by the functions that the program has called


def replay(made: Any, index: int) -> Any:
    """Return the value that was traced, for one index. Raises NotCoveredError for a value that is
    none of the plain kinds."""
    if type(made) is Index:
        scale, offset, _ = state_of(made)
        return scale * index + offset
    if type(made) is Function:
        return state_of(made)[0]
    if type(made) is Element:
        function, args, named = state_of(made)
        if function is None:
            return args
        args = [replay(each, index) for each in args]
        named = {key: replay(value, index) for key, value in named.items()}
        leave_if(_warns(function, args[0]), "makes torch warn")
        return _checked(function(*args, **named))
    if type(made) is slice:
        return slice(*(replay(each, index) for each in (made.start, made.stop, made.step)))
    if type(made) is dict:
        return {key: replay(value, index) for key, value in made.items()}
    return type(made)(replay(each, index) for each in made) if type(made) in (tuple, list) else made


def _warns(function: Any, value: Any) -> bool:
    """Tell whether torch warns of a call, or makes a tensor of unknown elements."""
    if function is torch.tensor or function in _NUMPYS:
        return type(value) is torch.Tensor
    is_array = type(value) in (np.ndarray, np.memmap)
    if function in (torch.LongTensor, torch.FloatTensor) and not (is_array or type(value) is list):
        return True
    return function in _SHARING and is_array and not value.flags.writeable


_NUMPYS = (np.array, np.asarray)
_SHARING = (torch.from_numpy, torch.as_tensor, torch.LongTensor, torch.FloatTensor)


def _checked(value: Any) -> Any:
    """Return a value of a plain kind. Raises NotCoveredError for any other: methods of other
    objects might run code of the program's."""
    is_list = is_one_of(type(value), (list, tuple))
    for kind in map(type, value if is_list else (value,)):
        is_number = is_one_of(kind, (int, float, bool)) or issubclass(kind, (np.number, np.bool_))
        is_plain = is_number or (is_one_of(kind, ARRAYS) and not is_list)
        leave_if(not is_plain, f"has elements that are a {kind.__name__}")
    leave_if(type(value) is torch.Tensor and not value.is_cpu, "makes tensors of a device")
    return value


class Samples:
    """The samples as the program's own code makes them, by the functions that it calls."""

    def __init__(self, made: Any, count: int) -> None:
        self._made, self._count = made, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return replay(self._made, index)


# ---- columns


def _windows(rows: Any, length: int, step: int) -> Any:
    """Return all windows of `length` rows, every `step` rows; the last dimension is the window."""
    if isinstance(rows, torch.Tensor):
        return rows.unfold(0, length, step)
    return np.lib.stride_tricks.sliding_window_view(rows, length, axis=0)[::step]


def _is_shared(array: Any) -> bool:
    """Tell whether worker processes would see changes of the memory of an array."""
    is_tensor = isinstance(array, torch.Tensor)
    address = array.data_ptr() if is_tensor else array.__array_interface__["data"][0]
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end, modes = line.replace("-", " ", 1).split(maxsplit=3)[:3]
            if int(begin, 16) <= address < int(end, 16):
                return modes[3] == "s"
    return False


def _move(array: Any, source: int, target: int) -> Any:
    is_tensor = isinstance(array, torch.Tensor)
    return array.movedim(source, target) if is_tensor else np.moveaxis(array, source, target)


class _Builder:
    """Makes columns of what was traced.

    Attributes:
        reads: what must be read of lists before rows are gathered: a list, the array for its
            numbers, and scale, offset and length of the windows that samples take.
    """

    def __init__(self, request: Request, count: int) -> None:
        self._request, self._count = request, count
        self._opened: dict[Any, Any] = {}
        self._bytes = 0
        self.reads: dict[Any, tuple[Any, Any, int, int, int]] = {}

    def _open_list(self, items: Any, name: str) -> Any:
        """Return an array for the items of a list. With workers the array has the items; without,
        the items of a batch are read when the batch is made."""
        first: Any = items[0] if len(items) > 0 else None
        is_nested = is_one_of(type(first), (list, tuple)) and len(first) > 0
        kind = type(first[0] if is_nested else first)
        if not is_one_of(kind, (int, float)):
            leave_if(self._request.workers == 0, f"reads {name}, a list of {kind.__name__}")
            try:
                return columns_of_list(items, self._request).all[0].source
            except NotCoveredError as error:
                raise NotCoveredError(f"reads {name}: {error}") from None
        shape = (len(items), len(first)) if is_nested else (len(items),)
        out = np.empty(shape, np.int64 if kind is int else np.float64)
        if self._request.workers > 0:
            self._count_bytes(out, name)
            is_read = read_numbers(items, np.zeros(1, np.int64), len(items), out)
            leave_if(not is_read, f"reads {name}, a list of several kinds")
        return out

    def _count_bytes(self, array: Any, name: str) -> None:
        self._bytes += array.nbytes
        leave_if(self._bytes > _MOST_BYTES, f"reads {name}, which is too large to copy for workers")

    def _open(self, value: Any, name: str) -> Any:
        """Return the array of a source: with workers a copy, as worker processes have one."""
        if type(value) in (list, tuple):
            return self._open_list(value, name)
        is_mapped = False
        if isinstance(value, torch.Tensor):
            check_tensor(f"its {name}", value)
            leave_if(not value.is_cpu, f"reads {name}, which is on {value.device}")
        else:
            field = Field(f"its {name}", value)
            value, is_mapped = field.source, field.file is not None
        leave_if("complex" in str(value.dtype), f"reads {name}, which is complex")
        if self._request.workers == 0 or is_mapped or _is_shared(value):
            return value
        self._count_bytes(value, name)
        return value.clone() if isinstance(value, torch.Tensor) else value.copy()

    def _array(self, made: Any) -> Any:
        function, args, name = state_of(made)
        if function is not None:
            return self._array(args[0])[args[1]]
        if id(args) not in self._opened:
            self._opened[id(args)] = self._open(args, name)
        return self._opened[id(args)]

    def view(self, made: Any) -> Any:
        """Return an array whose first dimension has the elements of all samples."""
        if type(made) is Index:
            scale, offset, count = state_of(made)
            leave_if(abs(scale) * count + abs(offset) >= 1 << 53, "makes large numbers")
            return torch.arange(count, device="cpu") * scale + offset
        function, args, _ = state_of(made)
        if function is not operator.getitem:
            return _shaped(self.view(args[0]), np.shape(replay(made, 0)))
        base, key = args
        parts = key if type(key) is tuple else (key,)
        if not has_index(base):
            return self._rows(base, parts)
        leave_if(has_index(key), "uses the index twice")
        return self.view(base)[(slice(None), *parts)]

    def _rows(self, base: Any, parts: tuple[Any, ...]) -> Any:
        array, places = self._array(base), [i for i, part in enumerate(parts) if has_index(part)]
        leave_if(len(places) != 1, "uses the index twice")
        (place,) = places
        scale, offset, length = _window_of(parts[place])
        fixed = (*parts[:place], slice(None), *parts[place + 1 :])
        axis = sum(type(part) is slice for part in fixed[:place])
        rows = _move(array[fixed], axis, 0)
        function, source, _ = state_of(base)
        if function is None and type(source) in (list, tuple):
            leave_if(len(parts) > 1, "indexes a list by a tuple")
            if self._request.workers == 0:
                read = scale, offset, length or 1
                self.reads[id(source), read] = source, array, *read
        if length is None:
            return rows[offset::scale]
        leave_if(len(rows) - offset < length, "takes windows that are longer than its data")
        return _move(_windows(rows[offset:], length, scale), -1, axis + 1)

    def column(self, name: str, made: Any) -> Column:
        """Return the column of an element of samples."""
        if type(made) in (int, float):
            return Column(name, default_collate([made]).expand(self._count))
        leave_if(type(made) not in (Element, Index), "makes something else than tensors or numbers")
        rows, sample = self.view(made), replay(made, 0)
        leave_if(len(rows) < self._count, "has a length beyond its data")
        is_array = type(sample) in (np.ndarray, np.memmap)
        leave_if(is_array and not sample.flags.writeable, "hands out arrays that are read-only")
        like = default_collate([sample])
        leave_if(type(like) is not torch.Tensor, "makes something else than tensors or numbers")
        file = None
        if not isinstance(rows, torch.Tensor):
            field = Field(name, rows)
            rows, file = field.source, field.file
            steps = rows.strides  # type: ignore[union-attr]
            is_odd = any(step < 0 or step % rows.itemsize for step in steps)
            leave_if(is_odd, "takes elements backwards")
        steps = list(_steps(made))
        dtypes = [torch_dtype(rows), *map(_dtype_of, steps), like.dtype]
        changes = [dtype for dtype, _ in groupby(dtypes)]
        rows = rows[: self._count]
        if len(changes) == 1:
            return Column(name, rows, file)
        leave_if(len(changes) > 2, "casts twice")
        source, cast = (str(each).removeprefix("torch.") for each in changes)
        is_done = source in _INTS if cast == "int64" else source in _NUMBERS and cast in _FLOATS
        # torch and NumPy make a double of a number first, and so round twice.
        has_numbers = not all(is_one_of(type(step), ARRAYS) for step in steps)
        rounds_twice = has_numbers and (source, cast) == ("int64", "float32")
        is_done = is_done and (not rounds_twice or _is_tensor_of_number(made))
        leave_if(not is_done, f"casts {source} to {cast}")
        cast = "number" if rounds_twice else cast
        return Column(name, (Segment(rows, self._count, file),), cast=cast)


def _window_of(part: Any) -> tuple[int, int, int | None]:
    """Return scale and offset of a row of the index, and the length of a window or None."""
    first = part.start if type(part) is slice else part
    leave_if(type(first) is not Index, "takes windows of several lengths")
    scale, offset, _ = state_of(first)
    leave_if(scale < 1 or offset < 0, "counts rows from the end")
    if first is part:
        return scale, offset, None
    leave_if(type(part.stop) is not Index or part.step not in (None, 1), "takes windows with steps")
    last, end, _ = state_of(part.stop)
    leave_if(last != scale or end <= offset, "takes windows of several lengths")
    return scale, offset, end - offset


def _shaped(rows: Any, shape: tuple[int, ...]) -> Any:
    """Return a view of rows with another shape of each row."""
    if tuple(rows.shape[1:]) == shape:
        return rows
    first = rows[0]
    is_dense = first.is_contiguous() if isinstance(rows, torch.Tensor) else first.flags.c_contiguous
    leave_if(not is_dense or math.prod(shape) != math.prod(first.shape), "reshapes its data")
    if isinstance(rows, torch.Tensor):
        return rows.view(len(rows), *shape)
    steps = [rows.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    whole, strides = (len(rows), *shape), (rows.strides[0], *steps)
    return np.lib.stride_tricks.as_strided(rows, whole, strides, writeable=False)


def _is_tensor_of_number(made: Any) -> bool:
    """Tell whether torch.tensor() makes an element of an int, or of a NumPy int64."""
    function, args, _ = state_of(made)
    return function is torch.tensor and is_one_of(type(replay(args[0], 0)), (int, np.int64))


def _steps(made: Any) -> Iterator[Any]:
    """Yield the values of a first sample, from the data's to the sample's."""
    if type(made) is Element and has_index(made):
        yield from _steps(state_of(made)[1][0])
        yield replay(made, 0)


def _dtype_of(value: Any) -> torch.dtype:
    """Return the dtype of torch for a value of one of the plain kinds."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    return torch_dtype(np.asarray(value))


def _structure_of(made: Any, leaves: list[Any]) -> Any:
    """Return the containers around the elements of a sample, and append the elements to a list."""
    if type(made) in (tuple, list):
        return tuple(_structure_of(each, leaves) for each in made)
    if type(made) is dict:
        return {key: _structure_of(each, leaves) for key, each in made.items()}
    leaves.append(made)
    return None


# ---- the answer


def _read(reads: Iterable[tuple[Any, Any, int, int, int]], batch: Any, maps: Any) -> bool:
    """Read what a batch needs of the lists. Return False for items that are not plain numbers."""
    rows = as_vector(batch)
    try:
        for each in reversed(maps):
            rows = each[rows]
    except IndexError:
        return False
    return rows is not None and all(
        read_numbers(items, rows * scale + offset, length, out)
        for items, out, scale, offset, length in reads
    )


# What has been compared in this process: functions, and the forms of their columns.
_agreed: set[str] = set()
# Columns of datasets whose loaders have no workers, by the dataset's id: the next iter() takes them
# if the functions would read the same. They do not keep the dataset.
_kept: dict[int, tuple[Any, World, Columns]] = {}
_COMPARED = 4  # the number of first batches that are compared by some of their samples


@dataclass(eq=False)
class _Traced(Original):
    """The program's own code, in whose place fastloop makes batches.

    Attributes:
        samples: the samples by the calls that were traced.
        key: says what is compared.
    """

    samples: Samples | None = None
    key: str = ""

    def check(self, columns: Columns) -> None:
        """Compare the first batch with the calls that were traced. The program's code is not
        called, because torch would not call it now, or would call it in a worker."""
        whose = f"{self.verification.what} differed from {self.verification.whose}"
        leave_if(self.verification.falls_back, f"fastloop's {whose}")
        if self.key in _agreed:
            return
        rows = list(range(min(FIRST, len(self.samples or ()))))
        fetcher: Any = MapFetcher(self.samples, True, self.collate_fn, False)
        try:
            is_read = self.is_same is not None and self.is_same(rows, columns)
            with np.errstate(all="ignore"):
                is_equal = is_read and same_bits(fetcher.fetch(rows), make_batch(columns, rows))
        except Exception as error:
            raise NotCoveredError(f"{self.verification.what}: {error}") from error
        leave_if(not is_equal, f"fastloop's {whose}")
        _agreed.add(self.key)


def _holds_numbers(value: Any) -> bool:
    """Tell whether a value seems to hold plain values and arrays, by the first item of a list."""
    if is_one_of(type(value), (list, tuple)):
        return len(value) == 0 or _holds_numbers(value[0])
    if type(value) is dict:
        return all(map(_holds_numbers, value.values()))
    return is_one_of(type(value), (*PLAIN, *ARRAYS))


def _make_columns(dataset: Any, request: Request) -> Columns:
    world = World()
    made, count = world.trace(dataset)
    leaves: list[Any] = []
    columns = Columns(_structure_of(made, leaves), kind="arrays that its __getitem__ indexes")
    columns.within = count
    leave_if(not any(type(leaf) is Element for leaf in leaves), "makes samples of no array")
    builder = _Builder(request, count)
    columns.all = tuple(builder.column(f"part {i} of a sample", x) for i, x in enumerate(leaves))
    for each in world.outer:  # an element may be missing, which is an error of the function
        if all(each is not leaf for leaf in leaves):
            builder.column("what is left out of a sample", each)
    reads = list(builder.reads.values())

    def is_same(batch: Any, columns: Columns) -> bool:
        # The program may have changed what its sampler draws from.
        is_within = columns.maps or (min(batch) >= 0 and max(batch) < count)
        if find_obstacle() or not (is_within and world.is_same()):
            return False
        return not reads or _read(reads, batch, columns.maps)

    how = repr((columns.structure, [(_form_of(c), c.cast) for c in columns.all]))
    cls = type(dataset)
    key = f"{cls.__module__}.{cls.__qualname__} {world.key} {how}"
    what = f"samples of {cls.__name__}"
    verification = verification_of(key, what, "its __getitem__'s", _COMPARED, False)
    samples = Samples(made, count)
    columns.original = _Traced(verification, request.collate_fn, None, is_same, samples, key)
    if request.workers == 0 and all(map(_holds_numbers, world.containers)):
        _kept[id(dataset)] = weakref.ref(dataset, partial(_forget, id(dataset))), world, columns
        columns = copy(columns)
    return columns


def _forget(number: int, _dataset: Any) -> None:
    _kept.pop(number, None)


def _form_of(column: Column) -> tuple[Any, ...]:
    """Return what the rows of a column are, without their elements."""
    source: Any = column.source
    rows = source[0].array if isinstance(source, tuple) else source
    strides = rows.stride() if isinstance(rows, torch.Tensor) else rows.strides
    return type(rows).__name__, str(rows.dtype), tuple(rows.shape[1:]), strides


def _is_watched() -> bool:
    """Tell whether a debugger may stop within the function, or a profiler may count it."""
    monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
    has_tool = monitoring is not None and any(map(monitoring.get_tool, range(6)))
    return has_tool or sys.gettrace() is not None or sys.getprofile() is not None


def columns_of(dataset: Any, request: Request) -> Columns:
    """Return the columns of a dataset of the program's. Raises NotCoveredError."""
    name = type(dataset).__name__
    leave_if(not request.is_batched, f"single samples of a {name} are left to Python")
    leave_if(not request.in_blocks(), f"the dataset is a {name}, and its sampler is not torch's")
    leave_if(_is_watched(), "a debugger or a profiler is running")
    leave_if(why := find_obstacle(), why)
    if request.workers == 0 and id(dataset) in _kept:
        find, world, columns = _kept[id(dataset)]
        if find() is dataset and world.is_same():
            return copy(columns)
    try:
        with np.errstate(all="ignore"):  # a program's call warns again, when torch makes its sample
            return _make_columns(dataset, request)
    except NotCoveredError as error:
        reason = str(error)
    except Exception as error:
        reason = f"makes what cannot be gathered ({error})"
    note_refusal(type(dataset), request.workers, reason)
    raise NotCoveredError(f"the dataset is a {name}, whose __getitem__ {reason}")
