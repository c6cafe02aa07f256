"""How a batch crosses from a worker to its parent: tensors in the slot, the rest pickled.

A tensor that the C collate built lies in the slot already. Of any other tensor the part of its
storage that the batch looks at is copied there, once, so views and aliases inside a batch stay
what they are. What is not a plain CPU tensor goes through torch's own reductions, with their
refusals.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from fastloop import _core

# What the head of a reply is: an object that is no batch; the pickled batch; the same with a
# table of views.
OBJECT, PLAIN, VIEWS = 0, 1, 2

_BYTE = 1 * 256 + 8  # DLPack's uint8
_GRAIN = 16  # copies of storages begin at such multiples, so that all dtypes stay aligned


def is_plain(tensor: torch.Tensor) -> bool:
    return not (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.requires_grad
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_neg()
        or tensor.is_conj()
        or getattr(tensor, "has_names", bool)()  # gone in torch 2.13
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of the storage from the tensor's first to its last element."""
    size, begin = tensor.element_size(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    end = begin + sum((int(length) - 1) * int(stride) for length, stride in steps) + 1
    return begin * size, end * size


class _SharedError(Exception):
    """Tensors that the C collate built share memory: a container of the user's made views."""


class _Packer(ForkingPickler):
    def __init__(self, file: io.BytesIO, port: _core.Port, is_shared: bool = False) -> None:
        super().__init__(file)  # torch's protocol: with 5 read-only arrays stay so
        self._port = port
        self._is_shared = is_shared  # so the place in the slot does not say it all
        self._alive: list[Any] = []  # so that no id is used twice
        self._tensors: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._views: list[tuple[Any, ...]] = []
        self._ranges: list[list[int]] = []  # [address, begin, end]

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is torch.Tensor:
            return self._find(obj) or (self._view(obj) if is_plain(obj) else None)
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            return ("storage", self._storage(obj, 0, obj.nbytes()))
        return None

    def _find(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        if self._is_shared:
            return None
        place = self._port.find(tensor)
        if place is False:
            raise _SharedError
        return place

    def _view(self, tensor: torch.Tensor) -> tuple[str, int]:
        number = self._tensors.get(id(tensor))
        if number is None:
            number = self._tensors[id(tensor)] = len(self._views)
            self._alive.append(tensor)
            storage = self._storage(tensor.untyped_storage(), *_extent(tensor))
            place = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
            self._views.append((storage, tensor.dtype, *place))
        return ("tensor", number)

    def _storage(self, storage: torch.UntypedStorage, begin: int, end: int) -> int:
        number = self._storages.get(storage._cdata)
        if number is None:
            number = self._storages[storage._cdata] = len(self._ranges)
            self._alive.append(storage)
            self._ranges.append([storage.data_ptr(), begin, end])
        elif end > begin:
            known = self._ranges[number]
            is_empty = known[2] == known[1]
            known[1] = begin if is_empty else min(begin, known[1])
            known[2] = max(end, known[2])
        return number

    def table(self) -> tuple[list[tuple[int, int, int]], list[tuple[Any, ...]]]:
        """Copies the storages: (offset, first byte, bytes) of each, and the views of them."""
        places = []
        for address, begin, end in self._ranges:
            begin -= begin % _GRAIN
            places.append((self._port.copy(address + begin, end - begin), begin, end - begin))
        return places, self._views


def pack(port: _core.Port, data: Any) -> tuple[bytes, int]:
    """Puts the tensors of a batch into the slot of the current request.

    Returns:
        the head for ``Port.answer`` and its kind.
    """
    file = io.BytesIO()
    packer = _Packer(file, port)
    try:
        packer.dump(data)
    except _SharedError:
        file = io.BytesIO()
        packer = _Packer(file, port, is_shared=True)
        packer.dump(data)
    if not packer._ranges:
        return file.getvalue(), PLAIN
    return pickle.dumps((packer.table(), file.getvalue()), pickle.HIGHEST_PROTOCOL), VIEWS


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parcel: _core.Parcel, table: Any) -> None:
        super().__init__(file)
        self._parcel = parcel
        self._places, self._views = table
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "storage":
            return self._storage(pid[1])
        if pid[0] == "tensor":
            if pid[1] not in self._tensors:
                self._tensors[pid[1]] = self._view(*self._views[pid[1]])
            return self._tensors[pid[1]]
        return self._parcel.tensor(pid)

    def _storage(self, number: int) -> torch.UntypedStorage:
        if number not in self._storages:
            offset, _, size = self._places[number]
            self._storages[number] = self._parcel.tensor((offset, _BYTE, size)).untyped_storage()
        return self._storages[number]

    def _view(
        self,
        number: int,
        dtype: torch.dtype,
        begin: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> torch.Tensor:
        storage = self._storage(number)
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        begin -= self._places[number][1] // tensor.element_size()
        # A view without elements may lie outside of what was copied of its storage.
        return tensor.set_(storage, max(begin, 0), shape, stride)


def unpack(parcel: _core.Parcel, kind: int) -> Any:
    """The batch in a parcel, as tensors over its memory."""
    head = parcel.open()
    if kind == VIEWS:
        table, head = pickle.loads(head)
        return _Unpacker(io.BytesIO(head), parcel, table).load()
    unpickler = pickle.Unpickler(io.BytesIO(head))
    unpickler.persistent_load = parcel.tensor  # type: ignore[method-assign]
    return unpickler.load()
