"""All facts about data that a loader knows. The loader asks a dataset, or the collate function, one
question. The answer is the columns that the core gathers from, or the reason why there are none.

A class answers with a method ``_columns``: a dataset's method takes a ``Request``, the method of a
collate function takes a dataset and a ``Request``. Only the exact class is asked, because a
subclass may override anything. Adapters answer for classes of other packages, this module for
torch's. If an attribute is assigned to a dataset in an epoch, the next ``iter()`` reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import Dataset

from fastloop._core import HostRange, ImageDraws, ImagePlan, SequenceColumn, Windows
from fastloop.base.checks import look_up
from fastloop.compat.tensors import DTYPES, pin_storage
from fastloop.compat.torch_parts import collate_functions, default_collate, is_known
from fastloop.data.epochs import Epoch, EpochDataset
from fastloop.data.field import Array, Field, MappedFile, torch_dtype
from fastloop.data.samplers import Vector, as_vector, count_from_0


class NotCoveredError(Exception):
    """The array path does not take this loader. The text says why."""


# The beginning of reasons that hold for any dataset.
LEFT_COLLATE = "fastloop does not accelerate batches of "


def leave_if(applies: object, reason: str) -> None:
    """Raise NotCoveredError with this reason if the condition applies."""
    if applies:
        raise NotCoveredError(reason)


class Request(NamedTuple):
    """The loader's half of the question: how the loader will use the data.

    Attributes:
        collate_fn: the loader's collate function.
        is_batched: batches are collated; False: ``batch_size=None``, single samples.
        sampler: the sampler of samples.
        has_ints: tells whether the sampler is one of torch's or fastloop's and yields ints only.
            This is a function, like in_blocks, because it may read all indices of the sampler.
        in_blocks: tells whether torch's BatchSampler takes batches from such a sampler.
        workers: the number of workers.
        in_order: the loader's in_order.
        has_init: workers must call a ``worker_init_fn``.
        is_asked: the user has passed ``path="array"``.
        device: the loader's device, or None.
        why_no_kernels: returns why no kernel of fastloop runs on a device, or "".
        is_one_by_one: a ConcatDataset around the dataset asks for single samples of a batch.
    """

    collate_fn: Callable[[Any], Any]
    is_batched: bool
    sampler: Any
    has_ints: Callable[[], bool]
    in_blocks: Callable[[], bool]
    workers: int
    in_order: bool
    has_init: bool
    is_asked: bool
    device: Any
    why_no_kernels: Callable[[torch.device], str]
    is_one_by_one: bool = False


# fastloop gathers DLPack's dtypes, except float8_e8m0fnu, which is left to torch.
_DTYPES = set(DTYPES.values()) - {torch.float8_e8m0fnu}
_RESIDENT = ("cuda",)  # the types of devices that gather rows of their own memory


def gathers(device: torch.device) -> bool:
    """Tell whether devices of this type gather rows of their own memory."""
    return device.type in _RESIDENT


def check_tensor(name: str, tensor: object) -> None:
    """Raise NotCoveredError for a tensor whose rows fastloop does not gather."""
    if type(tensor) is not torch.Tensor:
        raise NotCoveredError(f"{name} is a {type(tensor).__name__}, not a plain torch.Tensor")
    if tensor.device.type not in ("cpu", *_RESIDENT):
        raise NotCoveredError(f"{name} is on {tensor.device}")
    if tensor.layout is not torch.strided:
        raise NotCoveredError(f"{name} has layout {tensor.layout}")
    if tensor.is_nested:
        raise NotCoveredError(f"{name} is nested")
    if tensor.is_quantized:
        raise NotCoveredError(f"{name} is quantized")
    if tensor.requires_grad:
        raise NotCoveredError(f"{name} requires grad")
    if tensor.is_conj():
        raise NotCoveredError(f"{name} is a conjugate view")
    if tensor.is_neg():
        raise NotCoveredError(f"{name} is a negative view")
    if tensor.ndim == 0:
        raise NotCoveredError(f"{name} has no dimension to index")
    if tensor.dtype not in _DTYPES:
        raise NotCoveredError(f"{name} has dtype {tensor.dtype}")


def _has_rows_without_gaps(array: Any) -> bool:
    """Tell whether rows have the strides of a C array, even in dimensions of one element."""
    shape, is_tensor = array.shape[1:], isinstance(array, torch.Tensor)
    strides = array.stride() if is_tensor else [each / array.itemsize for each in array.strides]
    wanted = [math.prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape))]
    return list(strides[1:]) == wanted


class Segment(NamedTuple):
    """Rows of one array: the first `rows` rows, or the rows whose numbers are in a vector."""

    array: torch.Tensor | Array
    rows: Vector | int
    file: MappedFile | None

    @property
    def length(self) -> int:
        return self.rows if isinstance(self.rows, int) else len(self.rows)


class Kernel(NamedTuple):
    """How a device makes the outputs of a source whose rows are not simply copied.

    Attributes:
        source: the source for the core's ``Gatherer``.
        new: returns new tensors on the device for the outputs of a number of rows.
        find: returns the index that the kernel reads for each row, in an epoch.
        gather: returns the outputs for these indices, made by torch without the kernel. No SYNC.
    """

    source: tuple[Any, ...]
    new: Callable[[int], list[torch.Tensor]]
    find: Callable[[Any, int], Vector]
    gather: Callable[[Vector], list[torch.Tensor]]


class Column(NamedTuple):
    """The source of one or more outputs of a batch.

    Attributes:
        is_array: samples are rows of NumPy arrays, which torch collates differently from tensors.
        cast: None, or how elements are converted, a word that ``fl_py_segments_source`` reads.
        kernel: how the device of the data makes the outputs; None: it copies rows.
    """

    name: str
    source: torch.Tensor | Array | SequenceColumn | Windows | tuple[Segment, ...]
    file: MappedFile | None = None
    plan: ImagePlan | ImageDraws | None = None
    is_array: bool = False
    cast: str | None = None
    kernel: Kernel | None = None

    def segments(self) -> tuple[Segment, ...]:
        """Return the rows as segments. If rows are not simply copied, raise NotCoveredError."""
        source = self.source
        if isinstance(source, tuple):
            return source
        if self.plan is not None or not isinstance(source, (torch.Tensor, np.ndarray)):
            raise NotCoveredError(f"{self.name} is not of plain arrays, within a combined dataset")
        return (Segment(source, len(source), self.file),)

    @property
    def has_gaps(self) -> bool:
        """Tell whether rows have strides that batches lose: fastloop copies rows without gaps."""
        source: Any = self.source
        arrays = [part.array for part in source] if isinstance(source, tuple) else [source]
        if self.plan is not None:
            return False
        return not all(
            _has_rows_without_gaps(a) for a in arrays if isinstance(a, (torch.Tensor, np.ndarray))
        )

    def for_table(self, pin_storages: bool) -> tuple[Any, str, Any]:
        """Return the field for ``Table``. `pin_storages` is the argument of ``open_columns``."""
        source: Any = self.source
        if isinstance(source, tuple):
            pairs = ((_pin(a) if pin_storages else a, rows) for a, rows, _ in source)
            files = tuple(segment.file for segment in source)
            return (self.cast, *chain.from_iterable(pairs)), self.name, files
        source = _pin(source) if pin_storages else source
        return source if self.plan is None else (source, self.plan), self.name, self.file


def _pin(array: Any) -> Any:
    return pin_storage(array) if isinstance(array, torch.Tensor) else array


class Columns:
    """The columns of a dataset, and the structure of the batches made from these columns.

    Attributes:
        structure: the containers around the outputs of a batch, in the core's form: None for the
            next output, a tuple of structures for a list, a dict of structures for a dict.
        kind: the kind of data, for ``stats().why``.
        maps: the rows that each Subset, the dataset's own indices, or a mixture select; innermost
            first.
        table: the columns in the core's form. ``open_columns`` sets `table` and `dataset`.
        dataset: the dataset below all Subsets.
        original: the code that fastloop replaces (``compared.Original``), or None.
        wrap: turns a batch into the object that is handed out, or None.
        device: the device that holds all data and gathers batches; None: data in host memory.
        register: registers the data in host memory, so that the device reads the rows of batches
            there, and returns the ranges of memory, one for each column; takes the index of the
            device. None: the data lie on the device.
        gives_views: single samples of the dataset are views of its data.
        within: indices outside [0, within) mean something else for the dataset; None: none does.
        note, why: an addition to ``stats().why``, and the whole, which ``open_columns`` sets.
    """

    maps: tuple[Any, ...] = ()
    table: Any = None
    dataset: Any = None
    original: Any = None
    device: torch.device | None = None
    register: Callable[[int], Sequence[HostRange]] | None = None
    within: int | None = None
    note = why = ""

    def __init__(
        self,
        structure: Any,
        every: tuple[Column, ...] = (),
        kind: str = "plain arrays",
        wrap: Callable[[Any], Any] | None = None,
        gives_views: bool = True,
    ) -> None:
        self.structure, self.all, self.kind = structure, every, kind
        self.wrap, self.gives_views = wrap, gives_views

    def add(self, name: str, source: Any, *others: Any, **named: Any) -> Columns:
        """Add a ``Column``. Raises NotCoveredError for a tensor whose rows cannot be gathered."""
        if isinstance(source, torch.Tensor):
            check_tensor(name, source)
        self.all += (Column(name, source, *others, **named),)
        return self


# ---- the question


def own(value: object, name: str) -> Any:
    """Return an attribute that the exact class of an object defines. None if there is no such
    attribute, or the class is not fastloop's: classes of a program may define the name with a
    different meaning."""
    found = vars(type(value)).get(name)
    is_ours = found is not None and str(type(value).__module__).startswith("fastloop.")
    return found if is_ours else None


@cache
def adapters() -> Any:
    """Return the package of adapters, imported by name because it is a layer above this one."""
    return import_module("fastloop.adapters")


_without_adapter: set[str] = set()  # names of modules


def find_adapter(value: object) -> Any:
    """Return the adapter of a class or a function, or None. The defining module decides."""
    module = str(look_up(value, "__module__", ""))
    if module in _without_adapter:
        return None
    if (adapter := adapters().find(value)) is None:
        _without_adapter.add(module)
    return adapter


def find_columns(dataset: object, workers: int = 0) -> Callable[[Any, Request], Columns] | None:
    """Return the function that gives the columns of a dataset, or None."""
    answer = own(dataset, "_columns") or _TORCHS.get(type(dataset))
    if answer is None and (adapter := find_adapter(type(dataset))) is not None:
        answer = adapter.columns_of
    if answer is None and not adapters().find_refusal(type(dataset), workers):
        answer = adapters().trace
    return answer


def columns_of(dataset: Any, request: Request) -> Columns:
    """Return the columns of a dataset. Raises NotCoveredError."""
    name = type(dataset).__name__
    if "__getitems__" in look_up(dataset, "__dict__", ()):
        raise NotCoveredError(f"a {name} has a __getitems__ of its own")
    if (answer := find_columns(dataset, request.workers)) is None:
        why = adapters().find_refusal(type(dataset), request.workers)
        raise NotCoveredError(f"the dataset is a {name}, whose __getitem__ {why}")
    return answer(dataset, request)


def find_collate(collate_fn: object) -> Callable[[Any, Any, Request], Columns] | None:
    """Return the function that gives the columns of a collate function's batches. It takes (collate
    function, dataset, request). None: fastloop does not accelerate this collate function."""
    answer = own(collate_fn, "_columns")
    if answer is None and (adapter := find_adapter(collate_fn)) is not None:
        answer = getattr(adapter, "columns_of_collate", None)
    return answer  # type: ignore[no-any-return]


_collate_functions = cache(collate_functions)  # a look-up of a module takes a microsecond


@cache
def default_functions() -> dict[Any, Callable[..., Any]]:
    """Return torch's functions for the leaves of a batch, by the type of leaf."""
    functions = _collate_functions()
    return {
        torch.Tensor: functions.collate_tensor_fn,
        np.ndarray: functions.collate_numpy_array_fn,
        (np.bool_, np.number, np.object_): functions.collate_numpy_scalar_fn,
        float: functions.collate_float_fn,
        int: functions.collate_int_fn,
        str: functions.collate_str_fn,
        bytes: functions.collate_str_fn,
    }


def is_default_collate(collate_fn: object) -> bool:
    """Tell whether this is torch's ``default_collate``, with its own table of types."""
    if collate_fn is not default_collate or not is_known("collate", "default_collate is left"):
        return False
    return bool(_collate_functions().default_collate_fn_map == default_functions())


def check_single(request: Request, name: str = "", gives_views: bool = True) -> None:
    """Raise NotCoveredError for single samples that the array path does not make.

    Args:
        name: the kind of data, if a list of rows does not index it; a sampler may yield lists.
        gives_views: torch's own code makes single samples that are views of the data.
    """
    if request.is_batched:
        return
    if not request.has_ints():
        if name:
            raise NotCoveredError(f"the sampler may yield values that do not index a {name}")
    elif gives_views and request.workers == 0 and not request.is_asked:
        raise NotCoveredError("single samples are views of the data in torch")


# ---- torch's datasets that hold arrays


def _of_tensors(dataset: Any, request: Request) -> Columns:
    check_single(request)
    columns = Columns((None,) * len(dataset.tensors))
    for i, tensor in enumerate(dataset.tensors):
        columns.add(f"tensor {i}", tensor)
    return columns


def _of_tensor(dataset: Any, request: Request) -> Columns:
    check_single(request)
    return Columns(None).add("the dataset", dataset)


@cache
def _collated(dtype: np.dtype[Any], is_number: bool) -> torch.dtype | None:
    """Return the dtype of torch's batches of NumPy rows or numbers; None: torch refuses these."""
    sample = np.zeros(() if is_number else 1, dtype)
    try:
        found: torch.dtype = torch_data.default_collate([sample[()]]).dtype
    except (TypeError, ValueError, RuntimeError):
        return None
    return found


def _of_ndarray(dataset: Any, request: Request) -> Columns:
    check_single(request)
    field = Field("the dataset", dataset)
    array: Any = field.source
    if _collated(array.dtype, array.ndim == 1) is not torch_dtype(array):
        raise NotCoveredError(f"torch changes the dtype {array.dtype} of the dataset")
    if any(stride < 0 or stride % array.itemsize for stride in array.strides[1:]):
        raise NotCoveredError(f"the dataset has rows of strides {array.strides[1:]}")
    return Columns(None).add(field.name, array, field.file, is_array=True)


# ---- lists of small samples: they are read at ``iter()``, when worker processes would copy them

# Larger lists take longer to stack than worker processes or the first batch may take.
_MOST_SAMPLES, _MOST_BYTES = 1 << 16, 1 << 26


def _owns_memory(part: Any) -> bool:
    """Tell whether a part is a number, or has no gaps and lies in memory of this process alone."""
    if type(part) is np.ndarray:
        owner = part if part.base is None else part.base
        return type(owner) is np.ndarray and owner.flags.owndata and part.flags.carray
    if type(part) is torch.Tensor:
        storage = part.untyped_storage()
        is_own = storage.resizable() and not storage.is_shared()
        return is_own and part.is_contiguous() and part.is_cpu
    return type(part) in (int, float) or isinstance(part, np.number)


def _of_samples(samples: Any, request: Request) -> Columns:
    """Return the columns of a list of samples, stacked. Only torch's own samplers are accepted."""
    name = type(samples).__name__
    leave_if(not request.in_blocks(), f"the dataset is a {name}, not plain array data")
    leave_if(request.workers == 0, "the dataset is a list, which may change without workers")
    leave_if(len(request.sampler) * 2 < len(samples), "an epoch has less than half of the list")
    leave_if(len(samples) == 0, "the list is empty")
    is_tuple = set(map(type, samples)) in ({tuple}, {list})
    rows = samples if is_tuple else [(sample,) for sample in samples]
    total = len(rows) * sum(look_up(part, "nbytes", 8) for part in rows[0])
    if len(rows) > _MOST_SAMPLES or total > _MOST_BYTES:
        raise NotCoveredError(f"the list has {len(rows):,} samples of {total:,} bytes")
    kinds = {(type(row), *((type(x), look_up(x, "dtype")) for x in row)) for row in rows}
    leave_if(len(kinds) > 1, "the samples have several types or dtypes")
    parts = list(zip(*rows, strict=True))
    columns = Columns((None,) * len(parts) if is_tuple else None, kind="samples, stacked at iter()")
    for i, part in enumerate(parts):
        leave_if(not all(map(_owns_memory, part)), "the samples have gaps, or share their memory")
        columns.add(f"part {i} of the samples", torch_data.default_collate(list(part)))
    return columns


def _of_range(rows: Any, request: Request) -> Columns:
    """Return the numbers of a range, which never changes, as a column."""
    is_left = not (request.is_batched and request.in_blocks())
    is_left = is_left or (abs(rows.start) + abs(rows.stop)) >> 62 or len(rows) > _MOST_BYTES // 8
    leave_if(is_left, "the dataset is a range that is long, or has a sampler that is not torch's")
    column = torch.arange(len(rows), device="cpu") * rows.step + rows.start
    return Columns(None, kind="a range").add("the dataset", column)


# ---- torch's datasets that combine datasets


# The containers that may hold datasets, each with the method that returns an iterable of the items.
_ITEMS: dict[type, Any] = {list: list.__iter__, tuple: tuple.__iter__, dict: dict.values}


def datasets_within(dataset: Any) -> Iterator[EpochDataset]:
    """Yield once every EpochDataset that `dataset` is, combines, or holds in attributes."""
    if not type.__subclasses__(EpochDataset):
        return  # no module of such datasets is imported
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or not (issubclass(type(found), Dataset) or found is dataset):
            continue
        seen.add(id(found))
        if isinstance(found, EpochDataset):
            yield found
            waiting.extend(found._combined)
            continue
        lists_datasets = isinstance(found, (torch_data.ConcatDataset, torch_data.StackDataset))
        for value in look_up(found, "__dict__", {}).values():  # a loader takes any object
            # type() is asked, and the methods of a subclass are avoided: a list may load its items,
            # and a proxy object may raise when it is asked for its class.
            for container, items_of in _ITEMS.items():
                if issubclass(type(value), container):
                    # Only the first item is examined, because a list may have millions of files.
                    first = next(iter(items_of(value)), None)
                    if lists_datasets or issubclass(type(first), Dataset):
                        waiting.extend(items_of(value))
                    break
            else:
                waiting.append(value)


def epochs_within(dataset: Any) -> list[Epoch]:
    """Return once each epoch of the datasets within `dataset`."""
    epochs: dict[Epoch, None] = {}
    for found in datasets_within(dataset):
        if found._epoch is not None:
            epochs[found._epoch] = None
    return list(epochs)


def size_remedies(dataset: Any) -> list[str]:
    """Return the sentences that name the arguments with which the datasets within `dataset` stack
    samples of several shapes."""
    remedies = dict.fromkeys(found._size_remedy() for found in datasets_within(dataset))
    return list(filter(None, remedies))


def below_subsets(dataset: Any) -> tuple[Any, list[Any]]:
    """Return the dataset below nested Subsets, and the Subsets, the innermost first. If a Subset
    was given a ``__getitems__``, the Subset counts as a dataset of its own."""
    subsets: list[Any] = []
    while type(dataset) is torch_data.Subset and "__getitems__" not in vars(dataset):
        subsets.insert(0, dataset)
        dataset = dataset.dataset
    return dataset, subsets


def rows_of(subset: Any) -> Vector:
    """Return the rows of a Subset. Raises NotCoveredError."""
    rows = as_vector(subset.indices)
    if rows is None:
        raise NotCoveredError("the indices of the Subset are not plain integers")
    return rows


def _pick(column: Column, rows: Vector) -> Column:
    segment, *others = column.segments()
    leave_if(others, "a Subset of a ConcatDataset lies within a combined dataset")
    try:
        rows = count_from_0(rows, segment.length)
    except IndexError:
        reason = f"an index of a Subset is out of bounds for a length of {segment.length}"
        raise NotCoveredError(reason) from None
    taken = rows if isinstance(segment.rows, int) else segment.rows[rows]
    return column._replace(source=(segment._replace(rows=taken),), file=None)


def _within(dataset: Any, request: Request) -> Columns:
    """Return the columns of a dataset within a combined dataset. Only copied rows are accepted."""
    columns = columns_of(dataset, request._replace(in_blocks=lambda: False, device=None))
    if columns.maps or columns.original is not None or columns.wrap is not None:
        raise NotCoveredError(f"a {type(dataset).__name__} lies within a combined dataset")
    return columns


def _of_subset(dataset: Any, request: Request) -> Columns:
    check_single(request, type(dataset).__name__)
    rows = rows_of(dataset)
    inner = _within(dataset.dataset, request)
    return Columns(inner.structure, tuple(_pick(column, rows) for column in inner.all))


def _of_stack(dataset: Any, request: Request) -> Columns:
    check_single(request, type(dataset).__name__)
    parts: Any = dataset.datasets
    is_dict = isinstance(parts, dict)
    pairs = parts.items() if is_dict else enumerate(parts)
    found = {key: _within(part, request) for key, part in pairs}
    structures = {key: columns.structure for key, columns in found.items()}
    stack = Columns(structures if is_dict else tuple(structures.values()))
    for key, columns in found.items():
        for column in columns.all:
            column.segments()  # raises if rows are not simply copied
            stack.all += (column._replace(name=f"datasets[{key!r}], {column.name}"),)
    return stack


def _join(columns: Sequence[Column], lengths: Sequence[int], name: str) -> Column:
    first = columns[0]
    if any(column.is_array is not first.is_array for column in columns):
        raise NotCoveredError(f"a {name} combines a dataset of tensors with one of ndarrays")
    segments: list[Segment] = []
    for column, length in zip(columns, lengths, strict=True):
        found = column.segments()
        rows = sum(segment.length for segment in found)
        fault = f"{column.name} has {rows} rows, and had {length} rows when"
        leave_if(rows != length, f"{fault} the {name} was made")
        segments += found
    return first._replace(source=tuple(segments), file=None)


def join_columns(
    datasets: Sequence[Any], lengths: Sequence[int], request: Request, name: str
) -> Columns:
    """Return the columns of datasets whose rows count as one list, dataset after dataset, in a
    dataset of the class `name`. `lengths` has the rows of each when that dataset was made."""
    parts = [_within(part, request._replace(is_one_by_one=True)) for part in datasets]
    structure = parts[0].structure
    if any(repr(part.structure) != repr(structure) for part in parts):  # keys also in order
        raise NotCoveredError(f"a dataset of the {name} has samples of different structure")
    columns = zip(*(part.all for part in parts), strict=True)
    return Columns(structure, tuple(_join(same, lengths, name) for same in columns))


def _of_concat(dataset: Any, request: Request) -> Columns:
    check_single(request, type(dataset).__name__)
    lengths = np.diff(dataset.cumulative_sizes, prepend=0).tolist()
    # torch takes no sample of empty parts, so empty parts may be of any kind.
    pairs = list(zip(dataset.datasets, lengths, strict=True))
    pairs = [pair for pair in pairs if pair[1] > 0] or pairs[:1]
    parts, rows = [part for part, _ in pairs], [count for _, count in pairs]
    return join_columns(parts, rows, request, "ConcatDataset")


_TORCHS: dict[type, Callable[[Any, Request], Columns]] = {
    torch_data.TensorDataset: _of_tensors,
    torch.Tensor: _of_tensor,
    **dict.fromkeys((np.ndarray, np.memmap), _of_ndarray),
    **dict.fromkeys((list, tuple), _of_samples),
    range: _of_range,
    torch_data.Subset: _of_subset,
    torch_data.StackDataset: _of_stack,
    torch_data.ConcatDataset: _of_concat,
}
