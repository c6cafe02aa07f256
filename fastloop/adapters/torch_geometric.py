"""Batches of graphs, as PyG's ``Collater`` makes them of an ``InMemoryDataset``.

Such a dataset holds an attribute in one tensor for all graphs, and a graph is slices of tensors.
The array path gathers the numbers of graphs, and ``Graphs`` copies their slices into a ``Batch``
when the loop takes the batch. docs/internals/zero-change.md tells the rules. Nothing is imported: a
program that has a ``Collater`` has imported PyG.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from fastloop._core import copy_slices
from fastloop.adapters.closed_world import mark_of
from fastloop.adapters.originals import Battery, find_obstacle, judge, methods_of
from fastloop.compat.verdicts import Verdict
from fastloop.compat.verification import same_bits, verification_of
from fastloop.data.columns import Columns, NotCoveredError, Request, check_tensor, leave_if
from fastloop.data.field import Array
from fastloop.data.samplers import as_vector
from fastloop.loader.arrays.compared import Original
from fastloop.loader.arrays.iterator import make_batch

_MOST_BYTES = 1 << 28  # of data that are copied at iter(), because workers would have a copy
# The base class's functions make the samples, and no property stands in for an attribute.
_METHODS = "__getitem__", "__len__", "__getattr__", "__getattribute__", "get", "len", "indices"
_NAMES = "_data", "slices", "_indices", "transform", "_data_list"
# The attributes that tell how many nodes a graph has; the first in the graph's order counts. The
# battery has the second ones.
_COUNTED = "x", "feat", "pos", "batch", "node_type", "n_id", "tf"
_COUNTS = "x", "pos", "node_type"
_kept: Any = WeakIdKeyDictionary()  # by dataset: the Graphs of the latest iter() without workers


def _is_index(key: str) -> bool:
    """Tell whether an attribute has numbers of nodes in its last dimension."""
    return "index" in key or key == "face"


def _check_class(dataset: Any) -> None:
    base: Any = sys.modules["torch_geometric.data"].InMemoryDataset
    cls, name = type(dataset), type(dataset).__name__
    leave_if(not issubclass(cls, base), f"the dataset is a {name}, not an InMemoryDataset")
    for each in _METHODS:
        leave_if(getattr(cls, each) is not getattr(base, each), f"{name} has its own {each}()")
    for each in _NAMES:
        leave_if(hasattr(cls, each), f"{name} has its own {each}")
    is_hidden = not vars(dataset).keys().isdisjoint(_METHODS) or hasattr(cls, "__getitems__")
    leave_if(is_hidden, f"the {name} has methods of its own")


def _names_in(value: Any, name: str) -> frozenset[str]:
    is_plain = value is None or type(value) in (list, tuple, set)
    is_plain = is_plain and {str} >= set(map(type, value or ()))
    leave_if(not is_plain, f"{name} is not a list of names")
    return frozenset(value or ())


def _read_state(dataset: Any, collater: Any) -> tuple[Any, ...]:
    """Return what batches are made of: equal, if later batches are made alike. Raises
    NotCoveredError."""
    leave_if(why := methods_of("graphs").find_replaced(), f"PyG's {why} was replaced")
    leave_if(why := find_obstacle(), why)
    _check_class(dataset)
    values = vars(dataset)
    leave_if(values.get("transform") is not None, "the dataset has a transform")
    data, slices = values.get("_data"), values.get("slices")
    is_plain = type(data) is sys.modules["torch_geometric.data"].Data
    leave_if(not is_plain, f"the graphs are of {type(data).__name__}, not of PyG's Data")
    leave_if(type(slices) is not dict, "the dataset has no slices of several graphs")
    store = vars(data)["_store"]
    items, counts = vars(store)["_mapping"], vars(store).get("_num_nodes")
    given = _names_in(collater.follow_batch, "follow_batch")
    return (
        (type(dataset), id(store), id(slices), id(values.get("_indices")), id(counts)),
        (given, _names_in(collater.exclude_keys, "exclude_keys")),
        [(key, id(value), mark_of(value)) for key, value in items.items()],
        [(key, id(value), _look_at(value)) for key, value in slices.items()],
    )


def _look_at(slices: Any) -> int:
    leave_if(type(slices) is not torch.Tensor, "its slices are not tensors")
    return int(slices._version)


class _Part:
    """An attribute of the graphs.

    Attributes:
        value: a tensor, a list of texts, or the list of the numbers of nodes.
        dim: the dimension of the tensor's slices.
        number: of the slices among ``Graphs.bounds``.
        source: the bytes of the tensor, in blocks of rows.
    """

    def __init__(self, value: Any, dim: int, number: int) -> None:
        self.value, self.dim, self.number = value, dim, number
        if isinstance(value, torch.Tensor):
            before, rows, after = value.shape[:dim], value.shape[dim], value.shape[dim + 1 :]
            sizes = math.prod(before), rows, math.prod(after) * value.itemsize
            self.source = value.unsqueeze(-1).view(torch.uint8).view(sizes).numpy()

    def pick(self, begins: Array, lengths: Array, total: int, more: Array | None) -> torch.Tensor:
        """Return slices in a new tensor. `more`: is added to the slices."""
        shape = list(self.value.shape)
        shape[self.dim] = total
        made = torch.empty(shape, dtype=self.value.dtype)
        copy_slices(self.source, begins, lengths, more, made.view(torch.uint8).numpy())
        return made


class Graphs:
    """Makes batches of the graphs of a dataset. Any thread may.

    Args: workers: of the loader. Workers would have a copy of the data.

    Attributes:
        state: what ``_read_state`` returned.
        rows: the numbers of the dataset's graphs, if it is a part of a dataset; else None.
        data, slices: the dataset's, with the tensors of this moment.
        lists: the dataset's lists, whose contents may change, and their copies.
        cached: the dataset's list of graphs that PyG keeps once it has made them.
        is_seen: the graphs that were handed out.
    """

    def __init__(self, dataset: Any, collater: Any, workers: int = 0) -> None:
        self.state = _read_state(dataset, collater)
        self.follow, self.exclude = self.state[1]
        package: Any = sys.modules["torch_geometric.data"]
        self.template = package.Batch(_base_cls=package.Data)
        values = vars(dataset)
        self.data = copy.copy(values["_data"])
        store = vars(values["_data"])["_store"]
        items, self.slices = vars(store)["_mapping"], dict(values["slices"])
        indices, counts = values.get("_indices"), vars(store).get("_num_nodes")
        self._held = store, values["slices"], indices, counts  # what the state has the ids of
        found = [each for each in (indices, counts) if type(each) is list]
        self.lists = [(each, each[:]) for each in found]
        self.count = dataset.len()
        leave_if(self.count < 2, "the dataset has less than two graphs")
        self.rows: Any = None
        if indices is not None:
            self.rows = as_vector(indices)
            leave_if(self.rows is None, "the dataset's indices are not plain ints")
        self.parts: dict[str, _Part] = {}
        self.bounds: list[tuple[Array, Array]] = []
        for key in filter(items.__contains__, self.slices):
            self._add(key, items[key], self.slices[key].numpy())
        self.counts: list[int] | None = None
        if counts is not None:
            is_plain = len(counts) == self.count and {int} == set(map(type, counts))
            leave_if(not is_plain, "the numbers of nodes are not ints")
            self.counts = vars(vars(self.data)["_store"])["_num_nodes"] = counts[:]
            self.parts["num_nodes"] = _Part(self.counts, 0, 0)
        self.nodes = self._find_nodes()
        self.cached = values.get("_data_list")
        self._check_cached()
        self.is_seen = np.zeros(self.count, np.bool_)
        if workers > 0:
            self._copy()
        elif self.cached is None:
            values["_data_list"] = self.cached = [None] * self.count  # as PyG does

    def _add(self, key: str, value: Any, slices: Array) -> None:
        """Add an attribute."""
        leave_if("batch" in key or key in ("ptr", "num_nodes"), f"the graphs have {key!r}")
        dim = 0
        if type(value) is list:
            is_plain = {str} == set(map(type, value))
            is_plain = is_plain and np.array_equal(slices, np.arange(len(value) + 1))
            leave_if(not is_plain, f"{key} is a list of other values than texts")
            self.lists.append((value, value := value[:]))
            vars(vars(self.data)["_store"])["_mapping"][key] = value
        else:
            check_tensor(key, value)
            dim = value.ndim - 1 if _is_index(key) else 0
            is_odd = not value.is_cpu or value.ndim > 3
            leave_if(is_odd, f"{key} has {value.ndim} dimensions on {value.device}")
            is_odd = _is_index(key) and value.dtype not in (torch.int32, torch.int64)
            leave_if(is_odd, f"{key} has dtype {value.dtype}")
        length = len(value) if type(value) is list else value.shape[dim]
        is_plain = slices.shape == (self.count + 1,) and slices.dtype == np.int64
        lengths = np.diff(slices)
        is_plain = is_plain and slices[0] >= 0 and slices[-1] <= length and lengths.min() >= 0
        leave_if(not is_plain, f"the slices of {key} are odd")
        number = 0
        for begins, others in self.bounds:
            if np.array_equal(begins, slices[:-1]) and np.array_equal(others, lengths):
                break
            number += 1
        else:
            self.bounds.append((slices[:-1].copy(), lengths))
        self.parts[key] = _Part(value, dim, number)

    def _find_nodes(self) -> Array:
        if self.counts is not None:
            return np.array(self.counts)
        first = next(filter(_COUNTED.__contains__, self.parts), "")
        is_told = first in _COUNTS and type(self.parts[first].value) is not list
        leave_if(not is_told, "the graphs do not say how many nodes they have")
        return self.bounds[self.parts[first].number][1]

    def _check_cached(self) -> None:
        """Leave datasets whose kept graphs are other tensors than slices of the data."""
        for row, graph in enumerate(self.cached or ()):
            if graph is None:
                continue
            items = vars(vars(graph)["_store"])["_mapping"]
            is_same = list(items) == list(self.parts)
            for key, part in self.parts.items() if is_same else ():
                begin, length = (int(each[row]) for each in self.bounds[part.number])
                value = part.value
                if key == "num_nodes":
                    is_same &= items[key] == self.nodes[row]
                elif type(value) is list:
                    is_same &= items[key] is value[row]
                else:
                    is_same &= mark_of(items[key]) == mark_of(value.narrow(part.dim, begin, length))
            leave_if(not is_same, "the program has changed graphs that the dataset keeps")

    def _copy(self) -> None:
        size = sum(getattr(part.value, "nbytes", 0) for part in self.parts.values())
        leave_if(size > _MOST_BYTES, f"the data have {size:,} bytes, which workers would copy")
        for key, part in self.parts.items():
            made: Any = part.value[:]
            if type(made) is not list:
                leave_if(made.is_shared(), f"{key} lies in memory that workers share")
                made = made.clone()
            self.parts[key] = _Part(made, part.dim, part.number)

    @property
    def form(self) -> str:
        """Return what batches have in common for all data of a structure."""
        kinds = [
            (key, getattr(part.value, "dtype", None), getattr(part.value, "ndim", 0), part.number)
            for key, part in self.parts.items()
        ]
        return repr((kinds, sorted(self.follow), sorted(self.exclude)))

    def is_same(self, dataset: Any, collater: Any, with_lists: bool = False) -> bool:
        """Tell whether PyG would still make the same batches.

        Args: with_lists: compare the contents of lists, too. This takes longer for longer lists.
        """
        is_cached = vars(dataset).get("_data_list") is self.cached
        lists = self.lists if with_lists else []
        is_plain = all(len(a) == len(b) and all(map(operator.is_, a, b)) for a, b in lists)
        try:
            if is_cached and is_plain and _read_state(dataset, collater) == self.state:
                return True
        except NotCoveredError:
            pass
        if is_cached:
            self._keep_seen()
        return False

    def _keep_seen(self) -> None:
        """Let the dataset keep the graphs that were handed out. PyG would have kept them, and goes
        on with their tensors, whatever the dataset's tensors are now."""
        separate = sys.modules["torch_geometric.data.in_memory_dataset"].separate
        for row in np.flatnonzero(self.is_seen).tolist():
            if self.cached[row] is None:
                kept = separate(type(self.data), self.data, row, self.slices, decrement=False)
                self.cached[row] = kept

    def make(self, taken: torch.Tensor) -> Any:
        """Return a ``Batch`` of the graphs with the numbers ``taken``."""
        rows, count = taken.numpy(), len(taken)
        self.is_seen[rows] = True
        made: dict[str, Any] = {}
        sizes: dict[str, Any] = {}
        increments: dict[str, Any] = {}
        batch = copy.copy(self.template)
        fields = vars(vars(batch)["_store"])
        nodes = self.nodes[rows]
        ends = _sums(nodes)
        picked = [(begins[rows], lengths[rows]) for begins, lengths in self.bounds]
        bounds = [_sums(lengths) for _, lengths in picked]
        for key, part in self.parts.items():
            if key in self.exclude:
                continue
            if self.counts is not None and key == "num_nodes":
                made[key], fields["_num_nodes"] = int(ends[-1]), nodes.tolist()
                continue
            (begins, lengths), limits = picked[part.number], bounds[part.number]
            sizes[key], increments[key] = _own(limits), None
            if type(part.value) is list:
                made[key] = [part.value[row] for row in rows]
            else:
                more = ends[:-1] if _is_index(key) else None
                made[key] = part.pick(begins, lengths, int(limits[-1]), more)
                increments[key] = _own(np.zeros(count) if more is None else more)
            if key in self.follow:
                made[f"{key}_batch"], made[f"{key}_ptr"] = _spread(lengths), _own(limits)
        made["batch"], made["ptr"] = _spread(nodes), _own(ends)
        fields.update(_mapping=made, _num_graphs=count, _slice_dict=sizes, _inc_dict=increments)
        return batch.pin_memory() if taken.is_pinned() else batch


def _own(array: Array) -> torch.Tensor:
    """Return a copy with torch's strides, even if the array is empty."""
    made = torch.empty(len(array), dtype=torch.int64)
    made.numpy()[:] = array
    return made


def _sums(lengths: Array) -> Array:
    ends = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=ends[1:])
    return ends


def _spread(lengths: Array) -> torch.Tensor:
    return _own(np.repeat(np.arange(len(lengths)), lengths))


# ---- what is compared


def _read_batch(batch: Any) -> Any:
    """Return a whole batch, in a form that can be compared."""
    rest = {key: value for key, value in vars(batch).items() if key != "_store"}
    store = {key: value for key, value in vars(batch._store).items() if key != "_parent"}
    return type(batch), type(batch._store), rest, dict(sorted(store.items()))


class _Original(Original):
    def compare(self, columns: Columns, rows: list[int], fetcher: Any) -> None:
        self.verification.compare(
            lambda: _read_batch(fetcher.fetch(rows)),
            lambda _: _read_batch(make_batch(columns, rows)),
        )


def _make_graphs(number: int) -> Iterator[Any]:
    """Yield graphs, also empty ones, with attributes of many kinds."""
    package: Any = sys.modules["torch_geometric.data"]
    draws = torch.Generator().manual_seed(number)

    def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randint(0, 9, shape, generator=draws).to(dtype)

    for i in range(7):
        nodes, edges = (int(each) for each in draw(2, dtype=torch.int64))
        graph = package.Data()
        if number % 3 == 0:
            graph.num_nodes = nodes
        if number % 5 == 1:
            graph.node_type = draw(nodes, dtype=torch.int64)
        graph.edge_index = draw(2, edges, dtype=torch.int64)
        if number % 3 != 0:
            graph["pos" if number % 2 else "x"] = draw(nodes, 3)
        graph["x" if number % 2 else "pos"] = draw(nodes, 2, 2, dtype=torch.float64)
        graph.y = draw(1, dtype=(torch.int64, torch.bool, torch.bfloat16)[number % 3])
        graph.edge_attr = draw(edges, dtype=torch.uint8)
        if number % 2:
            graph.name, graph.face = f"graph {i}", draw(3, edges, dtype=torch.int32)
            graph.some_index = draw(i % 3, dtype=torch.int64)
        yield graph


def _find_difference(_: bool) -> str:
    """Return the case in which PyG makes another batch, or ""."""
    dataset_class: Any = sys.modules["torch_geometric.data"].InMemoryDataset
    collater_class: Any = sys.modules["torch_geometric.loader.dataloader"].Collater
    options: Any = (None, None), (["x", "name", "y"], None), (["edge_index"], ["pos", "num_nodes"])
    for number in range(6):
        dataset = dataset_class()
        dataset.data, dataset.slices = dataset_class.collate(list(_make_graphs(number)))
        for names, rows in product(options, ([3], [6, 2, 2, 5, 0])):
            collater = collater_class(dataset, *names)
            expected = _read_batch(collater([dataset[row] for row in rows]))
            made = Graphs(dataset, collater).make(torch.tensor(rows))
            if not same_bits(expected, _read_batch(made)):
                return f"graphs of kind {number} with {names}"
    return ""


@functools.cache
def _find_unknown() -> Verdict:
    """Tell whether fastloop makes the batches of the installed PyG."""
    return judge(["graphs"], Battery("graphs", "graphs", _find_difference, is_for_all=True))


def columns_of_collate(collate_fn: Any, dataset: Any, request: Request) -> Columns:
    """Return the numbers of the graphs that batches are made of. Raises NotCoveredError."""
    collater: Any = sys.modules["torch_geometric.loader.dataloader"].Collater
    name = type(collate_fn).__name__
    is_plain = type(collate_fn) is collater and "__call__" not in vars(collate_fn)
    leave_if(not is_plain, f"fastloop does not make batches of {name}")
    leave_if(request.device is not None, "graphs are not uploaded")
    leave_if(not request.in_blocks(), "the sampler is not torch's")
    _check_class(dataset)
    leave_if(why := _find_unknown().why, why)
    graphs = _kept.get(dataset) if request.workers == 0 else None
    if graphs is None or not graphs.is_same(dataset, collate_fn, with_lists=True):
        graphs = Graphs(dataset, collate_fn, request.workers)
        if request.workers == 0:
            _kept[dataset] = graphs
    verification = verification_of(graphs.form, "batches", "PyG's", 1, False)
    columns = Columns(None, kind="graphs", wrap=graphs.make)
    columns.add("the numbers of graphs", torch.arange(graphs.count))
    if graphs.rows is not None:
        columns.maps = (graphs.rows,)

    def is_same(_batch: Any, _columns: Columns) -> bool:
        return graphs.is_same(dataset, collate_fn)

    columns.original = _Original(verification, collate_fn, None, is_same)
    return columns
