"""How a batch crosses from a worker to its parent: tensors in the slot, the rest pickled.

A tensor that the C collate built lies in the slot already. Of any other tensor the part of its
storage that the batch looks at is copied there, once, so views and aliases inside a batch stay
what they are. What is not a plain CPU tensor goes through torch's own reductions, with their
refusals.
"""

from __future__ import annotations

import io
import pickle
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch

from fastloop import _core
from fastloop.base.nested import list_leaves
from fastloop.base.tensors import extent, is_plain

# What the head of a reply is: an object that is no batch; a pickled batch; the same with a table
# of views; a batch of plain containers that WorkerEnd.write has written.
OBJECT, PLAIN, VIEWS, WRITTEN = 0, 1, 2, 3

_BYTE = 1 * 256 + 8  # DLPack's uint8
_NEAR = 64 << 10  # parts of a storage that are nearer to one another are copied as one
_GRAIN = 16  # copies of storages begin at such multiples, so that all dtypes stay aligned

# The parts of each storage: (first byte, offset in the batch, bytes).
_Places = dict[int, list[tuple[int, int, int]]]


Place = tuple[int, ...]  # of a tensor in a batch, as Reply.tensor has it


class TensorTarget(NamedTuple):
    """Where the tensors of a batch are made, if not over the memory of its parcel."""

    make: Callable[[Place], torch.Tensor]
    apart: Callable[[torch.Tensor], torch.Tensor]  # a copy, of one that shares its memory
    is_dense: bool  # of one that has gaps, too
    is_one: bool = True  # a tensor that is there twice stays one


class _SharedError(Exception):
    """Tensors that the C collate built share memory: a container of the user's made views."""


class _Packer(ForkingPickler):
    def __init__(
        self, file: io.BytesIO, worker_end: _core.WorkerEnd, is_shared: bool = False
    ) -> None:
        super().__init__(file)  # torch's protocol: with 5 read-only arrays stay so
        self._worker_end = worker_end
        self._is_shared = is_shared  # so the place in the slot does not say it all
        self._alive: list[Any] = []  # so that no id is used twice
        self._tensors: dict[int, int] = {}
        self._views: list[tuple[Any, ...]] = []
        self._ranges: dict[int, list[tuple[int, int, int]]] = {}  # of storages: begin, end, address
        self.packed: set[int] = set()  # ids of tensors
        self.has_storages = False  # of what is no plain tensor

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor:
            pid = self._find(obj) or self._view(obj)
            if pid is not None:
                self.packed.add(id(obj))
            return pid
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            self.has_storages = True
            return ("storage", self._storage(obj, 0, obj.nbytes()))
        return None

    def _find(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        if self._is_shared:
            return None
        place = self._worker_end.find(tensor)
        if place is False:
            raise _SharedError
        return place

    def _view(self, tensor: torch.Tensor) -> tuple[str, int] | None:
        if tensor.device.type != "cpu" or not is_plain(tensor):
            return None
        number = self._tensors.get(id(tensor))
        if number is None:
            number = self._tensors[id(tensor)] = len(self._views)
            self._alive.append(tensor)
            storage = self._storage(tensor.untyped_storage(), *extent(tensor))
            place = int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()
            self._views.append((storage, tensor.dtype, *place))
        return ("tensor", number)

    def _storage(self, storage: torch.UntypedStorage, begin: int, end: int) -> tuple[int, int]:
        """A storage and the first byte that is looked at."""
        key = storage._cdata
        if key not in self._ranges:
            self._ranges[key] = []
            self._alive.append(storage)
        self._ranges[key].append((begin, end, storage.data_ptr()))
        return key, begin

    def table(self) -> tuple[_Places, list[tuple[Any, ...]]]:
        """Copies what is looked at: the parts of each storage, and the views of them."""
        places = {key: self._copy(ranges) for key, ranges in self._ranges.items()}
        return places, self._views

    def _copy(self, ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """(first byte, offset in the batch, bytes) of parts far enough from one another."""
        parts: list[list[int]] = []
        for begin, end, _ in sorted(ranges):
            if parts and begin <= parts[-1][1] + _NEAR:
                parts[-1][1] = max(end, parts[-1][1])
            else:
                parts.append([begin - begin % _GRAIN, end])
        address = ranges[0][2]
        return [(a, self._worker_end.copy(address + a, b - a), b - a) for a, b in parts]


def _hides_something(data: Any, packed: set[int]) -> bool:
    """Whether more of a batch could go to a device than the packed tensors: what objects hold, or
    containers that this code does not look into."""
    try:
        leaves = [leaf for _, leaf in list_leaves(data)]
        return not packed.issubset(map(id, leaves)) or any(
            callable(getattr(leaf, "to", None)) and id(leaf) not in packed for leaf in leaves
        )
    except Exception:  # a container that cannot be made anew, say, or one in itself
        return True


def pack(
    worker_end: _core.WorkerEnd, data: Any, has_destination: bool = False
) -> tuple[bytes, int, bool]:
    """Puts the tensors of a batch into the slot of the current request.

    Args:
        has_destination: the parent copies the batch elsewhere, to a device say.

    Returns:
        the head for ``WorkerEnd.answer``, its kind, and whether it is not to be copied elsewhere.
    """
    file = io.BytesIO()
    packer = _Packer(file, worker_end)
    try:
        packer.dump(data)
    except _SharedError:
        file = io.BytesIO()
        packer = _Packer(file, worker_end, is_shared=True)
        packer.dump(data)
    host_only = has_destination and (packer.has_storages or _hides_something(data, packer.packed))
    if not packer._ranges:
        return file.getvalue(), PLAIN, host_only
    head = pickle.dumps((packer.table(), file.getvalue()), pickle.HIGHEST_PROTOCOL)
    return head, VIEWS, host_only


class _Unpacker(pickle.Unpickler):
    def __init__(
        self,
        head: bytes,
        parcel: _core.Reply,
        places: _Places,
        views: list[tuple[Any, ...]],
        elsewhere: TensorTarget | None,
    ) -> None:
        super().__init__(io.BytesIO(head))
        self._make = elsewhere.make if elsewhere else parcel.tensor
        self._places, self._views = places, views
        self._elsewhere = elsewhere
        self._uses = Counter(view[0][0] for view in views) if elsewhere else Counter()
        self._parts: dict[tuple[int, int], torch.Tensor] = {}  # of storages, as bytes
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "storage":
            return self._part(*pid[1])[0].untyped_storage()
        if pid[0] == "tensor":
            if pid[1] not in self._tensors:
                self._tensors[pid[1]] = self._view(*self._views[pid[1]])
            elif self._elsewhere is not None and not self._elsewhere.is_one:
                return self._elsewhere.apart(self._tensors[pid[1]])
            return self._tensors[pid[1]]
        return self._make(pid)

    def _part(self, key: int, begin: int) -> tuple[torch.Tensor, int]:
        """The part of a storage that has the byte `begin`, and the part's first byte."""
        parts = self._places[key]
        first, offset, size = parts[bisect_right(parts, (begin, sys.maxsize)) - 1]
        if (key, first) not in self._parts:
            self._parts[key, first] = self._make((offset, _BYTE, size))
        return self._parts[key, first], first

    def _view(
        self,
        storage: tuple[int, int],
        dtype: torch.dtype,
        begin: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> torch.Tensor:
        part, first = self._part(*storage)
        tensor = torch.empty(0, dtype=dtype, device=part.device)
        # A view without elements may lie outside of what was copied of its storage.
        begin = max(begin - first // dtype.itemsize, 0) + part.storage_offset() // dtype.itemsize
        tensor.set_(part.untyped_storage(), begin, shape, stride)
        elsewhere = self._elsewhere
        if elsewhere is None:
            return tensor
        is_shared = self._uses[storage[0]] > 1
        has_gaps = elsewhere.is_dense and not tensor.is_contiguous()
        return elsewhere.apart(tensor) if is_shared or has_gaps else tensor


def unpack(parcel: _core.Reply, elsewhere: TensorTarget | None = None) -> Any:
    """The batch in a parcel, as tensors over its memory or elsewhere."""
    if parcel.kind == WRITTEN:
        return parcel.load(elsewhere.make if elsewhere else None)
    head = parcel.open()
    places: _Places = {}
    views: list[tuple[Any, ...]] = []
    if parcel.kind == VIEWS:
        (places, views), head = pickle.loads(head)
    return _Unpacker(head, parcel, places, views, elsewhere).load()
