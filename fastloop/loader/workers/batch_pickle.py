"""The transfer of tasks and batches between a loader and its workers: tasks are pickled; of a
batch the tensors lie in the slot, and the rest is pickled.

A tensor that fastloop's collate built lies in the slot already. For any other plain CPU tensor, the
part of its storage that the batch shows is copied to the slot once, so views and aliases inside a
batch stay views and aliases. Other objects go through torch's own reductions, including refusals.
"""

from __future__ import annotations

import io
import pickle
import sys
from bisect import bisect_right
from collections import Counter
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch

from fastloop._core import Reply, WorkerEnd
from fastloop.base.nested import list_leaves
from fastloop.base.shown import quote_indices
from fastloop.compat.tensors import BYTE, extent, is_plain
from fastloop.compat.torch_parts import ExceptionWrapper, Resume

if TYPE_CHECKING:
    from fastloop.device.destinations import Destination

# The kinds of a reply: an object that is not a batch; a pickled batch; a batch of plain containers
# that WorkerEnd.write has written.
OBJECT, PICKLED, WRITTEN = 0, 1, 2
NO_STATE = b""  # sent after a batch instead of None, because WorkerEnd.write takes bytes only

# Tasks of an epoch are numbered from 0. If the epoch was read ahead, its first number is that of
# the epoch before plus EPOCH: replies for an epoch that the loop has left may still come.
EPOCH = 1 << 40

_NEAR = 64 << 10  # parts of a storage with a smaller gap between them are copied as one
_GRAIN = 16  # copies of storages begin at multiples of this, so that all dtypes stay aligned


class _SharedError(Exception):
    """Two collated tensors alias each other (a user's container made views); pack by storage."""


class _Packer(ForkingPickler):
    """Pickles a batch and copies the bytes of its tensors into the slot.

    Args:
        is_shared: collated tensors may share memory, which their positions cannot express, so the
            bytes of collated tensors are copied as well.
    """

    def __init__(self, file: io.BytesIO, worker_end: WorkerEnd, is_shared: bool = False) -> None:
        super().__init__(file)  # torch's protocol; with 5, read-only arrays would stay read-only
        self._worker_end = worker_end
        self._is_shared = is_shared
        self._alive: list[Any] = []  # keeps ids from being used again
        self._tensors: dict[int, int] = {}
        self._positions: list[tuple[int, int, tuple[int, ...]]] = []
        self._views: list[tuple[Any, ...]] = []
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}  # by storage: begin, end, address
        self.packed: set[int] = set()  # ids of tensors
        self.has_storages = False  # the batch has bare storages or tensors that are not plain

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor:
            # find() gives the position of a tensor that the collate built, and None for any other.
            position = None if self._is_shared else self._worker_end.find(obj)
            if position is False:
                raise _SharedError
            pid: Any = self._view(obj) if position is None else self._add_position(position)
            if pid is not None:
                self.packed.add(id(obj))
            return pid
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            self.has_storages = True
            return ("storage", self._storage(obj, 0, obj.nbytes()))
        return None

    def _add_position(self, position: tuple[int, int, tuple[int, ...]]) -> int:
        self._positions.append(position)
        return len(self._positions) - 1

    def _view(self, tensor: torch.Tensor) -> tuple[str, int] | None:
        if tensor.device.type != "cpu" or not is_plain(tensor):
            return None
        number = self._tensors.setdefault(id(tensor), len(self._views))
        if number == len(self._views):
            self._alive.append(tensor)
            storage = self._storage(tensor.untyped_storage(), *extent(tensor))
            layout = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
            self._views.append((storage, tensor.dtype, *layout))
        return ("tensor", number)

    def _storage(self, storage: torch.UntypedStorage, begin: int, end: int) -> tuple[int, int]:
        """Note that these bytes of a storage are shown. Return its key and the first byte."""
        self._alive.append(storage)
        key = storage._cdata
        self._ranges.setdefault(key, []).append((begin, end, storage.data_ptr()))
        return key, begin

    def table(self) -> tuple[list[Any], dict[int, Any], list[tuple[Any, ...]]]:
        """Copy the noted bytes. Return the positions of the batch; for each storage the parts that
        were copied, (first byte, number of the position); and the views of these parts."""
        parts = {key: self._copy(ranges) for key, ranges in self._ranges.items()}
        return self._positions, parts, self._views

    def _copy(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        """Copy the noted bytes of one storage, in parts with large gaps between them."""
        parts: list[list[int]] = []
        for begin, end, _ in sorted(ranges):
            if parts and begin <= parts[-1][1] + _NEAR:
                parts[-1][1] = max(end, parts[-1][1])
            else:
                parts.append([begin - begin % _GRAIN, end])
        address = ranges[0][2]
        copied = []
        for first, end in parts:
            offset = self._worker_end.copy(address + first, end - first)
            copied.append((first, self._add_position((offset, BYTE, (end - first,)))))
        return copied


def _hides_something(data: Any, packed: set[int]) -> bool:
    """Tell whether a batch holds tensors for a device beyond the packed ones: inside objects, or in
    containers that this code does not look into."""
    try:
        leaves = [leaf for _, leaf in list_leaves(data)]
        movable = {id(leaf) for leaf in leaves if callable(getattr(leaf, "to", None))}
    except Exception:  # for example, a container that cannot be rebuilt or that contains itself
        return True
    return not packed.issubset(map(id, leaves)) or not movable <= packed


def pack(
    worker_end: WorkerEnd, data: Any, has_destination: bool = False
) -> tuple[bytes, int, bool]:
    """Put the tensors of a batch into the slot of the current request.

    Args:
        has_destination: the parent copies the batch elsewhere, for example to a device.

    Returns:
        The head for ``WorkerEnd.answer``, its kind, and whether the batch must stay in host memory.
    """
    for is_shared in (False, True):
        file = io.BytesIO()
        packer = _Packer(file, worker_end, is_shared)
        with suppress(_SharedError):
            packer.dump(data)
            break
    host_only = has_destination and (packer.has_storages or _hides_something(data, packer.packed))
    head = pickle.dumps((*packer.table(), file.getvalue()), pickle.HIGHEST_PROTOCOL)
    return head, PICKLED, host_only


class _Unpacker(pickle.Unpickler):
    def __init__(self, reply: Reply, destination: Destination | None) -> None:
        positions, self._parts, self._views, data = pickle.loads(reply.open())
        super().__init__(io.BytesIO(data))
        self._tensors = reply.split(positions)
        self._destination = destination
        self._uses = Counter(view[0][0] for view in self._views) if destination else Counter()
        self._viewed: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if type(pid) is int:
            return self._tensors[pid]
        kind, key = pid
        if kind == "storage":
            return self._part(*key)[0].untyped_storage()
        if key not in self._viewed:
            self._viewed[key] = self._view(self._views[key])
        elif self._destination is not None and not self._destination.keep_aliases:
            return self._destination.copy(self._viewed[key])
        return self._viewed[key]

    def _part(self, key: int, begin: int) -> tuple[torch.Tensor, int]:
        """Return the part of a storage that has the byte `begin`, and the part's first byte."""
        parts = self._parts[key]
        first, number = parts[bisect_right(parts, (begin, sys.maxsize)) - 1]
        return self._tensors[number], first

    def _view(self, view: tuple[Any, ...]) -> torch.Tensor:
        storage, dtype, begin, shape, stride = view
        part, first = self._part(*storage)
        tensor = torch.empty(0, dtype=dtype, device=part.device)
        # A view without elements may lie outside the copied parts of its storage.
        begin = max(begin - first // dtype.itemsize, 0) + part.storage_offset() // dtype.itemsize
        tensor.set_(part.untyped_storage(), begin, shape, stride)
        destination = self._destination
        if destination is None:
            return tensor
        is_shared = self._uses[storage[0]] > 1
        has_gaps = destination.force_contiguous and not tensor.is_contiguous()
        return destination.copy(tensor) if is_shared or has_gaps else tensor


def unpack(reply: Reply, destination: Destination | None = None) -> Any:
    """Return the batch of a reply.

    Args:
        destination: the destination of the reply; None: the tensors stay in the shared memory.
    """
    if reply.kind == WRITTEN:
        return reply.load()
    return _Unpacker(reply, destination).load()


# ---- tasks


class Order:
    """A task that asks for no batch: it asks for the dataset's state before the first batch of an
    epoch, or begins a new epoch. For a new epoch a worker process gets torch's own object.

    Args:
        states: the states of the epoch whose first state is wanted; None: begin a new epoch.
        generators: what a worker process does with its random states: "keep" notes them, because
            the epoch is read ahead; "restore" puts them back, because that epoch is dropped.
    """

    def __init__(self, worker: int, states: Any = None, generators: str = "") -> None:
        self.worker, self.states, self.generators = worker, states, generators

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        if self.states is None and not self.generators:
            return Resume, ()
        return Order, (self.worker, self.states and True, self.generators)


class _TaskPickler(pickle.Pickler):
    """Pickles only the elements that a tensor shows, not its storage: samplers yield elements of
    large tensors."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or obj.device.type != "cpu" or not is_plain(obj):
            return NotImplemented
        copy: Any = obj.clone()
        return copy.__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def pickle_task(task: Any) -> bytes:
    indices = task[1] if isinstance(task, tuple) else None
    if type(indices) is list and indices and type(indices[0]) is int:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL)
    file = io.BytesIO()
    _TaskPickler(file, pickle.HIGHEST_PROTOCOL).dump(task)
    return file.getvalue()


def describe_task(task: Any) -> str:
    """Return the part of an error's sentence about the batch that a worker was to make; "" if the
    task is None or an order."""
    if not isinstance(task, tuple):
        return ""
    return f"; it was to make batch {task[0] % EPOCH} (indices {quote_indices(task[1])})"


def add_batch(error: ExceptionWrapper, number: int, indices: Any) -> None:
    """Name the batch in an error that its worker raised."""
    where = f"batch {number % EPOCH} (indices {quote_indices(indices)})"
    error.exc_msg = f"{error.exc_msg.rstrip()}\nThis happened in {where}."
